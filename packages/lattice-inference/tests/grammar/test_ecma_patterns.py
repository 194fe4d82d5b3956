"""Patterns of a schema mean what ECMA-262 says, and what cannot be enforced is refused."""

from __future__ import annotations

import json

import pytest

from lattice_inference import GrammarError, JsonSchema

CASES = [
    ("a", ["xay", "a"], ["", "b"]),
    ("^a$|b", ["a", "xbx"], ["aa"]),
    (r"^\d+$", ["07"], ["٣", "a"]),
    (r"^\w$", ["a", "Z", "_", "9"], ["é", "-"]),
    (r"^\W$", ["é", "-"], ["a"]),
    (r"^\s$", [" ", "\t", "\u00a0", "\ufeff", "\u2028"], ["a", "\u0085", "\u200b"]),
    (r"^\S$", ["a", "\u0085", "\u200b"], [" ", "\ufeff"]),
    (r"^[\sx]$", [" ", "\ufeff", "x"], ["y"]),
    (r"^[^\s]$", ["y"], ["\ufeff"]),
    ("^.$", ["a", "😀"], ["\n", "\r", "\u2028", ""]),
    ("^[^]$", ["\n", "a"], ["", "ab"]),
    ("^[a[b]$", ["a", "[", "b"], ["]", "ab"]),
    ("^[a&&b]$", ["a", "&", "b"], ["c"]),
    ("^[a~~b^]$", ["a", "~", "^"], ["c"]),
    ("^[+--]$", ["+", ",", "-"], ["."]),
    (r"^[\]\\-]$", ["]", "\\", "-"], ["["]),
    (r"^\u0041\x42\u{43}$", ["ABC"], ["abc"]),
    (r"^\ud83d\udc32*$", ["🐲", "🐲🐲"], ["x"]),
    (r"^[\b]$", ["\b"], ["b"]),
    (r"^\/\-\.\$$", ["/-.$"], ["/-a$"]),
    (r"^(?:a|b)(?<name>c)(d)$", ["acd", "bcd"], ["cd"]),
    (r"^a{2,3}b{2}c{1,}$", ["aabbc", "aaabbccc"], ["abbc"]),
    (r"^\p{Lu}$", ["É", "A"], ["a"]),
    ("^a*?b+?c??$", ["b", "aabbc"], ["a", "bcc"]),
    (r"^[\d-]$", ["3", "-"], ["a"]),
    (r"^[\s\S]{2}$", ['"\n', "a "], ["a"]),
    (r"^[^\S ]$", ["\n", "\ufeff"], [" ", "a"]),
    # a class that excludes a quote, or a backslash, excludes its escape too
    ('^[^"]*$', ["", "\\", "\n/\u00e9"], ['"', 'a"', '\\"', '""']),
    (r"^[^\\]*$", ['"', "\n"], ["\\", 'a\\"']),
    (r"^([^\u0022\x5c]|\n)*$", ["a", "\n\t"], ['"', "\\"]),
    (r"^[\x00-!#-~]*$", ["a", "\n\\"], ['"']),
    (r"^[\0-!#-~]*$", ["a", "\n\\"], ['"']),
    ('[^"]', ['"a', "\\"], ['"', '""']),
]


@pytest.mark.parametrize(("pattern", "right", "wrong"), CASES)
def test_texts_of_a_pattern(pattern, right, wrong, obeys):
    grammar = JsonSchema({"type": "string", "pattern": pattern})
    for text in right:
        assert obeys(grammar, json.dumps(text, ensure_ascii=False)), text
    for text in wrong:
        assert not obeys(grammar, json.dumps(text, ensure_ascii=False)), text


@pytest.mark.parametrize(
    "pattern",
    ["(?=a)", "(?!a)", "(?<=a)b", "(?<!a)b", "(?i)a", "(?i:a)", r"\bx", r"\B", r"(a)\1", r"\k<n>", r"\a", r"\z", r"\01",
     "[]", "[a", "a{,3}", "{", r"\ud800", "\\", "(?#x)", "a**", "a{2}{3}", "a???", r"[\d-x]"],
)  # fmt: skip
def test_what_cannot_be_enforced_is_refused(pattern):
    with pytest.raises(GrammarError) as caught:
        JsonSchema({"type": "string", "pattern": pattern})
    assert caught.value.pointer == "/pattern"


@pytest.mark.parametrize("pattern", ["a(", "a)", "*a", "[b-a]", "a{3,2}"])
def test_what_is_no_pattern_is_refused_before_a_text_begins(pattern, obeys):
    with pytest.raises(GrammarError):
        obeys(JsonSchema({"type": "string", "pattern": pattern}), '"')
