"""Tokenizers' files.

Each that loads also encodes texts of many scripts and decodes the result.
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import tokenizers
from mutation import damage_any_file, damage_file, mutated_text
from target import Target, add_tests
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE, Unigram, WordPiece

from lattice_inference import LatticeError, load_tokenizer

__all__ = ["TARGETS"]

DATA = add_tests("inference", "tokenizer").parent / "data"

from bpe_vocabularies import definition_of, trained  # noqa: E402

TEXT = "The quick brown fox's 12,345 jumps\r\n over naïve 漢字 かな หนึ่ง 😀 \u200d e\u0301 <|end|> [CLS] <s>\t don't  "
TEXTS = [TEXT, "", " ", "a" * 300, "aZ" * 50 + "\n" * 20, "\0\ufffd\U0010ffff"]


def write_json(folder: Path, name: str, value: Any) -> None:
    """Write a tokenizer.json to a folder of its name."""
    (folder / name).mkdir()
    (folder / name / "tokenizer.json").write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


def word_piece() -> tokenizers.Tokenizer:
    """Return a small BERT tokenizer."""
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *"abcdefghij",
        "##a",
        "##b",
        "the",
        "quick",
        "##s",
        "漢",
        "'",
    ]
    tokenizer = tokenizers.Tokenizer(WordPiece({word: place for place, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens([AddedToken(word, normalized=False, special=True) for word in words[:5]])
    tokenizer.enable_truncation(32)
    tokenizer.enable_padding(length=40)
    return tokenizer


def unigram() -> tokenizers.Tokenizer:
    """Return a small tokenizer with the parts of XLM-R's and T5's."""
    pieces = [(piece, -float(place)) for place, piece in enumerate(("<s>", "<pad>", "</s>", "<unk>", "▁", "▁a", "a"))]
    pieces += [(chr(letter), -9.0) for letter in range(98, 123)] + [(f"<0x{byte:02X}>", -12.0) for byte in range(256)]
    tokenizer = tokenizers.Tokenizer(Unigram(pieces, unk_id=3, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always", split=True)]
    )
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False, special=True)])
    return tokenizer


def llama() -> tokenizers.Tokenizer:
    """Return a small tokenizer with the parts of Llama's."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "ab"]
    merges = [("▁", "a"), ("a", "b")]
    model = BPE({token: place for place, token in enumerate(tokens)}, merges, unk_token="<unk>", byte_fallback=True)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in tokens[:3]])
    return tokenizer


def make_json(folder: Path) -> None:
    """Write a tokenizer.json of each family."""
    for name, made in (("wordpiece", word_piece()), ("unigram", unigram()), ("llama", llama())):
        write_json(folder, name, json.loads(made.to_str()))
    for name in ("gpt2", "qwen2", "llama3", "smollm2", "roberta"):
        write_json(folder, name, definition_of(trained(name, [TEXT * 3], 320)))


def use_tokenizer(folder: Path) -> None:
    """Load what a folder has, encode and decode; a file that states limits also with these."""
    use(load_tokenizer(folder))
    if (folder / "tokenizer.json").exists():
        use(load_tokenizer(folder, apply_file_limits=True))


def use(tokenizer: Any) -> None:
    """Call what a tokenizer has."""
    for text in TEXTS:
        encoding = tokenizer.encode(text)
        tokenizer.decode(encoding.ids)
        tokenizer.decode(encoding.ids, skip_special_tokens=False)
    tokenizer.encode("a b", "c", special_tokens_in_text=False)
    tokenizer.encode_batch(TEXTS)
    tokenizer.count(TEXT)
    for token in range(0, tokenizer.vocab_size, 7):
        tokenizer.decode([token])


def make_vocabularies(folder: Path) -> None:
    """Write the older files: a vocab.txt, and a vocab.json with its merges.txt."""
    bert = folder / "bert"
    bert.mkdir()
    shutil.copyfile(DATA / "tiny_bert" / "vocab.txt", bert / "vocab.txt")
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "strip_accents": None}
    (bert / "tokenizer_config.json").write_text(json.dumps({**settings, "tokenize_chinese_chars": True}))
    model = definition_of(trained("gpt2", [TEXT * 3], 320))["model"]
    for name in ("GPT2Tokenizer", "Qwen2Tokenizer", "RobertaTokenizer"):
        made = folder / name
        made.mkdir()
        vocabulary = dict(model["vocab"])
        for token in ("<|endoftext|>", "<s>", "</s>", "<pad>", "<unk>", "<mask>"):
            vocabulary[token] = len(vocabulary)
        (made / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
        lines = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
        (made / "merges.txt").write_text("\n".join(["#version: 0.2", *lines, ""]), encoding="utf-8")
        (made / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name, "add_prefix_space": False}))


def make_sentencepiece(folder: Path) -> None:
    """Copy the committed SentencePiece models, with their settings."""
    for name in ("xlm_roberta", "t5", "general", "plain"):
        shutil.copytree(DATA / "unigram" / name, folder / name)


def damage_sentencepiece(folder: Path, draw: random.Random) -> None:
    """Damage the model more often than its settings."""
    models = sorted(folder.glob("*.model"))
    if models and draw.random() < 0.8:
        damage_file(models[0], draw)
    else:
        damage_any_file(folder, draw)


ATOMS = (
    *(
        "a",
        "z",
        ".",
        r"\s",
        r"\S",
        r"\p{L}",
        r"\p{N}",
        r"\p{M}",
        r"\d",
        r"\w",
        "[a-z]",
        r"[^\s\p{L}]",
        "[zy]",
        "é",
        " ",
    ),
    *(
        "漢",
        r"\r",
        r"\x41",
        r"\u{1F600}",
        r"\b",
        "^",
        "$",
        r"\A",
        r"\Z",
        r"[[:alpha:]]",
        r"[\p{L}&&[a-z]]",
        r"\1",
        r"\K",
    ),
)
COUNTS = (
    "",
    "",
    "",
    "*",
    "+",
    "?",
    "*?",
    "+?",
    "*+",
    "++",
    "{2}",
    "{1,3}",
    "{0,}",
    "{1000}",
    "{1,100}",
    "{,5}",
    "{9999999}",
)
GROUPS = ("(", "(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?<name>", "(?-i:", "(?s-m:")


def pattern(draw: random.Random, depth: int = 0) -> str:
    """Return a regex drawn from a grammar: many nest repetitions, some are none."""
    parts = []
    for _ in range(draw.randint(1, 4)):
        if depth < 5 and draw.random() < 0.45:
            branches = "|".join(pattern(draw, depth + 1) for _ in range(draw.randint(1, 3)))
            parts.append(f"{draw.choice(GROUPS)}{branches}){draw.choice(COUNTS)}")
        else:
            parts.append(draw.choice(ATOMS) + draw.choice(COUNTS))
    return "".join(parts)


def make_patterns(folder: Path) -> None:
    """Write a tokenizer.json that splits by a published pattern."""
    write_json(folder, "pattern", definition_of(trained("gpt2", [TEXT * 3], 300)))


def damage_pattern(folder: Path, draw: random.Random) -> None:
    """Put another regex where the file splits or replaces."""
    path = folder / "tokenizer.json"
    value = json.loads(path.read_text(encoding="utf-8"))
    drawn = pattern(draw)
    if draw.random() < 0.2:
        drawn = mutated_text(drawn, draw)
    if draw.random() < 0.8:
        behavior = draw.choice(("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"))
        split = {"type": "Split", "pattern": {"Regex": drawn}, "behavior": behavior, "invert": draw.random() < 0.3}
        steps = [split, value["pre_tokenizer"]]
        value["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    else:
        value["normalizer"] = {"type": "Replace", "pattern": {"Regex": drawn}, "content": draw.choice(("", "x", "xy"))}
    path.write_text(json.dumps(value), encoding="utf-8", errors="surrogatepass")


SEARCHED = ["z" * 40 + "x", "a" * 3000, "zy" * 2000 + "1", "The " * 500, TEXT * 20]


def use_pattern(folder: Path) -> None:
    """Split texts that make a search go back."""
    tokenizer = load_tokenizer(folder)
    for text in [*TEXTS, *SEARCHED]:
        try:
            tokenizer.encode(text)
        except LatticeError:
            return


ERRORS = (LatticeError,)

TARGETS = [
    Target("tokenizer-json", make_json, damage_any_file, use_tokenizer, ERRORS),
    Target("vocabulary-files", make_vocabularies, damage_any_file, use_tokenizer, ERRORS),
    Target("sentencepiece", make_sentencepiece, damage_sentencepiece, use_tokenizer, ERRORS),
    Target("split-patterns", make_patterns, damage_pattern, use_pattern, ERRORS),
]
