"""Compiled grammars are kept within a bound of bytes, and no text ends by a limit that other texts have passed."""

from __future__ import annotations

import ctypes
import gc
import json
from dataclasses import replace

import numpy as np
import pytest

from lattice_inference import Choice, Gbnf, GenerateConfig, GrammarError, JsonSchema, Regex, Session
from lattice_inference.grammar import compiler, kept_grammars
from lattice_inference.grammar.compiler import GrammarCompiler
from lattice_inference.grammar.kept_grammars import KeptGrammar
from lattice_inference.grammar.matcher import mask_words
from lattice_inference.tokenizer import load_tokenizer
from tiny_decoders import BYTES, write_tokenizer

LONG = r"(\w{1,20}\p{Lu}\W+){90,1000}"
GROWING = r"(\w{1,20}\p{Lu}\W+){1,1000}"


@pytest.fixture
def own_compiler(tmp_path):
    write_tokenizer(tmp_path)
    return GrammarCompiler(load_tokenizer(tmp_path), BYTES)


@pytest.fixture
def few_states(monkeypatch):
    """A limit that texts of :data:`GROWING` pass after some hundred tokens, as they pass the real one after thousands."""
    monkeypatch.setitem(compiler.LIMITS, "max_lexer_states", 4000)


def walk(matcher, seed: int, tokens: int) -> list[int]:
    """Take random tokens that the masks allow, and return them."""
    rng, bits, taken = np.random.default_rng(seed), np.zeros(mask_words(BYTES), np.uint32), []
    while len(taken) < tokens:
        matcher.fill(bits)
        ids = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little"))
        if not ids.size:
            break
        taken.append(int(rng.choice(ids)))
        matcher.accept(taken[-1])
    return taken


def test_what_is_kept_is_bounded_by_bytes(own_compiler, monkeypatch):
    """A text of 30 characters may compile to a megabyte, so characters bound nothing."""
    monkeypatch.setattr(kept_grammars, "MOST_KEPT_BYTES", 20_000_000)
    for index in range(40):
        own_compiler.matcher(Regex(rf"\w{{1,200}}\p{{Lu}}*[^\d]{{{index}}}"))
    assert 2 <= len(own_compiler._kept) < 30
    assert own_compiler._kept.bytes <= 20_000_000


def test_the_one_used_longest_ago_goes_first(own_compiler, monkeypatch):
    grammars = [Regex(f"a{{{index}}}") for index in range(1, 6)]
    size = KeptGrammar(own_compiler.matcher(grammars[0])._engine, grammars[0].engine_grammar()).bytes
    monkeypatch.setattr(kept_grammars, "MOST_KEPT_BYTES", 4 * size + size // 2)
    for grammar in (*grammars[:4], grammars[0], grammars[4]):
        own_compiler.matcher(grammar)
    kept = [grammar in (grammars[0], *grammars[2:]) for grammar in grammars]
    assert [own_compiler._kept.find(grammar.engine_grammar()) is not None for grammar in grammars] == kept


@pytest.mark.parametrize(
    "grammar",
    [
        JsonSchema({"type": "object", "properties": {"a": {"type": "integer"}}}),
        JsonSchema({"type": "object", "properties": {f"p{n}": {"type": "string", "maxLength": 9} for n in range(300)}}),
        JsonSchema({"enum": [f"name {index * 7919}" for index in range(2_000)]}),
        Regex(r"\w{1,200}\p{Lu}*[^\d]{50}"),
        Choice([f"text number {index}" for index in range(2_000)]),
        Gbnf('root ::= "a" root | ' + " | ".join(f'"x{index}" root "y{index}"' for index in range(500))),
    ],
    ids=["small", "properties", "enum", "characters", "choice", "rules"],
)
def test_the_estimate_covers_what_malloc_gave_out(own_compiler, grammar):
    used = malloc_bytes()
    if used is None:
        pytest.skip("needs glibc's mallinfo2")
    text = grammar.engine_grammar()
    own_compiler.matcher(Regex("warm"))
    before = malloc_bytes()
    kept = KeptGrammar(own_compiler._engine_matcher(text), text)
    held = malloc_bytes() - before
    assert held <= kept.bytes <= 12 * held + 1_000_000


def test_states_that_texts_compute_are_counted(own_compiler, monkeypatch):
    """A kept grammar grows by what its texts have computed, and is compiled again once it has grown much."""
    monkeypatch.setattr(kept_grammars, "MOST_GROWN_BYTES", 80_000_000)
    monkeypatch.setattr(kept_grammars, "MASKS_BETWEEN_LOOKS", 8)
    grammar = Regex(GROWING)
    walk(own_compiler.matcher(grammar), 1, 100)
    kept = own_compiler._kept.find(grammar.engine_grammar())
    before = kept.bytes
    walk(own_compiler.matcher(grammar), 2, 100)
    assert own_compiler._kept.find(grammar.engine_grammar()) is kept
    assert kept.bytes > before + 100_000
    monkeypatch.setattr(kept_grammars, "MOST_GROWN_BYTES", 100_000)
    assert own_compiler._kept.find(grammar.engine_grammar()) is None
    own_compiler.matcher(grammar)
    assert own_compiler._kept.find(grammar.engine_grammar()) is not kept


def test_a_new_grammar_drops_others_that_have_grown(own_compiler, monkeypatch):
    monkeypatch.setattr(kept_grammars, "MASKS_BETWEEN_LOOKS", 8)
    monkeypatch.setattr(kept_grammars, "MOST_GROWN_BYTES", 100_000)
    grown = Regex(GROWING)
    walk(own_compiler.matcher(grown), 1, 100)
    own_compiler.matcher(Regex("a"))
    assert len(own_compiler._kept) == 1


def test_texts_do_not_end_by_states_that_others_computed(own_compiler, few_states):
    """Once a lexer had 50,000 states, each later text of its grammar failed at its first token."""
    for seed in range(12):
        assert len(walk(own_compiler.matcher(Regex(GROWING)), seed, 100)) == 100


def test_a_text_goes_on_when_another_one_passes_the_limit(own_compiler, few_states, tmp_path):
    grammar = Regex(GROWING)
    alone = walk(own_compiler.matcher(grammar), 7, 60)
    first, other = own_compiler.matcher(grammar), own_compiler.matcher(grammar)
    bits = np.zeros(mask_words(BYTES), np.uint32)
    for token_id in alone[:30]:
        first.accept(token_id)
    for seed in range(12):
        walk(own_compiler.matcher(grammar), seed, 100)
        walk(other.fork(), seed, 100)
    fork = first.fork()
    for matcher in (first, fork):
        matcher.rollback(3)
        for token_id in alone[27:]:
            matcher.fill(bits)
            assert bits[token_id // 32] >> token_id % 32 & 1
            assert matcher.count_allowed([token_id]) == 1
            matcher.accept(token_id)


def test_a_long_text_goes_on_with_a_new_lexer(own_compiler, few_states):
    assert len(walk(own_compiler.matcher(Regex(GROWING)), 3, 1_500)) == 1_500


def test_a_mask_that_passes_the_limit_alone_is_an_error(own_compiler, monkeypatch):
    grammar = Regex(r"(\w{1,50} \w{1,30}[^x]{0,200}){1,100}")
    monkeypatch.setitem(compiler.LIMITS, "max_lexer_states", 60)
    with pytest.raises(GrammarError, match="lexer error: too many states"):
        walk(own_compiler.matcher(grammar), 1, 500)


def malloc_bytes() -> int | None:
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()

    class Info(ctypes.Structure):
        _fields_ = [(name, ctypes.c_size_t) for name in names]

    try:
        read = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return None
    read.restype = Info
    gc.collect()
    info = read()
    return int(info.uordblks + info.hblkhd)


def test_schemas_are_kept_by_their_text(own_compiler):
    schema = {"type": "array", "items": {"type": "integer"}}
    for one in (schema, json.dumps(schema, indent=3), dict(reversed(schema.items()))):
        own_compiler.matcher(JsonSchema(one))
    assert len(own_compiler._kept) == 2  # the order of members is the answer's


@pytest.mark.parametrize("speculate", [None, "ngram"])
def test_a_full_lexer_changes_no_token(drawn_model, monkeypatch, speculate):
    """The tokens are those of a text whose lexer is never full, alone, again, and with speculation."""
    config = GenerateConfig(max_new_tokens=120, temperature=1.0, top_k=0, seed=5, grammar=Regex(f"{LONG}x?"))
    expected = Session(drawn_model).generate("Once", config).token_ids
    monkeypatch.setitem(compiler.LIMITS, "max_lexer_states", 2000)
    compiled = []
    compile_it = GrammarCompiler._engine_matcher
    monkeypatch.setattr(
        GrammarCompiler, "_engine_matcher", lambda self, text: compiled.append(text) or compile_it(self, text)
    )
    limited = replace(config, grammar=Regex(f"{LONG}x{{0,1}}"), speculate=speculate)
    for _ in range(3):
        assert Session(drawn_model).generate("Once", limited).token_ids == expected
    assert len(compiled) > 1
