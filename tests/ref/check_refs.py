"""The committed reference values of `make test` still follow from the scripts that made them: PyTorch
gradients and fifty steps of training.

    check_refs.py
"""
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from report import ROOT, check, finish

NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


def again(script):
    return subprocess.run([sys.executable, "tests/ref/" + script], check=True, capture_output=True, text=True,
                          cwd=ROOT).stdout


def compare(script, committed, tol):
    """Same words, numbers to `tol` of the larger of 1e-3 and themselves."""
    try:
        new, old = again(script), open(os.path.join(ROOT, "tests", "ref", committed), encoding="utf-8").read()
        same = NUMBER.sub("#", new) == NUMBER.sub("#", old)
        a, b = ([float(x) for x in NUMBER.findall(t)] for t in (new, old))
        e = max((abs(x - y) / max(1e-3, abs(y)) for x, y in zip(a, b)), default=0)
        check("%s makes %s again (%d numbers)" % (script, committed, len(b)),
              same and len(a) == len(b) > 0 and e <= tol, "worst relative difference %.1e" % e)
    except Exception as e:
        check(script, False, repr(e)[:300])


compare("grads.py", "grads.txt", 1e-9)
compare("train_curve.py", "train_curve.json", 1e-3)
finish()
