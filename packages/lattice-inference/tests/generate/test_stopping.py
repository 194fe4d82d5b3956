"""Stop texts, however the text is cut into pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice_inference.generate.stopping import StopTexts


def shown(stops, pieces):
    watched = StopTexts(stops)
    text = [watched.push(piece) for piece in pieces]
    return "".join([*text, watched.finish()]), watched.matched


@pytest.mark.parametrize(
    ("stops", "text", "expected"),
    [
        (["\n\n"], "one\ntwo\n\nthree", ("one\ntwo", "\n\n")),
        (["END"], "the ENEND", ("the EN", "END")),
        (["aab"], "aaab", ("a", "aab")),
        (["bcd", "c"], "abcd", ("ab", "c")),  # c is complete first
        (["abc", "c"], "xabc", ("x", "abc")),  # both end there: the longest
        (["no"], "nothing", ("", "no")),
        (["xyz"], "ends in xy", ("ends in xy", None)),
        ([], "anything", ("anything", None)),
        (["\U0001f600"], "a\U0001f600b", ("a", "\U0001f600")),
    ],
)
def test_the_text_ends_before_the_first_match(stops, text, expected):
    assert shown(stops, [text]) == expected
    assert shown(stops, text) == expected


@given(st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.text("abc", max_size=20), st.data())
def test_the_cut_into_pieces_changes_nothing(stops, text, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    got, matched = shown(stops, pieces)
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    if not ends:
        assert (got, matched) == (text, None)
    else:
        longest = max((stop for stop in stops if text[: min(ends)].endswith(stop)), key=len)
        assert (got, matched) == (text[: min(ends) - len(longest)], longest)


def test_what_may_begin_a_stop_text_waits():
    watched = StopTexts(["</end>"])
    assert [watched.push(piece) for piece in ("a<", "/en", "<", "b")] == ["a", "", "</en", "<b"]
    assert watched.push("x</end>y") == "x"
    assert watched.push("more") == ""
    assert watched.finish() == ""
