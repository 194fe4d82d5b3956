"""What a teacher reads: texts are data, cleaned and cut on characters, and cannot end their fence."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice_tune import ConfigError, LabelingTask
from lattice_tune.teachers.prompt import clean_text, cut_text, render_prompt

TASK = LabelingTask(("praise", "complaint"), descriptions={"praise": "the writer is content"})


def test_instructions_name_labels_and_what_they_mean() -> None:
    prompt = render_prompt("a text", TASK, "json", system="You label mail.")
    assert prompt.system.startswith("You label mail.\nChoose the label that fits the text best.\n")
    assert "\n- praise: the writer is content\n- complaint\n" in prompt.system
    assert "\na text\n" in prompt.user


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("a\x00b\x1b[31mc\x7f\x9b", "ab[31mc"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("a\r\nb\rc", "a\nb\nc"),
        ("left \u202eright\u2066", "left right"),
        ("\ufeffbom", "bom"),
        ("hidden\U000e0041\U000e0042", "hidden"),
        ("lone \ud800 half", "lone \ufffd half"),
        ("👩\u200d🚀 क्षि", "👩\u200d🚀 क्षि"),
    ],
)
def test_control_characters_go(text: str, cleaned: str) -> None:
    assert clean_text(text) == cleaned


@pytest.mark.parametrize(
    ("text", "most", "kept"),
    [
        ("abc", 3, "abc"),
        ("abcd", 3, "abc"),
        ("ae\u0301b", 2, "a"),  # no letter without its accent
        ("a👩\u200d🚀", 2, "a"),
        ("a👩\u200d🚀", 3, "a"),
        ("e" + "\u0301" * 100, 50, "e" + "\u0301" * 49),  # nothing but accents
        ("日本語", 2, "日本"),
    ],
)
def test_cut_on_characters(text: str, most: int, kept: str) -> None:
    assert cut_text(text, most) == kept


def test_a_cut_is_told() -> None:
    prompt = render_prompt("x" * 25_000, LabelingTask(("a", "b"), max_text_characters=10_000), "json")
    assert prompt.cut_characters == 15_000
    assert "[The text was cut here: 10,000 of 25,000 characters are shown.]" in prompt.user
    assert "cut here" not in render_prompt("short", TASK, "json").user


@given(st.text(max_size=40))
@settings(max_examples=50, deadline=None)
def test_no_text_ends_its_fence(text: str) -> None:
    user = render_prompt(text, TASK, "json").user
    marker = user.split(" ")[2]
    assert user == f"----- text {marker} -----\n{clean_text(text)}\n----- end of text {marker} -----"
    assert marker not in clean_text(text)


def test_a_fence_that_a_text_knows_is_another_one() -> None:
    first = render_prompt("x", TASK, "json").user
    nested = render_prompt(first, TASK, "json").user
    assert nested.split(" ")[2] not in first


@pytest.mark.parametrize(
    "labels",
    [
        (),
        ("a",),
        "ab",
        ("a", "a"),
        ("a", "A "),
        ("a", ""),
        ("a", "b\nc"),
        ("a", 3),
        ("a", "x" * 300),
        5,
        None,
        ("a", "\ud800"),
    ],
)
def test_labels_that_make_no_sense(labels: object) -> None:
    with pytest.raises(ConfigError, match="label"):
        LabelingTask(labels)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", "medium"),
        ("instructions", 3),
        ("instructions", "\ud800"),
        ("descriptions", ["a"]),
        ("descriptions", {"c": "x"}),
        ("descriptions", {"a": 1}),
        ("max_text_characters", 0),
        ("max_text_characters", 10**9),
    ],
)
def test_fields_that_make_no_sense(field: str, value: object) -> None:
    with pytest.raises(ConfigError):
        LabelingTask(("a", "b"), **{field: value})  # type: ignore[arg-type]
