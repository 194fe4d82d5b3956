"""Calls as models write them: the grammar takes them, and the reader gives back what was called."""

from __future__ import annotations

import itertools
import json
import random

import pytest

from lattice_inference.errors import GrammarError
from lattice_inference.grammar.compiler import GrammarCompiler
from lattice_inference.tools.answer import AnswerReader
from lattice_inference.tools.calls import ToolCallDelta
from lattice_inference.tools.definitions import checked_tools, chosen_tools
from lattice_inference.tools.formats import FORMATS, JsonList
from lattice_inference.tools.grammar import ToolGrammar
from tiny_decoders import BYTES, SPECIALS, USER

from .conftest import TOOLS, drawn_calls, written

READS = pytest.mark.parametrize("name", FORMATS)


def obeys(compiler, grammar, text: str) -> bool:
    matcher = compiler.matcher(grammar)
    try:
        for byte in text.encode():
            matcher.accept(byte)
    except GrammarError:
        return False
    return matcher.can_end


def read(grammar, pieces: list[str]):
    reader = AnswerReader(grammar, "seed")
    shown, deltas = "", []
    for piece in pieces:
        text, new = reader.push(piece)
        shown += text
        deltas += new
    return shown + reader.finish(), reader.calls, deltas


def pieces_of(rng: random.Random, text: str) -> list[str]:
    cuts = sorted({0, len(text), *(rng.randint(0, len(text)) for _ in range(len(text) // 4))})
    return [text[first:last] for first, last in itertools.pairwise(cuts)]


def check_round_trip(compiler, name: str, seed: int, reasoning: str) -> None:
    rng = random.Random(f"{name} {seed}")
    grammar = ToolGrammar(FORMATS[name], TOOLS, reasoning=reasoning)
    calls = drawn_calls(rng, 1 if name == "llama3" else 3)
    text = rng.choice(["", "I look.", "Hm <tool, [x"]) if FORMATS[name].opening else ""
    thought = {"none": "", "possible": rng.choice(["", "<think>a <tool_call> {"]), "open": "a [TOOL_CALLS] {"}[
        reasoning
    ]
    thought += "</think>\n\n" if thought else ""
    answer = thought + text + written(name, calls)
    assert obeys(compiler, grammar, answer), answer
    shown, found, deltas = read(grammar, pieces_of(rng, answer))
    assert [(call.name, call.arguments) for call in found] == calls, answer
    assert shown.strip() == (thought + text).strip(), answer
    for index, call in enumerate(found):
        mine = [delta for delta in deltas if delta.index == index]
        assert (mine[0].id, mine[0].name) == (call.id, call.name)
        assert "".join(delta.arguments for delta in mine) == call.arguments_text
        assert all(delta.id is None and delta.name is None for delta in mine[1:])
    assert len({call.id for call in found}) == len(found)


@READS
@pytest.mark.parametrize("reasoning", ["none", "possible", "open"])
def test_random_arguments_survive(byte_compiler, name, reasoning):
    for seed in range(4):
        check_round_trip(byte_compiler, name, seed, reasoning)


@pytest.mark.slow
@READS
def test_two_thousand_random_arguments_survive(byte_compiler, name):
    for seed in range(100, 440):
        check_round_trip(byte_compiler, name, seed, ("none", "possible", "open")[seed % 3])


@READS
def test_only_a_call_that_the_tools_allow_is_one(byte_compiler, name):
    grammar = ToolGrammar(FORMATS[name], TOOLS, required=True)
    good = {"city": "Oslo", "days": 3}
    assert obeys(byte_compiler, grammar, written(name, [("weather", good)]))
    for called, arguments in [
        ("wether", good),
        ("now", good),
        ("weather", {}),
        ("weather", {"city": "Oslo", "days": 10}),
        ("weather", {"city": "Oslo", "days": "3x"}),
        ("weather", {"city": "Oslo", "units": "K"}),
        ("weather", {"city": "x" * 41}),
        ("weather", {"city": "Oslo", "far": True}),
    ]:
        assert not obeys(byte_compiler, grammar, written(name, [(called, arguments)])), (called, arguments)
    assert not obeys(byte_compiler, grammar, "No.")
    assert not obeys(byte_compiler, grammar, "")


@READS
def test_who_may_call_what(byte_compiler, name):
    now, weather = ("now", {}), ("weather", {"city": "Oslo"})
    for choice, may, must_not in [
        ("auto", ["Hm.", "", written(name, [now]), written(name, [weather])], []),
        ("none", ["Hm.", ""], [written(name, [now])]),
        ("required", [written(name, [now])], ["Hm.", ""]),
        ({"type": "function", "function": {"name": "now"}}, [written(name, [now])], [written(name, [weather]), "Hm."]),
    ]:
        tools, required = chosen_tools(TOOLS, choice)
        grammar = ToolGrammar(FORMATS[name], tools, required, several=False)
        assert [obeys(byte_compiler, grammar, text) for text in may] == [True] * len(may), choice
        assert [obeys(byte_compiler, grammar, text) for text in must_not] == [False] * len(must_not), choice


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "llama3"])
def test_one_call_where_several_are_not_wanted(byte_compiler, name):
    two = written(name, [("now", {}), ("now", {})])
    assert obeys(byte_compiler, ToolGrammar(FORMATS[name], TOOLS), two)
    assert not obeys(byte_compiler, ToolGrammar(FORMATS[name], TOOLS, several=False), two)


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "llama3"])
def test_an_answer_that_was_cut_off_has_its_whole_calls(name):
    answer = written(name, [("now", {}), ("weather", {"city": "Oslo"})])
    grammar = ToolGrammar(FORMATS[name], TOOLS)
    for length in range(len(answer) + 1):
        shown, calls, _ = read(grammar, [answer[:length]])
        assert len(calls) <= 2
        assert FORMATS[name].opening.startswith(shown)  # of a cut mark nothing can be told but that it is text
        assert all(json.loads(call.arguments_text) in ({}, {"city": "Oslo"}) for call in calls)
    assert len(calls) == 2


def test_a_mark_that_is_a_special_token_is_taken_by_its_id(drawn_model):
    compiler = GrammarCompiler(drawn_model.tokenizer, BYTES + len(SPECIALS))
    format_ = JsonList("mine", "<|user|>", ("<|user|>",))
    grammar = ToolGrammar(format_, TOOLS)
    calls = b'[{"name": "now", "arguments": {}}]'
    matcher = compiler.matcher(grammar)
    for token_id in [*b"Hm.", USER, *calls]:
        matcher.accept(token_id)
    assert matcher.can_end
    assert compiler.shown(grammar) == {USER: "<|user|>"}
    assert not obeys(compiler, grammar, "Hm.<|user|>" + calls.decode())  # nor is its spelling a text


def test_a_call_arrives_piece_by_piece():
    answer = written("hermes", [("weather", {"city": "Os"})])
    _, _, deltas = read(ToolGrammar(FORMATS["hermes"], TOOLS), [answer[:50], *answer[50:]])
    seen = [delta for delta in deltas if delta.arguments or delta.name]
    assert seen[0] == ToolCallDelta(0, seen[0].id, "weather", seen[0].arguments)
    assert [delta.arguments for delta in seen[1:]] == list('{"city": "Os"}'[len(seen[0].arguments) :])


@pytest.mark.parametrize(
    ("parameters", "keyword"),
    [
        ({"properties": {"a": {"type": "string", "pattern": "a+"}}}, "pattern"),
        ({"properties": {}, "additionalProperties": True}, "not named"),
        ({"properties": {"a": {"type": "integer"}}, "maxProperties": 1}, "maxProperties"),
    ],
)
def test_what_a_format_cannot_hold_is_refused(parameters, keyword):
    tools = checked_tools([{"type": "function", "function": {"name": "f", "parameters": parameters}}])
    with pytest.raises(GrammarError, match=keyword) as told:
        ToolGrammar(FORMATS["qwen3-coder"], tools).engine_grammar()
    assert told.value.pointer is not None
    assert told.value.pointer.startswith("/0/function/parameters")
    ToolGrammar(FORMATS["hermes"], tools).engine_grammar()
