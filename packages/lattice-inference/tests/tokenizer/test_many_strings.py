"""A hundred thousand random strings for each kind of model and pattern: ids equal to Hugging Face's library's."""

import random
import zlib

import pytest

from .bpe_vocabularies import PATTERNS, llama, llama_pieces, trained
from .unigram_tokenizers import xlm_roberta

STRINGS = 100_000
PIECES = [
    *"abcdefghijklmnopqrstuvwxyzABCXYZ0123456789 \t\n.,;:!?'\"()[]<>/_-#@éüßñçøåœßİıſ",
    *"αβγΣςабвЯдежאבגدرسहिन्दीกขคเมือง日本語中文한국어がぱ１Ａ①ﬁ½²٣Ⅷ\u0301\u0323\u0345\u0f71\u0f73\u093c\u1100\u1161\u11a8",
    *"\u00a0\u00ad\u200b\u200d\u2028\u3000\ufeff\ufffd\u2581Ġ\x00\x07\x85😀🏽👩\U0001f1e6\U0001f1e7\U00020000\U000e0001",
    *[
        "the ",
        " the",
        "ing",
        "'s",
        "n't",
        "DON'T",
        "  ",
        "   ",
        "\r\n",
        "\n\n",
        "<s>",
        "</s>",
        "[MASK]",
        "<|end|>",
        "<unk>",
    ],
    *["e\u0301", "\u1e9b\u0323", "👩\u200d🚀", "12345", "don\u2019t", "https://", "<0x41>", "##ing", "\u2581\u2581"],
]


@pytest.fixture(params=["wordpiece", "unigram", "sentencepiece_bpe", *PATTERNS])
def both(request, make_both, udhr, data_directory):
    if request.param == "wordpiece":
        return request.getfixturevalue("uncased")
    if request.param == "unigram":
        return make_both(xlm_roberta())
    if request.param == "sentencepiece_bpe":
        return make_both(llama(llama_pieces(data_directory / "bpe")))
    return make_both(trained(request.param, udhr.values()))


@pytest.mark.slow
def test_a_hundred_thousand_random_strings(both, request):
    draw = random.Random(zlib.crc32(request.node.name.encode()))
    for _ in range(0, STRINGS, 10_000):
        texts = ["".join(draw.choices(PIECES, k=draw.randrange(13))) for _ in range(9_000)]
        texts += ["".join(map(chr, draw.choices(range(0xD800), k=draw.randrange(7)))) for _ in range(700)]
        texts += ["".join(map(chr, draw.choices(range(0xE000, 0x110000), k=draw.randrange(7)))) for _ in range(300)]
        packed = both.ours.encode_packed(texts)
        ids, bounds = packed.token_ids.tolist(), packed.cu_seqlens.tolist()
        for number, theirs in enumerate(both.theirs.encode_batch_fast(texts)):
            assert ids[bounds[number] : bounds[number + 1]] == theirs.ids, ascii(texts[number])
