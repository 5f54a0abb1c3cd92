"""NumPy on the shapes of bench_heads.c, in turns with it: (a) dense D×D matrices, one sample a shape
and round; (b) the same 2d×2d reduction with numpy.linalg. Both at one thread and at all.

    peer_heads.py BENCH_HEADS [ROUNDS]

OPENBLAS_CORETYPE and OPENBLAS_L2_SIZE are unset: peers run as users have them. Prints `BENCH name
value` for every round, seconds for all heads.
"""
import os
import subprocess
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


def seconds_a_head(f, dm, budget):
    """Median over calls for at least `budget` seconds."""
    rng = np.random.default_rng(1)
    wq, wk = rng.standard_normal((dm, D)), rng.standard_normal((dm, D))
    times, end = [], time.perf_counter() + budget
    while not times or time.perf_counter() < end:
        t = time.perf_counter()
        f(wq, wk)
        times.append(time.perf_counter() - t)
    return float(np.median(times))


def main():
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    cpus = len(os.sched_getaffinity(0))
    widths = sorted({h * D for _, _, h in SHAPES})
    print("numpy %s; dense: one head a width, round and thread count stands for all of its width"
          % np.__version__)
    reduced(*(np.random.default_rng(0).standard_normal((768, D)) for _ in range(2)))
    for _ in range(rounds):
        print(subprocess.run([sys.argv[1], "0", "1"], check=True, capture_output=True, text=True).stdout,
              end="", flush=True)
        for name, f, budget in (("reduced", reduced, .5), ("dense", dense, 0)):
            for threads in sorted({1, cpus}):
                with threadpool_limits(threads):
                    per = {w: seconds_a_head(f, w, budget) for w in widths}
                print("BENCH heads.numpy_%s_%d_s %.3f" % (
                    name, threads, sum(l * h * per[h * D] for _, l, h in SHAPES)), flush=True)


main()
