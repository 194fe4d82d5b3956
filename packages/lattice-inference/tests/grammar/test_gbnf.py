"""GBNF means what llama.cpp says it means: compared with a recognizer that tries every way."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice_inference import Gbnf, GrammarError
from lattice_inference.grammar import gbnf
from lattice_inference.grammar.gbnf import gbnf_to_lark

CASES = [
    ('root ::= [a-z]* "b"', ["ab", "b", "abbb"], ["", "abc", "a"]),
    ('root ::= "(" root ")" | [a-z]* "b"', ["(ab)", "((b))", "ab"], ["((b)", "()", "(a)"]),
    ('root ::= "ab" x | "abc" y\nx ::= "cd" root?\ny ::= "e"', ["abcd", "abce", "abcdabce"], ["abcf", "abcdab"]),
    (
        'root ::= .{2} "é" [^\\n]+ # the end\n',
        ["x\néa", "😀ééb"],
        ["xyé", "xyé\n", "é"],
    ),
    ('root ::= ("a" |\n  "b")\n  | "c"', ["a", "b", "c"], ["ab", ""]),
    (
        'root ::= "\\x41\\u00e9\\U0001F600\\"\\\\\\n" [\\]\\[^-]',
        ['Aé😀"\\\n]', 'Aé😀"\\\n^', 'Aé😀"\\\n-'],
        ['Aé😀"\\\nx'],
    ),
    ('root ::= "ab"{2,3} "c"{0} "d"{1,}', ["ababd", "abababdd"], ["abd", "ababababd", "ababcd"]),
    ('root ::= ""', [""], ["a"]),
    ('root ::= a-b_1\na-b_1 ::= "x"', ["x"], ["y"]),
    ("root ::= [^a] [a-]", ["b-", "ba", "😀a"], ["aa", "bb"]),
]


@pytest.mark.parametrize(("text", "right", "wrong"), CASES)
def test_texts_of_a_grammar(text, right, wrong, obeys):
    grammar = Gbnf(text)
    assert [one for one in right if not obeys(grammar, one)] == []
    assert [one for one in wrong if obeys(grammar, one)] == []


def test_llama_cpps_grammar_of_json(obeys):
    grammar = Gbnf(
        r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""
    )
    for text in ('{"a": [1,2,{"b":"x\\n"}]}', '{"a": -1.5e3, "ü": true}\n', "{}"):
        assert obeys(grammar, text)
    for text in ('{"a":}', "[1]", '{"a":01}', '{"a":1,}'):
        assert not obeys(grammar, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ('start ::= "a"', "no rule root"),
        ("root ::= x", "names 'x'"),
        ('root ::= root "a" | "b"', "begins with itself"),
        ('root ::= e root "a" | "b"\ne ::= "x"?', "begins with itself"),
        ('root ::= x "a"\nx ::= y\ny ::= x | "b"', "begins with itself"),
        ('root ::= "a', 'line 1, column 12 of the grammar: a text is not closed by "'),
        ('root ::= "a"\nroot ::= "b"', "stands there twice"),
        ('root = "a"', "expected ::="),
        ('root ::= ("a"', "expected )"),
        ("root ::= [z-a]", "ends before it begins"),
        ("root ::= []", "matches nothing"),
        ("root ::= [a", "not closed by ]"),
        ('root ::= "a"{3,2}', "below the first"),
        ('root ::= "a"{9999}', "at most 2,000"),
        ('root ::= "\\q"', "no escape is called \\q"),
        ('root ::= "\\xZZ"', "2 hexadecimal digits"),
        ('root ::= "\\uD800"', "is no character"),
        ("root ::= " + "(" * 200 + '"a"' + ")" * 200, "nested deeper than 100"),
        ('root ::= "a" ) "b"', "unexpected ')'"),
        ("root ::= " + "x" * 300_000, "at most 200,000"),
        (
            "root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(60)) + '\nr60 ::= "a"',
            "written out",
        ),
    ],
)
def test_what_is_no_grammar_is_refused(text, message):
    with pytest.raises(GrammarError) as caught:
        Gbnf(text)
    assert message in str(caught.value)


# A grammar drawn at random, over the letters a and b.
characters = st.sampled_from(['"a"', '"b"', '"ab"', "[ab]", "[^a]", '""', "."])
names = st.sampled_from(["root", "x", "y"])
parts = st.builds(
    lambda item, repeat: item + repeat,
    st.one_of(characters, characters, names),
    st.sampled_from(["", "", "", "*", "?", "{1,2}"]),
)
branches = st.lists(parts, min_size=1, max_size=3).map(" ".join)
bodies = st.lists(branches, min_size=1, max_size=3).map(" | ".join)


def recognizes(rules: dict[str, object], text: str) -> bool:
    """Try every way to read the text, to a fixed point: which ends each rule reaches from each beginning."""
    reached: dict[tuple[str, int], frozenset[int]] = {}

    def ends(node: object, at: int) -> frozenset[int]:
        if isinstance(node, gbnf._Characters):
            if at == len(text):
                return frozenset()
            inside = any(first <= ord(text[at]) <= last for first, last in node.ranges)
            return frozenset({at + 1}) if inside != node.is_negated else frozenset()
        if isinstance(node, gbnf._Reference):
            return reached.get((node.name, at), frozenset())
        if isinstance(node, gbnf._Sequence):
            here = frozenset({at})
            for item in node.items:
                here = frozenset().union(*(ends(item, one) for one in here))
            return here
        if isinstance(node, gbnf._Choice):
            return frozenset().union(*(ends(item, at) for item in node.items))
        here, found = frozenset({at}), frozenset({at}) if node.least == 0 else frozenset()
        for count in range(1, (node.most or node.least + len(text) + 1) + 1):
            here = frozenset().union(*(ends(node.item, one) for one in here))
            if count >= node.least:
                found |= here
        return found

    while True:
        before = dict(reached)
        for name, node in rules.items():
            for at in range(len(text) + 1):
                reached[name, at] = reached.get((name, at), frozenset()) | ends(node, at)
        if reached == before:
            return len(text) in reached["root", 0]


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True)
@given(root=bodies, x=bodies, y=bodies)
def test_random_grammars_mean_what_every_way_of_reading_says(root, x, y, obeys):
    text = f"root ::= {root}\nx ::= {x}\ny ::= {y}\n"
    rules = gbnf._Parser(text).rules()
    try:
        gbnf_to_lark(text)
    except GrammarError:  # llama.cpp refuses it, too
        with pytest.raises(GrammarError, match="begins with itself"):
            gbnf_to_lark(text)
        return
    grammar = Gbnf(text)
    for length in range(5):
        for letters in itertools.product("abc", repeat=length):
            word = "".join(letters)
            assert obeys(grammar, word) == recognizes(rules, word), (text, word)
