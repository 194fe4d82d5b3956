"""Chat templates against transformers, and what keeps a template in its place."""

from __future__ import annotations

import datetime
import json
import time
from pathlib import Path

import pytest

from lattice_inference.errors import InvalidInputError, ModelConfigError, UnsupportedError
from lattice_inference.tokenizer.chat_template import ChatTemplate

GOLDENS = json.loads((Path(__file__).parents[1] / "data" / "chat" / "templates.json").read_text(encoding="utf-8"))
NOW = datetime.datetime(2026, 3, 1, 12, 30)
ASKED = [{"role": "user", "content": "hello"}]


def template(name):
    return ChatTemplate("\n".join(GOLDENS["templates"][name]), GOLDENS["special_tokens"])


@pytest.mark.parametrize("conversation", GOLDENS["conversations"])
@pytest.mark.parametrize("name", GOLDENS["templates"])
def test_a_conversation_has_the_text_that_transformers_gives(name, conversation):
    expected = GOLDENS["texts"][name][conversation]
    given = dict(GOLDENS["conversations"][conversation])
    variables = given.pop("variables", {})
    system = next((m["content"] for m in given["messages"] if m["role"] == "system"), "")

    def render():
        return template(name).render(**given, **variables, now=NOW)

    if expected is None:
        with pytest.raises(InvalidInputError, match="cannot render"):
            render()
    elif system not in expected:
        with pytest.raises(UnsupportedError, match="leaves out the system message"):
            render()
    elif given.get("tools") and "Tells the weather." not in expected:
        with pytest.raises(UnsupportedError, match="no place for tools"):
            render()
    else:
        assert render() == expected


def test_the_date_is_todays_by_default():
    text = ChatTemplate("{{ strftime_now('%Y-%m-%d') }}").render(ASKED)
    assert abs(datetime.date.fromisoformat(text) - datetime.datetime.now().date()) <= datetime.timedelta(days=1)


def test_the_template_for_tools_is_taken_where_tools_are_given():
    both = ChatTemplate("plain", named={"tool_use": "with {{ tools | length }}"})
    assert both.render(ASKED) == "plain"
    assert both.render(ASKED, tools=[{"name": "f"}]) == "with 1"
    assert both.render(ASKED, tools=[]) == "with 0"  # an empty list is a list, as transformers has it


def test_what_follows_an_answer_is_known():
    assert template("smollm2").answer_end() == "<|im_end|>\n"
    assert template("phi3").answer_end() == "<|end|>\n"
    assert ChatTemplate("{{ raise_exception('no') }}").answer_end() == ""


@pytest.mark.parametrize(
    "messages",
    [
        [],
        "hello",
        {"role": "user", "content": "x"},
        ["hello"],
        [{"role": "tool2", "content": "x"}],  # K4
        [{"content": "x"}],
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}],
        [{"role": "user", "content": "x", "extra": object()}],
    ],
    ids=lambda messages: str(messages).split(" at 0x")[0],
)
def test_malformed_messages_are_refused(messages):
    with pytest.raises(InvalidInputError):
        ChatTemplate("{{ messages | length }}").render(messages)


@pytest.mark.parametrize("source", ["{% for", "{{ x", "{% unknown %}", "x" * (2**20 + 1)], ids=lambda text: text[:10])
def test_a_malformed_template_is_refused_when_it_is_read(source):
    with pytest.raises(ModelConfigError, match="chat template"):
        ChatTemplate(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% set s = range(99999) | join %}{% for a in s %}{% for b in s %}{% endfor %}{% endfor %}",
        "{{ 'a' * 10 ** 9 }}",
        "{{ 10 ** 10 ** 10 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ messages[0].content + None }}",
    ],
)
def test_a_hostile_template_ends_in_an_error_soon(source):
    hostile = ChatTemplate(source)
    start = time.process_time()
    with pytest.raises(InvalidInputError, match="chat template"):
        hostile.render(ASKED)
    assert time.process_time() - start < 5


def test_a_template_cannot_change_the_callers_messages():
    messages = [{"role": "user", "content": "x", "list": [1]}]
    with pytest.raises(InvalidInputError):
        ChatTemplate("{{ messages[0].list.append(2) }}").render(messages)
    assert messages == [{"role": "user", "content": "x", "list": [1]}]
