"""Tools as a caller gives them."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from lattice_inference.errors import GrammarError, InvalidInputError
from lattice_inference.tokenizer.chat_template import ChatTemplate
from lattice_inference.tools.calls import ToolCall
from lattice_inference.tools.conversation import Tools
from lattice_inference.tools.definitions import MOST_TOOLS, checked_tools, chosen_tools
from lattice_inference.tools.formats import FORMATS
from lattice_inference.tools.grammar import ToolGrammar
from lattice_inference.tools.messages import result_messages, template_messages

from .conftest import NOW, TOOLS, WEATHER


def function(**fields):
    return {"type": "function", "function": {"name": "f", **fields}}


@pytest.mark.parametrize(
    ("tools", "told"),
    [
        ("weather", "a list of tools"),
        (WEATHER, "a list of tools"),
        ([WEATHER, "now"], r"tools\[1\]"),
        ([{"type": "function"}], r"tools\[0\]"),
        ([{**WEATHER, "type": "retrieval"}], r"tools\[0\]"),
        ([function(name="a b")], "letters, digits"),
        ([function(name="")], "letters, digits"),
        ([function(name="x" * 65)], "letters, digits"),
        ([function(description=5)], "description is 5"),
        ([function(parameters="{}")], "schema of an object"),
        ([NOW, WEATHER, NOW], "two tools have the name 'now'"),
        ([function(name=f"f{index}") for index in range(MOST_TOOLS + 1)], "at most 128"),
    ],
)
def test_malformed_tools_are_refused(tools, told):
    with pytest.raises(InvalidInputError, match=told):
        checked_tools(tools)


@pytest.mark.parametrize(
    ("parameters", "pointer"),
    [
        ({"type": "array"}, "/0/function/parameters/type"),
        ({"properties": {"a": {"type": "string", "patern": "x"}}}, "/0/function/parameters/properties/a/patern"),
        ({"properties": {"a": {"$ref": "#/$defs/b"}}}, "/0/function/parameters/properties/a/$ref"),
    ],
)
def test_a_schema_that_cannot_be_enforced_is_told_with_its_place(parameters, pointer):
    with pytest.raises(GrammarError) as told:
        checked_tools([function(parameters=parameters)])
    assert told.value.pointer == pointer


def test_a_tool_takes_the_arguments_that_it_names():
    weather, now = TOOLS
    assert weather.parameters["additionalProperties"] is False
    assert now.parameters == {"type": "object", "additionalProperties": False}
    free = checked_tools([function(parameters={"additionalProperties": {"type": "integer"}})])
    assert free[0].parameters["additionalProperties"] == {"type": "integer"}


@pytest.mark.parametrize(
    "choice",
    ["any", 5, None, {"type": "function"}, {"type": "function", "function": {"name": "then"}}, {"name": "now"}],
)
def test_a_choice_that_names_nothing_is_refused(choice):
    with pytest.raises(InvalidInputError, match="tool_choice"):
        chosen_tools(TOOLS, choice)


def test_a_call_cannot_be_required_without_tools():
    with pytest.raises(InvalidInputError, match="there are no tools"):
        chosen_tools((), "required")


def test_arguments_reach_the_template_as_mappings():
    call = {"id": "a", "type": "function", "function": {"name": "now", "arguments": '{"é": [1]}'}}
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    given = template_messages(messages)
    assert given[1]["tool_calls"][0]["function"]["arguments"] == {"é": [1]}
    assert call["function"]["arguments"] == '{"é": [1]}'  # the caller's stay
    assert template_messages(given) == given


@pytest.mark.parametrize("arguments", ["{", "[1]", "null", "[" * 100_000])
def test_arguments_that_are_no_object_are_refused(arguments):
    call = {"id": "a", "type": "function", "function": {"name": "now", "arguments": arguments}}
    with pytest.raises(InvalidInputError, match=r"messages\[0\].tool_calls\[0\].function.arguments"):
        template_messages([{"role": "assistant", "content": "", "tool_calls": [call]}])


def test_every_call_has_one_result():
    calls = [{"id": name, "type": "function", "function": {"name": "now", "arguments": "{}"}} for name in "ab"]
    messages = [{"role": "assistant", "content": "", "tool_calls": calls}]
    made = result_messages(messages, {"b": "2", "a": "1"})
    assert [(message["tool_call_id"], message["content"]) for message in made] == [("a", "1"), ("b", "2")]
    for results in ({"a": "1"}, {"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": 2}, ["1", "2"]):
        with pytest.raises(InvalidInputError):
            result_messages(messages, results)
    with pytest.raises(InvalidInputError, match="calls no tool"):
        result_messages([{"role": "assistant", "content": "Hm."}], {})


@pytest.mark.parametrize(
    "calls", [3, "ab", [3], [{}], [{"id": 3, "function": {"name": "f"}}], [{"id": "a"}], [{"id": "a", "function": {}}]]
)
def test_calls_that_the_caller_wrote_wrong_are_told(calls):
    with pytest.raises(InvalidInputError, match="tool_calls of the last message"):
        result_messages([{"role": "assistant", "tool_calls": calls}], {"a": "b"})


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"properties": {"a": False}}, "/properties/a"),
        ({"properties": {"a": {"type": "string", "minLength": 5, "maxLength": 2}}}, "/properties/a/maxLength"),
        ({"properties": {"a": {"type": "string", "enum": [1, "x\n</parameter>\n"]}}}, "/properties/a/enum"),
        ({"properties": {}, "required": ["z"]}, "/required"),
    ],
)
def test_arguments_that_stand_one_by_one_must_be_possible(schema, pointer):
    tools = checked_tools([function(parameters=schema)])
    with pytest.raises(GrammarError) as told:
        ToolGrammar(FORMATS["qwen3-coder"], tools).engine_grammar()
    assert told.value.pointer == "/0/function/parameters" + pointer


def test_a_named_tool_is_called_once_in_whatever_mapping_it_is_named():
    tools = Tools([WEATHER, NOW], ChatTemplate("{{ messages }}{{ tools }}"), "hermes")
    choice = MappingProxyType({"type": "function", "function": MappingProxyType({"name": NOW["function"]["name"]})})
    assert tools.grammar(choice, True, "none") == tools.grammar(
        {"type": "function", "function": {"name": NOW["function"]["name"]}}, True, "none"
    )
    assert not tools.grammar(choice, True, "none").several


def test_arguments_that_nest_too_deeply_are_told():
    call = ToolCall("a", "f", '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(InvalidInputError, match="the arguments of 'f' nest too deeply"):
        call.arguments  # noqa: B018
