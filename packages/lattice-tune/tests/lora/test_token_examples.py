"""Examples for language models: what is trained, and what is refused with its line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lattice_tune import DatasetError, InvalidInputError
from lattice_tune.lora.packing import pack_tokens
from lattice_tune.lora.rows import rows_of
from lattice_tune.lora.token_examples import TokenExample, TokenReader
from tiny_decoders import BYTES, END, EOS


def read(decoder: Path, *rows: dict[str, object], most: int = 64) -> list[TokenExample]:
    return TokenReader.of_model(decoder, most).read(rows_of(rows)).examples


def trained_text(example: TokenExample) -> str:
    ids = example.token_ids[example.trained].tolist()
    return "".join(chr(i) if i < BYTES else {END: "<end>", EOS: "<eos>"}[i] for i in ids)


def test_of_a_conversation_the_assistants_messages_and_their_ends_are_trained(decoder: Path) -> None:
    talk = [
        {"role": "user", "content": "yes<|end|>"},
        {"role": "assistant", "content": "no"},
        {"role": "user", "content": "no"},
        {"role": "assistant", "content": "yes"},
    ]
    (example,) = read(decoder, {"messages": talk})
    assert trained_text(example) == "no<end>yes<end>"
    assert (example.token_ids == END).sum() == 4  # the one that the user wrote is text


def test_parts_of_a_message_are_lines_of_its_text(decoder: Path) -> None:
    """The template knows no parts, and would write the list as Python does."""
    question, answer = ([{"type": "text", "text": text} for text in texts] for texts in (["hi", "you"], ["yo", "ho"]))
    in_parts, in_text = (
        {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]}
        for asked, answered in ((question, answer), ("hi\nyou", "yo\nho"))
    )
    found, expected = read(decoder, in_parts, in_text)
    assert found.token_ids.tolist() == expected.token_ids.tolist()
    assert found.trained.tolist() == expected.trained.tolist()
    assert trained_text(found).startswith("yo\nho")


def test_of_a_pair_the_completion_is_trained_and_of_a_text_all_but_the_first_token(decoder: Path) -> None:
    pair, text = read(decoder, {"prompt": "2 + 2 =", "completion": " 4"}, {"text": "abc"})
    assert trained_text(pair) == " 4<eos>"
    assert trained_text(text) == "bc<eos>"


def test_a_long_text_is_divided_and_every_token_is_predicted_once(decoder: Path) -> None:
    text = "".join(chr(97 + i % 26) for i in range(40))
    parts = read(decoder, {"text": text}, most=16)
    assert all(len(part.token_ids) <= 16 for part in parts)
    assert "".join(map(trained_text, parts)) == text[1:] + "<eos>"


def test_a_long_answer_is_cut_and_counted(decoder: Path) -> None:
    found = TokenReader.of_model(decoder, 8).read(rows_of([{"prompt": "abc", "completion": "d" * 20}]))
    assert found.truncated == 1
    assert trained_text(found.examples[0]) == "d" * 5


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"messages": [{"role": "user", "content": "a"}]}, "no answer of the assistant's"),
        ({"prompt": "a", "completion": ""}, "its completion is empty"),
        ({"text": ""}, "no token of the example is trained: its text is empty"),
        ({"prompt": "a" * 40, "completion": "b"}, "begins beyond the first 32 of 42 tokens"),
        ({"prompt": "a"}, "an example has messages, prompt and completion, or text"),
        ({"prompt": "a", "completion": "b", "text": "c"}, "an example has messages"),
        ({"prompt": 5, "completion": "b"}, "has 5 as its 'prompt'"),
        ({"text": "\ud800"}, "half a surrogate pair"),
        ({"messages": []}, "messages is empty"),
        ({"messages": [{"role": "assistant", "content": "b", "weight": 3}]}, "must be 0 or 1"),
    ],
)
def test_an_example_that_teaches_nothing_is_an_error_with_its_line(
    decoder: Path, tmp_path: Path, row: dict[str, object], message: str
) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text('{"text": "good"}\n\n' + json.dumps(row) + "\n")
    with pytest.raises(DatasetError, match=r"train\.jsonl:3: .*" + message):
        TokenReader.of_model(decoder, 32).read(rows_of(file))


def test_files_and_sources_that_are_none_are_refused(decoder: Path, tmp_path: Path) -> None:
    reader = TokenReader.of_model(decoder, 32)
    (tmp_path / "bad.jsonl").write_text('{"text": "good"}\n[1]\n')
    for source, message in (
        (tmp_path / "bad.jsonl", "bad.jsonl:2"),
        (tmp_path / "none.jsonl", "No such file"),
        ([], "no example"),
    ):
        with pytest.raises(DatasetError, match=message):
            reader.read(rows_of(source))
    for wrong in (5, {"text": "a"}, ["a"], b"x"):
        with pytest.raises(InvalidInputError):
            reader.read(rows_of(wrong))  # type: ignore[arg-type]


def test_an_example_is_not_longer_than_the_model_takes(decoder: Path) -> None:
    rows = [{"text": "0123456789" * 10}]
    examples = TokenReader.of_model(decoder, 1024).read(rows_of(rows)).examples
    assert max(len(example.token_ids) for example in examples) == 64


def test_packed_sequences_have_no_padding_and_their_own_targets(decoder: Path) -> None:
    examples = read(decoder, {"prompt": "ab", "completion": "c"}, {"text": "xyz"}, {"text": "0123456789"})
    first, second = pack_tokens(examples, 10)
    assert first.cu_seqlens.tolist() == [0, 4, 8]
    assert second.cu_seqlens.tolist() == [0, 11]
    assert first.token_ids.tolist() == [97, 98, 99, EOS, 120, 121, 122, EOS]
    # a sequence's last row has no target: not the next sequence's first token
    assert first.targets.tolist() == [-100, 99, EOS, -100, 121, 122, EOS, -100]
    assert first.token_ids.dtype == first.cu_seqlens.dtype == first.targets.dtype == np.int32


@pytest.mark.model
@pytest.mark.slow
def test_a_token_across_the_border_of_prompt_and_completion_is_trained(smollm2: Path) -> None:
    """The tokens of the prompt alone are others: their number would mark the wrong ones."""
    reader = TokenReader.of_model(smollm2, 64)
    (example,) = reader.read(rows_of([{"prompt": "The cap", "completion": "ital of France"}])).examples
    tokenizer = reader._tokenizer
    told = [tokenizer.id_to_token(int(i)) for i in example.token_ids[example.trained]]
    assert told == ["Ġcapital", "Ġof", "ĠFrance", "<|im_end|>"]
    assert len(tokenizer.encode("The cap").ids) != int(np.flatnonzero(example.trained)[0])
