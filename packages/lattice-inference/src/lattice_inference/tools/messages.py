"""Calls and their results in the messages of a conversation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lattice_inference.errors import InvalidInputError
from lattice_inference.value_text import value_text

__all__ = ["result_messages", "template_messages"]


def template_messages(messages: Sequence[Any]) -> list[Any]:
    """Return messages as templates want them: the arguments of calls are mappings.

    Raises:
        InvalidInputError: arguments that are no JSON object.
    """
    return [_with_mappings(message, f"messages[{index}]") for index, message in enumerate(messages)]


def result_messages(messages: Sequence[Mapping[str, Any]], results: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the messages that answer the calls of the last message, in their order.

    Args:
        messages: the conversation.
        results: a text for each call, by the call's id.

    Raises:
        InvalidInputError: the last message calls no tool, a call has no result, or a result has no call.
    """
    calls = messages[-1].get("tool_calls") if messages and isinstance(messages[-1], Mapping) else None
    if not calls:
        raise InvalidInputError("the last message of the conversation calls no tool, so there is nothing to answer")
    if not isinstance(results, Mapping):
        raise InvalidInputError(f"results is {value_text(results)}; expected a mapping of the calls' ids to texts")
    ids = [_id_of(call) for call in _listed(calls)]
    for missing in (call_id for call_id in ids if call_id not in results):
        raise InvalidInputError(f"the call {missing!r} has no result")
    for unknown in (call_id for call_id in results if call_id not in ids):
        raise InvalidInputError(f"results names {value_text(unknown)}, but the last message calls {', '.join(ids)}")
    for call_id, text in results.items():
        if not isinstance(text, str):
            raise InvalidInputError(f"the result of {call_id!r} is {value_text(text)}; expected a str")
    return [
        {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": results[call["id"]]}
        for call in calls
    ]


def _listed(calls: object) -> Sequence[object]:
    if isinstance(calls, (str, bytes)) or not isinstance(calls, Sequence):
        raise InvalidInputError(f"tool_calls of the last message is {value_text(calls)}; expected a list of calls")
    return calls


def _id_of(call: object) -> str:
    """Return the id of a call of the conversation, which the caller may have written."""
    function = call.get("function") if isinstance(call, Mapping) else None
    call_id = call.get("id") if isinstance(call, Mapping) else None
    if not isinstance(call_id, str) or not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidInputError(
            f"tool_calls of the last message holds {value_text(call)}; expected {{'id': ..., 'function': {{'name': ...}}}}"
        )
    return call_id


def _with_mappings(message: Any, where: str) -> Any:
    calls = message.get("tool_calls") if isinstance(message, Mapping) else None
    if not isinstance(calls, Sequence) or isinstance(calls, (str, bytes)):
        return message  # what it is, the template's own check says
    return {**message, "tool_calls": [_with_mapping(call, f"{where}.tool_calls[{n}]") for n, call in enumerate(calls)]}


def _with_mapping(call: Any, where: str) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    text = function.get("arguments") if isinstance(function, Mapping) else None
    if not isinstance(text, str):
        return call
    assert isinstance(function, Mapping)
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"{where}.function.arguments is no JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise InvalidInputError(f"{where}.function.arguments is {value_text(arguments)}; expected a JSON object")
    return {**call, "function": {**function, "arguments": arguments}}
