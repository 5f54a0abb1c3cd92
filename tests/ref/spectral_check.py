"""Checks the program's tables against dense NumPy: token level from its own captured q, k, d (1e-8
relative), weight level from the raw file (1e-6), for the bundled models, through the library
(tools/spectral_dump.c). Real checkpoints and every option: check_heads.py.

    python tests/ref/spectral_check.py BUILD/tools/spectral_dump
"""
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import spectral as ref
from report import check, finish

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


def main():
    tool = os.path.abspath(sys.argv[1])
    ids = json.load(open(os.path.join(ROOT, "tests", "ref", "spectral_models.json")))
    for name in ("interim-sd", "interim-gpt2"):
        model = os.path.join(ROOT, "data", name)
        for level, run in (("tokens", lambda: tokens(tool, name, model, ids[name]["ids"], "all")),
                           ("weights", lambda: weights(tool, name, model, bundled(name)))):
            try:
                heads = run()
            except (Exception, SystemExit) as e:
                check("%s %s" % (name, level), False, str(e))
                continue
            column, e = max(((b, v) for (a, b), v in worst.items() if a == "%s %s" % (name, level)),
                            key=lambda x: x[1])
            check("%s %s (%d heads)" % (name, level, heads), heads == 24,
                  "worst relative difference %.1e (%s)" % (e, column))


main()
finish()
