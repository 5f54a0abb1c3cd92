"""Reference losses and gradients from PyTorch autograd for tests/unit/test_net.c.

Usage: grads.py > tests/ref/grads.txt
The parameters are made by the same generator in both programs (net_help.h), so only results are
stored: the mean loss and, per parameter slice, the norm of the gradient and four of its entries.
PyTorch computes in f64; the program is compared in f32. Nothing here is shared with the program:
attention is written out with N×N matrices.
"""
import math
import sys

import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
M64 = (1 << 64) - 1


class Gen:
    def __init__(self, seed):
        self.s = seed

    def __call__(self):
        self.s = (self.s + 0x9E3779B97F4A7C15) & M64
        z = self.s
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & M64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & M64
        z ^= z >> 31
        return (z >> 11) / 4503599627370496.0 - 1.0


def ids(n, below, seed):
    g = Gen(seed)
    return [min(int((g() + 1) / 2 * below), below - 1) for _ in range(n)]


BASE = dict(L=2, D=12, ff=20, V=17, P=160, norm=None, eps=1e-5, block="pre", act="gelu", gated=False,
            pos="learned", tied=True, qkv_bias=False, out_bias=False, mlp_bias=True, scale_e=1.5,
            final=False, causal=True, types=0, embed_norm=False, mlm=False, floor=1e-4, H=2, Hkv=2,
            dqk=4, dv=6, kind="softmax", rope=0, T=7, B=2, holes=False)
CASES = {
    "softmax": dict(),
    "gpt2": dict(norm="layer", final=True, qkv_bias=True, out_bias=True, act="gelu_tanh", scale_e=1.0,
                 T=70, B=1),
    "sd": dict(kind="sd"),
    "sd_norm": dict(kind="sd", norm="layer", final=True, T=67, B=1, holes=True),
    "elu1": dict(kind="elu1", T=66, B=1),
    "llama": dict(norm="rms", final=True, gated=True, act="silu", pos="rope", rope=4, H=4, Hkv=2,
                  tied=False, mlp_bias=False, scale_e=1.0),
    "neox": dict(norm="layer", final=True, block="parallel", pos="rope", rope=2, qkv_bias=True,
                 out_bias=True, tied=False, scale_e=1.0),
    "bert": dict(norm="layer", block="post", causal=False, types=2, embed_norm=True, mlm=True,
                 qkv_bias=True, out_bias=True, scale_e=1.0, holes=True),
}


def slices(c):
    D, ff, V, H, Hkv, dqk, dv = (c[k] for k in ("D", "ff", "V", "H", "Hkv", "dqk", "dv"))
    nb = c["norm"] == "layer"
    out = [("tok", (V, D))]
    if c["pos"] == "learned":
        out.append(("pos", (c["P"], D)))
    if c["types"]:
        out.append(("type", (c["types"], D)))

    def norm(name, on=True):
        if c["norm"] and on:
            out.append((name + "_g", (D,)))
            if nb:
                out.append((name + "_b", (D,)))

    norm("embed_norm", c["embed_norm"])
    norm("final_norm", c["final"])
    if c["mlm"]:
        out += [("mlm_w", (D, D)), ("mlm_b", (D,)), ("mlm_norm_g", (D,)), ("mlm_norm_b", (D,))]
    if not c["tied"]:
        out.append(("head", (D, V)))
    if c["mlm"]:
        out.append(("head_b", (V,)))
    for l in range(c["L"]):
        p = f"layer {l} "
        norm(p + "norm1")
        for x, n in (("q", H * dqk), ("k", Hkv * dqk), ("v", Hkv * dv)):
            out.append((p + "w" + x, (D, n)))
            if c["qkv_bias"]:
                out.append((p + "b" + x, (n,)))
        out.append((p + "wo", (H * dv, D)))
        if c["out_bias"]:
            out.append((p + "bo", (D,)))
        if c["kind"] == "sd":
            out += [(p + "wd", (D, H)), (p + "bd", (H,))]
        norm(p + "norm2")
        out.append((p + "w1", (D, ff)))
        if c["mlp_bias"]:
            out.append((p + "b1", (ff,)))
        if c["gated"]:
            out.append((p + "w3", (D, ff)))
        out.append((p + "w2", (ff, D)))
        if c["mlp_bias"]:
            out.append((p + "b2", (D,)))
    return out


def run(c):
    g, P = Gen(11), {}
    for name, shape in slices(c):
        n = math.prod(shape)
        gain = 1.0 if name.endswith("_g") else 0.0
        # the program's parameters are f32
        v = torch.tensor([0.5 * g() + gain for _ in range(n)]).float().double()
        P[name] = v.reshape(shape).requires_grad_()
    B, T, D = c["B"], c["T"], c["D"]
    tok = torch.tensor(ids(B * T, c["V"], 3)).view(B, T)
    tgt = torch.tensor(ids(B * T, c["V"], 4))
    if c["holes"]:
        tgt[::3] = -1

    def norm(x, name):
        if not c["norm"]:
            return x
        if c["norm"] == "layer":
            x = x - x.mean(-1, keepdim=True)
        x = x / torch.sqrt((x * x).mean(-1, keepdim=True) + c["eps"]) * P[name + "_g"]
        return x + P[name + "_b"] if name + "_b" in P else x

    act = {"gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu}[c["act"]]

    def rope(x):
        if c["pos"] != "rope":
            return x
        r = c["rope"]
        f = 10000.0 ** (-torch.arange(0, r, 2) / r)
        a = torch.outer(torch.arange(T), f)
        co, si, u, w = a.cos(), a.sin(), x[..., : r // 2], x[..., r // 2 : r]
        return torch.cat([u * co - w * si, w * co + u * si, x[..., r:]], -1)

    def attn(x, p):
        H, Hkv, dqk, dv = c["H"], c["Hkv"], c["dqk"], c["dv"]

        def proj(n, h, d):
            y = x @ P[p + "w" + n]
            y = y + P[p + "b" + n] if p + "b" + n in P else y
            return y.view(B, T, h, d).transpose(1, 2)

        q, k, v = rope(proj("q", H, dqk)), rope(proj("k", Hkv, dqk)), proj("v", Hkv, dv)
        k, v = (t.repeat_interleave(H // Hkv, 1) for t in (k, v))
        low = torch.ones(T, T).tril().bool() if c["causal"] else torch.ones(T, T).bool()
        if c["kind"] == "elu1":
            w = ((F.elu(q) + 1) @ (F.elu(k) + 1).transpose(-1, -2)) * low
            w = w / w.sum(-1, keepdim=True)
        else:
            s = q @ k.transpose(-1, -2)
            if c["kind"] == "sd":
                s = (s - s.transpose(-1, -2)) * 0.35355
                d = F.softplus(x @ P[p + "wd"] + P[p + "bd"]).transpose(1, 2) + c["floor"]
                s = s - torch.diag_embed(d)
            else:
                s = s * 0.5
            w = torch.softmax(s.masked_fill(~low, -math.inf), -1)
        o = (w @ v).transpose(1, 2).reshape(B, T, H * dv) @ P[p + "wo"]
        return o + P[p + "bo"] if p + "bo" in P else o

    def mlp(x, p):
        h = x @ P[p + "w1"]
        h = act(h + P[p + "b1"] if p + "b1" in P else h)
        if c["gated"]:
            h = h * (x @ P[p + "w3"])
        y = h @ P[p + "w2"]
        return y + P[p + "b2"] if p + "b2" in P else y

    x = P["tok"][tok]
    if "pos" in P:
        x = x + P["pos"][:T]
    x = c["scale_e"] * x
    if "type" in P:
        x = x + P["type"][torch.tensor(ids(B * T, 2, 5)).view(B, T)]
    if c["embed_norm"]:
        x = norm(x, "embed_norm")
    for l in range(c["L"]):
        p = f"layer {l} "
        if c["block"] == "pre":
            x = x + attn(norm(x, p + "norm1"), p)
            x = x + mlp(norm(x, p + "norm2"), p)
        elif c["block"] == "post":
            x = norm(x + attn(x, p), p + "norm1")
            x = norm(x + mlp(x, p), p + "norm2")
        else:
            x = x + attn(norm(x, p + "norm1"), p) + mlp(norm(x, p + "norm2"), p)
    if c["final"]:
        x = norm(x, "final_norm")
    if c["mlm"]:
        x = norm(act(x @ P["mlm_w"] + P["mlm_b"]), "mlm_norm")
    z = x @ (P["tok"].T if c["tied"] else P["head"])
    if c["mlm"]:
        z = z + P["head_b"]
    loss = F.cross_entropy(z.reshape(-1, c["V"]), tgt, ignore_index=-1)
    loss.backward()
    return loss, P


for name, change in CASES.items():
    loss, P = run({**BASE, **change})
    print(f"case {name} loss {loss.item():.9g} slices {len(P)}")
    for n, t in P.items():
        f = (torch.zeros_like(t) if t.grad is None else t.grad).flatten()
        at = [0, f.numel() // 3, f.numel() // 2, f.numel() - 1]
        print(n.replace(" ", "."), f"{f.norm().item():.8g}", *(f"{f[i].item():.8g}" for i in at))
sys.stdout.flush()
