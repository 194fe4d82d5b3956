"""A text that goes on from a prompt keeps the blank before its first word, whatever the tokenizer's decoder does with it."""

from __future__ import annotations

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from lattice_inference import load_tokenizer
from lattice_inference.generate.generation import stream_after_text

LLAMA = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)


@pytest.fixture(params=[decoders.Metaspace(), LLAMA], ids=["metaspace", "llama"])
def tokenizer(request, tmp_path):
    vocabulary = {
        "▁": 0,
        "a": 1,
        "▁a": 2,
        "▁Paris": 3,
        "!": 4,
        "▁P": 5,
        "ar": 6,
        "is": 7,
        "P": 8,
        "r": 9,
        "i": 10,
        "s": 11,
    }
    vocabulary |= {"<0xF0>": 12, "<0x9F>": 13, "<0x98>": 14, "<0x80>": 15, "<unk>": 16, "▁Par": 17}
    merges = [("▁", "a"), ("▁", "P"), ("a", "r"), ("i", "s"), ("▁P", "ar"), ("▁Par", "is")]
    made = tokenizers.Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = request.param
    made.save(str(tmp_path / "tokenizer.json"))
    return load_tokenizer(tmp_path)


def test_the_first_blank_of_a_continuation_counts(tokenizer):
    ids = tokenizer.encode("Paris!", add_special_tokens=False).ids.tolist()
    begins, continues = tokenizer.stream(), stream_after_text(tokenizer)
    assert "".join(begins.push(i) for i in ids) + begins.finish() == "Paris!" == tokenizer.decode(ids)
    assert "".join(continues.push(i) for i in ids) + continues.finish() == " Paris!"


@pytest.mark.parametrize("tokenizer", [LLAMA], ids=["llama"], indirect=True)
def test_bytes_of_a_continuation_become_their_character(tokenizer):
    stream = stream_after_text(tokenizer)
    assert "".join(stream.push(i) for i in (12, 13, 14, 15, 4)) + stream.finish() == "😀!"
