"""What of a conversation reaches the template, and what is refused because it would not."""

from __future__ import annotations

import json

import pytest

from lattice_inference.errors import InvalidInputError, UnsupportedError
from lattice_inference.tokenizer.chat_template import ChatTemplate
from lattice_inference.tokenizer.message_parts import readable_messages

ASKED = [{"role": "user", "content": "hello"}]
CALL = {"type": "function", "function": {"name": "weather", "arguments": None}}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Tells the weather."}}]
EACH = "{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}"


def test_a_field_that_is_none_reaches_the_template():
    source = (
        "{% for m in messages %}{% if m.content is none and m.tool_calls %}{{ m.tool_calls[0].function.name }}"
        "{{ m.tool_calls[0].function.arguments }}{{ 'name' in m }}{{ 'refusal' in m }}{% endif %}{% endfor %}"
    )
    message = {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None}
    assert ChatTemplate(source).render([*ASKED, message]) == "weatherNoneFalseTrue"


def test_a_field_that_is_absent_stays_absent():
    source = "{% for m in messages %}{{ 'content' in m }}{{ m.content is defined }}{% endfor %}"
    assert ChatTemplate(source).render([{"role": "assistant", "tool_calls": [CALL]}]) == "FalseFalse"


@pytest.mark.parametrize("field", ["tool_calls", "function_call", "reasoning_content", "thinking"])
def test_a_message_without_content_says_something_else(field):
    template = ChatTemplate("{{ messages | tojson }}")
    message = {"role": "assistant", "content": None, field: [CALL]}
    assert json.loads(template.render([message])) == [message]
    for empty in (None, [], ""):
        with pytest.raises(InvalidInputError, match="has no content"):
            template.render([{**message, field: empty}])


def test_documents_reach_the_template():
    documents = [{"title": "A", "text": "B"}]
    template = ChatTemplate("{% for d in documents or [] %}{{ d.title }}: {{ d.text }}{% endfor %}")
    assert template.render(ASKED, documents=documents) == "A: B"
    assert template.render(ASKED) == template.render(ASKED, documents=None) == ""


@pytest.mark.parametrize("name", ["tools", "documents"])
def test_what_a_template_has_no_place_for_is_refused(name):
    with pytest.raises(UnsupportedError, match=f"no place for {name}"):
        ChatTemplate(EACH).render(ASKED, **{name: TOOLS})
    assert ChatTemplate(EACH).render(ASKED, **{name: []}) == "user=hello;"


@pytest.mark.parametrize("name", ["tools", "documents"])
@pytest.mark.parametrize(
    "value", ["weather", {"name": "weather"}, 5, iter(TOOLS)], ids=["text", "dict", "int", "iterator"]
)
def test_tools_and_documents_are_lists(name, value):
    with pytest.raises(InvalidInputError, match=f"{name} is a "):
        ChatTemplate("{{ tools }}{{ documents }}").render(ASKED, **{name: value})


@pytest.mark.parametrize(
    "expression",
    ["tools | tojson", "tools | tojson | upper", "tools[0].function.name", "tools | length", "tools | string | e"],
)
def test_tools_may_take_any_form(expression):
    assert ChatTemplate("{% if tools %}{{ " + expression + " }}{% endif %}").render(ASKED, tools=TOOLS)


ROLES = ["document", "control", "ipython", "observation", "developer", "function", "tool"]


@pytest.mark.parametrize("role", ROLES)
def test_a_role_that_the_template_writes_can_be_used(role):
    assert ChatTemplate(EACH).render([{"role": role, "content": "x"}, *ASKED]) == f"{role}=x;user=hello;"


@pytest.mark.parametrize("role", [*ROLES, "root"])
def test_a_role_that_the_template_tells_apart_can_be_used(role):
    source = (
        "{% for m in messages %}{% if m.role in ['user', '"
        + role
        + "'] %}{% if m.role == 'user' %}U{% else %}R{% endif %}"
        "{{ m.content }}{% else %}{{ raise_exception('what is ' ~ m.role) }}{% endif %}{% endfor %}"
    )
    assert ChatTemplate(source).render([{"role": role, "content": "x"}, *ASKED]) == "RxUhello"


@pytest.mark.parametrize("role", [role for role in ROLES if role != "tool"])
@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{% if m.role == 'user' %}U{% else %}A{% endif %}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}",
    ],
    ids=["an answer", "nothing"],
)
def test_a_role_that_the_template_takes_for_another_is_refused(source, role):
    with pytest.raises(UnsupportedError, match=f"does not know the role '{role}'"):
        ChatTemplate(source).render([{"role": role, "content": "x"}, *ASKED])


@pytest.mark.parametrize("role", ["root", "assistent", "", None, 5, ["user"]], ids=str)
def test_a_word_that_is_no_role_is_refused(role):
    with pytest.raises(InvalidInputError, match="expected one of system, user"):
        ChatTemplate(EACH).render([{"role": role, "content": "x"}])


SYSTEM = 'Say "no" & <i>never</i>\n yes. '
SHOWN = [
    "messages | tojson",
    "messages[0].content | tojson(ensure_ascii=true)",
    "messages[0].content | upper",
    "messages[0].content | title",
    "messages[0].content | e",
    "messages[0].content | trim | replace(' ', '_')",
    "messages[0].content | urlencode",
    "messages[0].content[::-1]",
    "messages[0].content.split() | join('|')",
    "messages[0].content | length",
]


@pytest.mark.parametrize("expression", SHOWN)
def test_a_system_message_may_take_any_form(expression):
    source = "{{ " + expression + " }}"
    assert ChatTemplate(source).render([{"role": "system", "content": SYSTEM}, *ASKED])


LEFT_OUT = "{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}{% endif %}{% endfor %}"


@pytest.mark.parametrize("content", ["hello", "h", SYSTEM, "No.", [{"type": "text", "text": "No."}]], ids=str)
def test_a_system_message_that_is_left_out_is_refused(content):
    with pytest.raises(UnsupportedError, match="leaves out the system message"):
        ChatTemplate(LEFT_OUT).render([{"role": "system", "content": content}, *ASKED])


@pytest.mark.parametrize("content", ["", " \n", [], [{"type": "text", "text": ""}]], ids=str)
def test_a_system_message_that_says_nothing_can_be_left_out(content):
    assert ChatTemplate(LEFT_OUT).render([{"role": "system", "content": content}, *ASKED]) == "hello"


def test_each_part_of_a_system_message_counts():
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [{"role": "system", "content": parts}, *ASKED]
    assert ChatTemplate("{{ messages[0].content | map(attribute='text') | join }}").render(messages) == "onetwo"
    with pytest.raises(UnsupportedError, match=r"the system message \(part 1 of its content\)"):
        ChatTemplate("{{ messages[0].content[0].text }}").render(messages)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for m in messages %}[{{ m.content }}]{% endfor %}", "[one\ntwo][hello]"),
        ("{% for m in messages %}[{{ m.content | trim }}]{% endfor %}", "[one\ntwo][hello]"),
        ("{% for m in messages %}{{ '[' + m.content + ']' }}{% endfor %}", "[one\ntwo][hello]"),
        (
            "{% for m in messages %}[{% if m.content is string %}{{ m.content }}{% else %}"
            "{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endif %}]{% endfor %}",
            "[<one><two>][hello]",
        ),
    ],
)
def test_parts_are_lines_of_one_text_where_the_template_knows_no_parts(source, text):
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    template, messages = ChatTemplate(source), [{"role": "user", "content": parts}, *ASKED]
    assert template.render(readable_messages(template, messages)) == text
    assert messages[0]["content"] == parts


@pytest.mark.parametrize("messages", ["x", [], [3], ASKED, [{"role": "user", "content": [{"type": "image"}]}]], ids=str)
def test_other_contents_stay_as_they_are(messages):
    assert readable_messages(ChatTemplate("{{ messages }}"), messages) is messages


def test_each_system_message_counts():
    messages = [{"role": "system", "content": "one"}, *ASKED, {"role": "system", "content": "two"}]
    assert ChatTemplate(EACH).render(messages) == "system=one;user=hello;system=two;"
    with pytest.raises(UnsupportedError, match="leaves out the system message"):
        ChatTemplate("{{ messages[0].content }}").render(messages)


def test_a_default_in_the_place_of_the_same_system_message_is_no_loss():
    source = "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% else %}Be kind.{% endif %}"
    assert ChatTemplate(source).render([{"role": "system", "content": "Be kind."}, *ASKED]) == "Be kind."


def test_a_template_that_wants_a_certain_system_message_is_no_loss():
    source = (
        "{% if messages[0].content not in ('fast', 'slow') %}{{ raise_exception('fast or slow') }}{% endif %}"
        "{% if messages[0].content == 'fast' %}/no_think{% endif %}"
    )
    messages = [{"role": "system", "content": "slow"}, *ASKED]
    assert ChatTemplate(source).render(messages) == ""
    with pytest.raises(InvalidInputError, match="fast or slow"):
        ChatTemplate(source).render([{"role": "system", "content": "medium"}, *ASKED])
