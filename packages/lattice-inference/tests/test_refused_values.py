"""Templates, chats, encodings and model names refuse what they cannot take, by typed errors."""

from __future__ import annotations

import os

import numpy as np
import pytest

from lattice_inference import (
    Chat,
    ChatTemplate,
    GenerateConfig,
    InvalidInputError,
    ModelNotFoundError,
    find_model,
    load_chat_template,
)
from lattice_inference.tokenizer.encoding import Encoding

ARRAYS = [np.empty(0), np.ones(3), np.array(["a", "b"])]


@pytest.mark.parametrize("wrong", [None, 1, b"x", [], ["x"], *ARRAYS])
def test_the_source_of_a_template_is_text(wrong):
    with pytest.raises(InvalidInputError, match="source"):
        ChatTemplate(wrong)


@pytest.mark.parametrize("wrong", [True, 1, "x", [], [1, 2], {"a": 1}, {1: "a"}, *ARRAYS])
def test_special_tokens_and_named_templates_are_texts_by_name(wrong):
    with pytest.raises(InvalidInputError, match="special_tokens"):
        ChatTemplate("x", wrong)
    with pytest.raises(InvalidInputError, match="named"):
        ChatTemplate("x", named=wrong)


@pytest.mark.parametrize("wrong", [0, "2026-01-01", [], *ARRAYS])
def test_now_is_a_moment(wrong):
    with pytest.raises(InvalidInputError, match="now"):
        ChatTemplate("x").render([], now=wrong)


@pytest.mark.parametrize("wrong", [None, 1, "x", [], object, *ARRAYS])
def test_a_chat_takes_place_in_a_session(wrong):
    with pytest.raises(InvalidInputError, match="session"):
        Chat(wrong)


@pytest.mark.parametrize("wrong", [True, 1, 1.5, b"x", [], object, *ARRAYS])
def test_a_revision_and_files_are_names(wrong):
    with pytest.raises(InvalidInputError, match="revision"):
        find_model("a/b", revision=wrong)
    if not isinstance(wrong, list) and not (isinstance(wrong, np.ndarray) and wrong.dtype.kind == "U"):
        with pytest.raises((InvalidInputError, ModelNotFoundError)):
            find_model("a/b", files=wrong, offline=True)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_what_is_neither_a_directory_nor_a_file_is_called_so(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelNotFoundError, match="neither a directory nor a file"):
        find_model(str(tmp_path / "pipe"))
    (tmp_path / "file").write_text("a text", encoding="utf-8")
    with pytest.raises(ModelNotFoundError, match="a directory or a GGUF file is needed") as raised:
        find_model(str(tmp_path / "file"))
    assert "no such directory" not in str(raised.value)


@pytest.mark.parametrize("wrong", [None, 1, b"x", [], *ARRAYS])
def test_a_template_lies_at_a_path(wrong):
    with pytest.raises(InvalidInputError, match="path"):
        load_chat_template(wrong)


def encoding():
    ids = np.array([5, 6], np.int32)
    return Encoding(ids, np.zeros((2, 2), np.int32), np.zeros(2, np.int32), False, None, (0, 0))


@pytest.mark.parametrize("wrong", [None, 1.5, float("nan"), "x", [], 1j, -1, 10**40, 2**63, np.ones(2)])
@pytest.mark.parametrize("name", ["length", "token_id", "type_id"])
def test_padding_is_told_by_integers(name, wrong):
    if name == "length" and isinstance(wrong, int) and wrong == -1:
        return  # nothing to fill up
    with pytest.raises(InvalidInputError, match=name):
        encoding().padded(**{"length": 4, "left": False, "token_id": 0, "type_id": 0, name: wrong})


@pytest.mark.parametrize("wrong", [None, 2, "left", [], *ARRAYS])
def test_padding_is_on_the_left_or_not(wrong):
    with pytest.raises(InvalidInputError, match="left"):
        encoding().padded(4, left=wrong, token_id=0, type_id=0)
    assert encoding().padded(4, left=True, token_id=9, type_id=1).ids.tolist() == [9, 9, 5, 6]


@pytest.mark.parametrize("value", [np.eye(3), np.ma.array([1, 2], mask=[False, True]), np.ones((2, 2, 2), complex)])
def test_a_message_that_shows_an_array_is_one_line(value):
    for call in (lambda: GenerateConfig(seed=value), lambda: GenerateConfig(stop=value), lambda: ChatTemplate(value)):
        with pytest.raises(InvalidInputError) as raised:
            call()
        assert "\n" not in str(raised.value)
