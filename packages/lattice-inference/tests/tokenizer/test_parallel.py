"""Long lists on several threads: the same arrays as text by text, and errors that name the right text."""

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE, WordPiece

from lattice_inference import get_num_threads, set_num_threads
from lattice_inference.errors import InvalidInputError

from .unigram_tokenizers import xlm_roberta


@pytest.fixture(autouse=True)
def four_threads():
    before = get_num_threads()
    set_num_threads(4)
    yield
    set_num_threads(before)


@pytest.fixture(scope="session")
def byte_bpe(make_both):
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "a"), ("Ġ", "the"), ("i", "n")]
    tokens = [*letters, *(left + right for left, right in merges)]
    tokenizer = Tokenizer(BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return make_both(tokenizer)


@pytest.fixture(scope="session")
def unigram(make_both):
    pieces = [(piece, -1.0 - index) for index, piece in enumerate(["\u2581the", "\u2581", "a", "in", *"thenisr日が"])]
    return make_both(xlm_roberta([("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *pieces]))


def lines(udhr, count=1500):
    draw = random.Random(5)
    words = " ".join(udhr.values()).split()
    return ["", *(" ".join(draw.choices(words, k=draw.choice([0, 1, 4, 30, 200]))) for _ in range(count - 1))]


@pytest.mark.parametrize("name", ["uncased", "byte_bpe", "unigram"])
def test_long_lists_give_the_arrays_of_one_thread_and_of_one_text_at_a_time(name, request, udhr):
    tokenizer = request.getfixturevalue(name).ours
    texts = lines(udhr)
    many = tokenizer.encode_packed(texts, max_tokens=100)
    one = tokenizer.encode_packed(texts, max_tokens=100, threads=1)
    for field in ("token_ids", "cu_seqlens", "type_ids", "token_counts", "truncated"):
        assert getattr(many, field).tobytes() == getattr(one, field).tobytes(), field
    alone = [tokenizer.encode(text, truncation=100).ids for text in texts]
    assert many.token_ids.tolist() == [token_id for ids in alone for token_id in ids.tolist()]
    assert many.cu_seqlens.tolist() == [0, *np.cumsum([len(ids) for ids in alone])]
    assert many.truncated.any()


@pytest.mark.slow
def test_long_lists_of_pairs_and_of_texts_with_offsets_agree_with_the_oracle(uncased, udhr):
    texts = lines(udhr, 400)
    pairs = list(zip(texts, reversed(texts), strict=True))
    packed = uncased.ours.encode_packed(pairs)
    theirs = uncased.theirs.encode_batch(pairs)
    assert packed.token_ids.tolist() == [token_id for encoding in theirs for token_id in encoding.ids]
    assert packed.type_ids.tolist() == [type_id for encoding in theirs for type_id in encoding.type_ids]
    for ours, encoding in zip(uncased.ours.encode_batch(texts), uncased.theirs.encode_batch(texts), strict=True):
        assert [tuple(offset) for offset in ours.offsets.tolist()] == encoding.offsets


def test_the_error_names_the_first_bad_text_of_a_long_list(uncased, udhr):
    texts = lines(udhr)
    texts[700] = "fine until \ud800 here"
    texts[1400] = "\udfff"
    with pytest.raises(InvalidInputError, match="text 700 has a lone surrogate at character 11"):
        uncased.ours.encode_packed(texts)
    with pytest.raises(InvalidInputError, match="text 0: a limit of 1 tokens leaves no room"):
        uncased.ours.encode_packed(lines(udhr), max_tokens=1)


def test_long_lists_split_by_a_pattern_outside_of_c_agree_with_the_oracle(make_both, udhr):
    tokenizer = Tokenizer(WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[aeiou]{1,2}|\p{L}{3,5}"), "isolated")
    both = make_both(tokenizer)
    texts = lines(udhr, 300)
    theirs = both.theirs.encode_batch(texts)
    assert both.ours.encode_packed(texts).token_ids.tolist() == [i for encoding in theirs for i in encoding.ids]


@pytest.mark.slow
def test_threads_of_python_that_tokenize_at_once_get_the_same_arrays(uncased, udhr):
    texts = lines(udhr)
    expected = uncased.ours.encode_packed(texts, threads=1).token_ids.tobytes()
    with ThreadPoolExecutor(8) as executor:
        results = list(executor.map(lambda _: uncased.ours.encode_packed(texts).token_ids.tobytes(), range(16)))
    assert set(results) == {expected}
