"""Masks equal brute force; what they lead to is valid, and what is invalid they never allow."""

from __future__ import annotations

import json

import numpy as np
import pytest

from lattice_inference import Choice, Gbnf, GrammarError, JsonSchema, Lark, Regex, load_model, load_tokenizer
from lattice_inference.grammar.compiler import GrammarCompiler
from lattice_inference.grammar.constraint import Constraint
from lattice_inference.grammar.matcher import mask_words
from lattice_inference.grammar.vocabulary import token_bytes
from tiny_decoders import write_tokenizer

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["é", "b\n", "😀"]}, "maxItems": 3},
        "rest": {
            "anyOf": [
                {"type": "null"},
                {"type": "number", "multipleOf": 0.5},
                {"type": "string", "pattern": "^[a-f]+x$"},
            ]
        },
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
GRAMMARS = [
    JsonSchema(SCHEMA),
    JsonSchema(SCHEMA, whitespace="indented"),
    JsonSchema(True),
    Regex(r"[0-9]{2,4}-(jan|feb)(?s:.)"),
    Choice(["yes", "yes please", "no", "ä"]),
    Gbnf('root ::= "[" (root ("," root)*)? "]" | [a-zé]+'),
    Lark('start: "a" B? | C\nB: /b+/\nC: /[😀x]+/'),
]


def allowed_ids(matcher, size):
    bits = np.zeros(mask_words(size), np.uint32)
    matcher.fill(bits)
    return np.flatnonzero(np.unpackbits(bits.view(np.uint8), count=size, bitorder="little"))


@pytest.fixture(scope="module")
def smollm2_tokenizer(smollm2):
    with load_model(smollm2) as model:
        return model.tokenizer


@pytest.fixture(scope="module")
def compiler(smollm2_tokenizer):
    """Over the first 5,000 tokens of SmolLM2."""
    return GrammarCompiler(smollm2_tokenizer, 5_000)


@pytest.mark.slow
@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda grammar: type(grammar).__name__)
def test_masks_are_what_trying_each_token_alone_gives(grammar, compiler):
    rng = np.random.default_rng(5)
    for _ in range(2):
        matcher = compiler.matcher(grammar)
        for _ in range(8):
            ids = allowed_ids(matcher, 5_000)
            assert ids.tolist() == [one for one in range(5_000) if matcher._engine.validate_tokens([one]) == 1]
            for token_id in rng.choice(
                5_000, 20
            ).tolist():  # by the way in which a text takes it, which is slow to fail
                if token_id in ids:
                    matcher.fork().accept(token_id)
                    continue
                with pytest.raises(GrammarError):
                    matcher.fork().accept(token_id)
            if not ids.size:
                assert matcher.can_end
                break
            matcher.accept(int(rng.choice(ids)))


@pytest.mark.slow
def test_special_tokens_and_what_lies_beyond_the_vocabulary_are_never_allowed(smollm2_tokenizer):
    size = smollm2_tokenizer.vocab_size + 77  # a model with rows to spare
    matcher = GrammarCompiler(smollm2_tokenizer, size).matcher(Regex("(?s:.)*"))
    ids = set(allowed_ids(matcher, size).tolist())
    assert not ids & smollm2_tokenizer.special_ids
    assert max(ids) < smollm2_tokenizer.vocab_size
    assert len(ids) > 48_000


def test_bytes_of_tokens_are_their_part_of_the_text(smollm2_tokenizer):
    texts, special = token_bytes(smollm2_tokenizer, smollm2_tokenizer.vocab_size)
    assert set(special) == smollm2_tokenizer.special_ids
    for text in ('Straße 😀\n\t{"a": [1]}', "日本語 и e\u0301"):
        ids = smollm2_tokenizer.encode(text, add_special_tokens=False).ids.tolist()
        assert b"".join(texts[token_id] for token_id in ids) == text.encode()


def write_sentencepiece(directory, decoder):
    """Write a tokenizer in the manner of Llama 2: blanks as U+2581, bytes as tokens."""
    vocabulary = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "\u2581",
        "\u2581{",
        "é",
        "a\u2581b",
    ]
    content = {
        "version": "1.0",
        "added_tokens": [
            {"id": index, "content": name, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False}
            for index, name in enumerate(vocabulary[:3])
        ],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": decoder,
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "merges": [],
                  "vocab": {token: index for index, token in enumerate(vocabulary)}},
    }  # fmt: skip
    directory.mkdir()
    (directory / "tokenizer.json").write_text(json.dumps(content))
    return load_tokenizer(directory)


REPLACE = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


@pytest.mark.parametrize(
    "decoder",
    [
        {"type": "Sequence", "decoders": [REPLACE, {"type": "ByteFallback"}, {"type": "Fuse"}, STRIP]},
        {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Metaspace", "replacement": "\u2581"}]},
    ],
    ids=["replace", "metaspace"],
)
def test_sentencepiece_tokens_write_blanks_and_bytes(decoder, tmp_path):
    tokenizer = write_sentencepiece(tmp_path / "sentencepiece", decoder)
    texts, special = token_bytes(tokenizer, 265)
    assert special == [0, 1, 2]
    assert texts[:3] == [b""] * 3
    assert texts[3:259] == [bytes([byte]) for byte in range(256)]
    assert texts[259:] == [b" ", b" {", "é".encode(), b"a b", b"", b""]
    matcher = GrammarCompiler(tokenizer, 265).matcher(Regex(" ?[{é]|a b"))
    for token_id in (259, 3 + ord("{")):
        matcher.accept(token_id)
    assert matcher.can_end
    assert allowed_ids(GrammarCompiler(tokenizer, 265).matcher(Choice(["é"])), 265).tolist() == [3 + 0xC3, 261]


def test_tokenizers_of_other_kinds_are_refused(tmp_path):
    tokenizer = write_sentencepiece(tmp_path / "wordpiece", {"type": "WordPiece", "prefix": "##", "cleanup": True})
    with pytest.raises(GrammarError, match="byte-level or SentencePiece"):
        GrammarCompiler(tokenizer, 263)


def test_a_vocabulary_without_a_needed_byte_is_refused(smollm2_tokenizer):
    with pytest.raises(GrammarError, match="has no token for the character"):
        GrammarCompiler(smollm2_tokenizer, 60)


def test_a_text_that_the_vocabulary_cannot_begin_is_refused_when_compiling(tmp_path):
    write_tokenizer(tmp_path)
    compiler = GrammarCompiler(load_tokenizer(tmp_path), 150)  # without the bytes from 150
    with pytest.raises(GrammarError, match="enforced: the vocabulary cannot spell"):
        compiler.matcher(Choice(["é"]))
    constraint = Constraint(compiler.matcher(Choice(["aé"])), [3], 150)
    constraint.accept(ord("a"))
    with pytest.raises(GrammarError, match="followed: the vocabulary cannot spell"):
        constraint.allowed()


def test_accept_rollback_and_fork_agree(byte_compiler):
    grammar = JsonSchema({"type": "array", "items": {"enum": ["ab", "ac"]}})
    matcher = byte_compiler.matcher(grammar)
    text = b'["ab", "ac"]'
    masks = []
    for byte in text:
        masks.append(allowed_ids(matcher, 256).tolist())
        other = matcher.fork()
        matcher.accept(byte)
        assert allowed_ids(other, 256).tolist() == masks[-1]
    assert matcher.can_end
    assert allowed_ids(matcher, 256).size == 0
    for count in (1, 3, len(text) - 4):
        matcher.rollback(count)
    assert allowed_ids(matcher, 256).tolist() == masks[0]
    with pytest.raises(GrammarError, match="does not allow the token 120"):
        matcher.accept(ord("x"))


def test_what_is_counted_as_allowed_is_what_masks_allow_and_is_not_taken(byte_compiler):
    matcher = byte_compiler.matcher(Regex("ab(cd)*x"))
    for text, count in ((b"abcdcdx", 7), (b"abcdce", 5), (b"b", 0), (b"abxx", 3), (b"", 0)):
        assert matcher.count_allowed(list(text)) == count
        assert allowed_ids(matcher, 256).tolist() == [ord("a")]
    matcher.accept(ord("a"))
    assert matcher.count_allowed(list(b"abx")) == 0
    assert matcher.count_allowed(list(b"bx")) == 2
