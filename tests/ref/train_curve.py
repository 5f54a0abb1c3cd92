"""Fifty steps of training in PyTorch, for tests/unit/test_train.c.

Usage: train_curve.py > tests/ref/train_curve.json
Starts from tests/ref/models/curve-sd and curve-gpt2, fresh models of the program:
  sd -e 'save(new{preset="nano", width=24, n_head=2, d_head="8", vocab=64, ctx=32, seed=11}, DIR)'
  sd -e 'save(new{preset="nano", family="gpt2", width=24, n_head=3, d_head="8", vocab=64, ctx=32,
              seed=12}, DIR)'
The tokens come from the generator below, in file order; AdamW, clipping and schedule are torch's
own or written out. f32 on the CPU. Nothing here is shared with the program.
"""
import json
import math
import os

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

STEPS, BATCH, CTX, VOCAB = 50, 4, 32, 64
LR, MIN_LR, WARMUP, DECAY, CLIP = 5e-3, 5e-4, 5, 0.1, 0.5
HERE = os.path.dirname(os.path.abspath(__file__))


def tokens(n):
    """Each token follows from the one before, with slips."""
    s, x, out = 3, 0, []
    for _ in range(n):
        s = (s * 6364136223846793005 + 1442695040888963407) & ((1 << 64) - 1)
        x = (s >> 40) % VOCAB if (s >> 33) % 8 == 0 else (x * 5 + 3) % VOCAB
        out.append(x)
    return torch.tensor(out)


def attend(scores, v):
    n = scores.shape[-1]
    mask = torch.ones(n, n, dtype=torch.bool).triu(1)
    return scores.masked_fill(mask, -math.inf).softmax(-1) @ v


def heads(x, n_head):
    b, t, _ = x.shape
    return x.view(b, t, n_head, -1).transpose(1, 2)


def merge(x):
    b, _, t, _ = x.shape
    return x.transpose(1, 2).reshape(b, t, -1)


def sd_model(p, ids, n_head=2):
    t = ids.shape[1]
    x = math.sqrt(24) * (p["embed.tokens"][ids] + p["embed.positions"][:t])
    for l in range(2):
        w = {k.split(".", 2)[2]: v for k, v in p.items() if k.startswith(f"layers.{l}.")}
        q, k, v = (heads(F.linear(x, w["attn." + n]), n_head) for n in ("wq", "wk", "wv"))
        a = q @ k.transpose(-1, -2)
        s = (a - a.transpose(-1, -2)) / math.sqrt(2 * 8)
        d = F.softplus(F.linear(x, w["attn.wd"], w["attn.bd"])) + 1e-4  # (B, T, H)
        x = x + F.linear(merge(attend(s - torch.diag_embed(d.transpose(1, 2)), v)), w["attn.wo"])
        h = F.gelu(F.linear(x, w["mlp.w1"], w["mlp.b1"]))
        x = x + F.linear(h, w["mlp.w2"], w["mlp.b2"])
    return x @ p["embed.tokens"].T


def gpt2_model(p, ids, n_head=3):
    t = ids.shape[1]
    x = p["wte.weight"][ids] + p["wpe.weight"][:t]

    def norm(x, name):
        return F.layer_norm(x, (24,), p[name + ".weight"], p[name + ".bias"], 1e-5)

    def conv(x, name):
        return x @ p[name + ".weight"] + p[name + ".bias"]

    for l in range(2):
        h = f"h.{l}."
        q, k, v = (heads(y, n_head) for y in conv(norm(x, h + "ln_1"), h + "attn.c_attn").split(24, -1))
        x = x + conv(merge(attend(q @ k.transpose(-1, -2) / math.sqrt(8), v)), h + "attn.c_proj")
        x = x + conv(F.gelu(conv(norm(x, h + "ln_2"), h + "mlp.c_fc")), h + "mlp.c_proj")
    return norm(x, "ln_f") @ p["wte.weight"].T


def schedule(step):
    if step < WARMUP:
        return LR * (step + 1) / WARMUP
    return MIN_LR + 0.5 * (LR - MIN_LR) * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP)))


def curve(name, model):
    p = load_file(f"{HERE}/models/curve-{name}/model.safetensors")
    p = {k: v.clone().requires_grad_() for k, v in p.items()}
    opt = torch.optim.AdamW([{"params": [v for v in p.values() if v.ndim > 1], "weight_decay": DECAY},
                             {"params": [v for v in p.values() if v.ndim == 1], "weight_decay": 0.0}],
                            betas=(0.9, 0.95), eps=1e-8)
    ids = tokens(STEPS * BATCH * CTX + 1)
    losses, norms = [], []
    for step in range(STEPS):
        at = step * BATCH * CTX
        x = ids[at:at + BATCH * CTX].view(BATCH, CTX)
        y = ids[at + 1:at + BATCH * CTX + 1].view(BATCH, CTX)
        for g in opt.param_groups:
            g["lr"] = schedule(step)
        loss = F.cross_entropy(model(p, x).flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(p.values(), CLIP)))
        opt.step()
        losses.append(round(loss.item(), 7))
    return {"loss": losses, "grad_norm": [round(n, 6) for n in norms]}


torch.manual_seed(0)
torch.set_num_threads(1)
print(json.dumps({"sd": curve("sd", sd_model), "gpt2": curve("gpt2", gpt2_model)}, indent=1))
