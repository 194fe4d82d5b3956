"""Every code point of Unicode through every normalizer and pre-tokenizer, against Hugging Face's library."""

import hashlib
import importlib
import random
from pathlib import Path

import pytest
from tokenizers import normalizers, pre_tokenizers

from lattice_inference.tokenizer import _tokenizer as native
from lattice_inference.tokenizer.normalizers import bert_normalizer

CHARACTERS = [chr(c) for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
# Planes 4 to 13, 15 and 16 have nothing but unassigned and private code points; one context is enough for those.
BUSY_CHARACTERS = [c for c in CHARACTERS if ord(c) < 0x32000 or 0xE0000 <= ord(c) < 0xE1000]
CONTEXTS = {"{}\n": CHARACTERS} | dict.fromkeys(("a{}b\n", "a\u0323{}\u0301\n", "\u1100{}\u11a8\n"), BUSY_CHARACTERS)

NORMALIZERS = {
    "Lowercase": (normalizers.Lowercase(), [native.NORMALIZE_LOWERCASE]),
    "NFC": (normalizers.NFC(), [native.NORMALIZE_NFC]),
    "NFD": (normalizers.NFD(), [native.NORMALIZE_NFD]),
    "NFKC": (normalizers.NFKC(), [native.NORMALIZE_NFKC]),
    "NFKD": (normalizers.NFKD(), [native.NORMALIZE_NFKD]),
    "StripAccents": (normalizers.StripAccents(), [native.NORMALIZE_DROP_COMBINING]),
    "BertNormalizer": (
        normalizers.BertNormalizer(),
        bert_normalizer(clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=True),
    ),
    "BertNormalizer cased": (
        normalizers.BertNormalizer(lowercase=False),
        bert_normalizer(clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=False),
    ),
}

PRE_TOKENIZERS = {
    "BertPreTokenizer": (
        pre_tokenizers.BertPreTokenizer(),
        [native.SPLIT_WHITESPACE, native.SPLIT_PUNCTUATION_ISOLATED],
    ),
    "Whitespace": (pre_tokenizers.Whitespace(), [native.SPLIT_WORD_RUNS]),
    "WhitespaceSplit": (pre_tokenizers.WhitespaceSplit(), [native.SPLIT_WHITESPACE]),
    "Punctuation": (pre_tokenizers.Punctuation("contiguous"), [native.SPLIT_PUNCTUATION_CONTIGUOUS]),
}


def normalize(steps, text):
    return native.Pipeline(bytes(steps), b"").split(text)[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", NORMALIZERS)
def test_normalizer_on_every_code_point(name):
    theirs, steps = NORMALIZERS[name]
    for pattern, characters in CONTEXTS.items():
        text = "".join(map(pattern.format, characters))
        ours, expected = normalize(steps, text), theirs.normalize_str(text)
        if ours != expected:
            texts = map(pattern.format, characters)
            wrong = [text for text in texts if normalize(steps, text) != theirs.normalize_str(text)]
            pytest.fail(f"{name}: {len(wrong)} code points differ in {pattern!r}: {list(map(ascii, wrong[:20]))}")


@pytest.mark.slow
@pytest.mark.parametrize("part", range(3))
@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_pre_tokenizer_on_every_code_point(name, part):
    theirs, steps = PRE_TOKENIZERS[name]
    pipeline = native.Pipeline(b"", bytes(steps))
    # the first two between them look at all the classes there are
    characters = CHARACTERS if name in ("BertPreTokenizer", "Whitespace") else BUSY_CHARACTERS
    for start in range(part * 0x8000, len(characters), 3 * 0x8000):
        text = "".join(f"a{c}b " for c in characters[start : start + 0x8000])
        assert pipeline.split(text)[2] == [span for _, span in theirs.pre_tokenize_str(text)]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_runs_of_marks_are_ordered_alike(form):
    theirs, steps = NORMALIZERS[form]
    nfd = normalizers.NFD()
    marks = [c for c in CHARACTERS if nfd.normalize_str(f"{c}\u0334") != f"{c}\u0334" and not 0xAC00 <= ord(c) < 0xD7A4]
    assert len(marks) > 1500
    generator = random.Random(form)
    text = "".join(
        generator.choice("ae\u0915ᄀ\n") + "".join(generator.choices(marks, k=generator.choice([2, 3, 5, 40])))
        for _ in range(20_000)
    )
    assert normalize(steps, text) == theirs.normalize_str(text)


@pytest.mark.slow
def test_tables_are_those_of_the_installed_oracle(monkeypatch):
    """The generator's probe, run again on a sample, must give what the committed tables hold."""
    monkeypatch.syspath_prepend(Path(__file__).parents[4] / "tools/unicode")
    probe = importlib.import_module("probe_tokenizers")
    sample = sorted(random.Random(2).sample(probe.CODE_POINTS, 4000) + list(range(0x300)))
    facts = probe.probe_flags(sample)

    def words(step, text):
        return len(native.Pipeline(b"", bytes([step])).split(text)[2])

    def ours(text):
        return probe.CodePointFacts(
            whitespace=words(native.SPLIT_WHITESPACE, text) == 2,
            clean_removed=normalize([native.NORMALIZE_CLEAN], text) == "ab",
            punctuation=words(native.SPLIT_PUNCTUATION_ISOLATED, text) == 3,
            cjk=normalize([native.NORMALIZE_SPACE_CJK], text) == f"a {text[1]} b",
            mark_nonspacing=normalize([native.NORMALIZE_NFD, native.NORMALIZE_DROP_NONSPACING], text) == "ab",
            mark_combining=normalize([native.NORMALIZE_DROP_COMBINING], text) == "ab",
            word=words(native.SPLIT_WORD_RUNS, text) == 1,
            letter=words(native.SPLIT_GPT2, text) == 1,
            number=words(native.SPLIT_LLAMA3, f"{text[1]}1") == 1,
            mark=words(native.SPLIT_QWEN35, text[:2]) == 1 and words(native.SPLIT_QWEN2, text[:2]) == 2,
            numeric=words(native.SPLIT_DIGITS, text) == 3,
        )

    def checksum(values):
        return hashlib.sha256(repr(sorted(values.items())).encode()).hexdigest()

    assert checksum({c: ours(f"a{chr(c)}b") for c in sample}) == checksum(facts)


def test_tables_say_where_they_come_from():
    assert native.UNICODE_TABLES_SOURCE.startswith("tokenizers 0.23.")
