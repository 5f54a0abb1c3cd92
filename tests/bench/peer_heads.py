"""NumPy on the shapes of bench_heads.c: (a) dense D×D matrices, a sample of heads; (b) the same
2d×2d reduction with numpy.linalg. The best thread count is taken for each.

    OPENBLAS_CORETYPE and OPENBLAS_L2_SIZE must be unset: peers run as users have them.
    python peer_heads.py [ms a head of bench_heads]
"""
import os
import sys
import time

for v in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
    if v in os.environ:
        del os.environ[v]
        os.execv(sys.executable, [sys.executable] + sys.argv)

import numpy as np
from threadpoolctl import threadpool_limits

SHAPES = (("gpt2", 12, 12), ("gpt2-medium", 24, 16), ("gpt2-large", 36, 20), ("bert-base", 12, 12),
          ("pythia-410m", 24, 16))
D = 64


def ranks(s):
    s = s / s.max()
    e = s * s
    p, w = s[s > 0] / s.sum(), e[e > 0] / e.sum()
    c = np.cumsum(np.sort(e)[::-1])
    return [e.sum() ** 2 / (e * e).sum(), np.exp(-(p * np.log(p)).sum()), np.exp(-(w * np.log(w)).sum()),
            e.sum()] + [int(np.searchsorted(c, f * c[-1])) + 1 for f in (.9, .95, .99)]


def finish(m, r, f, lam):
    s = np.linalg.svd(r, compute_uv=False)
    fl = np.linalg.eigvalsh(f)
    fro2 = (m * m).sum()
    return (ranks(s), ranks(np.abs(fl)), (r * r).sum() / fro2, lam.real.max() / np.abs(lam).max(),
            np.sqrt(max(0, fro2 - (np.abs(lam) ** 2).sum()) / fro2))


def dense(wq, wk):
    m = (wq * 0.125) @ wk.T
    return finish(m, (m - m.T) / 2, (m + m.T) / 2, np.linalg.eigvals(m))


def reduced(wq, wk):
    wq = wq * 0.125
    r = np.linalg.qr(np.hstack([wq, wk]), mode="r")
    m = r[:, :D] @ r[:, D:].T
    return finish(m, (m - m.T) / 2, (m + m.T) / 2, np.linalg.eigvals(wk.T @ wq))


def rate(f, dm, seconds):
    rng = np.random.default_rng(1)
    wq, wk = rng.standard_normal((dm, D)), rng.standard_normal((dm, D))
    f(wq, wk) if f is reduced else None
    best, end = 1e9, time.perf_counter() + seconds
    while True:
        t = time.perf_counter()
        f(wq, wk)
        best = min(best, time.perf_counter() - t)
        if time.perf_counter() > end:
            return best


total = sum(l * h for _, l, h in SHAPES)
for name, f, seconds in (("reduced", reduced, 1.5), ("dense", dense, 0.1)):
    best = None
    for threads in (1, os.cpu_count()):
        with threadpool_limits(threads):
            per = {h * D: rate(f, h * D, seconds) for h in sorted({h for _, _, h in SHAPES})}
        t = sum(l * h * per[h * D] for _, l, h in SHAPES)
        if best is None or t < best[0]:
            best = (t, threads, per)
    t, threads, per = best
    print("numpy %s: %.2f s for %d heads (%d threads; best of a sample per shape: %s)" % (
        name, t, total, threads, ", ".join("D %d %.1f ms" % (a, 1e3 * b) for a, b in per.items())))
    if len(sys.argv) > 1:
        print("  sd is %.1f times as fast" % (1e3 * t / total / float(sys.argv[1])))
