"""The tools that a caller gives, and which of them an answer may call."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lattice_inference.errors import GrammarError, InvalidInputError
from lattice_inference.grammar.schema_gate import checked_schema
from lattice_inference.tokenizer.chat_messages import plain_json
from lattice_inference.value_text import value_text

__all__ = ["MOST_TOOLS", "Tool", "ToolChoice", "checked_tools", "chosen_tools"]

MOST_TOOLS = 128
"""The most tools of a conversation."""

ToolChoice = Literal["auto", "none", "required"] | Mapping[str, Any]
"""Whether an answer calls tools: as it likes, never, at least one, or one function in a mapping of OpenAI's form."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_OPENS = ("additionalProperties", "patternProperties", "unevaluatedProperties", "$ref", "anyOf", "allOf", "oneOf")


@dataclass(frozen=True)
class Tool:
    """A function that an answer can call.

    Attributes:
        name: letters, digits, ``_``, ``.`` and ``-``, at most 64.
        parameters: the JSON schema of its arguments, an object. Without ``additionalProperties`` it takes no other
            arguments than those in ``properties``.
        definition: the mapping as it was given, for the chat template.
    """

    name: str
    parameters: dict[str, Any]
    definition: dict[str, Any]


def checked_tools(tools: object) -> tuple[Tool, ...]:
    """Return tools, checked.

    Args:
        tools: a list of ``{"type": "function", "function": {"name", "description", "parameters"}}``.

    Raises:
        InvalidInputError: no list, too many, one that is malformed, or two of one name.
        GrammarError: a schema that cannot be enforced; its pointer begins at the list.
    """
    if isinstance(tools, (str, bytes, Mapping)) or not isinstance(tools, Sequence):
        raise InvalidInputError(f"tools is {value_text(tools)}; expected a list of tools")
    if len(tools) > MOST_TOOLS:
        raise InvalidInputError(f"there are {len(tools):,} tools; at most {MOST_TOOLS} are taken")
    checked = tuple([_checked_tool(tool, index) for index, tool in enumerate(tools)])
    names = [tool.name for tool in checked]
    for name in names:
        if names.count(name) > 1:
            raise InvalidInputError(f"two tools have the name {name!r}")
    return checked


def chosen_tools(tools: Sequence[Tool], choice: ToolChoice) -> tuple[tuple[Tool, ...], bool]:
    """Return the tools that an answer may call, and whether it has to call one.

    Raises:
        InvalidInputError: the choice is malformed, names no tool of the list, or wants a call where there are no tools.
    """
    if isinstance(choice, str):
        if choice not in ("auto", "none", "required"):
            raise InvalidInputError(
                f"tool_choice is {choice!r}; expected 'auto', 'none', 'required' or a function's name in a mapping"
            )
        if choice == "required" and not tools:
            raise InvalidInputError("tool_choice is 'required', but there are no tools")
        return (() if choice == "none" else tuple(tools)), choice == "required"
    function = choice.get("function") if isinstance(choice, Mapping) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise InvalidInputError(
            f"tool_choice is {value_text(choice)}; expected 'auto', 'none', 'required' or "
            "{'type': 'function', 'function': {'name': ...}}"
        )
    named = tuple([tool for tool in tools if tool.name == name])
    if not named:
        raise InvalidInputError(f"tool_choice names {name!r}, but no tool has that name")
    return named, True


def _checked_tool(tool: object, index: int) -> Tool:
    where = f"tools[{index}]"
    if not isinstance(tool, Mapping) or tool.get("type") != "function" or not isinstance(tool.get("function"), Mapping):
        raise InvalidInputError(
            f"{where} is {value_text(tool)}; expected {{'type': 'function', 'function': {{'name': ...}}}}"
        )
    definition: dict[str, Any] = plain_json(tool, where)
    function = definition["function"]
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidInputError(
            f"{where}.function.name is {value_text(name)}; expected up to 64 letters, digits, '_', '.' or '-'"
        )
    if not isinstance(function.get("description", ""), str):
        raise InvalidInputError(
            f"{where}.function.description is {value_text(function['description'])}; expected a str"
        )
    given = function.get("parameters")
    if given is not None and not isinstance(given, dict):
        raise InvalidInputError(f"{where}.function.parameters is {value_text(given)}; expected the schema of an object")
    return Tool(name, _arguments_schema(given or {}, f"/{index}/function/parameters"), definition)


def _arguments_schema(schema: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the schema of a call's arguments: an object, with the members that are named."""
    if schema.get("type", "object") != "object":
        raise GrammarError(
            f"a tool's arguments are an object, not of type {value_text(schema['type'])}", f"{where}/type"
        )
    whole = {"type": "object", **schema}
    if not any(keyword in whole for keyword in _OPENS):
        whole["additionalProperties"] = False
    try:
        checked = checked_schema(whole)
    except GrammarError as error:
        raise GrammarError(f"{where}: {error}", where + (error.pointer or "")) from error
    assert isinstance(checked, dict)
    result: dict[str, Any] = json.loads(json.dumps(checked))
    return result
