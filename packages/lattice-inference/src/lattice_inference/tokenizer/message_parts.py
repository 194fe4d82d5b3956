"""Joins contents that are lists of parts for chat templates that know texts only.

Such a template refuses a list, or writes it as Python does; :meth:`ChatTemplate.render` gives that text, as transformers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from lattice_inference.errors import InvalidInputError, UnsupportedError

__all__ = ["readable_messages"]

_PROBE = "lattice part"


class _Template(Protocol):
    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool) -> str: ...


def readable_messages(template: _Template, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return messages with contents that a template reads.

    Parts of texts become the lines of one text, unless the template reads parts. Other messages, and what is malformed,
    stay as they are.
    """
    if not isinstance(messages, (list, tuple)) or not any(_has_parts(each) for each in messages):
        return messages
    probe = [{"type": "text", "text": _PROBE}]
    try:
        text = template.render(
            [{**each, "content": probe} if _has_parts(each) else each for each in messages], add_generation_prompt=False
        )
    except (InvalidInputError, UnsupportedError):
        text = repr(_PROBE)
    if repr(_PROBE) not in text:
        return messages
    return [
        {**each, "content": "\n".join(part["text"] for part in each["content"])} if _has_parts(each) else each
        for each in messages
    ]


def _has_parts(message: object) -> bool:
    content = message.get("content") if isinstance(message, Mapping) else None
    return isinstance(content, list) and all(
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str) for part in content
    )
