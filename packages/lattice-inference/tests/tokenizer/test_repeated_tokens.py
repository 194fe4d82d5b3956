"""GGUF files with one token text at several ids: texts become one of them, and every id becomes its text."""

from __future__ import annotations

import pickle

import pytest
import tokenizers

from lattice_inference import load_tokenizer

from .gguf_vocabularies import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, write_gguf_vocabulary

BPE = {
    "pre": "gpt-2",
    "tokens": ["a", "b", "ab", "c", "ab", "a"],
    "token_type": [NORMAL] * 6,
    "merges": ["a b"],
}


def test_a_byte_level_model_encodes_to_the_last_id_as_hugging_face_does(tmp_path):
    fields = BPE | {"tokens": [*BPE["tokens"], "abc"], "token_type": [NORMAL] * 7, "merges": ["a b", "ab c"]}
    ours = load_tokenizer(write_gguf_vocabulary(tmp_path / "v.gguf", "gpt2", **fields))
    # what transformers makes of the file: a dictionary, in which the later id counts
    vocabulary = {token: token_id for token_id, token in enumerate(fields["tokens"])}
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [("a", "b"), ("ab", "c")]))
    for text in ("a", "ab", "abc", "aabcab", "cba"):
        assert ours.encode(text).ids.tolist() == theirs.encode(text).ids
    assert ours.vocab_size == 7
    assert [ours.decode([token_id]) for token_id in range(7)] == fields["tokens"]
    assert [ours.id_to_token(token_id) for token_id in range(7)] == fields["tokens"]
    assert ours.token_to_id("ab") == 4
    assert pickle.loads(pickle.dumps(ours)).decode([2, 4, 0, 5]) == "ababaa"
    stream = ours.stream()
    assert "".join([*(stream.push(token_id) for token_id in (2, 4, 0)), stream.finish()]) == "ababa"


def test_a_sentencepiece_model_merges_by_the_score_of_the_id_that_counts(tmp_path):
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    more = ["\u2581", "a", "b", "ab", "ba", "ab"]  # by the first score of "ab" it would come before "ba"
    fields = {
        "tokens": pieces + more,
        "scores": [0.0] * 259 + [-10.0, -11.0, -12.0, -1.0, -2.0, -3.0],
        "token_type": [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * 6],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        "add_bos_token": False,
        "add_space_prefix": False,
    }
    ours = load_tokenizer(write_gguf_vocabulary(tmp_path / "v.gguf", "llama", **fields))
    assert ours.encode("aba").tokens == ["a", "ba"]
    assert ours.encode("ab").ids.tolist() == [264]
    assert [ours.decode([token_id]) for token_id in (262, 263, 264)] == ["ab", "ba", "ab"]


def test_a_unigram_model_encodes_to_the_last_id(tmp_path):
    fields = {
        "tokens": ["<unk>", "</s>", "\u2581", "a", "b", "ab", "ab"],
        "scores": [0.0, 0.0, -2.0, -3.0, -3.0, -1.0, -1.5],
        "token_type": [UNKNOWN, CONTROL, NORMAL, NORMAL, NORMAL, NORMAL, NORMAL],
        "eos_token_id": 1,
        "unknown_token_id": 0,
        "add_space_prefix": False,
    }
    ours = load_tokenizer(write_gguf_vocabulary(tmp_path / "v.gguf", "t5", **fields))
    assert ours.encode("ab", add_special_tokens=False).ids.tolist() == [6]
    assert ours.vocab_size == 7
    assert [ours.decode([token_id]) for token_id in (5, 6)] == ["ab", "ab"]


def test_a_wordpiece_model_encodes_to_the_last_id(tmp_path):
    fields = {
        "tokens": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "\u2581cat", "s", "\u2581cat", "s"],
        "token_type": [CONTROL] * 4 + [NORMAL] * 4,
        "cls_token_id": 2,
        "seperator_token_id": 3,
        "unknown_token_id": 1,
    }
    ours = load_tokenizer(write_gguf_vocabulary(tmp_path / "v.gguf", "bert", **fields))
    assert ours.encode("cats").ids.tolist() == [2, 6, 7, 3]
    assert (ours.decode([4, 5]), ours.decode([6, 7])) == ("cats", "cats")


@pytest.mark.parametrize(
    ("types", "named", "found"),
    [
        ([CONTROL, CONTROL], None, 7),  # the last one
        ([CONTROL, NORMAL], None, 6),  # the special one
        ([USER_DEFINED, CONTROL], None, 7),
        ([CONTROL, CONTROL], 6, 6),  # the one that a key names
        ([NORMAL, NORMAL], 6, 6),
    ],
)
def test_of_special_tokens_with_one_text_the_named_one_or_the_last_is_found(tmp_path, types, named, found):
    fields = BPE | {"tokens": [*BPE["tokens"], "<|x|>", "<|x|>"], "token_type": [NORMAL] * 6 + types}
    fields |= {} if named is None else {"eos_token_id": named}
    ours = load_tokenizer(write_gguf_vocabulary(tmp_path / "v.gguf", "gpt2", **fields))
    assert ours.encode("ab<|x|>").ids.tolist() == [4, found]
    special = [token_id for token_id, kind in ((6, types[0]), (7, types[1])) if kind == CONTROL or token_id == named]
    for token_id in (6, 7):
        assert ours.decode([token_id], skip_special_tokens=False) == "<|x|>"
        assert ours.decode([token_id]) == ("" if token_id in special else "<|x|>")


def test_empty_texts_are_ids_like_any_other(tmp_path):
    fields = BPE | {"tokens": [*BPE["tokens"], "", "", ""], "token_type": [NORMAL] * 6 + [CONTROL, NORMAL, UNKNOWN]}
    ours = load_tokenizer(write_gguf_vocabulary(tmp_path / "v.gguf", "gpt2", **fields))
    assert ours.encode("ab").ids.tolist() == [4]
    assert ours.vocab_size == 9
    assert [ours.decode([token_id]) for token_id in (6, 7, 8)] == ["", "", ""]
