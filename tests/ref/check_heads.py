"""The program's tables (`sd --json -e …`) against dense NumPy recomputations that share nothing with
it: weights from the raw files (GGUF dequantised by the gguf package), full D×D or N×N matrices.

    check_heads.py BUILD/sd [tiny minilm smollm2 tokens nulls]      (all parts by default)

1. Weight level, every column to 1e-6: all 72 heads of MiniLM and 270 of SmolLM2; norm folding,
   biases, RoPE lags and rope_imag there and on every tiny model of tests/ref/models.
2. Token level on one 512-token text, one call a model: from the program's captured Q and K to 1e-8,
   on MiniLM from the Q and K of transformers to 1e-3; the bundled models on the bundled text.
3. Nulls at both levels against NumPy draws.
"""
import json
import math
import os
import sys
import time

import gguf
import numpy as np
from safetensors import safe_open

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import spectral as ref
from report import ROOT, check, finish, minilm, sd, smollm2

program = os.path.abspath(sys.argv[1])
KEYS = ("fro2 routing filtering dir_frac pr entropy energy stable n90 n95 n99 max_re henrici f_pr f_entropy "
        "f_energy f_stable f_n90 f_n95 f_n99").split()


def quote(s):
    return json.dumps(s)


class Worst:
    """Largest relative difference over a table; a value below `floor` is compared with the floor."""

    def __init__(self, what, tol):
        self.what, self.tol, self.e, self.at, self.rows, self.n = what, tol, 0.0, "", 0, 0

    def value(self, where, got, want, floor=1e-3):
        self.n += 1
        e = math.inf if got is None else abs(got - want) / max(floor, abs(want))
        if not e <= self.e:
            self.e, self.at = e, "%s: program %s, numpy %.12g" % (where, got, want)

    def row(self, row, want, keys=None):
        self.rows += 1
        where = "layer %d head %d " % (row["layer"], row["head"])
        for k in keys or [k for k in want if k not in ("lambda", "planes", "f_lambda")]:
            self.value(where + k, row.get(k), want[k])
        for k in ("planes", "f_lambda"):
            if k in want and row.get(k) is not None:
                a, b = np.sort(np.abs(row[k]))[::-1], np.sort(np.abs(want[k]))[::-1]
                if len(b) < len(a):
                    b = np.append(b, np.zeros(len(a) - len(b)))
                top = max(b.max(initial=0), 1e-300)
                self.value(where + k, np.abs(a - b[:len(a)]).max() / top, 0, 1)
                if len(a) < len(b):
                    self.value(where + k + " left out", b[len(a):].max() / top, 0, 1)
        if "lambda" in want and row.get("lambda_re") is not None:
            got = np.array(row["lambda_re"]) + 1j * np.array(row["lambda_im"])
            lam = np.asarray(want["lambda"])
            gap = np.abs(got[:, None] - lam[None]).min(1).max() / max(np.abs(lam).max(), 1e-300)
            self.value(where + "lambda", gap, 0, 1)

    def close(self, expected_rows):
        ok = self.e <= self.tol and self.rows == expected_rows and self.n > 0
        return check("%s (%d heads)" % (self.what, self.rows), ok,
                     "worst %.1e of %.0e%s" % (self.e, self.tol, "" if ok else "; " + self.at))


# ---- raw weights: layer → W_Q (D, H·d), W_K (D, Hkv·d), biases, norm -------------------------------

class Raw:
    """W_Q, W_K, b_Q, b_K, γ, β of a checkpoint, and its rotation, read without the program."""

    def __init__(self, tensor, cfg):
        self.t, self.c = tensor, cfg
        self.kind = cfg["model_type"]
        get = cfg.get
        self.heads = get("num_attention_heads") or get("n_head")
        self.layers = get("num_hidden_layers") or get("n_layer")
        self.width = get("hidden_size") or get("n_embd")
        self.kv = get("num_key_value_heads") or self.heads
        self.d = get("head_dim") or self.width // self.heads
        self.rms = self.kind in ("llama", "mistral", "qwen2")
        self.theta = None
        if self.rms or self.kind == "gpt_neox":
            r = cfg["rope_parameters"]
            rd = int(self.d * r.get("partial_rotary_factor", 1))
            f = r["rope_theta"] ** (-np.arange(0, rd, 2) / rd)
            if r["rope_type"] == "linear":
                f = f / r["factor"]
            if r["rope_type"] == "llama3":
                wave, old = 2 * np.pi / f, r["original_max_position_embeddings"]
                s = (old / wave - r["low_freq_factor"]) / (r["high_freq_factor"] - r["low_freq_factor"])
                mix = (1 - s) * f / r["factor"] + s * f
                f = np.where(wave < old / r["high_freq_factor"], f,
                             np.where(wave > old / r["low_freq_factor"], f / r["factor"], mix))
            self.theta = f

    def scale(self, layer):
        if self.kind == "gpt2":
            s = self.d ** -0.5 if self.c.get("scale_attn_weights", True) else 1.0
            return s / (layer + 1) if self.c.get("scale_attn_by_inverse_layer_idx") else s
        return self.d ** -0.5

    def layer(self, i):
        t, w = self.t, self.width
        if self.kind == "gpt2":
            q, k, _ = np.split(t("h.%d.attn.c_attn.weight" % i), 3, -1)
            bq, bk, _ = np.split(t("h.%d.attn.c_attn.bias" % i), 3)
            return q, k, bq, bk, t("h.%d.ln_1.weight" % i), t("h.%d.ln_1.bias" % i)
        if self.kind == "bert":
            p = "encoder.layer.%d.attention.self." % i
            n = "embeddings.LayerNorm." if i == 0 else "encoder.layer.%d.output.LayerNorm." % (i - 1)
            return (t(p + "query.weight").T, t(p + "key.weight").T, t(p + "query.bias"), t(p + "key.bias"),
                    t(n + "weight"), t(n + "bias"))
        if self.kind == "gpt_neox":
            p = "layers.%d." % i
            x = t(p + "attention.query_key_value.weight").reshape(self.heads, 3, self.d, w)
            b = t(p + "attention.query_key_value.bias").reshape(self.heads, 3, self.d)
            return (x[:, 0].reshape(-1, w).T, x[:, 1].reshape(-1, w).T, b[:, 0].ravel(), b[:, 1].ravel(),
                    t(p + "input_layernorm.weight"), t(p + "input_layernorm.bias"))
        p = "layers.%d." % i
        return (t(p + "self_attn.q_proj.weight").T, t(p + "self_attn.k_proj.weight").T,
                t(p + "self_attn.q_proj.bias", True), t(p + "self_attn.k_proj.bias", True),
                t(p + "input_layernorm.weight"), None)

    def head(self, layer, h, fold=False):
        """Scaled W_Q, W_K with the bias row last (None: no bias)."""
        q, k, bq, bk, g, b = self.layer(layer)
        d, kv = self.d, h * self.kv // self.heads
        out = []
        for w, bias, at in ((q, bq, h), (k, bk, kv)):
            w = w[:, at * d:(at + 1) * d].astype(float)
            bias = None if bias is None else bias[at * d:(at + 1) * d].astype(float)
            if fold:
                if b is not None:
                    bias = (0 if bias is None else bias) + b.astype(float) @ w
                w = g.astype(float)[:, None] * w
                if not self.rms:
                    w = w - w.mean(0)
            out.append((w, bias))
        (wq, bq), (wk, bk) = out
        c = self.scale(layer)
        return wq * c, wk, None if bq is None else bq * c, bk

    def rotation(self, lag):
        r = np.eye(self.d)
        n = len(self.theta)
        for i, f in enumerate(self.theta):
            c, s = math.cos(lag * f), math.sin(lag * f)
            r[i, i], r[i, i + n], r[i + n, i], r[i + n, i + n] = c, -s, s, c
        return r

    def rope_imag(self, wq, wk):
        re = im = 0
        n = len(self.theta)
        for i in range(n):
            a, c, b, e = wq[:, i], wq[:, i + n], wk[:, i], wk[:, i + n]
            re += np.linalg.norm(np.outer(a, b) + np.outer(c, e))
            im += np.linalg.norm(np.outer(c, b) - np.outer(a, e))
        return im / (re + im)

    def expect(self, layer, h, fold=False, bias=False, lag=0, beside=True):
        wq, wk, bq, bk = self.head(layer, h, fold)
        has = bq is not None and (bq.any() or bk.any())
        with_row = lambda: (np.vstack([wq, bq]), np.vstack([wk, bk]))
        kernel = lambda a, b: ref.dense(a, b) if lag == 0 else self.at_lag(a, b, lag)
        out = kernel(*(with_row() if bias and has else (wq, wk)))
        if has and not bias and beside:
            e = kernel(*with_row())
            out["pr_bias"], out["dir_frac_bias"] = e["pr"], e["dir_frac"]
        if self.theta is not None:
            out["rope_imag"] = self.rope_imag(wq, wk)
        return out

    def at_lag(self, wq, wk, lag):
        plus, minus = wq @ self.rotation(lag) @ wk.T, wq @ self.rotation(-lag) @ wk.T
        s, f = (plus - minus.T) / 2, (plus + minus.T) / 2
        ss, ff, fro2 = (s * s).sum(), (f * f).sum(), (plus * plus).sum()
        sv, fv = (np.linalg.svd(x, compute_uv=False)[:2 * self.d] for x in (s, f))
        lam = np.linalg.eigvals(wk.T @ wq @ self.rotation(lag))
        out = dict(fro2=fro2, routing=ss / (ss + ff), filtering=ff / (ss + ff),
                   dir_frac=math.sqrt(ss / (ss + ff)))
        out.update(ref.ranks(sv))
        out.update({"f_" + a: b for a, b in ref.ranks(fv).items()})
        out["max_re"] = lam.real.max() / np.abs(lam).max()
        out["henrici"] = math.sqrt(max(0, fro2 - (np.abs(lam) ** 2).sum()) / fro2)
        out.update({"planes": sv, "f_lambda": fv, "lambda": lam})
        return out


def from_safetensors(folder):
    f = safe_open(os.path.join(folder, "model.safetensors"), "np")
    names = set(f.keys())

    def tensor(name, optional=False):
        for pre in ("", "transformer.", "bert.", "gpt_neox.", "model."):
            if pre + name in names:
                return f.get_tensor(pre + name)
        if not optional:
            raise KeyError(name)
    return Raw(tensor, json.load(open(os.path.join(folder, "config.json"))))


def from_gguf(path):
    r = gguf.GGUFReader(path)
    tensors = {t.name: t for t in r.tensors}
    field = lambda n: r.fields["llama." + n].contents()
    cfg = dict(model_type="llama", num_attention_heads=field("attention.head_count"),
               num_key_value_heads=field("attention.head_count_kv"), hidden_size=field("embedding_length"),
               num_hidden_layers=field("block_count"),
               rope_parameters=dict(rope_type="default", rope_theta=float(field("rope.freq_base"))))
    cache = {}

    def tensor(name, optional=False):
        if name not in cache:
            _, i, part, kind = name.replace("self_attn.", "").split(".")
            t = tensors.get("blk.%s.%s.%s" % (i, {"q_proj": "attn_q", "k_proj": "attn_k",
                                                  "input_layernorm": "attn_norm"}[part], kind))
            if t is None:
                return None
            a = gguf.dequantize(t.data, t.tensor_type).astype(np.float32)
            if part in ("q_proj", "k_proj"):  # stored with rotary pairs interleaved
                n = cfg["num_attention_heads" if part == "q_proj" else "num_key_value_heads"]
                a = a.reshape(n, a.shape[0] // n // 2, 2, -1).swapaxes(1, 2).reshape(a.shape)
            cache[name] = a
        return cache[name]
    return Raw(tensor, cfg)


def weight_level(name, path, raw, layers=None, into=None, **opts):
    some = None if layers is None else [int(x) for x in layers.split(",")]
    lua = ["draws=1"] + ["layers=%s" % quote(layers)] * (layers is not None)
    lua += ["%s=%s" % (k, str(v).lower()) for k, v in opts.items()]
    what = "%s weights%s" % (name, "".join(", %s=%s" % (k, v) for k, v in opts.items()))
    try:
        rows = sd(program, "return heads(open %s, {%s})" % (quote(path), ", ".join(lua)))
        w = into or Worst(what, 1e-6)
        for row in rows:
            w.row(row, raw.expect(row["layer"], row["head"], **opts))
            if row["status"] != "ok":
                w.value("status", None, 0)
        if not into:
            w.close(raw.heads * (raw.layers if some is None else len(some)))
    except Exception as e:
        check(what, False, repr(e)[:300])


def tiny_models():
    folder = os.path.join(ROOT, "tests", "ref", "models")
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if not all(os.path.exists(os.path.join(path, f)) for f in ("config.json", "reference.safetensors")):
            continue
        raw = from_safetensors(path)
        lags = (0, 3, -2) if raw.theta is not None else (0,)
        w = Worst("%s weights, with fold, bias, lag in every combination" % name, 1e-6)
        for fold in (False, True):
            for bias in (False, True):
                for lag in lags:
                    weight_level(name, path, raw, into=w, fold=fold, bias=bias, lag=lag)
        w.close(4 * len(lags) * raw.layers * raw.heads)


# ---- token level ----------------------------------------------------------------------------------

def captured(path, text, layer, what, ctx):
    x = sd(program, "return capture(open %s, %s, {layer=%d, what=%s, ctx=%d})"
           % (quote(path), text, layer, quote(what), ctx))
    return np.array(x, np.float32)


def probe(name, path, text, heads):
    t = time.time()
    rows = sd(program, "return probe(open %s, %s, {ctx=512, seqs=1})" % (quote(path), text))
    t = time.time() - t
    bad = [k for r in rows for k in KEYS + ["phi", "pr_centred", "logit_sd", "kl_uniform", "eff_ctx",
                                            "pr_null", "pr_pooled"]
           if r.get(k) is None or not math.isfinite(r[k])]
    check("%s: probe of 512 tokens, one call (%d heads)" % (name, len(rows)), len(rows) == heads and not bad,
          "%.1f s%s" % (t, "; without values: " + ", ".join(sorted(set(bad))) if bad else ""))
    layers = sorted({r["layer"] for r in rows})
    med = lambda l, k: float(np.median([r[k] for r in rows if r["layer"] == l]))
    step = max(1, len(layers) // 6)
    for l in layers[::step] + ([layers[-1]] if layers[-1] not in layers[::step] else []):
        print("        layer %2d: median pr %.2f (null %.2f), centred %.2f, phi %.2f, routing %.2f, eff_ctx %.0f"
              % (l, med(l, "pr"), med(l, "pr_null"), med(l, "pr_centred"), med(l, "phi"),
                 med(l, "routing"), med(l, "eff_ctx")))
    low = [l for l in layers if med(l, "pr") <= 3]
    print("        layers with median pr <= 3: %d of %d; heads below their null: %d of %d"
          % (len(low), len(layers), sum(r["pr"] < r["pr_null"] for r in rows), len(rows)), flush=True)
    return {(r["layer"], r["head"]): r for r in rows}


def token_level(name, path, text, rows, layers, scale, causal, kv, ctx=512, sd_kind=False):
    w = Worst("%s tokens, from captured Q and K" % name, 1e-8)
    n = 0
    for l in layers:
        q, k = captured(path, text, l, "q", ctx), captured(path, text, l, "k", ctx)
        d = captured(path, text, l, "d", ctx) if sd_kind else None
        for h in range(q.shape[1]):
            a, b = q[:, h], k[:, h * kv // q.shape[1]]
            if sd_kind:
                want = ref.sd_head(a, b, scale, d[:, h])
            else:
                want = ref.dense(a, b, scale)
            want.update(ref.token_controls(a, b, scale, causal, None if d is None else d[:, h], sd_kind))
            want.pop("lambda", None)
            want.pop("f_lambda", None)
            u = np.hstack([a, b]).astype(float)
            s, d2 = ref.whitened([u]), u.shape[1]
            s = np.where(s <= d2 * 2.0 ** -53 * s[0], 0, s)
            want["pr_pooled"] = ref.ranks(np.repeat(s, 2))["pr"]
            w.row(rows[l, h], want)
            n += 1
    w.close(n)


def against_transformers(folder, ids, rows):
    """MiniLM's queries and keys by transformers: independent of our forward pass."""
    import torch
    import transformers
    transformers.logging.set_verbosity_error()
    m = transformers.BertModel.from_pretrained(folder, attn_implementation="eager").float().eval()
    got = {}
    for l, layer in enumerate(m.encoder.layer):
        for part in ("query", "key"):
            getattr(layer.attention.self, part).register_forward_hook(
                lambda mod, i, o, at=(l, part): got.__setitem__(at, o[0].numpy()))
    with torch.no_grad():
        m(input_ids=torch.tensor([ids]))
    w = Worst("MiniLM tokens, from Q and K of transformers", 1e-3)
    for (l, h), row in rows.items():
        q, k = (got[l, part][:, h * 32:(h + 1) * 32] for part in ("query", "key"))
        want = ref.dense(q, k, 32 ** -0.5)
        want.update(ref.token_controls(q, k, 32 ** -0.5, False))
        keys = [a for a in want if a not in ("lambda", "planes", "f_lambda")]
        smooth = [a for a in keys if not a.lstrip("f_").startswith("n9")]
        w.row(row, {a: b for a, b in want.items() if a in smooth or a == "planes"})
        for a in set(keys) - set(smooth):  # counts may step by one plane at a tie
            w.value(a, 0 if abs(row[a] - want[a]) <= 2 else 1, 0, 1)
    w.close(72)


# ---- nulls ----------------------------------------------------------------------------------------

def agree(what, mean, sd_, draws, sample):
    """Two means of draws, within 4 standard errors of their difference."""
    sample = np.asarray(sample)
    se = math.sqrt(sd_ ** 2 / draws + sample.var(ddof=1) / len(sample))
    z = abs(mean - sample.mean()) / se
    check("null of " + what, z <= 4, "program %.4g, numpy %.4g: %.1f standard errors" % (mean, sample.mean(), z))


def nulls():
    rng = np.random.default_rng(5)
    row = sd(program, "return heads(open %s, {layers='0', draws=200})" % quote(minilm()))[0]
    draws = []
    for _ in range(60):
        r = np.linalg.qr(rng.standard_normal((384, 64)), mode="r")
        m = r[:, :32] @ r[:, 32:].T
        x = ref.ranks(np.linalg.svd((m - m.T) / 2, compute_uv=False), True)
        lam = np.linalg.eigvals(r[:, 32:].T @ r[:, :32])
        x["dir_frac"] = np.linalg.norm(m - m.T) / 2 / np.linalg.norm(m)
        x["max_re"] = lam.real.max() / np.abs(lam).max()
        draws.append(x)
    for k in ("pr", "entropy", "stable", "n90", "dir_frac", "max_re"):
        agree("MiniLM weights, " + k, row[k + "_null"], row[k + "_null_sd"], 200, [x[k] for x in draws])
    path, text = os.path.join(ROOT, "data", "interim-gpt2"), 'text "data/introduction.txt"'
    rows = sd(program, "return probe(open %s, %s, {ctx=256, seqs=1, draws=400, layers='0,5'})" % (quote(path), text))
    for l in (0, 5):
        row = next(r for r in rows if r["layer"] == l)
        x = sd(program, "return capture(open %s, %s, {layer=%d, what='x', ctx=256})" % (quote(path), text, l))
        x = np.array(x)
        draws = []
        for _ in range(200):
            q, k = (x @ rng.standard_normal((256, 64)) for _ in range(2))
            e = ref.dense(q, k)
            e.update(ref.token_controls(q, k, 1e-6, True))
            draws.append(e)
        for k in ("pr", "pr_centred", "dir_frac", "phi"):
            agree("tokens of layer %d, %s" % (l, k), row[k + "_null"], row[k + "_null_sd"], 400,
                  [e[k] for e in draws])


def weights_minilm():
    raw = from_safetensors(minilm())
    for fold in (False, True):
        for bias in (False, True):
            weight_level("MiniLM", minilm(), raw, fold=fold, bias=bias)


def weights_smollm2():
    raw = from_gguf(smollm2())
    weight_level("SmolLM2", smollm2(), raw)
    for opts in (dict(fold=True), dict(lag=1), dict(lag=64, fold=True)):
        weight_level("SmolLM2", smollm2(), raw, layers="0,8,15,22,29", **opts)


def tokens():
    mini, smol = minilm(), smollm2()
    intro = open(os.path.join(ROOT, "data", "introduction.txt"), encoding="utf-8").read()
    from tokenizers import Tokenizer
    tok = Tokenizer.from_file(os.path.join(mini, "tokenizer.json"))
    tok.no_truncation()
    tok.no_padding()
    ids = [101] + tok.encode(intro, add_special_tokens=False).ids[:510] + [102]
    text = "ids{%s}" % ",".join(map(str, ids))
    rows = probe("MiniLM", mini, text, 72)
    token_level("MiniLM", mini, text, rows, range(6), 32 ** -0.5, False, 12)
    against_transformers(mini, ids, rows)
    text = 'text "data/introduction.txt"'
    rows = probe("SmolLM2", smol, text, 270)
    token_level("SmolLM2", smol, text, rows, (0, 15, 29), 0.125, True, 3)
    for name in ("interim-sd", "interim-gpt2"):
        path = os.path.join(ROOT, "data", name)
        got = sd(program, "return probe(open %s, %s, {ctx=256, seqs=1})" % (quote(path), text))
        rows = {(r["layer"], r["head"]): r for r in got}
        s = name == "interim-sd"
        token_level(name, path, text, rows, range(6), 128 ** -0.5 if s else 0.125, True, 4, 256, s)


PARTS = dict(tiny=tiny_models, minilm=weights_minilm, smollm2=weights_smollm2, tokens=tokens, nulls=nulls)
for part in sys.argv[2:] or PARTS:
    try:
        PARTS[part]()
    except Exception as e:
        check(part, False, repr(e)[:300])
finish()
