"""Conversations with tools: formats told from templates, answers of a drawn model, results and the next turn."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import jsonschema
import pytest

from lattice_inference import (
    AfterReasoning,
    Chat,
    ChatTemplate,
    Choice,
    FinishReason,
    GenerateConfig,
    InvalidInputError,
    JsonSchema,
    Session,
    UnsupportedError,
    load_model,
)
from lattice_inference.generate.reasoning_prompt import reasoning_of
from lattice_inference.tools.detection import tool_format
from tiny_decoders import TEMPLATE, write_drawn_model

from .conftest import NOW, TOOLS, WEATHER

FOLDER = Path(__file__).parents[1] / "data" / "chat" / "tools"
NAMES = ["hermes", "qwen3-coder", "llama3", "mistral", "mistral-args"]
ASKED = [{"role": "user", "content": "hello"}]
CALL = {"type": "function", "function": {"name": "now"}}


def template(name: str) -> ChatTemplate:
    return ChatTemplate((FOLDER / f"{name}.jinja").read_text(encoding="utf-8"))


def drawn(seed: int, most: int = 700) -> GenerateConfig:
    return GenerateConfig(max_new_tokens=most, temperature=2.0, top_k=0, top_p=1.0, repetition_penalty=1.0, seed=seed)


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    with load_model(write_drawn_model(tmp_path_factory.mktemp("drawn"), context=8192)) as model, Session(model) as made:
        yield made


@pytest.mark.parametrize("name", NAMES)
def test_the_template_tells_the_format(name):
    assert tool_format(template(name)).name == name


def test_a_template_without_tools_or_of_another_form_is_refused():
    with pytest.raises(UnsupportedError, match="no place for tools"):
        tool_format(ChatTemplate(TEMPLATE))
    other = (FOLDER / "hermes.jinja").read_text(encoding="utf-8").replace("tool_call>", "call>")
    with pytest.raises(UnsupportedError, match="form that is not known"):
        tool_format(ChatTemplate(other))
    assert tool_format(ChatTemplate(TEMPLATE), "json").name == "json"
    with pytest.raises(InvalidInputError, match="tool_format"):
        tool_format(ChatTemplate(TEMPLATE), "xml")


@pytest.mark.parametrize("name", [*NAMES, "json"])
def test_every_call_of_a_drawn_model_obeys_its_tool(session, name):
    schemas = {tool.name: tool.parameters for tool in TOOLS}
    given = ChatTemplate(TEMPLATE) if name == "json" else template(name)
    chat = Chat(
        session,
        template=given,
        tools=[WEATHER, NOW],
        tool_choice="required",
        tool_format="json" if name == "json" else None,
        variables={"enable_thinking": False},
    )
    ended = 0
    for seed in range(4):
        chat.messages = list(ASKED)
        result = chat.send("?", drawn(seed))
        for call in result.tool_calls:
            jsonschema.validate(call.arguments, schemas[call.name])
        if result.finish_reason is FinishReason.STOP_TOKEN:
            assert (result.text, len(result.tool_calls) > 0) == ("", True)
            ended += 1
    assert ended


@pytest.mark.parametrize("name", NAMES)
def test_results_make_the_next_turn(session, name):
    chat = Chat(session, template=template(name), tools=[NOW], tool_choice=CALL, variables={"enable_thinking": False})
    first = chat.send("What time is it?", drawn(0))
    (call,) = first.tool_calls
    assert (call.name, call.arguments) == ("now", {})
    assert chat.messages[-1]["tool_calls"] == [call.to_message()]
    before = list(chat.messages)
    with pytest.raises(InvalidInputError, match="has no result"):
        chat.send_tool_results({})
    assert chat.messages == before
    chat.tool_choice = "none"
    second = chat.send_tool_results({call.id: "12:30 {<tool_call>"}, drawn(1, 30))
    assert second.tool_calls == ()
    assert [message["role"] for message in chat.messages] == ["user", "assistant", "tool", "assistant"]
    assert "12:30 {<tool_call>" in session.tokenizer.decode(session.token_ids, skip_special_tokens=False)
    with pytest.raises(InvalidInputError, match="calls no tool"):
        chat.send_tool_results({call.id: "again"})


def test_a_stream_has_the_text_and_the_calls(session):
    chat = Chat(
        session, template=template("hermes"), tools=[WEATHER, NOW], config=drawn(3, 200), tool_choice="required"
    )
    stream = chat.stream("?")
    pieces = list(stream)
    result = stream.result
    assert "".join(piece.text for piece in pieces) == result.text == ""
    deltas = [delta for piece in pieces for delta in piece.tool_calls]
    for index, call in enumerate(result.tool_calls):
        assert "".join(delta.arguments for delta in deltas if delta.index == index) == call.arguments_text

    async def read():
        chat.messages = []
        return [piece async for piece in chat.stream("?")]

    assert asyncio.run(read()) == pieces


def test_tools_and_a_grammar_exclude_each_other(session):
    chat = Chat(session, template=template("hermes"), tools=[NOW])
    with pytest.raises(InvalidInputError, match="exclude each other"):
        chat.send("?", GenerateConfig(grammar=Choice(["yes"])))
    assert chat.messages == []
    with pytest.raises(InvalidInputError, match="given twice"):
        Chat(session, template=template("hermes"), tools=[NOW], variables={"tools": [NOW]})


def test_no_tools_are_a_plain_chat(session):
    plain = Chat(session, template=template("hermes"), config=drawn(1, 20)).send("?")
    assert Chat(session, template=template("hermes"), tools=[], config=drawn(1, 20)).send("?").text == plain.text


@pytest.mark.parametrize(
    ("variables", "told"), [({}, "open"), ({"enable_thinking": False}, "none"), ({"enable_thinking": True}, "open")]
)
def test_the_prompt_tells_whether_the_model_reasons(variables, told):
    assert reasoning_of(template("qwen3-coder"), ASKED, variables) == told
    assert reasoning_of(template("hermes"), [{"role": "user", "content": "</think><think>"}], {}) == "none"


def test_a_template_that_strips_reasoning_may_reason():
    source = "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}"
    assert reasoning_of(ChatTemplate(source), [{"role": "user", "content": "<think>"}], {}) == "possible"


@pytest.mark.parametrize("is_open", [False, True])
def test_a_grammar_begins_behind_the_reasoning(byte_compiler, is_open):
    grammar = AfterReasoning(JsonSchema({"type": "array", "items": {"type": "integer"}}), is_open=is_open)

    def obeys(text: str) -> bool:
        matcher = byte_compiler.matcher(grammar)
        try:
            for byte in text.encode():
                matcher.accept(byte)
        except InvalidInputError:
            return False
        return matcher.can_end

    begin = "" if is_open else "<think>"
    for thought in (f"{begin}[1, </thin k <think> é</think>\n\n", f"{begin}</think>", f"{begin}[7]</think>\n"):
        assert obeys(f"{thought}[1, 2]")
        assert not obeys(f"{thought}[1, 2")
        assert not obeys(f"{thought}two")
        assert not obeys(f"{thought}\n\n\n[1]")
    assert obeys("[1]") is not is_open


def test_a_chat_lets_the_model_reason_first(session):
    """The drawn model never ends its reasoning by itself: a bias for the mark's characters makes it."""
    chat = Chat(session, template=template("qwen3-coder"))
    config = GenerateConfig(
        max_new_tokens=60, temperature=0, logit_bias=dict.fromkeys(b"</think>", 40.0), grammar=Choice(["yes", "no"])
    )
    text = chat.send("?", config).text
    assert not text.startswith(("yes", "no"))
    chat.variables = {"enable_thinking": False}
    chat.reset()
    assert chat.send("?", GenerateConfig(max_new_tokens=60, temperature=0, grammar=Choice(["yes", "no"]))).text in (
        "yes",
        "no",
    )


def test_a_result_tells_reasoning_and_answer_apart(session):
    result = Chat(session, template=template("hermes"), config=drawn(1, 5)).send("?")
    assert (result.reasoning, result.answer) == ("", result.text)
    thought = type(result)(**{**vars(result), "text": "<think>\nHm.\n</think>\n\n{}"})
    assert (thought.reasoning, json.loads(thought.answer)) == ("Hm.", {})
