"""Every answer parses by the types of OpenAI's client, strictly: no number that is a text, no member that is missing."""

from __future__ import annotations

import json

import pytest

from .conftest import events_of
from .test_answers import ASKED

pytest.importorskip("openai")

from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

CHAT = {"model": "drawn", "messages": ASKED, "max_tokens": 6, "seed": 3, "ignore_eos": True}
TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
CALLS = {"model": "calling", "messages": ASKED, "tools": [TOOL], "tool_choice": "required", "seed": 2}
COMPLETION = {"model": "drawn", "prompt": ["ab", "c"], "max_tokens": 6, "seed": 3, "ignore_eos": True}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
BODIES = [
    ("/v1/chat/completions", CHAT, ChatCompletion),
    ("/v1/chat/completions", {**CHAT, "n": 2, "logprobs": True, "top_logprobs": 2}, ChatCompletion),
    ("/v1/chat/completions", {**CHAT, "chat_template_kwargs": {"enable_thinking": True}}, ChatCompletion),
    ("/v1/chat/completions", CALLS, ChatCompletion),
    ("/v1/completions", COMPLETION, Completion),
    ("/v1/completions", {**COMPLETION, "n": 2, "logprobs": 2}, Completion),
    ("/v1/completions", {**COMPLETION, "echo": True, "max_tokens": 0}, Completion),
    ("/v1/embeddings", {"model": "vectors", "input": ["a", "b"]}, CreateEmbeddingResponse),
]


def all_members_are_known(value, kind):
    """Parse strictly, and return what the type does not know."""
    parsed = kind.model_validate_json(json.dumps(value), strict=True)
    return set(parsed.model_extra or {})


@pytest.mark.parametrize(("path", "body", "kind"), BODIES)
def test_whole_answers(client, path, body, kind):
    if "tools" in body:
        pytest.importorskip("llguidance")
    assert all_members_are_known(client.post(path, json=body).json(), kind) == set()


@pytest.mark.parametrize(("path", "body", "kind"), BODIES[:6])
def test_events(client, path, body, kind):
    if "tools" in body:
        pytest.importorskip("llguidance")
    for event in events_of(client.post(path, json={**body, **STREAM}).text):
        for choice in event["choices"] if kind is Completion else ():
            # the type has no null here, which OpenAI sends until the last event
            choice["finish_reason"] = choice["finish_reason"] or "stop"
        assert all_members_are_known(event, ChatCompletionChunk if kind is ChatCompletion else kind) == set()


def test_models(client):
    for entry in client.get("/v1/models").json()["data"]:
        assert all_members_are_known(entry, Model) <= {"kind", "parent", "max_model_len", "dimension"}
