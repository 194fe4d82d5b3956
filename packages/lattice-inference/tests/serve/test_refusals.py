"""Requests that are refused: each by an error that OpenAI's clients read, with its status and its field."""

from __future__ import annotations

import gzip
import json

import pytest

from lattice_inference import InvalidInputError
from lattice_inference.serve import ServeConfig, create_app

from .conftest import client_of
from .test_answers import ASKED

CHAT = {"model": "drawn", "messages": ASKED, "max_tokens": 2}
TOOL = {"type": "function", "function": {"name": "now"}}
UNIQUE = {"properties": {"a": {"uniqueItems": True}}}
SCHEMA = "response_format/json_schema/schema"
SMALL = ServeConfig(max_body_bytes=1000, max_inputs=4, max_choices=2)


@pytest.fixture(scope="module")
def small(models):
    with client_of(models.app(SMALL)) as made:
        yield made


def schema_form(schema):
    return {"type": "json_schema", "json_schema": {"name": "x", "strict": False, "schema": schema}}


def calling(parameters):
    return {"type": "function", "function": {"name": "now", "parameters": parameters}}


def refused(answer, status, code, param=None):
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param), error
    assert set(error) == {"message", "type", "param", "code"}
    assert "Traceback" not in error["message"]
    return error["message"]


def sent(client, route, body):
    """Send JSON whose lone surrogates are escaped."""
    return client.post(route, content=json.dumps(body), headers={"content-type": "application/json"})


@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        ({"messages": [{"role": "tool2", "content": "a"}]}, "invalid_value", "messages"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "unsupported_content",
            "messages[0].content[0]",
        ),
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": "hello"}, "invalid_value", "messages"),
        ({"messages": [3]}, "invalid_value", "messages[0]"),
        ({"messages": [{"role": "user"}]}, "invalid_value", "messages"),
        ({"messages": [{"role": "user", "content": "a", "weather": 1}]}, "unsupported_field", "messages[0].weather"),
        ({"messages": [{"role": "user", "content": "a" * 200}]}, "context_length_exceeded", "messages"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "invalid_value", "messages"),
        ({"temperature": 2.5}, "invalid_value", "temperature"),
        ({"temperature": "hot"}, "invalid_value", "temperature"),
        ({"top_p": True}, "invalid_value", "top_p"),
        ({"n": 0}, "invalid_value", "n"),
        ({"n": 17}, "invalid_value", "n"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"max_completion_tokens": 1.5}, "invalid_value", "max_completion_tokens"),
        ({"seed": 2**64}, "invalid_value", "seed"),
        ({"stop": [""]}, "invalid_value", "stop"),
        ({"logit_bias": {"x": 1}}, "invalid_value", "logit_bias"),
        ({"logit_bias": {"99999": 1}}, "invalid_value", "logit_bias"),
        ({"logprobs": 3}, "invalid_value", "logprobs"),
        ({"top_logprobs": 3}, "invalid_value", "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "invalid_value", "stream_options"),
        ({"stream": True, "stream_options": {"more": 1}}, "unsupported_field", "more"),
        ({"tool_choice": "required"}, "invalid_value", "tool_choice"),
        ({"tools": [TOOL]}, "unsupported", "tools"),
        ({"model": "calling", "tools": [{"type": "magic"}]}, "invalid_value", "tools"),
        ({"model": "calling", "tools": [TOOL], "tool_choice": "never"}, "invalid_value", "tool_choice"),
        ({"response_format": {"type": "xml"}}, "invalid_value", "response_format"),
        ({"response_format": {"type": "json_schema"}}, "invalid_value", "response_format"),
        ({"grammar": "root ::= ("}, "invalid_grammar", "grammar"),
        ({"grammar": {"syntax": "regex", "definition": "a("}}, "invalid_grammar", "grammar"),
        ({"grammar": {"syntax": "lark", "definition": "start: x"}}, "invalid_grammar", "grammar"),
        ({"grammar": {"syntax": "gbnf"}}, "invalid_value", "grammar"),
        ({"grammar": {"syntax": "xml", "definition": "x"}}, "invalid_value", "grammar"),
        ({"grammar": 3}, "invalid_value", "grammar"),
        ({"response_format": schema_form(UNIQUE)}, "invalid_grammar", f"{SCHEMA}/properties/a/uniqueItems"),
        ({"response_format": schema_form(UNIQUE) | {"strict": True}}, "invalid_value", "response_format"),
        ({"response_format": schema_form({"allOf": [True, False]})}, "invalid_grammar", "response_format"),
        (
            {"model": "calling", "tools": [calling(UNIQUE)]},
            "invalid_grammar",
            "tools/0/function/parameters/properties/a/uniqueItems",
        ),
        ({"chat_template_kwargs": {"messages": []}}, "invalid_value", "chat_template_kwargs"),
        ({"store": True}, "unsupported_field", "store"),
        ({"best_guess": 1}, "unsupported_field", "best_guess"),
        ({"\ud800": 1}, "unsupported_field", "\\ud800"),
        ({"model": "vectors"}, "wrong_kind_of_model", "model"),
        ({"model": None}, "missing_field", "model"),
    ],
)
def test_a_wrong_field_is_named(client, changes, code, param):
    refused(sent(client, "/v1/chat/completions", {**CHAT, **changes}), 400, code, param)


def test_an_unknown_model_is_not_found(client):
    message = refused(client.post("/v1/chat/completions", json={**CHAT, "model": "x"}), 404, "model_not_found", "model")
    assert "tuned" in message
    refused(client.get("/v1/models/x/y"), 404, "model_not_found", "model")


def test_labels_have_no_effect(client):
    labels = {"user": "me", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "prompt_cache_key": "k"}
    nothing = {"tools": [], "tool_choice": "auto", "response_format": {"type": "text"}, "stop": None, "seed": 1}
    body = {**CHAT, **nothing, "temperature": 1}
    answers = [client.post("/v1/chat/completions", json={**body, **more}).json() for more in ({}, labels)]
    assert answers[0]["choices"] == answers[1]["choices"]


def test_a_lenient_server_lists_what_it_ignores(models):
    with client_of(models.app(ServeConfig(lenient=True))) as client:
        answer = client.post("/v1/chat/completions", json={**CHAT, "best_guess": 1})
        assert answer.status_code == 200
        assert json.loads(answer.headers["x-lattice-ignored"]) == ["best_guess"]
        long = {"x" * 1000 + str(i): i for i in range(99)}
        answer = client.post("/tokenize", json={"model": "drawn", "prompt": "a", **long})
        assert json.loads(answer.headers["x-lattice-ignored"]) == ["x" * 100] * 50
        refused(client.post("/v1/chat/completions", json={**CHAT, "n": 0}), 400, "invalid_value", "n")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b"[1]", "invalid_json"),
        (b'{"model": NaN}', "invalid_json"),
        (b"\xff\xfe", "invalid_json"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "invalid_json"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "invalid_json"),
    ],
)
def test_a_body_that_is_no_json_object(client, body, code):
    answer = client.post("/v1/embeddings", content=body, headers={"content-type": "application/json"})
    refused(answer, 400, code)


def test_a_body_of_another_type(client):
    answer = client.post("/v1/embeddings", content=b"{}", headers={"content-type": "text/plain"})
    refused(answer, 415, "unsupported_media_type")


def test_the_longest_body_is_taken_and_a_longer_one_is_not(small):
    def sized(size):
        body = json.dumps({"model": "vectors", "input": "a"}).encode()
        return b" " * (size - len(body)) + body

    def chunks(size):
        yield from (sized(size)[:10], sized(size)[10:])

    kind = {"content-type": "application/json"}
    assert small.post("/v1/embeddings", content=sized(1000), headers=kind).status_code == 200
    assert small.post("/v1/embeddings", content=chunks(1000), headers=kind).status_code == 200
    for content in (sized(1001), chunks(1001)):
        message = refused(small.post("/v1/embeddings", content=content, headers=kind), 413, "request_body_too_large")
        assert "1,000 bytes" in message


def test_the_most_inputs_are_taken_and_one_more_is_not(small):
    assert small.get("/info").json()["limits"]["max_inputs"] == 4
    assert small.post("/v1/embeddings", json={"model": "vectors", "input": ["a"] * 4}).status_code == 200
    answer = small.post("/v1/embeddings", json={"model": "vectors", "input": ["a"] * 5})
    assert "at most 4" in refused(answer, 400, "too_many_inputs", "input")
    body = {"model": "scores", "query": "a", "documents": ["a"] * 5}
    refused(small.post("/v1/rerank", json=body), 400, "too_many_inputs", "documents")
    refused(small.post("/v1/completions", json={"model": "told", "prompt": ["a"] * 5}), 400, "invalid_value", "prompt")
    ids = {"model": "told", "prompt": [5] * 6, "max_tokens": 1}  # one prompt, of however many ids
    assert small.post("/v1/completions", json=ids).status_code == 200
    refused(small.post("/v1/completions", json={"model": "told", "prompt": "a", "n": 3}), 400, "invalid_value", "n")


@pytest.mark.parametrize(
    ("route", "body", "code", "param"),
    [
        ("/v1/embeddings", {"input": "a " * 1000}, "context_length_exceeded", "input"),
        ("/v1/embeddings", {"input": []}, "invalid_value", "input"),
        ("/v1/embeddings", {"input": [[1, 2], []]}, "invalid_value", "input"),
        ("/v1/embeddings", {"input": [[1, 2], "a"]}, "invalid_value", "input"),
        ("/v1/embeddings", {"input": [1, True]}, "invalid_value", "input"),
        ("/v1/embeddings", {"input": [1, 99_999]}, "invalid_value", "input"),
        ("/v1/embeddings", {"input": [1, -1]}, "invalid_value", "input"),
        ("/v1/embeddings", {"input": [1] * 1000}, "context_length_exceeded", "input"),
        ("/v1/embeddings", {"input": "a", "input_type": "query"}, "unsupported_field", "input_type"),
        ("/v1/embeddings", {"input": "a", "dimensions": 10_000}, "invalid_value", "dimensions"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "hex"}, "invalid_value", "encoding_format"),
        ("/v1/embeddings", {"input": "\ud800"}, "invalid_value", "input"),
        ("/v1/rerank", {"query": "a", "documents": "b"}, "invalid_value", "documents"),
        ("/v1/rerank", {"documents": ["b"]}, "missing_field", "query"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": 0}, "invalid_value", "top_n"),
        ("/v1/completions", {"prompt": [5, -1]}, "invalid_value", "prompt"),
        ("/v1/completions", {"prompt": [99_999]}, "invalid_value", "prompt"),
        ("/v1/completions", {"prompt": "a", "max_tokens": -1}, "invalid_value", "max_tokens"),
        ("/v1/completions", {"prompt": "a" * 200}, "context_length_exceeded", "prompt"),
        ("/v1/completions", {"prompt": "a", "suffix": "b"}, "unsupported_field", "suffix"),
        ("/detokenize", {"tokens": [99_999]}, "invalid_value", "tokens"),
        ("/tokenize", {}, "missing_field", "prompt"),
        ("/apply-template", {"messages": None}, "invalid_value", "messages"),
    ],
)
def test_other_routes_name_the_field_too(client, route, body, code, param):
    model = {"/v1/embeddings": "vectors", "/v1/rerank": "scores"}.get(route, "drawn")
    refused(sent(client, route, {"model": model, **body}), 400, code, param)


def test_routes_that_are_not_here(client):
    for route in ("/v1/responses", "/v1/messages"):
        assert "/v1/chat/completions" in refused(client.post(route, json={}), 404, "unknown_route")
    refused(client.get("/nothing"), 404, "unknown_route")
    refused(client.get("/v1/embeddings"), 405, "method_not_allowed")


def test_a_server_without_keys_is_for_this_machine(client):
    for host in ("example.com", "127.0.0.1.example.com:80", "[", ""):
        refused(client.get("/v1/models", headers={"host": host}), 403, "host_not_allowed")
    for host in ("localhost:8080", "[::1]:8080", "127.9.9.9"):
        assert client.get("/v1/models", headers={"host": host}).status_code == 200
    for origin in ("http://example.com", "null", "http://localhost:3000"):
        answer = client.post("/v1/embeddings", json={}, headers={"origin": origin})
        refused(answer, 403, "origin_not_allowed")
    own = {"origin": "http://127.0.0.1:8080"}
    assert client.get("/v1/models", headers=own).status_code == 200


def test_a_server_with_keys_wants_one(models):
    with client_of(models.app(ServeConfig(api_keys=["one", "two"]))) as client:
        for header in ({}, {"authorization": "Bearer three"}, {"authorization": "one"}, {"authorization": "Basic one"}):
            answer = client.get("/v1/models", headers=header)
            refused(answer, 401, "invalid_api_key")
            assert answer.headers["www-authenticate"] == "Bearer"
        for key in ("one", "two"):
            header = {"authorization": f"Bearer {key}", "host": "example.com"}
            assert client.get("/v1/models", headers=header).status_code == 200
        assert client.get("/health/live").status_code == 200
        refused(client.get("/metrics"), 401, "invalid_api_key")


def test_wrong_arguments_of_an_application(models):
    with pytest.raises(InvalidInputError, match="no model"):
        create_app()
    with pytest.raises(InvalidInputError, match="two models"):
        models.app(embeddings={"drawn": models.encoder})
    with pytest.raises(InvalidInputError, match="not served"):
        models.app(adapters={"a": ("b", "c")})
    with pytest.raises(InvalidInputError, match="an Engine"):
        models.app(models={"a": models.drawn})
    for wrong in ({"max_inputs": 0}, {"body_seconds": 0}, {"api_keys": "key"}, {"api_keys": [" a"]}, {"lenient": 1}):
        with pytest.raises(InvalidInputError):
            ServeConfig(**wrong)


@pytest.mark.parametrize("tools", [{}, 0, "", False])
def test_tools_must_be_a_list(client, tools):
    refused(
        client.post("/v1/chat/completions", json={**CHAT, "model": "calling", "tools": tools}),
        400,
        "invalid_value",
        "tools",
    )


@pytest.mark.parametrize("streams", [True, False])
def test_ids_without_a_text_cannot_be_echoed(client, models, streams):
    body = {"model": "drawn", "prompt": [65, 270], "max_tokens": 1, "echo": True, "logprobs": 1, "stream": streams}
    assert "270" in refused(client.post("/v1/completions", json=body), 400, "invalid_value", "prompt")
    assert client.post("/v1/completions", json={**body, "echo": False}).status_code == 200
    assert models.engines["drawn"].stats().waiting == 0


def test_another_method_is_told_which_are_allowed(client):
    answer = client.get("/v1/embeddings")
    refused(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"


def test_a_coded_body_is_refused_by_its_coding(client):
    body = gzip.compress(json.dumps(CHAT).encode())
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    answer = client.post("/v1/chat/completions", content=body, headers=headers)
    assert "'gzip'" in refused(answer, 415, "unsupported_media_type")
