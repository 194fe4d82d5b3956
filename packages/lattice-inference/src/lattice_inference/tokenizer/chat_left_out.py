"""Detects content that a chat template leaves out, by rendering it with other values.

A template may trim, escape, quote or upper-case what it is given, or put it somewhere else, so the text itself cannot be
looked for. A text that stays the same when what it was made of changes has nothing of it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lattice_inference.errors import InvalidInputError, UnsupportedError
from lattice_inference.tokenizer.chat_messages import COMMON_ROLES

__all__ = ["refuse_left_out"]

Render = Callable[[dict[str, Any]], str]
Place = tuple[int, int | None]  # a message, and the part of its content unless that is one text

_WATCHED_ROLE = "system"
_WATCHED_VARIABLES = ("tools", "documents")
_PROBE_DIGITS = 24  # digits alone: no case, nothing to escape or to trim


def refuse_left_out(render: Render, values: Mapping[str, Any], text: str) -> None:
    """Refuse content that the template leaves out of ``text``.

    Such are system messages, unknown roles, tools and documents.

    Args:
        render: renders the template with other values; raises InvalidInputError where the template refuses them.
        values: what ``text`` was rendered with.
        text: the rendered conversation.

    Raises:
        UnsupportedError: something is left out.
    """
    messages: list[dict[str, Any]] = values["messages"]
    _refuse_roles(render, values, text)
    places = [
        place
        for index, message in enumerate(messages)
        if message["role"] == _WATCHED_ROLE or message["role"] not in COMMON_ROLES
        for place in _places(index, message)
    ]
    unseen = _unseen(render, values, places) if places else []
    for place in unseen:
        if not _changes(render, {**values, "messages": _with_probes(messages, {place: _probe()})}, text):
            role = messages[place[0]]["role"]
            part = "" if place[1] is None else f" (part {place[1]} of its content)"
            raise UnsupportedError(
                f"the model's chat template leaves out the {role} message{part}; put it into the first user message"
            )
    for name in _WATCHED_VARIABLES:
        if values.get(name) and not _changes(render, {**values, name: None}, text):
            raise UnsupportedError(
                f"the model's chat template has no place for {name}; leave them out, or put them into a message"
            )


def _refuse_roles(render: Render, values: Mapping[str, Any], text: str) -> None:
    """Refuse roles beyond the common ones that the template treats as it would treat any word."""
    messages: list[dict[str, Any]] = values["messages"]
    for role in dict.fromkeys(message["role"] for message in messages if message["role"] not in COMMON_ROLES):
        other = f"role{_probe()}"
        renamed = [{**message, "role": other} if message["role"] == role else message for message in messages]
        if not _changes(render, {**values, "messages": renamed}, text):
            raise UnsupportedError(
                f"the model's chat template does not know the role {role!r}; use {', '.join(COMMON_ROLES)}"
            )


def _places(index: int, message: Mapping[str, Any]) -> list[Place]:
    """Return where a message has text; blanks alone say nothing, so they can be left out."""
    content = message.get("content")
    if isinstance(content, str):
        return [(index, None)] if content.strip() else []
    return [(index, number) for number, part in enumerate(content or ()) if part["text"].strip()]


def _unseen(render: Render, values: Mapping[str, Any], places: Sequence[Place]) -> list[Place]:
    """Return the places whose probes do not show in a rendering with probes in all of them."""
    probes = {place: _probe() for place in places}
    try:
        text = render({**values, "messages": _with_probes(values["messages"], probes)})
    except InvalidInputError:
        return list(places)  # the template wants certain contents: ask about each place
    return [place for place in places if probes[place] not in text]


def _with_probes(messages: Sequence[dict[str, Any]], probes: Mapping[Place, str]) -> list[dict[str, Any]]:
    changed = list(messages)
    for (index, number), probe in probes.items():
        message = changed[index]
        if number is None:
            changed[index] = {**message, "content": probe}
        else:
            parts = list(message["content"])
            parts[number] = {**parts[number], "text": probe}
            changed[index] = {**message, "content": parts}
    return changed


def _changes(render: Render, values: dict[str, Any], text: str) -> bool:
    """Return whether other values give another text.

    A refusal counts: the template read them.
    """
    try:
        return render(values) != text
    except InvalidInputError:
        return True


def _probe() -> str:
    return "".join(str(secrets.randbelow(10)) for _ in range(_PROBE_DIGITS))
