"""What each provider is sent, and what its answers mean.

A protocol is a function from a prompt to the JSON of a request, and one from the JSON of an answer to a
:class:`TeacherAnswer`. Neither opens a connection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from lattice_tune.teachers.answer import Outcome, TeacherAnswer, read_distribution, read_label
from lattice_tune.teachers.config import TeacherConfig
from lattice_tune.teachers.found_json import find_object
from lattice_tune.teachers.prompt import Prompt
from lattice_tune.teachers.provider import TeacherProvider
from lattice_tune.teachers.task import LabelingTask

__all__ = ["PROTOCOLS", "WireProtocol", "method_url"]

ANTHROPIC_VERSION = "2023-06-01"
TOOL = "answer"
MOST_USAGE = 2**31 - 1
"""Largest number of tokens that is believed of a server."""

MOST_SHOWN = 200


@dataclass(frozen=True)
class WireProtocol:
    """A provider's form of requests and answers.

    Attributes:
        path: where requests go below the endpoint; ``{model}`` stands for the model's name.
        key_header: the header of the key.
        headers: further headers, no secrets.
        hidden_tokens: most tokens that the provider reads beside what is sent, such as what it tells a model about tools.
        body: the JSON of a request.
        read: the answer that a server's JSON stands for.
    """

    path: str
    key_header: str
    headers: Mapping[str, str]
    hidden_tokens: int
    body: Callable[[TeacherConfig, LabelingTask, Prompt], dict[str, Any]]
    read: Callable[[Mapping[str, Any], TeacherConfig, LabelingTask], TeacherAnswer]


def method_url(config: TeacherConfig) -> str:
    """Return the address that requests are posted to."""
    path = PROTOCOLS[config.provider].path.replace("{model}", quote(config.model_id, safe=""))
    return f"{config.checked_endpoint().url}/{path}"


# Anthropic: the messages API, with a tool that the model must use


def _anthropic_body(config: TeacherConfig, task: LabelingTask, prompt: Prompt) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": config.model_id,
        "max_tokens": config.max_tokens,
        "system": prompt.system,
        "messages": [{"role": "user", "content": prompt.user}],
    }
    if config.temperature is not None:
        body["temperature"] = min(config.temperature, 1.0)  # the provider's own limit
    if config.is_structured:
        tool = {"name": TOOL, "description": "Give the answer.", "input_schema": _json_schema(task)}
        body |= {"tools": [tool], "tool_choice": {"type": "tool", "name": TOOL}}
    return body


def _read_anthropic(document: Mapping[str, Any], config: TeacherConfig, task: LabelingTask) -> TeacherAnswer:
    usage = (document.get("usage"), "input_tokens", "output_tokens")
    reason = document.get("stop_reason")
    blocks = [block for block in _list(document.get("content")) if isinstance(block, dict)]
    if reason == "refusal":
        return _with_usage(_refused("stop_reason is refusal"), *usage)
    if reason in ("max_tokens", "model_context_window_exceeded"):
        return _with_usage(_cut_off(config), *usage)
    calls = [block.get("input") for block in blocks if block.get("type") == "tool_use" and block.get("name") == TOOL]
    if calls:
        same = all(call == calls[0] for call in calls)
        answer = _read_value(calls[0], task) if same else _malformed("it used the tool twice, with different labels")
        return _with_usage(answer, *usage)
    texts = [block["text"] for block in blocks if block.get("type") == "text" and isinstance(block.get("text"), str)]
    return _with_usage(_read_text("".join(texts), task), *usage)


# OpenAI's chat completions, and servers that speak them


def _chat_body(config: TeacherConfig, task: LabelingTask, prompt: Prompt) -> dict[str, Any]:
    messages = [{"role": "system", "content": prompt.system}, {"role": "user", "content": prompt.user}]
    body: dict[str, Any] = {"model": config.model_id, "messages": messages}
    # OpenAI's newer models refuse the old name; other servers know only that
    limit = "max_completion_tokens" if config.provider is TeacherProvider.OPENAI else "max_tokens"
    body[limit] = config.max_tokens
    if config.temperature is not None:
        body["temperature"] = config.temperature
    if config.is_structured:
        schema = {"name": TOOL, "strict": True, "schema": _json_schema(task)}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return body


def _read_chat(document: Mapping[str, Any], config: TeacherConfig, task: LabelingTask) -> TeacherAnswer:
    usage = (document.get("usage"), "prompt_tokens", "completion_tokens")
    choices = _list(document.get("choices"))
    choice = choices[0] if choices and isinstance(choices[0], dict) else {}
    message = choice.get("message")
    message = message if isinstance(message, dict) else {}
    reason = choice.get("finish_reason")
    if reason == "content_filter" or message.get("refusal"):
        return _with_usage(_refused(str(message.get("refusal") or "finish_reason is content_filter")), *usage)
    if reason == "length":
        return _with_usage(_cut_off(config), *usage)
    content = message.get("content")
    if isinstance(content, list):  # some servers write parts
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return _with_usage(_read_text(content if isinstance(content, str) else "", task), *usage)


# Gemini: generateContent


def _gemini_body(config: TeacherConfig, task: LabelingTask, prompt: Prompt) -> dict[str, Any]:
    generation: dict[str, Any] = {"maxOutputTokens": config.max_tokens}
    if config.temperature is not None:
        generation["temperature"] = config.temperature
    if config.is_structured:
        generation |= {"responseMimeType": "application/json", "responseSchema": _gemini_schema(task)}
    return {
        "systemInstruction": {"parts": [{"text": prompt.system}]},
        "contents": [{"role": "user", "parts": [{"text": prompt.user}]}],
        "generationConfig": generation,
    }


def _read_gemini(document: Mapping[str, Any], config: TeacherConfig, task: LabelingTask) -> TeacherAnswer:
    given = document.get("usageMetadata")
    usage = (given, "promptTokenCount", "candidatesTokenCount", "thoughtsTokenCount")
    feedback = document.get("promptFeedback")
    if isinstance(feedback, dict) and feedback.get("blockReason"):
        return _with_usage(_refused(f"the prompt was blocked: {feedback['blockReason']}"), *usage)
    candidates = _list(document.get("candidates"))
    candidate = candidates[0] if candidates and isinstance(candidates[0], dict) else {}
    reason = candidate.get("finishReason")
    if reason == "MAX_TOKENS":
        return _with_usage(_cut_off(config), *usage)
    if reason not in (None, "STOP", "FINISH_REASON_UNSPECIFIED"):
        return _with_usage(_refused(f"finishReason is {reason}"), *usage)
    content = candidate.get("content")
    parts = _list(content.get("parts")) if isinstance(content, dict) else []
    texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
    return _with_usage(_read_text("".join(texts), task), *usage)


PROTOCOLS: dict[TeacherProvider, WireProtocol] = {
    TeacherProvider.ANTHROPIC: WireProtocol(
        "messages", "x-api-key", {"anthropic-version": ANTHROPIC_VERSION}, 1000, _anthropic_body, _read_anthropic
    ),
    TeacherProvider.OPENAI: WireProtocol("chat/completions", "authorization", {}, 100, _chat_body, _read_chat),
    TeacherProvider.GEMINI: WireProtocol(
        "models/{model}:generateContent", "x-goog-api-key", {}, 100, _gemini_body, _read_gemini
    ),
    TeacherProvider.OPENAI_COMPATIBLE: WireProtocol(
        "chat/completions", "authorization", {}, 100, _chat_body, _read_chat
    ),
}


def _json_schema(task: LabelingTask) -> dict[str, Any]:
    if task.kind == "hard":
        inner: dict[str, Any] = {"label": {"type": "string", "enum": list(task.labels)}}
    else:
        numbers = {label: {"type": "number"} for label in task.labels}
        inner = {"probabilities": _closed_object(numbers)}
    return _closed_object(inner)


def _closed_object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _gemini_schema(task: LabelingTask) -> dict[str, Any]:
    if task.kind == "hard":
        label = {"type": "STRING", "enum": list(task.labels)}
        return {"type": "OBJECT", "properties": {"label": label}, "required": ["label"]}
    numbers = {label: {"type": "NUMBER"} for label in task.labels}
    inner = {"type": "OBJECT", "properties": numbers, "required": list(task.labels)}
    return {"type": "OBJECT", "properties": {"probabilities": inner}, "required": ["probabilities"]}


def _read_text(text: str, task: LabelingTask) -> TeacherAnswer:
    key = "label" if task.kind == "hard" else "probabilities"
    found = find_object(text, key)
    if isinstance(found, str):
        said = " ".join(text.split())
        return _malformed(f"{found} in the answer: {said[:MOST_SHOWN]}" if said else "the answer is empty")
    return _read_value(found, task)


def _read_value(value: object, task: LabelingTask) -> TeacherAnswer:
    if not isinstance(value, Mapping):
        return _malformed("the answer is no JSON object")
    key = "label" if task.kind == "hard" else "probabilities"
    if key not in value:
        return _malformed(f"the answer has no {key!r}")
    return read_label(value[key], task) if task.kind == "hard" else read_distribution(value[key], task)


def _with_usage(answer: TeacherAnswer, usage: object, read: str, *written: str) -> TeacherAnswer:
    """Return an answer with the tokens that the server counted, where it tells sensibly."""
    given = usage if isinstance(usage, Mapping) else {}
    counts = [_count(given.get(name)) for name in (read, *written)]
    if counts[0] is None or counts[1] is None:
        return answer
    return replace(answer, input_tokens=counts[0], output_tokens=sum(count or 0 for count in counts[1:]))


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= MOST_USAGE else None


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _refused(reason: str) -> TeacherAnswer:
    return TeacherAnswer(Outcome.REFUSED, detail=" ".join(reason.split())[:MOST_SHOWN])


def _cut_off(config: TeacherConfig) -> TeacherAnswer:
    return TeacherAnswer(Outcome.CUT_OFF, detail=f"the answer was cut off at max_tokens={config.max_tokens}")


def _malformed(detail: str) -> TeacherAnswer:
    return TeacherAnswer(Outcome.MALFORMED, detail=detail)
