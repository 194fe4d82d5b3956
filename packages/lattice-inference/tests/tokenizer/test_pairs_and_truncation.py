"""Pairs, truncation, packed encoding, padding."""

import itertools
import json

import numpy as np
import pytest
from tokenizers import processors

from lattice_inference.errors import InvalidInputError
from lattice_inference.tokenizer import Truncation, load_tokenizer

from .bpe_vocabularies import trained

A = "All human beings are born free and equal in dignity and rights."
B = "Tous les êtres humains naissent libres [MASK] égaux."


@pytest.mark.parametrize("add_special_tokens", [True, False])
@pytest.mark.parametrize(("text", "pair"), [(A, None), ("", None), (A, B), (B, A), (A, ""), ("", B), ("", "")])
def test_pairs(uncased, cased, text, pair, add_special_tokens):
    for both in (uncased, cased):
        both.compare(text, pair, add_special_tokens=add_special_tokens)


@pytest.mark.parametrize("processor", ["template", "bert", "none"])
def test_post_processors(uncased, make_both, processor):
    tokenizer = type(uncased.theirs).from_str(uncased.theirs.to_str())
    cls, sep = tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]")
    if processor == "bert":
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", sep), ("[CLS]", cls))
    elif processor == "template":
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[SEP]:3 $A:2 [CLS] [CLS]:7",
            pair="$B:5 [CLS] $A:1 [SEP]:1",
            special_tokens=[("[CLS]", cls), ("[SEP]", sep)],
        )
    value = tokenizer.to_str()
    if processor == "none":
        fields = json.loads(value)
        fields["post_processor"] = None
        value = json.dumps(fields)
    both = make_both(type(tokenizer).from_str(value))
    for add_special_tokens in (True, False):
        both.compare(A, add_special_tokens=add_special_tokens)
        both.compare(A, B, add_special_tokens=add_special_tokens)


@pytest.mark.parametrize("text", ["fox", "", "fox<|end|>", "<|end|> fox", "all human beings " * 9])
def test_a_special_token_of_the_template_stands_there_once_on_every_way(udhr, tmp_path, text):
    """Case C3: settings beside the file, a text that ends with the token itself, and cutting put no second one there."""
    theirs = trained("gpt2", [udhr["eng"]], 400)
    end = theirs.token_to_id("<|end|>")
    template = processors.TemplateProcessing("$A <|end|>", "$A $B <|end|>", [("<|end|>", end)])
    theirs.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    theirs.save(str(tmp_path / "tokenizer.json"))
    settings = {"eos_token": "<|end|>", "bos_token": "<|end|>", "add_eos_token": True, "add_bos_token": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    ours = load_tokenizer(tmp_path)
    want = theirs.encode(text).ids
    assert want == [*theirs.encode(text, add_special_tokens=False).ids, end]
    assert want.count(end) == text.count("<|end|>") + 1
    assert ours.encode(text).ids.tolist() == want
    assert [encoding.ids.tolist() for encoding in ours.encode_batch([text, text])] == [want, want]
    assert ours.encode_packed([text, "a", text]).token_ids.tolist() == want + theirs.encode("a").ids + want
    assert ours.count(text) == len(want)
    for limit in range(1, 9):
        theirs.enable_truncation(limit)
        assert ours.encode(text, truncation=limit).ids.tolist() == theirs.encode(text).ids
        assert ours.encode_packed([text], max_tokens=limit).token_ids.tolist() == theirs.encode(text).ids


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("strategy", ["longest_first", "only_first", "only_second"])
@pytest.mark.parametrize(("text", "pair"), [(A, None), (A, B), (B[:9], A), (A, "")])
def test_truncation_at_every_length(uncased, text, pair, strategy, side):
    total = len(uncased.theirs.encode(text, pair).ids)
    special = 2 if pair is None else 3
    refused = 0
    try:
        for limit in range(special, total + 2):
            uncased.theirs.enable_truncation(limit, strategy=strategy, direction=side)
            truncation = Truncation(limit, strategy, side)
            try:
                uncased.theirs.encode(text, pair)
            except Exception:  # the library raises its bare Exception
                refused += 1
                with pytest.raises(InvalidInputError, match="does not reach the limit"):
                    uncased.ours.encode(text, pair, truncation=truncation)
                continue
            uncased.compare(text, pair, truncation=truncation)
            assert uncased.ours.encode(text, pair, truncation=truncation).truncated == (limit < total)
            if (strategy, side) == ("longest_first", "right"):
                uncased.compare(text, pair, truncation=limit)
    finally:
        uncased.theirs.no_truncation()
    assert refused < total


@pytest.mark.parametrize("limit", [0, 1])
def test_a_limit_below_the_special_tokens_is_refused(uncased, limit):
    with pytest.raises(InvalidInputError, match="no room for the special tokens"):
        uncased.ours.encode(A, truncation=limit)
    with pytest.raises(InvalidInputError, match="no room for the special tokens"):
        uncased.ours.encode(A, B, truncation=limit + 1)
    assert len(uncased.ours.encode(A, truncation=limit, add_special_tokens=False)) == limit


@pytest.mark.parametrize("wrong", [-1, 2.5, True, "8"])
def test_wrong_limits_are_refused(uncased, wrong):
    with pytest.raises(InvalidInputError, match="max_tokens"):
        uncased.ours.encode(A, truncation=wrong)
    with pytest.raises(InvalidInputError, match="max_tokens"):
        uncased.ours.encode_packed([A], max_tokens=wrong)


@pytest.mark.parametrize("max_tokens", [None, 3, 8, 20, 10_000])
@pytest.mark.parametrize("add_special_tokens", [True, False])
@pytest.mark.parametrize("special_tokens_in_text", [True, False])
def test_packed_equals_encode(uncased, udhr, max_tokens, add_special_tokens, special_tokens_in_text):
    lines = [line for text in udhr.values() for line in text.split("\n")[:8]]
    texts = [*lines, (A, B), "", ("", ""), *itertools.pairwise(lines)]
    options = {"add_special_tokens": add_special_tokens, "special_tokens_in_text": special_tokens_in_text}
    packed = uncased.ours.encode_packed(texts, max_tokens=max_tokens, **options)
    batch = uncased.ours.encode_batch(texts, truncation=max_tokens, **options)
    assert packed.cu_seqlens.tolist() == [0, *np.cumsum([len(encoding) for encoding in batch]).tolist()]
    for array in (packed.token_ids, packed.cu_seqlens, packed.type_ids, packed.token_counts):
        assert array.dtype == np.int32
    assert packed.truncated.dtype == np.bool_
    for i, (text, encoding) in enumerate(zip(texts, batch, strict=True)):
        first, second = text if isinstance(text, tuple) else (text, None)
        alone = uncased.ours.encode(first, second, truncation=max_tokens, **options)
        start, end = packed.cu_seqlens[i], packed.cu_seqlens[i + 1]
        assert packed.token_ids[start:end].tolist() == encoding.ids.tolist() == alone.ids.tolist()
        assert packed.type_ids[start:end].tolist() == encoding.type_ids.tolist() == alone.type_ids.tolist()
        assert encoding.offsets.tolist() == alone.offsets.tolist()
        assert packed.token_counts[i] == len(uncased.ours.encode(first, second, **options))
        assert packed.truncated[i] == encoding.truncated == alone.truncated == (packed.token_counts[i] > len(alone))


def test_empty_batches(uncased):
    packed = uncased.ours.encode_packed([])
    assert packed.token_ids.shape == (0,)
    assert packed.cu_seqlens.tolist() == [0]
    assert uncased.ours.encode_batch([]) == []


@pytest.mark.parametrize("direction", ["right", "left"])
@pytest.mark.parametrize(("length", "multiple"), [(None, None), (None, 8), (40, None), (5, None), (40, 16)])
def test_file_limits(uncased, make_both, direction, length, multiple):
    tokenizer = type(uncased.theirs).from_str(uncased.theirs.to_str())
    tokenizer.enable_truncation(12, strategy="longest_first", direction=direction)
    tokenizer.enable_padding(direction=direction, pad_id=4, pad_type_id=1, length=length, pad_to_multiple_of=multiple)
    applied = make_both(tokenizer, apply_file_limits=True)
    for text in (A, "the", ""):
        applied.compare(text)
        applied.compare(text, B)
    for ours, theirs in zip(
        applied.ours.encode_batch([A, "the", (A, B)]), applied.theirs.encode_batch([A, "the", (A, B)]), strict=True
    ):
        assert ours.ids.tolist() == theirs.ids
        assert ours.attention_mask.tolist() == theirs.attention_mask
        assert ours.type_ids.tolist() == theirs.type_ids
        assert list(map(tuple, ours.offsets.tolist())) == theirs.offsets
    assert make_both(tokenizer).ours.encode(A).ids.tolist() == uncased.ours.encode(A).ids.tolist()
