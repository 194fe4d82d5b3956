"""Tokens and their places in a text, for tokenizers whose words begin with a blank and for tokens that are bytes."""

from __future__ import annotations

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

pytest.importorskip("starlette")

from lattice_inference import load_tokenizer
from lattice_inference.serve.token_texts import TextOffsets, TokenTexts

BYTES = ["<0xF0>", "<0x9F>", "<0x98>", "<0x80>"]
WORDS = ["<unk>", "<s>", "▁", "a", "▁a", "▁cat", "cat", "!", *BYTES]
LLAMA = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)


@pytest.fixture(params=[decoders.Metaspace(), LLAMA], ids=["metaspace", "llama"])
def tokenizer(request, tmp_path):
    vocabulary = {text: number for number, text in enumerate(WORDS)}
    made = tokenizers.Tokenizer(models.BPE(vocabulary, [("▁", "a")], unk_token="<unk>", byte_fallback=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = request.param
    made.add_special_tokens(["<s>"])
    made.save(str(tmp_path / "tokenizer.json"))
    return load_tokenizer(tmp_path)


def places(offsets, tokens):
    return [offsets.next(WORDS.index(token)) for token in tokens]


def test_a_word_keeps_its_blank(tokenizer):
    text_of = TokenTexts(tokenizer)
    texts = {text: text_of(number) for number, text in enumerate(WORDS)}
    assert (texts["▁cat"], texts["cat"], texts["!"], texts["<s>"]) == (" cat", "cat", "!", "<s>")
    assert text_of(99) == TokenTexts(None)(99) == "token_id:99"


def test_places_are_those_in_the_text(tokenizer):
    tokens = ["<s>", "▁cat", "!", "▁a", "▁cat"]
    assert places(TextOffsets(tokenizer, "cat! a"), tokens) == [0, 0, 3, 4, 6]
    assert places(TextOffsets(tokenizer, "<s> cat! a"), tokens)[0:3] == [0, 3, 7]
    assert places(TextOffsets(tokenizer), ["▁cat", "<s>", "▁a"]) == [0, 4, 4]
    assert TextOffsets(None).next(3) == 0


@pytest.mark.parametrize("tokenizer", [LLAMA], ids=["llama"], indirect=True)
def test_the_bytes_of_a_character_have_one_place(tokenizer):
    assert places(TextOffsets(tokenizer, "cat😀!"), ["▁cat", *BYTES, "!"]) == [0, 3, 3, 3, 3, 4]
    assert TokenTexts(tokenizer)(WORDS.index(BYTES[0])) == "\N{REPLACEMENT CHARACTER}"
