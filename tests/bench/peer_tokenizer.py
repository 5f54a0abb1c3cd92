#!/usr/bin/env python3
"""peer_tokenizer.py: Hugging Face tokenizers, one thread, on the same text as bench_tokenizer.

    peer_tokenizer.py TOKENIZER_JSON TEXT [REPEAT]

Two ways, the best of each: the whole text in one call, and its lines as a batch (kinder to its
cache of words).
"""
import os
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
from tokenizers import Tokenizer

path = sys.argv[1] if len(sys.argv) > 1 else "data/interim-sd/tokenizer.json"
if os.path.isdir(path):
    path = os.path.join(path, "tokenizer.json")
repeat = int(sys.argv[3]) if len(sys.argv) > 3 else 3
data = open(sys.argv[2] if len(sys.argv) > 2 else "data/introduction.txt", "rb").read()
while len(data) < 10000000:
    data += data
text = data[:10000000].decode("utf-8", "ignore")
t0 = time.perf_counter()
tok = Tokenizer.from_file(path)
print("peer.tokenizer.open %.1f ms" % ((time.perf_counter() - t0) * 1e3))
tok.no_truncation()
tok.no_padding()
lines = text.splitlines(keepends=True)
for name, run in (("one call", lambda: len(tok.encode(text, add_special_tokens=False).ids)),
                  ("lines", lambda: sum(len(e.ids) for e in
                                        tok.encode_batch_fast(lines, add_special_tokens=False)))):
    best = 1e9
    for _ in range(repeat):
        t0 = time.perf_counter()
        n = run()
        best = min(best, time.perf_counter() - t0)
    print("peer.tokenizer.encode (%s) %.3f s for %.1f MB, %d tokens, %.1f MB/s"
          % (name, best, len(text) / 1e6, n, len(text) / 1e6 / best))
