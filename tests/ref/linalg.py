"""Reference values of core/num for tests/unit/test_num.c, by NumPy, SciPy and the gguf package.

    python tests/ref/linalg.py            writes tests/ref/linalg.bin and tests/ref/quants.bin
    python tests/ref/linalg.py FILE ...   compares dumps of test_num (see there, SD_TEST_DUMP)

linalg.bin is a run of records, all little-endian: name (8 bytes, zero-padded), m, n, k (u64), then
the f64 numbers of the matrix (m·n, row-major) and of the result (k). quants.bin: type name (8 bytes),
blocks, bytes, elements (u64), the raw bytes, the f32 values.
"""
import struct
import sys

import numpy as np
import scipy.linalg as sl


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
    with open(path, "rb") as f:
        while head := f.read(32):
            name = head[:8].rstrip(b"\0").decode()
            m, n, k = struct.unpack("<3Q", head[8:])
            a = np.frombuffer(f.read(8 * m * n)).reshape(m, n)
            got = np.frombuffer(f.read(8 * k))
            if name == "skew":
                want = skew_sigma(a)
                svd = np.linalg.svd(a, compute_uv=False)[::2]
                print(f"to SVD {np.abs(got - svd).max() / svd[0]:.2e}", end=", ")
            elif name == "eigh":
                want = np.linalg.eigvalsh(a)
            elif name == "eig":
                w, z = sorted_eig(a), got.reshape(2, -1)
                z = z[0] + 1j * z[1]
                w = w[0] + 1j * w[1]
                d = np.abs(w[:, None] - z[None, :]).min(1).max()
                print(f"{name} {m}x{n}: {d / np.abs(w).max():.2e} of the largest")
                continue
            else:
                want = np.linalg.svd(a, compute_uv=False)
            print(f"{name} {m}x{n}: {np.abs(got - want).max() / np.abs(want).max():.2e} of the largest")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        for p in sys.argv[1:]:
            compare(p)
    else:
        linalg()
        quants()
