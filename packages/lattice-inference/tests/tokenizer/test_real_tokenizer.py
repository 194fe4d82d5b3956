"""The real all-MiniLM-L6-v2 tokenizer against recorded ids, published vectors and Hugging Face's library."""

import json

import pytest
import tokenizers

from lattice_inference.tokenizer import load_tokenizer

pytestmark = pytest.mark.model


def test_recorded_ids(minilm, data_directory):
    """Cases A1 (kana keep their voicing marks), A7 (special tokens in text), A9 (controls and odd spaces), table P1."""
    cases = json.loads((data_directory / "wordpiece/all_minilm_l6_v2.json").read_text(encoding="utf-8"))
    assert len(cases) == 25
    for case in cases:
        assert minilm.ours.encode(case["text"]).ids.tolist() == case["ids"], case["text"]
        minilm.compare(case["text"])


def test_bert_bge_vectors(minilm, data_directory):
    inputs = (data_directory / "wordpiece/bert_bge.inp").read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")
    lines = (data_directory / "wordpiece/bert_bge.out").read_text(encoding="utf-8").split("\n")
    assert len(inputs) >= 46
    for text, line in zip(inputs, lines, strict=False):
        expected = [int(number) for number in line.split()]
        assert minilm.ours.encode(text, add_special_tokens=False).ids.tolist() == expected, text


def test_declaration_of_human_rights(minilm, udhr):
    assert len(udhr) == 14
    for text in udhr.values():
        minilm.compare(text)
        for line in text.split("\n")[:20]:
            minilm.compare(line)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(3))
def test_every_code_point_inside_a_word(minilm, part):
    for start in range(part * 0x4000, 0x110000, 3 * 0x4000):
        characters = [chr(c) for c in range(start, start + 0x4000) if not 0xD800 <= c <= 0xDFFF]
        text = "\n".join(f"a{c}b" for c in characters)
        assert minilm.ours.encode(text).ids.tolist() == minilm.theirs.encode(text).ids


def test_vocabulary_file_gives_the_same_tokenizer(minilm, minilm_directory, udhr):
    ours = load_tokenizer(minilm_directory / "vocab.txt")
    for text in [*udhr.values(), "[CLS] special tokens [SEP] [MASK]"]:
        assert ours.encode(text).ids.tolist() == minilm.theirs.encode(text).ids


def test_file_limits_are_applied_on_request_only(minilm_directory):
    theirs = tokenizers.Tokenizer.from_file(str(minilm_directory / "tokenizer.json"))
    ours = load_tokenizer(minilm_directory, apply_file_limits=True)
    for text in ("short", "long " * 500):
        assert ours.encode(text).ids.tolist() == theirs.encode(text).ids
        assert ours.encode(text).attention_mask.tolist() == theirs.encode(text).attention_mask
    assert len(load_tokenizer(minilm_directory).encode("long " * 500)) == 502


def test_example_of_the_manual(minilm):
    encoding = minilm.ours.encode("Hello world!")
    assert encoding.ids.tolist() == [101, 7592, 2088, 999, 102]
    assert encoding.offsets.tolist() == [[0, 0], [0, 5], [6, 11], [11, 12], [0, 0]]
    assert minilm.ours.decode(encoding.ids) == "hello world!"
    hidden = minilm.ours.encode("[SEP]", add_special_tokens=False, special_tokens_in_text=False)
    assert hidden.tokens == ["[", "sep", "]"]
