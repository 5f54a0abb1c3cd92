#!/usr/bin/env python3
"""Writes the fuzzers' seeds for containers and JSON into tests/fuzz/corpus. Standard library only."""
import json
import pathlib
import struct

root = pathlib.Path(__file__).resolve().parents[1] / "fuzz" / "corpus"


def put(target, name, data):
    d = root / target
    d.mkdir(parents=True, exist_ok=True)
    (d / name).write_bytes(data)


def st(header, data=b"", pad=0):
    h = json.dumps(header, separators=(",", ":")).encode() if isinstance(header, dict) else header
    h += b" " * pad
    return struct.pack("<Q", len(h)) + h + data


def t(dtype, shape, a, b):
    return {"dtype": dtype, "shape": shape, "data_offsets": [a, b]}


put("safetensors", "two", st({"a": t("F32", [2], 0, 8), "b": t("BF16", [2, 1], 8, 12)}, bytes(12), 3))
put("safetensors", "meta", st({"__metadata__": {"format": "pt"}, "s": t("F64", [], 0, 8)}, bytes(8)))
put("safetensors", "empty", st({"e": t("F8_E4M3", [0], 0, 0), "i": t("I8", [3], 0, 3)}, bytes(3)))
put("safetensors", "text", b"J" + st({"a": t("F16", [2], 0, 4), "b": t("BOOL", [1], 4, 5)})[8:] + b"\0" + bytes(5))
put("safetensors", "overlap", b"J" + st({"a": t("F32", [1], 0, 4), "b": t("F32", [1], 0, 4)})[8:] + b"\0" + bytes(4))
put("safetensors", "lfs", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")


def s(x):
    x = x if isinstance(x, bytes) else x.encode()
    return struct.pack("<Q", len(x)) + x


def kv(key, kind, raw):
    return s(key) + struct.pack("<I", kind) + raw


def gguf(version, pairs, tensors, data, align=32):
    b = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs)) + b"".join(pairs)
    for name, ne, kind, off in tensors:
        b += s(name) + struct.pack("<I", len(ne)) + b"".join(struct.pack("<Q", n) for n in ne)
        b += struct.pack("<IQ", kind, off)
    return b + bytes(-len(b) % align) + data


scalars = [(0, "<B", 7), (1, "<b", -7), (2, "<H", 7), (3, "<h", -7), (4, "<I", 7), (5, "<i", -7),
           (6, "<f", 0.5), (7, "<B", 1), (10, "<Q", 2**64 - 1), (11, "<q", -7), (12, "<d", 0.5)]
put("gguf", "scalars", gguf(3, [kv(f"k{k}", k, struct.pack(f, v)) for k, f, v in scalars],
                                 [("w", [4], 0, 0)], bytes(16)))
strings = struct.pack("<IQ", 8, 3) + s("a") + s(b"\xff\xfe") + s("")
nested = struct.pack("<IQ", 9, 2) + struct.pack("<IQ", 0, 2) + b"\1\2" + struct.pack("<IQ", 8, 1) + s("x")
put("gguf", "arrays", gguf(2, [kv("tokens", 9, strings), kv("nested", 9, nested)], [], b""))
put("gguf", "aligned", gguf(3, [kv("general.alignment", 4, struct.pack("<I", 64))],
                                 [("a", [2, 2], 1, 0), ("b", [3], 30, 64)], bytes(70), 64))
sizes = {2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 12: (256, 144),
         13: (256, 176), 14: (256, 210)}
for kind, (block, size) in sizes.items():
    put("gguf", f"type{kind}", gguf(3, [], [("q", [block, 3], kind, 0)],
                                         bytes(i * 37 % 256 for i in range(size * 3))))

put("index", "good", json.dumps({"metadata": {"total_size": 16}, "weight_map": {
    "a": "s1.safetensors", "x": "s1.safetensors", "b": "s2.safetensors"}}).encode())
put("index", "partial", json.dumps({"weight_map": {
    "a": "s1.safetensors", "x": "s2.safetensors", "ghost": "s2.safetensors"}}).encode())
put("index", "absent", json.dumps({"weight_map": {"a": "s3.safetensors"}}).encode())
put("index", "outside", json.dumps({"weight_map": {"a": "../s1.safetensors"}}).encode())

put("json", "config", json.dumps({"n_head": 12, "eps": 1e-5, "tie": True, "act": "gelu_new",
                                       "rope": None, "list": [1, -2, 3.5, [], {}]}).encode())
put("json", "escapes", b'{"a":"\\u00e9\\ud83d\\ude00\\n\\"","b":[1e2,-0,9223372036854775807]}')
put("json", "dense", b"[" + b"[],{}," * 40 + b"0]")
put("json", "deep", b"[" * 100 + b"]" * 100)
