"""Dense f64 references for tests/unit/test_spectral.c: nothing here uses a reduced problem.

    python tests/ref/spectral.py            writes tests/ref/spectral.json, tests/ref/spectral_models.json

Needs numpy, safetensors, tokenizers. `dense` is also what tests/ref/check_spectral.py runs on the
program's own captured Q and K.
"""
import json
import math
import os

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
U = 2.0 ** -53


def ranks(s, even=False):
    s = np.sort(np.abs(np.asarray(s, float)))[::-1]
    if not s.size or s[0] == 0:
        return dict(pr=0, entropy=0, energy=0, stable=0, n90=0, n95=0, n99=0)
    s = s / s[0]
    e = s * s
    p, w = s[s > 0] / s.sum(), e[e > 0] / e.sum()
    out = dict(pr=e.sum() ** 2 / (e * e).sum(), entropy=math.exp(-(p * np.log(p)).sum()),
               energy=math.exp(-(w * np.log(w)).sum()), stable=e.sum())
    c = np.cumsum(e)
    for share in (90, 95, 99):
        n = int(np.searchsorted(c, share / 100 * c[-1] * (1 - 1e-12))) + 1
        out["n%d" % share] = n + n % 2 if even else n
    return out


def routing_sigma(m, tol):
    s = np.linalg.svd((m - m.T) / 2, compute_uv=False)
    return np.where(s <= tol, 0, s)


def dense(q, k, scale=1.0):
    """Everything about M = scale·Q Kᵀ from the N×N matrix."""
    q = np.asarray(q, float) * scale
    k = np.asarray(k, float)
    n, d = q.shape
    m = q @ k.T
    r, f = (m - m.T) / 2, (m + m.T) / 2
    tol = 2 * d * U * np.linalg.norm(q) * np.linalg.norm(k)
    s = routing_sigma(m, tol)
    fl = np.linalg.eigvalsh(f)
    fl = np.where(np.abs(fl) <= tol, 0, fl)
    lam = np.linalg.eigvals(k.T @ q)
    fro2 = (m * m).sum()
    out = dict(fro2=fro2, routing=(r * r).sum() / fro2, filtering=(f * f).sum() / fro2,
               dir_frac=np.linalg.norm(r) / np.linalg.norm(m))
    out.update(ranks(s, even=True))
    out.update({"f_" + a: b for a, b in ranks(fl).items()})
    out["max_re"] = lam.real.max() / np.abs(lam).max()
    out["henrici"] = math.sqrt(max(0, fro2 - (np.abs(lam) ** 2).sum()) / fro2)
    planes = s[0:2 * min(d, n // 2):2]
    out["planes"] = planes
    out["f_lambda"] = fl
    out["lambda"] = sorted(lam, key=lambda z: (z.real, z.imag))
    return out


def token_controls(q, k, scale, causal, d=None, skew=False):
    """phi, centred rank, and the scores softmax sees; d: the S–D diagonal."""
    q, k = np.asarray(q, float), np.asarray(k, float)
    n = q.shape[0]
    if skew:
        m = scale * (q @ k.T - k @ q.T)
        r = m
    else:
        m = scale * (q @ k.T)
        r = (m - m.T) / 2
    w = r.sum(1) / n
    h = np.eye(n) - 1.0 / n
    c = h @ r @ h
    qc, kc = h @ q, h @ k
    tol = 2 * q.shape[1] * U * np.linalg.norm(qc) * np.linalg.norm(kc) * scale * (2 if skew else 1)
    s = np.linalg.svd(c, compute_uv=False)
    out = dict(phi=2 * n * (w @ w) / (r * r).sum(), pr_centred=ranks(np.where(s <= tol, 0, s))["pr"])
    logits = m.copy()
    if d is not None:
        np.fill_diagonal(logits, -np.asarray(d, float))
    seen = np.tril(np.ones((n, n), bool)) if causal else np.ones((n, n), bool)
    out["logit_sd"] = logits[seen].std()
    z = np.where(seen, logits, -np.inf)
    z = z - z.max(1, keepdims=True)
    p = np.exp(z)
    p /= p.sum(1, keepdims=True)
    ent = -(np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0)).sum(1)
    out["kl_uniform"] = (np.log(seen.sum(1)) - ent).mean()
    out["eff_ctx"] = np.exp(ent).mean()
    return out


def sd_head(q, k, alpha, d):
    """An S–D head: R = S, F = −D over tokens; eigenvalues of L over the first 256 tokens."""
    q, k, d = (np.asarray(x, float) for x in (q, k, d))
    n, dim = q.shape
    s = alpha * (q @ k.T - k @ q.T)
    tol = 2 * dim * U * 2 * alpha * np.linalg.norm(q) * np.linalg.norm(k)
    sig = np.linalg.svd(s, compute_uv=False)
    sig = np.where(sig <= tol, 0, sig)
    rr, ff = (s * s).sum(), (d * d).sum()
    out = dict(fro2=rr + ff, routing=rr / (rr + ff), filtering=ff / (rr + ff),
               dir_frac=math.sqrt(rr / (rr + ff)), d_mean=d.mean(), d_sd=d.std())
    out.update(ranks(sig, even=True))
    out.update({"f_" + a: b for a, b in ranks(d).items()})
    m = min(n, 256)
    l = s[:m, :m] - np.diag(d[:m])
    lam = np.linalg.eigvals(l)
    out["max_re"] = lam.real.max() / np.abs(lam).max()
    fro2 = (l * l).sum()
    out["henrici"] = math.sqrt(max(0, fro2 - (np.abs(lam) ** 2).sum()) / fro2)
    out["planes"] = sig[0:2 * min(dim, n // 2):2]
    return out


def whitened(us):
    """Planes of the pooled rows, from the big A = QKᵀ − KQᵀ itself: σ/N."""
    u = np.concatenate(us)
    n, d = u.shape[0], u.shape[1] // 2
    a = u[:, :d] @ u[:, d:].T
    s = np.linalg.svd(a - a.T, compute_uv=False)[0:2 * d:2] / n
    return s


# ---- independent forward passes of the bundled models ---------------------------------------------

def load(folder):
    from safetensors.numpy import load_file
    return {a: b.astype(np.float64) for a, b in load_file(os.path.join(folder, "model.safetensors")).items()}


def gelu(x):
    from math import erf
    return 0.5 * x * (1 + np.vectorize(erf)(x / math.sqrt(2)))


def softmax_rows(s):
    s = s - s.max(-1, keepdims=True)
    e = np.exp(s)
    return e / e.sum(-1, keepdims=True)


def ln(x, g, b, eps):
    mu = x.mean(-1, keepdims=True)
    return (x - mu) / np.sqrt(x.var(-1, keepdims=True) + eps) * g + b


def run_gpt2(w, ids, heads=4):
    """Yields (x, q, k, None) of every layer's attention, f64."""
    pre = "transformer." if any(a.startswith("transformer.") for a in w) else ""
    g = lambda a: w[pre + a]
    n = len(ids)
    x = g("wte.weight")[ids] + g("wpe.weight")[:n]
    mask = np.tril(np.ones((n, n), bool))
    layer = 0
    while pre + "h.%d.ln_1.weight" % layer in w:
        p = "h.%d." % layer
        a = ln(x, g(p + "ln_1.weight"), g(p + "ln_1.bias"), 1e-5)
        q, k, v = np.split(a @ g(p + "attn.c_attn.weight") + g(p + "attn.c_attn.bias"), 3, -1)
        dm = q.shape[1]
        d = dm // heads
        o = np.zeros_like(q)
        qs = q.reshape(n, heads, d), k.reshape(n, heads, d)
        yield a, qs[0], qs[1], None
        for h in range(heads):
            sl = slice(h * d, (h + 1) * d)
            s = np.where(mask, q[:, sl] @ k[:, sl].T / math.sqrt(d), -np.inf)
            o[:, sl] = softmax_rows(s) @ v[:, sl]
        x = x + o @ g(p + "attn.c_proj.weight") + g(p + "attn.c_proj.bias")
        a = ln(x, g(p + "ln_2.weight"), g(p + "ln_2.bias"), 1e-5)
        x = x + gelu(a @ g(p + "mlp.c_fc.weight") + g(p + "mlp.c_fc.bias")) @ g(p + "mlp.c_proj.weight") + g(
            p + "mlp.c_proj.bias")
        layer += 1


def run_sd(w, ids, heads=4, alpha=1 / math.sqrt(128), embed_scale=16.0):
    """Yields (x, q, k, d) of every layer's attention, f64; no norm anywhere."""
    n = len(ids)
    x = (w["embed.tokens"][ids] + w["embed.positions"][:n]) * embed_scale
    mask = np.tril(np.ones((n, n), bool))
    layer = 0
    while "layers.%d.attn.wq" % layer in w:
        g = lambda a: w["layers.%d.%s" % (layer, a)]
        q, k, v = x @ g("attn.wq").T, x @ g("attn.wk").T, x @ g("attn.wv").T
        dm = q.shape[1]
        hd = dm // heads
        d = np.log1p(np.exp(x @ g("attn.wd").T + g("attn.bd")))
        yield x, q.reshape(n, heads, hd), k.reshape(n, heads, hd), d
        o = np.zeros_like(q)
        for h in range(heads):
            sl = slice(h * hd, (h + 1) * hd)
            l = alpha * (q[:, sl] @ k[:, sl].T - k[:, sl] @ q[:, sl].T)
            np.fill_diagonal(l, -d[:, h])
            o[:, sl] = softmax_rows(np.where(mask, l, -np.inf)) @ v[:, sl]
        x = x + o @ g("attn.wo").T
        x = x + gelu(x @ g("mlp.w1").T + g("mlp.b1")) @ g("mlp.w2").T + g("mlp.b2")
        layer += 1


def weights(w, sd, layer, head, hd=64):
    sl = slice(head * hd, (head + 1) * hd)
    if sd:
        return w["layers.%d.attn.wq" % layer].T[:, sl], w["layers.%d.attn.wk" % layer].T[:, sl]
    q, k, _ = np.split(w["h.%d.attn.c_attn.weight" % layer], 3, -1)
    return q[:, sl], k[:, sl]


def plain(x):
    if isinstance(x, dict):
        return {a: plain(b) for a, b in x.items() if a != "lambda"}
    if isinstance(x, (np.ndarray, list, tuple)):
        return [plain(b) for b in x]
    if isinstance(x, (np.floating, np.integer)):
        return x.item()
    return x


def small_cases():
    rng = np.random.default_rng(7)
    cases = []
    for name, n, d in (("tall", 40, 6), ("short", 9, 6), ("odd", 7, 8), ("one", 1, 3), ("square", 12, 6),
                       ("scales", 30, 5), ("rank1", 20, 4)):
        q, k = rng.standard_normal((n, d)), rng.standard_normal((n, d))
        if name == "scales":  # columns that differ by many orders of magnitude
            q = q * 10.0 ** -np.arange(d)
            k = k * 10.0 ** np.arange(d)
        if name == "rank1":
            q = np.outer(q[:, 0], np.ones(d))
            k = np.outer(k[:, 0], np.ones(d))
        out = dense(q, k)
        if name == "rank1":  # zeros by rounding have no meaningful f_n.. beyond the values themselves
            out.pop("f_lambda")
        lam = out.pop("lambda")
        out["lambda_re"] = [z.real for z in lam]
        out["lambda_im"] = [z.imag for z in lam]
        c = token_controls(q, k, 1.0, True) if n > 2 else {}
        e = token_controls(q, k, 1.0, False) if n > 2 else {}
        out.update({a: c[a] for a in c})
        out.update({"encoder_" + a: e[a] for a in e if a not in ("phi", "pr_centred")})
        cases.append(dict(name=name, n=n, d=d, q=q.ravel(), k=k.ravel(), expect=out))
    return cases


def lag_case():
    """A rotary kernel at a lag, from rotated D×D matrices."""
    rng = np.random.default_rng(8)
    dm, d, rd, theta, lag = 14, 6, 4, 100.0, 3
    out = []
    for style in ("half", "interleaved"):
        wq, wk = rng.standard_normal((dm, d)), rng.standard_normal((dm, d))
        inv = theta ** (-np.arange(rd // 2) * 2 / rd)

        def rot(t):
            m = np.eye(d)
            for i, f in enumerate(inv):
                a, b = (i, i + rd // 2) if style == "half" else (2 * i, 2 * i + 1)
                c, s = math.cos(t * f), math.sin(t * f)
                m[a, a], m[a, b], m[b, a], m[b, b] = c, -s, s, c
            return m

        plus, minus = wq @ rot(lag) @ wk.T, wq @ rot(-lag) @ wk.T
        s, f = (plus - minus.T) / 2, (plus + minus.T) / 2
        ss, ff = (s * s).sum(), (f * f).sum()
        lam = np.linalg.eigvals(wk.T @ wq @ rot(lag))
        sv = np.linalg.svd(s, compute_uv=False)
        re = im = 0
        for i in range(rd // 2):
            ia, ib = (i, i + rd // 2) if style == "half" else (2 * i, 2 * i + 1)
            a, c, b, e = wq[:, ia], wq[:, ib], wk[:, ia], wk[:, ib]
            re += np.linalg.norm(np.outer(a, b) + np.outer(c, e))
            im += np.linalg.norm(np.outer(c, b) - np.outer(a, e))
        x = dict(fro2=(plus * plus).sum(), routing=ss / (ss + ff), filtering=ff / (ss + ff),
                 max_re=lam.real.max() / np.abs(lam).max(), rope_imag=im / (re + im))
        x.update(ranks(sv))
        x.update({"f_" + a: b for a, b in ranks(np.linalg.svd(f, compute_uv=False)).items()})
        x["planes"] = sv[:2 * d]
        out.append(dict(style=style, d_model=dm, d=d, rotary=rd, theta=theta, lag=lag, wq=wq.ravel(),
                        wk=wk.ravel(), expect=x))
    return out


def whitened_case():
    rng = np.random.default_rng(9)
    us = [rng.standard_normal((25, 8)) @ rng.standard_normal((8, 8)) + 1 for _ in range(3)]
    s = whitened(us)
    return dict(d=4, u=np.concatenate(us).ravel(), sigma=s)


def models(n=128):
    """Weight and token level of the bundled models on real text, from an independent f64 forward."""
    from tokenizers import Tokenizer
    text = open(os.path.join(ROOT, "data", "introduction.txt"), encoding="utf-8").read()
    out = {}
    for name in ("interim-sd", "interim-gpt2"):
        folder = os.path.join(ROOT, "data", name)
        sd = name == "interim-sd"
        ids = Tokenizer.from_file(os.path.join(folder, "tokenizer.json")).encode(text[:6000]).ids[:n]
        w = load(folder)
        heads, tokens = [], []
        for layer in (0, 3, 5):
            for head in (0, 2):
                wq, wk = weights(w, sd, layer, head)
                x = dense(wq, wk, 2 / math.sqrt(128) if sd else 1 / 8)
                if sd:
                    x = {a: x[a] for a in ("pr", "entropy", "energy", "stable", "n90", "n95", "n99", "planes")}
                x["planes"] = x["planes"][:8]
                x.pop("f_lambda", None)
                heads.append(dict(layer=layer, head=head, expect=x))
        for layer, (x, q, k, d) in enumerate((run_sd if sd else run_gpt2)(w, ids)):
            for head in range(4):
                if sd:
                    e = sd_head(q[:, head], k[:, head], 1 / math.sqrt(128), d[:, head])
                    e.update(token_controls(q[:, head], k[:, head], 1 / math.sqrt(128), True, d[:, head], True))
                else:
                    e = dense(q[:, head], k[:, head], 1 / 8)
                    e.update(token_controls(q[:, head], k[:, head], 1 / 8, True))
                e["planes"] = e["planes"][:8]
                e.pop("f_lambda", None)
                e["pr_pooled"] = ranks(np.repeat(whitened([np.hstack([q[:, head], k[:, head]])]), 2))["pr"]
                tokens.append(dict(layer=layer, head=head, expect=e))
        out[name] = dict(ids=ids, heads=heads, tokens=tokens)
    return out


def write(name, x):
    with open(os.path.join(HERE, name), "w") as f:
        json.dump(plain(x), f, indent=None, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    write("spectral.json", dict(small=small_cases(), lag=lag_case(), whitened=whitened_case()))
    write("spectral_models.json", models())
