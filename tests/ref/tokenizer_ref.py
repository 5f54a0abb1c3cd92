#!/usr/bin/env python3
"""Writes tests/ref/tokenizers.json: small tokenizers and the ids that Hugging Face's `tokenizers`
gives for a list of texts. `tests/unit/test_tokenizer.c` compares ours with them.

    tokenizer_ref.py            (from the repository's root; needs the package tokenizers)

Format: {"bases": {name: tokenizer.json}, "texts": [...], "cases": [{"name", "base", "set": {keys of
tokenizer.json to replace}, "special": add special tokens, "ids": [[...] a text]}]}.
"""
import json

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import processors, trainers

intro = open("data/introduction.txt", encoding="utf-8").read()
texts = ["", "季節", "í", "\u00ad", "a\u00adb", "x\0y", "Hello  world", "a\n\nb", "hello\n\n",
         "hello \n\n world", "Hello   \n", "a\t b", "a \tb", "\n hello", "a \n b", "\r\n", "\n\n\n",
         "    return x", "brutalist", " brutalist", "Hello,", "a" * 16, " SolidGoldMagikarp",
         "The capital of France is", "😀😀", "gospić", "UPPER", "a" * 101, "\uf059", "中a国",
         "don't I'LL we'Ve 'S", "1234567 ١٢٣ ½ ²³", "e\u0301 é \u212b ﬁ İ ẞ ǅ", "\u180ea\u180e b",
         "\u0085x\u00a0y\u2028z\u3000w\u200bv", "👩‍👩‍👧‍👦🏳️‍🌈", "नमस्ते", "ก็ไม่รู้", "한국어",
         "a\u0301\u0323\u0301b", "<|end|>", " <|end|> x", "words word sword", "▁a ▁ ▁▁b", "<0x41>",
         "attention, routing and filtering", "The matrix M = R + F; its rank is 2.",
         "\u0300\u0300\u0327", "a" + "\u0301\u0323" * 40, "...!!!", "x\u001f\u007fy", "１２ＡＢ"]
gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)


def words():
    for line in intro.split("\n"):
        w = line.split()
        for i in range(len(w)):
            yield " ".join(w[i:i + 2])


b = Tokenizer(models.BPE())
b.pre_tokenizer = gpt2
b.decoder = decoders.ByteLevel()
b.train_from_iterator([intro], trainers.BpeTrainer(
    vocab_size=700, special_tokens=["<|end|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False))
w = Tokenizer(models.WordPiece(unk_token="[UNK]"))
w.normalizer = normalizers.BertNormalizer()
w.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
w.train_from_iterator([intro + " go sp ic 中"], trainers.WordPieceTrainer(
    vocab_size=500, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False))
w.decoder = decoders.WordPiece()
w.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[
    ("[CLS]", w.token_to_id("[CLS]")), ("[SEP]", w.token_to_id("[SEP]"))])
s0 = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
s0.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
s0.train_from_iterator(words(), trainers.BpeTrainer(vocab_size=600, special_tokens=["<unk>"],
                                                    show_progress=False))
m = json.loads(s0.to_str())["model"]
vocab = {s: i for i, s in enumerate(["<unk>", "<s>", "</s>"] + ["<0x%02X>" % i for i in range(256)])}
for t, _ in sorted(m["vocab"].items(), key=lambda x: x[1]):
    vocab.setdefault(t, len(vocab))
s = Tokenizer(models.BPE(vocab, [tuple(x) for x in m["merges"]], unk_token="<unk>", fuse_unk=True,
                         byte_fallback=True))
s.normalizer = s0.normalizer
s.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                               decoders.Strip(" ", 1, 0)])
s.add_special_tokens(["<unk>", "<s>", "</s>"])
s.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
e = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
e.pre_tokenizer = pre_tokenizers.Whitespace()
e.train_from_iterator([intro], trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>"],
                                                   end_of_word_suffix="</w>", show_progress=False))
bases = {"bytes": b, "words": w, "pieces": s, "suffix": e}
out = {"bases": {k: json.loads(v.to_str()) for k, v in bases.items()}, "texts": texts, "cases": []}


def case(name, base, special=False, **kw):
    t = Tokenizer.from_str(json.dumps(out["bases"][base]))
    for k, v in kw.items():
        if k == "add":
            t.add_tokens(v)
        elif k == "fields":
            j = json.loads(t.to_str())
            j["model"].update(v)
            t = Tokenizer.from_str(json.dumps(j))
        else:
            setattr(t, k, v)
    j = json.loads(t.to_str())
    keys = {k: v for k, v in j.items() if v != out["bases"][base][k] and k != "model"}
    if "fields" in kw:
        keys["model"] = kw["fields"]
    out["cases"].append({"name": name, "base": base, "set": keys, "special": special,
                         "ids": [t.encode(x, add_special_tokens=special).ids for x in texts]})


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), behavior, invert),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


P = pre_tokenizers
case("GPT-2", "bytes")
case("prefix space", "bytes", pre_tokenizer=P.ByteLevel(add_prefix_space=True))
case("digits", "bytes", pre_tokenizer=P.Sequence([P.Digits(individual_digits=True), gpt2]))
case("ignore_merges", "bytes", fields={"ignore_merges": True})
for n in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Strip"):
    case(n, "bytes", normalizer=getattr(normalizers, n)())
case("accents", "bytes", normalizer=normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]))
case("replace", "bytes", normalizer=normalizers.Replace(Regex(r"[ \n]+"), "_"))
case("llama3", "bytes", pre_tokenizer=split(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"))
for beh in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
    case(beh, "bytes", pre_tokenizer=split(r"[aeiou\s]", beh))
    case(beh + ", inverted", "bytes", pre_tokenizer=split(r"[aeiou\s]", beh, True))
case("falcon", "bytes", pre_tokenizer=P.Sequence([
    P.Punctuation("contiguous"), gpt2, P.Digits(False), P.Split(Regex("[0-9][0-9][0-9]"), "isolated")]))
case("added", "bytes", normalizer=normalizers.Lowercase(), add=[
    AddedToken("word", single_word=True), AddedToken("Hello", lstrip=True, rstrip=True),
    AddedToken("UPPER"), AddedToken("  ", normalized=False)])
case("BERT", "words", True)
case("BERT cased", "words", normalizer=normalizers.BertNormalizer(lowercase=False))
case("whitespace", "words", pre_tokenizer=P.Whitespace())
case("whitespace split", "words", pre_tokenizer=P.WhitespaceSplit())
case("llama 2", "pieces", True)
for scheme in ("first", "always", "never"):
    case("metaspace " + scheme, "pieces", normalizer=None, pre_tokenizer=P.Metaspace(prepend_scheme=scheme))
case("metaspace whole", "pieces", normalizer=None, pre_tokenizer=P.Metaspace(split=False))
case("no fallback", "pieces", fields={"byte_fallback": False})
case("no fusing", "pieces", fields={"byte_fallback": False, "fuse_unk": False})
case("suffix", "suffix")
with open("tests/ref/tokenizers.json", "w", encoding="utf-8") as f:
    json.dump(out, f, ensure_ascii=True, separators=(",", ":"))
    f.write("\n")
