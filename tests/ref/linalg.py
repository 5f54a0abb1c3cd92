"""Reference values of core/num for tests/unit/test_num.c, by NumPy, SciPy and the gguf package.

    python tests/ref/linalg.py            writes tests/ref/linalg.bin and tests/ref/quants.bin
    python tests/ref/linalg.py PROGRAM FILE ...   compares the shell's primitives and dumps of test_num
                                          (see there, SD_TEST_DUMP)

linalg.bin is a run of records, all little-endian: name (8 bytes, zero-padded), m, n, k (u64), then
the f64 numbers of the matrix (m·n, row-major) and of the result (k). quants.bin: type name (8 bytes),
blocks, bytes, elements (u64), the raw bytes, the f32 values.
"""
import os
import struct
import sys

import numpy as np
import scipy.linalg as sl

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from report import check, finish, sd


def record(f, name, a, result):
    a = np.ascontiguousarray(a, dtype=np.float64)
    r = np.ascontiguousarray(result, dtype=np.float64).ravel()
    f.write(name.encode().ljust(8, b"\0") + struct.pack("<3Q", *a.shape, r.size))
    f.write(a.tobytes() + r.tobytes())


def sorted_eig(a):
    w = sl.eigvals(a)
    w = w[np.lexsort((w.imag, w.real))]
    return np.stack([w.real, w.imag])


def skew_sigma(b):
    return np.sort(np.abs(np.linalg.eigvalsh(1j * b)))[::-1][: len(b) // 2 * 2 : 2]


def linalg():
    r = np.random.default_rng(7)
    with open("tests/ref/linalg.bin", "wb") as f:
        for n in (2, 3, 9, 16, 24):
            g = r.standard_normal((n, n))
            record(f, "skew", g - g.T, skew_sigma(g - g.T))
            record(f, "eigh", g + g.T, np.linalg.eigvalsh(g + g.T))
            record(f, "eig", g, sorted_eig(g))
        low = r.standard_normal((20, 3))
        low = low @ r.standard_normal((3, 20))
        record(f, "skew", low - low.T, skew_sigma(low - low.T))
        for m, n in ((5, 5), (14, 9), (9, 14), (40, 12), (1, 7), (7, 1)):
            g = r.standard_normal((m, n)) * 10.0 ** r.uniform(-3, 3, n)
            record(f, "svd", g, np.linalg.svd(g, compute_uv=False))
            record(f, "qr", g, np.abs(np.linalg.qr(g)[1]))


def quants():
    import gguf
    from gguf.quants import dequantize

    r = np.random.default_rng(11)
    kinds = "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q4_K Q5_K Q6_K".split()
    halves = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
              "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
    with open("tests/ref/quants.bin", "wb") as f:
        for k in kinds:
            t = gguf.GGMLQuantizationType[k]
            block, size = gguf.GGML_QUANT_SIZES[t]
            raw = r.integers(0, 256, (3, size), dtype=np.uint8)
            for b in range(3):  # every block its own scale (and minimum), signs mixed
                for i, at in enumerate(halves[k]):
                    h = np.float16((0.013 * 3**b + 0.002 * i) * (-1) ** (b + i))
                    raw[b, at : at + 2] = np.frombuffer(h.tobytes(), np.uint8)
            x = dequantize(raw.reshape(-1), t).astype(np.float32).ravel()
            assert x.size == 3 * block
            f.write(k.encode().ljust(8, b"\0") + struct.pack("<3Q", 3, raw.size, x.size))
            f.write(raw.tobytes() + x.tobytes())


def compare(path):
    """Every record of a dump by test_num to 1e-12 of the largest value."""
    with open(path, "rb") as f:
        while head := f.read(32):
            name = head[:8].rstrip(b"\0").decode()
            m, n, k = struct.unpack("<3Q", head[8:])
            a = np.frombuffer(f.read(8 * m * n)).reshape(m, n)
            got = np.frombuffer(f.read(8 * k))
            if name == "skew":  # two references: SVD and the Hermitian iB
                refs = {"SVD": np.linalg.svd(a, compute_uv=False)[::2], "Hermitian": skew_sigma(a)}
            elif name == "eigh":
                refs = {"eigvalsh": np.linalg.eigvalsh(a)}
            elif name == "eig":
                w, z = sorted_eig(a), got.reshape(2, -1)
                w, z = w[0] + 1j * w[1], z[0] + 1j * z[1]
                pairs = np.abs(w[:, None] - z[None, :])
                e = max(pairs.min(1).max(), pairs.min(0).max()) / np.abs(w).max()
                check(f"{name} {m}x{n}", e <= 1e-12, f"{e:.1e} of the largest")
                continue
            else:
                refs = {"SVD": np.linalg.svd(a, compute_uv=False)}
            for what, want in refs.items():
                e = np.abs(got - want).max() / np.abs(want).max()
                check(f"{name} {m}x{n} against {what}", e <= 1e-12, f"{e:.1e} of the largest")


def primitives(program):
    """The shell's qr, eigh, eig, svd, skew and matmul on matrices it drew itself, through --json."""
    for m, n in ((60, 60), (90, 40), (1, 1), (2, 2)):
        code = (f"a = randn({m}, {n}, {{seed=3}}); s = a:T():matmul(a); k = s * 0; b = randn({n}, {n}, {{seed=4}}); "
                "k = b - b:T(); q, r = qr(a); w = eigh(s, {vectors=false}); re, im = eig(b); "
                "z = svd(a, {vectors=false}); p = skew(k, {vectors=false}); return {a=a:totable(), b=b:totable(), "
                "s=s:totable(), q=q:totable(), r=r:totable(), w=w:totable(), re=re:totable(), im=im:totable(), "
                "z=z:totable(), p=p:totable()}")
        x = {k: np.array(v, float) for k, v in sd(program, code).items()}
        a, b = x["a"], x["b"]
        lam, got = np.linalg.eigvals(b), x["re"] + 1j * x["im"]
        errors = {
            "matmul": np.abs(x["s"] - a.T @ a).max() / np.abs(x["s"]).max(),
            "qr": max(np.abs(x["q"] @ x["r"] - a).max() / np.abs(a).max(),
                      np.abs(x["q"].T @ x["q"] - np.eye(x["q"].shape[1])).max()),
            "eigh": np.abs(x["w"] - np.linalg.eigvalsh(a.T @ a)).max() / np.abs(x["w"]).max(),
            "eig": np.abs(lam[:, None] - got[None]).min(1).max() / np.abs(lam).max(),
            "svd": np.abs(x["z"] - np.linalg.svd(a, compute_uv=False)).max() / x["z"].max()}
        if n > 1:
            errors["skew"] = np.abs(x["p"] - skew_sigma(b - b.T)).max() / x["p"].max()
        for k, e in errors.items():
            check(f"shell: {k} {m}x{n}", e <= 1e-12, f"{e:.1e} of the largest")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        primitives(sys.argv[1])
        for p in sys.argv[2:]:
            compare(p)
        finish()
    else:
        linalg()
        quants()
