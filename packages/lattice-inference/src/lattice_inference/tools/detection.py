"""Tells a model's format of calls from what its chat template writes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

from lattice_inference.errors import InvalidInputError, UnsupportedError
from lattice_inference.tools.formats import FORMATS, ToolFormat

if TYPE_CHECKING:
    from lattice_inference.tokenizer.chat_template import ChatTemplate

__all__ = ["ToolFormatName", "tool_format"]

ToolFormatName = Literal["hermes", "qwen3-coder", "llama3", "mistral", "mistral-args", "json"]

_NAME = "lattice_probe"
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "Lattice asks.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_WRITTEN = {
    "hermes": rf'<tool_call>\n\{{"name": "{_NAME}", "arguments": \{{"city": "there"\}}\}}\n</tool_call>',
    "qwen3-coder": rf"<tool_call>\n<function={_NAME}>\n<parameter=city>\nthere\n</parameter>\n</function>\n</tool_call>",
    "llama3": rf'(?<!\n)(?:\n\n|>|^)\{{"name": "{_NAME}", "parameters": \{{"city": "there"\}}\}}(?!\n</)',
    "mistral": rf'\[TOOL_CALLS\] ?\[\{{"name": "{_NAME}", "arguments": \{{"city": "there"\}}',
    "mistral-args": rf'\[TOOL_CALLS\]{_NAME}\[ARGS\]\{{"city": "there"\}}',
}


def tool_format(template: ChatTemplate, name: ToolFormatName | None = None) -> ToolFormat:
    """Return the format in which a model writes calls.

    Args:
        template: the model's; it is asked to write a call, and the format is known by what it writes.
        name: takes this format without asking.

    Raises:
        InvalidInputError: no format has that name.
        UnsupportedError: the template takes no tools, or writes calls in a form that is not known.
    """
    if name is not None:
        if not isinstance(name, str) or name not in FORMATS:
            raise InvalidInputError(f"tool_format is {name!r}; expected one of {', '.join(FORMATS)}")
        return FORMATS[name]
    call = {"id": "lattice00", "type": "function", "function": {"name": _NAME, "arguments": {"city": "there"}}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "lattice question"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "lattice00", "name": _NAME, "content": "lattice result"},
    ]
    try:
        text = template.render(messages, tools=[_TOOL], add_generation_prompt=False)
    except InvalidInputError as error:
        raise UnsupportedError(f"the chat template cannot write a call of a tool: {error}") from error
    for known, pattern in _WRITTEN.items():
        if re.search(pattern, text):
            return FORMATS[known]
    raise UnsupportedError(
        "the chat template writes calls of tools in a form that is not known here: pass tool_format='json', and tell the "
        "model in the system message to answer by a JSON array of calls"
    )
