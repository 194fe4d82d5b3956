"""What a conversation is made of, checked and rebuilt of JSON's types."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from lattice_inference.errors import InvalidInputError

__all__ = ["COMMON_ROLES", "ROLES", "Message", "checked_messages", "plain_json"]

COMMON_ROLES = ("system", "user", "assistant", "tool")
"""The roles that every template is asked about."""

ROLES = (*COMMON_ROLES, "developer", "document", "control", "ipython", "observation", "function")
"""The roles that a message can have; a template has to know those that are not :data:`COMMON_ROLES`."""

Message = Mapping[str, Any]

_MOST_DEPTH = 64
_NO_CONTENT = ("role", "name", "content")


def checked_messages(messages: Sequence[Message], *, roles: Collection[str] = ROLES) -> list[dict[str, Any]]:
    """Return messages as plain JSON values; a field that is None stays there.

    Args:
        messages: mappings with ``role`` and ``content``.
        roles: the roles that a message can have.

    Raises:
        InvalidInputError: no messages, a message that is no mapping, an unknown role, no content, or a part of a content
            that is no text.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise InvalidInputError(f"messages is a {type(messages).__name__}; expected a list of messages")
    if not messages:
        raise InvalidInputError("messages is empty; a conversation needs a message")
    return [_checked_message(message, f"messages[{index}]", roles) for index, message in enumerate(messages)]


def _checked_message(message: object, where: str, roles: Collection[str]) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidInputError(f"{where} is a {type(message).__name__}; expected a mapping with role and content")
    role = message.get("role")
    if not isinstance(role, str) or role not in roles:
        raise InvalidInputError(f"{where} has the role {_short(role)}; expected one of {', '.join(ROLES)}")
    checked: dict[str, Any] = plain_json(message, where)
    content = checked.get("content")
    if isinstance(content, list):
        for part in content:
            if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise InvalidInputError(f"{where} has a part that is no text: {_short(part)}")
    elif content is None:
        if not any(value for name, value in checked.items() if name not in _NO_CONTENT):
            raise InvalidInputError(
                f"{where} has no content; give it a text, or what stands for one, such as tool_calls"
            )
    elif not isinstance(content, str):
        raise InvalidInputError(f"{where}.content is a {type(content).__name__}; expected a str or a list of parts")
    return checked


def _short(value: object) -> str:
    return repr(value)[:100]


def plain_json(value: object, where: str, depth: int = 0) -> Any:
    """Return ``value`` rebuilt of JSON's types.

    A template must not reach the methods of other types.

    Raises:
        InvalidInputError: it holds something else, or is nested too deeply.
    """
    if depth > _MOST_DEPTH:
        raise InvalidInputError(f"{where} is nested deeper than {_MOST_DEPTH} levels")
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        if depth == 0:  # name the field
            return {plain_json(key, where, 1): plain_json(item, f"{where}.{key}", 1) for key, item in value.items()}
        return {plain_json(key, where, depth + 1): plain_json(item, where, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_json(item, where, depth + 1) for item in value]
    raise InvalidInputError(f"{where} holds a {type(value).__name__}; expected what JSON can hold")
