"""How models write calls: for each format its grammar and its reader."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lattice_inference.errors import GrammarError
from lattice_inference.tools.definitions import Tool
from lattice_inference.tools.reading import Reading, expect, json_value, text_until

__all__ = ["FORMATS", "CallEvents", "ToolFormat"]

# Without escapes by number a key has one spelling; see grammar/specification.py.
_COMPACT = {
    "whitespace_flexible": False,
    "item_separator": ", ?",
    "key_separator": ": ?",
    "json_allowed_escapes": 'nrbtf\\"',
}

Write = Callable[[str], str]


class CallEvents(Protocol):
    """Takes what a reader finds."""

    def begin(self, name: str) -> None:
        """Take the name of a call that begins."""

    def arguments(self, text: str) -> None:
        """Take the next characters of its arguments."""

    def end(self) -> None:
        """The call is whole."""


class ToolFormat(Protocol):
    """A format of calls."""

    @property
    def name(self) -> str:
        """The name of the format."""

    @property
    def opening(self) -> str:
        """The text that begins the calls of an answer; ``""`` if they begin with ``{`` or ``[``."""

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that are special tokens in some vocabularies."""

    @property
    def has_one_call(self) -> bool:
        """Whether an answer can have only one call."""

    @property
    def is_told_by_template(self) -> bool:
        """Whether the chat template tells the model of tools."""

    def rules(self, tools: Sequence[Tool], *, several: bool, write: Write) -> str:
        """Return rules of a Lark grammar; ``calls`` is what follows the opening.

        ``write`` returns how a rule spells a text, in which marks may be special tokens.

        Raises:
            GrammarError: a schema cannot be enforced in this format.
        """

    def read(self, events: CallEvents, tools: Sequence[Tool]) -> Reading:
        """Read what follows the opening, which obeys the rules for these tools."""


@dataclass(frozen=True)
class JsonInMarks:
    """Calls as JSON objects, each between marks, as Hermes and Qwen write them."""

    name: str = "hermes"
    opening: str = "<tool_call>"
    marks: tuple[str, ...] = ("<tool_call>", "</tool_call>")
    has_one_call: bool = False
    is_told_by_template: bool = True
    before: str = '\n{"name": "'
    between: str = '", "arguments": '
    after: str = "}\n</tool_call>"
    next_call: str = "\n<tool_call>"

    def rules(self, tools: Sequence[Tool], *, several: bool, write: Write) -> str:
        """Return the rules; see :meth:`ToolFormat.rules`."""
        more = f" ({write(self.next_call)} call)*" if several and self.next_call else ""
        return f"calls: call{more}\n" + _json_calls(tools, self.before, self.between, self.after, write)

    def read(self, events: CallEvents, tools: Sequence[Tool]) -> Reading:
        """Read the calls; see :meth:`ToolFormat.read`."""
        while True:
            yield from _read_json_call(events, self.before, self.between, self.after)
            if not self.next_call:
                return
            yield from expect(self.next_call)


@dataclass(frozen=True)
class JsonList:
    """Calls as a JSON array after one mark, as Mistral's models of 2024 write them."""

    name: str = "mistral"
    opening: str = "[TOOL_CALLS]"
    marks: tuple[str, ...] = ("[TOOL_CALLS]",)
    has_one_call: bool = False
    is_told_by_template: bool = True

    def rules(self, tools: Sequence[Tool], *, several: bool, write: Write) -> str:
        """Return the rules; see :meth:`ToolFormat.rules`."""
        more = ' (", " call)*' if several else ""
        return f'calls: "[" call{more} "]"\n' + _json_calls(tools, '{"name": "', '", "arguments": ', "}", write)

    def read(self, events: CallEvents, tools: Sequence[Tool]) -> Reading:
        """Read the calls; see :meth:`ToolFormat.read`."""
        yield from expect("[")
        while True:
            yield from _read_json_call(events, '{"name": "', '", "arguments": ', "}")
            if (yield) == "]":
                return
            yield from expect(" ")


@dataclass(frozen=True)
class NamesInMarks:
    """Each name after one mark and its arguments after another.

    Mistral's models since 2025 write calls so.
    """

    name: str = "mistral-args"
    opening: str = "[TOOL_CALLS]"
    marks: tuple[str, ...] = ("[TOOL_CALLS]", "[ARGS]")
    has_one_call: bool = False
    is_told_by_template: bool = True

    def rules(self, tools: Sequence[Tool], *, several: bool, write: Write) -> str:
        """Return the rules; see :meth:`ToolFormat.rules`."""
        more = f" ({write('[TOOL_CALLS]')} call)*" if several else ""
        return f"calls: call{more}\n" + _json_calls(tools, "", "[ARGS]", "", write)

    def read(self, events: CallEvents, tools: Sequence[Tool]) -> Reading:
        """Read the calls; see :meth:`ToolFormat.read`."""
        while True:
            events.begin((yield from text_until("[ARGS]")))
            yield from json_value(events.arguments)
            events.end()
            yield from expect("[TOOL_CALLS]")


@dataclass(frozen=True)
class XmlParameters:
    """A mark for each argument, as Qwen3-Coder and Qwen3.5 write them.

    An argument whose schema says ``"type": "string"`` stands there as it is, to the first line that is the closing mark.
    All others are JSON.
    """

    name: str = "qwen3-coder"
    opening: str = "<tool_call>"
    marks: tuple[str, ...] = ("<tool_call>", "</tool_call>")
    has_one_call: bool = False
    is_told_by_template: bool = True

    def rules(self, tools: Sequence[Tool], *, several: bool, write: Write) -> str:
        """Return the rules; see :meth:`ToolFormat.rules`."""
        rules = ["calls: call" + (f" ({write(_NEXT_CALL)} call)*" if several else "")]
        rules.append("call: " + " | ".join(f"call{index}" for index in range(len(tools))))
        for index, tool in enumerate(tools):
            where = f"/{index}/function/parameters"
            schema = tool.parameters
            for keyword in schema:
                if keyword not in _XML_KEYWORDS:
                    raise GrammarError(f"{keyword!r} cannot be enforced where arguments stand one by one", where)
            if schema.get("additionalProperties", True) is not False:
                raise GrammarError("arguments that are not named cannot stand one by one", where)
            required = schema.get("required", [])
            properties: dict[str, Any] = schema.get("properties", {})
            for name in required:
                if name not in properties:
                    raise GrammarError(f"{name!r} is required, and no argument has the name", f"{where}/required")
            parts = [_quoted(f"\n<function={tool.name}>\n")]
            for number, (argument, of) in enumerate(properties.items()):
                rule = f"p{index}x{number}"
                if "\n" in argument or ">" in argument:
                    raise GrammarError("the name of an argument holds a line end or '>'", f"{where}/properties")
                rules.append(f"{rule}: {_quoted(f'<parameter={argument}>')} {rule}v")
                rules.append(_xml_value(f"{rule}v", of, schema, f"{where}/properties/{argument}"))
                parts.append(rule if argument in required else f"{rule}?")
            rules.append(f"call{index}: " + " ".join([*parts, write("</function>\n</tool_call>")]))
        return "\n".join(rules) + "\n"

    def read(self, events: CallEvents, tools: Sequence[Tool]) -> Reading:
        """Read the calls; see :meth:`ToolFormat.read`."""
        schemas = {tool.name: tool.parameters.get("properties", {}) for tool in tools}
        while True:
            yield from expect("\n<function=")
            name = yield from text_until(">\n")
            events.begin(name)
            events.arguments("{")
            separator = ""
            while (yield from _mark_name()) == "parameter":
                argument = yield from text_until(">\n")
                events.arguments(f"{separator}{json.dumps(argument, ensure_ascii=False)}: ")
                if _is_text(schemas[name][argument]):
                    text = yield from text_until(_END_OF_ARGUMENT)
                    events.arguments(json.dumps(text, ensure_ascii=False))
                else:
                    after = yield from json_value(events.arguments)
                    yield from expect(_END_OF_ARGUMENT[len(after) :])
                separator = ", "
            events.arguments("}")
            events.end()
            yield from expect("\n</tool_call>")
            yield from expect(_NEXT_CALL)


_NEXT_CALL = "\n<tool_call>"
_END_OF_ARGUMENT = "\n</parameter>\n"
_XML_KEYWORDS = frozenset(
    {"type", "properties", "required", "additionalProperties", "$defs", "definitions", "title", "description"}
)
_TEXT_KEYWORDS = frozenset({"type", "minLength", "maxLength", "enum", "title", "description", "default", "examples"})


def _mark_name() -> Generator[None, str, str]:
    """Read ``<parameter=`` or ``</function>`` and return the word in it."""
    yield from expect("<")
    word = ""
    while (character := (yield)) not in "=>":
        word += character
    return word


def _is_text(schema: object) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "string"


def _xml_value(rule: str, schema: Any, whole: dict[str, Any], where: str) -> str:
    """Return the rule of an argument's value, with the line ends around it and the closing mark."""
    if schema is False:
        raise GrammarError("an argument that no value fits cannot be enforced where arguments stand one by one", where)
    if not _is_text(schema):
        shared = {name: whole[name] for name in ("$defs", "definitions") if name in whole}
        value = {**schema, **shared} if isinstance(schema, dict) else schema
        return f'{rule}: "\\n" {_json(value)} {_quoted(_END_OF_ARGUMENT)}'
    for keyword in schema:
        if keyword not in _TEXT_KEYWORDS:
            raise GrammarError(
                f"{keyword!r} cannot be enforced for a text that stands without quotes", f"{where}/{keyword}"
            )
    if "enum" in schema:
        texts = [text for text in schema["enum"] if isinstance(text, str) and _END_OF_ARGUMENT not in text + "\n"]
        if not texts:
            raise GrammarError("none of the values is a text that can stand without quotes", f"{where}/enum")
        return f'{rule}: "\\n" ({" | ".join(map(_quoted, texts))}) {_quoted(_END_OF_ARGUMENT)}'
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    if most != "" and least > most:
        raise GrammarError(f"no text has at least {least:,} and at most {most:,} characters", f"{where}/maxLength")
    counted = f"{{{least},{most}}}" if least or most != "" else "*"
    return f'{rule}: "\\n" {rule}t\n{rule}t[suffix={_quoted(_END_OF_ARGUMENT)}]: /(?s:.){counted}/'


def _json_calls(tools: Sequence[Tool], before: str, between: str, after: str, write: Write) -> str:
    """Return the rule ``call``: the name of a tool, and arguments that its schema allows."""
    rules = ["call: " + " | ".join([f"call{index}" for index in range(len(tools))])]
    for index, tool in enumerate(tools):
        end = f" {write(after)}" if after else ""
        rules.append(f"call{index}: {write(before + tool.name + between)} {_json(tool.parameters)}{end}")
    return "\n".join(rules) + "\n"


def _read_json_call(events: CallEvents, before: str, between: str, after: str) -> Reading:
    yield from expect(before)
    events.begin((yield from text_until(between)))
    yield from json_value(events.arguments)
    yield from expect(after)
    events.end()


def _json(schema: Any) -> str:
    """Return the part of a rule that stands for a value of a schema."""
    return f"%json {json.dumps({**({} if schema is True else schema), 'x-guidance': _COMPACT}, ensure_ascii=False)}"


def _quoted(text: str) -> str:
    """Return a text as Lark writes it."""
    return json.dumps(text, ensure_ascii=False)


FORMATS: dict[str, ToolFormat] = {
    each.name: each
    for each in (
        JsonInMarks(),
        XmlParameters(),
        JsonInMarks(
            "llama3",
            opening="",
            marks=(),
            has_one_call=True,
            before='{"name": "',
            between='", "parameters": ',
            after="}",
            next_call="",
        ),
        JsonList(),
        NamesInMarks(),
        JsonList("json", opening="", marks=(), is_told_by_template=False),
    )
}
"""The formats by name."""
