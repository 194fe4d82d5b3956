"""Random walks through the masks of random schemas, compared with jsonschema and with brute force.

``nox -s slow_tests -- --walks 20000 packages/lattice-inference/tests/grammar`` walks further.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from lattice_inference import GrammarError, JsonSchema, load_model
from lattice_inference.grammar.compiler import GrammarCompiler
from lattice_inference.grammar.matcher import mask_words
from lattice_inference.grammar.vocabulary import token_bytes

from .random_schemas import FORMATS, mutated, random_schema

jsonschema = pytest.importorskip("jsonschema")

TOKENS = 5_000
PARTS = 4
"""A test takes at most some seconds, so the walks have several."""


class Walker:
    """Walks through masks over a vocabulary of :data:`TOKENS`, and counts what it compared."""

    def __init__(self, tokenizer, byte_compiler, seed: int) -> None:
        self.compiler = GrammarCompiler(tokenizer, TOKENS)
        self.texts, _ = token_bytes(tokenizer, TOKENS)
        self.lengths = np.array([len(text) for text in self.texts])
        self.bytes = byte_compiler
        self.rng = np.random.default_rng(seed)
        self.ended = self.rejected = self.masks = self.refused = 0

    def walk(self, grammar: JsonSchema, *, brute: bool) -> bytes | None:
        """Return a text that the masks led to, ``None`` if it did not end."""
        matcher = self.compiler.matcher(grammar)
        bits = np.zeros(mask_words(TOKENS), np.uint32)
        written = b""
        for step in range(150):
            can_end = matcher.fill(bits)
            if brute and step % 4 == 0:
                self.compare_with_brute_force(matcher, bits)
            ids = np.flatnonzero(np.unpackbits(bits.view(np.uint8), count=TOKENS, bitorder="little"))
            if can_end and (not ids.size or self.rng.random() < 0.3):
                return written
            # of three tokens the shortest: most walks end, and long tokens come as well
            drawn = ids[self.rng.integers(ids.size, size=3)]
            token_id = int(drawn[self.lengths[drawn].argmin()])
            matcher.accept(token_id)
            written += self.texts[token_id]
        return None

    def compare_with_brute_force(self, matcher, bits) -> None:
        alone = np.zeros(32 * bits.size, np.uint8)
        alone[:TOKENS] = [matcher.count_allowed([token_id]) for token_id in range(TOKENS)]
        assert np.packbits(alone, bitorder="little").view(np.uint32).tolist() == bits.tolist()
        self.masks += 1

    def obeys(self, grammar: JsonSchema, text: bytes) -> bool:
        matcher = self.bytes.matcher(grammar)
        if matcher.count_allowed(list(text)) < len(text):
            return False
        for byte in text:
            matcher.accept(byte)
        return matcher.can_end

    def run(self, walks: int) -> None:
        """Walk, ten times for a schema; each text that ended is valid, and no invalid change of it is allowed."""
        checker = jsonschema.FormatChecker(FORMATS)
        for number in range(0, walks, 10):
            schema = random_schema(self.rng)
            grammar = JsonSchema(schema)
            try:
                self.compiler.matcher(grammar)
            except (
                GrammarError
            ):  # a count of properties, or parts that exclude each other: refused before a text begins
                self.refused += 10
                continue
            validator = jsonschema.Draft202012Validator(schema, format_checker=checker)
            for turn in range(10):
                text = self.walk(grammar, brute=number % 100 == 0 and turn == 0)
                if text is None:
                    continue
                value = json.loads(text)
                assert validator.is_valid(value), (schema, value)
                assert self.obeys(grammar, text), (schema, value)  # byte by byte: each of its beginnings is allowed
                self.ended += 1
                for other in (mutated(self.rng, value) for _ in range(3)):
                    if not validator.is_valid(other):
                        self.rejected += 1
                        written = json.dumps(other, ensure_ascii=False).encode()
                        assert not self.obeys(grammar, written), (schema, other)


@pytest.fixture(scope="module")
def tokenizer(smollm2):
    with load_model(smollm2) as model:
        return model.tokenizer


def test_some_walks_are_valid_and_some_changes_are_refused(tokenizer, byte_compiler):
    walker = Walker(tokenizer, byte_compiler, 1)
    walker.run(60)
    assert (walker.ended > 40, walker.rejected > 60, walker.masks > 0) == (True, True, True)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_walks_are_valid_and_invalid_changes_are_refused(part, tokenizer, byte_compiler, pytestconfig):
    walks = pytestconfig.getoption("--walks") // PARTS
    walker = Walker(tokenizer, byte_compiler, 100 + part)
    walker.run(walks)
    print(f"{walker.ended} texts, {walker.rejected} rejected changes, {walker.masks} masks, {walker.refused} refused")
    assert (walker.ended > 0.6 * walks, walker.rejected > 0.8 * walks) == (True, True)
    assert (walker.masks > 0, walker.refused < 0.2 * walks) == (True, True)
