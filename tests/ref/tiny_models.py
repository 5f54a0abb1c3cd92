#!/usr/bin/env python3
"""Makes tests/ref/models: tiny random checkpoints of every family and option, with what
`transformers` (f32, eager attention) computes from them.

    python3 tests/ref/tiny_models.py            # needs torch, transformers, safetensors, gguf

Each folder holds config.json and model.safetensors as transformers writes them (GGUF: model.gguf,
written with the gguf package, Q and K rows permuted as llama.cpp's converter does), and
reference.safetensors: ids (2, 12) I32, types (2, 12) I32 for BERT, hidden (2, 12, D) after the last
block and final norm, logits (2, 12, V) when the model has a head.
Weights are drawn wide (sd 0.25), so that every option shows in the logits."""
import json
import os
import shutil
import sys

import numpy as np
import torch
from safetensors.torch import save_file
import transformers as tf

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "models")
V, D, L, H, T, P = 48, 16, 2, 2, 12, 24


def fill(model, seed):
    g = torch.Generator().manual_seed(seed)
    done = set()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.data_ptr() in done:
                continue
            done.add(p.data_ptr())
            r = torch.randn(p.shape, generator=g) * 0.25
            one = p.ndim == 1 and "weight" in name  # norms
            p.copy_(r + 1 if one else r)


def reference(model, folder, bert=False):
    g = torch.Generator().manual_seed(99)
    ids = torch.randint(0, V, (2, T), generator=g)
    out = {"ids": ids.int()}
    kw = {}
    if bert:
        types = torch.zeros(2, T, dtype=torch.long)
        types[:, T // 2:] = 1
        out["types"] = types.int()
        kw["token_type_ids"] = types
    with torch.no_grad():
        body = model.base_model(input_ids=ids, **kw)
        out["hidden"] = body.last_hidden_state.float().contiguous()
        if getattr(model, "get_output_embeddings", lambda: None)() is not None:
            out["logits"] = model(input_ids=ids, **kw).logits.float().contiguous()
    save_file(out, os.path.join(folder, "reference.safetensors"))


def make(name, cls, cfg, seed, bert=False):
    folder = os.path.join(HERE, name)
    shutil.rmtree(folder, ignore_errors=True)
    cfg._attn_implementation = "eager"
    model = cls(cfg).float().eval()
    fill(model, seed)
    model.tie_weights()
    model.save_pretrained(folder)
    for extra in os.listdir(folder):
        if extra not in ("config.json", "model.safetensors"):
            os.remove(os.path.join(folder, extra))
    reference(model, folder, bert)
    return model


def gguf_llama(name, model, cfg):
    """As llama.cpp's convert_hf_to_gguf.py lays a llama out: names, permutation, rope factors."""
    import gguf

    folder = os.path.join(HERE, name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    hd, nh, nkv = cfg.head_dim, cfg.num_attention_heads, cfg.num_key_value_heads
    w = gguf.GGUFWriter(os.path.join(folder, "model.gguf"), "llama")
    w.add_block_count(cfg.num_hidden_layers)
    w.add_context_length(cfg.max_position_embeddings)
    w.add_embedding_length(cfg.hidden_size)
    w.add_feed_forward_length(cfg.intermediate_size)
    w.add_head_count(nh)
    w.add_head_count_kv(nkv)
    w.add_key_length(hd)
    w.add_value_length(hd)
    w.add_layer_norm_rms_eps(cfg.rms_norm_eps)
    w.add_rope_freq_base(cfg.rope_parameters["rope_theta"])
    w.add_rope_dimension_count(hd)

    def permute(a, n):
        return (a.reshape(n, 2, a.shape[0] // n // 2, *a.shape[1:]).swapaxes(1, 2)
                .reshape(a.shape))

    if cfg.rope_parameters["rope_type"] == "llama3":
        # factors by which llama.cpp divides the frequencies
        r = cfg.rope_parameters
        f = r["rope_theta"] ** (-np.arange(0, hd, 2) / hd)
        wave = 2 * np.pi / f
        lo = r["original_max_position_embeddings"] / r["low_freq_factor"]
        hi = r["original_max_position_embeddings"] / r["high_freq_factor"]
        smooth = ((r["original_max_position_embeddings"] / wave - r["low_freq_factor"])
                  / (r["high_freq_factor"] - r["low_freq_factor"]))
        mid = 1 / ((1 - smooth) / r["factor"] + smooth)
        fac = np.where(wave > lo, r["factor"], np.where(wave < hi, 1.0, mid))
        w.add_tensor("rope_freqs.weight", fac.astype(np.float32))
    parts = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q",
             "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
             "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
             "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    for key, t in model.state_dict().items():
        a = t.numpy().astype(np.float32)
        base, kind = key.rsplit(".", 1)
        if base == "lm_head":
            if not cfg.tie_word_embeddings:
                w.add_tensor("output.weight", a)
            continue
        if base == "model.embed_tokens":
            w.add_tensor("token_embd.weight", a)
            continue
        if base == "model.norm":
            w.add_tensor("output_norm.weight", a)
            continue
        _, _, layer, rest = base.split(".", 3)
        if rest == "self_attn.q_proj":
            a = permute(a, nh)
        if rest == "self_attn.k_proj":
            a = permute(a, nkv)
        w.add_tensor(f"blk.{layer}.{parts[rest]}.{kind}", np.ascontiguousarray(a))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    reference(model, folder)


def main():
    os.makedirs(HERE, exist_ok=True)
    g2 = dict(vocab_size=V, n_positions=P, n_embd=D, n_layer=L, n_head=H, bos_token_id=0,
              eos_token_id=0)
    make("gpt2", tf.GPT2LMHeadModel, tf.GPT2Config(**g2), 1)
    make("gpt2-unscaled", tf.GPT2LMHeadModel,
         tf.GPT2Config(**g2, scale_attn_weights=False, activation_function="gelu", n_inner=24,
                       layer_norm_epsilon=1e-3), 2)
    make("gpt2-bylayer", tf.GPT2LMHeadModel,
         tf.GPT2Config(**g2, scale_attn_by_inverse_layer_idx=True), 3)
    make("gpt2-untied", tf.GPT2LMHeadModel, tf.GPT2Config(**g2, tie_word_embeddings=False), 4)

    be = dict(vocab_size=V, max_position_embeddings=P, hidden_size=D, num_hidden_layers=L,
              num_attention_heads=H, intermediate_size=32)
    make("bert", tf.BertModel, tf.BertConfig(**be), 5, bert=True)
    make("bert-mlm", tf.BertForMaskedLM, tf.BertConfig(**be), 6, bert=True)

    nx = dict(vocab_size=V, max_position_embeddings=P, hidden_size=D, num_hidden_layers=L,
              num_attention_heads=H, intermediate_size=32)
    rp = dict(rope_type="default", rope_theta=10000.0)
    make("neox", tf.GPTNeoXForCausalLM,
         tf.GPTNeoXConfig(**nx, rope_parameters=dict(rp, partial_rotary_factor=0.25)), 7)
    make("neox-serial", tf.GPTNeoXForCausalLM,
         tf.GPTNeoXConfig(**nx, use_parallel_residual=False,
                          rope_parameters=dict(rp, partial_rotary_factor=1.0)), 8)

    ll = dict(vocab_size=V, max_position_embeddings=P, hidden_size=D, num_hidden_layers=L,
              num_attention_heads=4, intermediate_size=24)
    make("llama", tf.LlamaForCausalLM, tf.LlamaConfig(**ll, num_key_value_heads=4), 9)
    gqa = tf.LlamaConfig(**ll, num_key_value_heads=2, head_dim=6, tie_word_embeddings=True)
    make("llama-gqa", tf.LlamaForCausalLM, gqa, 10)
    make("llama-bias", tf.LlamaForCausalLM,
         tf.LlamaConfig(**ll, num_key_value_heads=2, attention_bias=True), 11)
    l3 = tf.LlamaConfig(**ll, num_key_value_heads=1, head_dim=8,
                        rope_parameters=dict(rope_type="llama3", rope_theta=100.0, factor=8.0,
                                             low_freq_factor=1.0, high_freq_factor=4.0,
                                             original_max_position_embeddings=24))
    m3 = make("llama-llama3", tf.LlamaForCausalLM, l3, 12)
    make("llama-linear", tf.LlamaForCausalLM,
         tf.LlamaConfig(**ll, num_key_value_heads=2,
                        rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0)),
         13)
    make("mistral", tf.MistralForCausalLM,
         tf.MistralConfig(**ll, num_key_value_heads=2, head_dim=4, sliding_window=16), 14)
    make("qwen2", tf.Qwen2ForCausalLM,
         tf.Qwen2Config(**ll, num_key_value_heads=2, tie_word_embeddings=True), 15)

    make("mistral-window", tf.MistralForCausalLM,
         tf.MistralConfig(**ll, num_key_value_heads=2, head_dim=4, sliding_window=5), 17)
    make("qwen2-window", tf.Qwen2ForCausalLM,
         tf.Qwen2Config(**ll, num_key_value_heads=2, tie_word_embeddings=True,
                        use_sliding_window=True, sliding_window=3, max_window_layers=1), 18)

    g10 = tf.LlamaConfig(**ll, num_key_value_heads=2, head_dim=4)
    m = make("llama-g10", tf.LlamaForCausalLM, g10, 16)
    gguf_llama("llama-g10-gguf", m, g10)
    gguf_llama("llama-llama3-gguf", m3, l3)

    total = sum(os.path.getsize(os.path.join(d, f)) for d, _, fs in os.walk(HERE) for f in fs)
    print(f"{len(os.listdir(HERE))} models, {total} bytes, transformers {tf.__version__}")
    return 0 if total < 2_000_000 else 1


if __name__ == "__main__":
    sys.exit(main())
