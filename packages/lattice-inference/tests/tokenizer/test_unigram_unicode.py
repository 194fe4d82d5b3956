"""Every code point of Unicode through the normalizers of SentencePiece's tokenizers, and the table of grapheme clusters."""

import importlib
import random
from pathlib import Path

import pytest
from tokenizers import normalizers

from lattice_inference.tokenizer import _tokenizer as native
from lattice_inference.tokenizer.charsmap import precompiled

from .unigram_tokenizers import charsmap, xlm_roberta

CHARACTERS = [chr(c) for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
BUSY_CHARACTERS = [c for c in CHARACTERS if ord(c) < 0x32000 or 0xE0000 <= ord(c) < 0xE1000]
TOOLS = Path(__file__).resolve().parents[4] / "tools/unicode"


@pytest.fixture
def compile_charsmap(monkeypatch):
    monkeypatch.syspath_prepend(TOOLS)
    return importlib.import_module("charsmap").compile_charsmap


def compare(theirs, steps, pattern, characters):
    text = "\n".join(map(pattern.format, characters))
    pipeline = native.Pipeline(steps, ())
    ours, expected = pipeline.normalize(text), theirs.normalize_str(text)
    if ours != expected:
        texts = map(pattern.format, characters)
        wrong = [text for text in texts if pipeline.normalize(text) != theirs.normalize_str(text)]
        pytest.fail(f"{len(wrong)} code points differ in {pattern!r}: {list(map(ascii, wrong[:20]))}")


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["{}", "a{}b", "①{}x", "{}①\u0301", "™\u200d{}\u0301", "{}\u094d\u0958\u0301"])
def test_precompiled_rules_on_every_code_point(pattern):
    steps = (precompiled(charsmap()),)
    compare(normalizers.Precompiled(charsmap()), steps, pattern, CHARACTERS if pattern == "{}" else BUSY_CHARACTERS)


@pytest.mark.parametrize("pattern", ["{}", "a{}a\u0301", "{}\u1161\u0301", "é{}"])
def test_other_rules_on_every_code_point(compile_charsmap, pattern):
    rules = {"a": "!", "\u1161": "", "e\u0301": "xyz", "é": "", "\u0301": "?", "\u0323\u0301": "日", "\U0001f600": ":)"}
    compiled = compile_charsmap(rules)
    compare(normalizers.Precompiled(compiled), (precompiled(compiled),), pattern, BUSY_CHARACTERS)


@pytest.mark.slow
def test_nmt_on_every_code_point():
    compare(normalizers.Nmt(), (native.NORMALIZE_NMT,), "a{}b", CHARACTERS)


def test_runs_of_what_forms_clusters(compile_charsmap):
    """Characters of every class of the rules, in all company: pictographs, joiners, Hangul, conjuncts, indicators."""
    alphabet = (
        "a①™©\u00ae\u0301\u0308\u200d\u200c\ufe0f\u0600\u0d4e\U0001f468\U0001f3fb\U0001f1e6\u0915\u0958\u094d\u0b4d"
    )
    alphabet += "\u093c\u0903\u1100\u1161\u11a8\uac00\uac01\ud7b0\ua960\r\n\t\x00é\u05bf\u0e33\u1039\u1000"
    generator = random.Random(6)
    lines = ["".join(generator.choices(alphabet, k=generator.choice([2, 3, 4, 6, 9]))) for _ in range(30_000)]
    rules = dict.fromkeys("a①™©क़ᅡᆨ가é́", "!")
    for compiled in (compile_charsmap(rules), charsmap()):
        theirs, pipeline = normalizers.Precompiled(compiled), native.Pipeline((precompiled(compiled),), ())
        for line in lines:
            assert pipeline.normalize(line) == theirs.normalize_str(line), ascii(line)


@pytest.mark.slow
def test_the_table_of_clusters_is_that_of_the_installed_oracle(monkeypatch):
    """The generator's probe, run again on a sample, must give what the committed table holds."""
    monkeypatch.syspath_prepend(TOOLS)
    probe = importlib.import_module("probe_graphemes")
    sample = sorted({*random.Random(2).sample(probe.CODE_POINTS, 20_000), *range(0x3000), *range(0xA8E0, 0xAC10)})
    facts = probe.probe_graphemes(sample)
    generator = importlib.import_module("generate_grapheme_tables")
    table = {int(c): 0 for c in sample}
    for bit, name in enumerate(probe.GRAPHEME_FLAGS):
        for code_point in facts[name]:
            table[code_point] |= 1 << bit
    header = generator.OUTPUT.read_text(encoding="utf-8")

    def values(name):
        return [
            int(item) for item in header.split(f" {name}[")[1].split("{")[1].split("}")[0].replace("\n", "").split(",")
        ]

    shift = int(header.split("LT_GRAPHEME_SHIFT = ")[1].split(" ")[0])
    kinds, stage1, stage2 = map(values, ("lt_grapheme_kinds", "lt_grapheme_stage1", "lt_grapheme_stage2"))
    for code_point, flags in table.items():
        block = stage1[code_point >> shift]
        assert kinds[stage2[block << shift | code_point & (1 << shift) - 1]] == flags, hex(code_point)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_ids_and_offsets_on_every_code_point(make_both, part):
    both = make_both(xlm_roberta())
    characters = BUSY_CHARACTERS[part::4]
    for start in range(0, len(characters), 2000):
        both.compare(" ".join(f"a{c}b {c}" for c in characters[start : start + 2000]))
