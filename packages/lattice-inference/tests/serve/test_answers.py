"""Answers over HTTP: the bits of the library's, in OpenAI's form, at once and by events."""

from __future__ import annotations

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
from starlette.responses import JSONResponse

from lattice_inference import Chat, Engine, EngineConfig, GenerateConfig, Session
from lattice_inference.generate.causal_language_model import Extension
from lattice_inference.generate.engine import choice_seed
from lattice_inference.serve.text_routes import SHORT_NUMBERS

from .conftest import client_of, events_of

ASKED = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "abc"}]
DRAWN = {"model": "drawn", "messages": ASKED, "max_tokens": 12, "temperature": 1.0, "seed": 3, "ignore_eos": True}
SETTINGS = GenerateConfig(max_new_tokens=12, temperature=1.0, seed=3, ignore_stop_tokens=True)


def post(client, path, **body):
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def alone(model, config=SETTINGS, adapter=None, messages=ASKED):
    with Session(model, adapter=adapter) as session:
        chat = Chat(session, config=config)
        chat.messages = [*messages[:-1]]
        return chat.send(messages[-1]["content"])


def logprobs_of(model, ids, adapter):
    """Return the log-probabilities of all ids but the first, from the model's logits."""
    with model.open_cache(tokens=64) as cache, cache.sequence(adapter=adapter) as sequence:
        logits = model.forward([Extension(sequence, ids, "all")])[:-1, : model.tokenizer.vocab_size].astype(np.float64)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return logits[np.arange(len(ids) - 1), ids[1:]]


class TestChat:
    def test_is_the_conversation_of_the_library(self, client, models):
        answer = post(client, "/v1/chat/completions", **DRAWN)
        expected = alone(models.drawn)
        assert answer["choices"] == [
            {
                "index": 0,
                "message": {"role": "assistant", "content": expected.text, "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
            }
        ]
        assert answer["usage"]["prompt_tokens"] == expected.prompt_tokens
        assert answer["usage"]["completion_tokens"] == 12
        assert answer["usage"]["total_tokens"] == expected.prompt_tokens + 12
        assert answer["object"] == "chat.completion"

    def test_contents_in_parts_are_those_in_one_text(self, client):
        parts = [{**each, "content": [{"type": "text", "text": each["content"]}]} for each in ASKED]
        answer, expected = (
            post(client, "/v1/chat/completions", **DRAWN | {"messages": each}) for each in (parts, ASKED)
        )
        assert (answer["choices"], answer["usage"]) == (expected["choices"], expected["usage"])

    def test_an_adapter_is_a_model_of_its_name(self, client, models):
        answer = post(client, "/v1/chat/completions", **{**DRAWN, "model": "tuned"})
        expected = alone(models.drawn, adapter="other").text
        assert answer["choices"][0]["message"]["content"] == expected != alone(models.drawn).text

    def test_choices_have_their_own_seeds(self, client, models):
        answer = post(client, "/v1/chat/completions", **DRAWN, n=3)
        texts = [choice["message"]["content"] for choice in answer["choices"]]
        seeds = [choice_seed(3, place) for place in range(3)]
        configs = [
            GenerateConfig(max_new_tokens=12, temperature=1.0, seed=seed, ignore_stop_tokens=True) for seed in seeds
        ]
        assert texts == [alone(models.drawn, config).text for config in configs]
        assert answer["usage"]["completion_tokens"] == 36

    def test_it_ends_at_the_turns_end(self, client):
        answer = post(client, "/v1/chat/completions", model="told", messages=ASKED, temperature=0)
        assert answer["choices"][0]["message"]["content"] == "Yes, 😀."
        assert answer["choices"][0]["finish_reason"] == "stop"

    @pytest.mark.parametrize("stop", ["😀", [",", "."]])
    def test_it_ends_before_a_stop_text(self, client, stop):
        answer = post(client, "/v1/chat/completions", model="told", messages=ASKED, temperature=0, stop=stop)
        assert answer["choices"][0]["message"]["content"] == ("Yes, " if stop == "😀" else "Yes")
        assert answer["choices"][0]["finish_reason"] == "stop"

    def test_events_make_the_same_answer(self, client):
        body = {**DRAWN, "n": 2, "logprobs": True, "top_logprobs": 2}
        whole = post(client, "/v1/chat/completions", **body)
        answer = client.post(
            "/v1/chat/completions", json={**body, "stream": True, "stream_options": {"include_usage": True}}
        )
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = events_of(answer.text)
        last = events.pop()
        assert last["choices"] == []
        assert {**last["usage"], "prompt_tokens_details": 0} == {**whole["usage"], "prompt_tokens_details": 0}
        assert all(event["usage"] is None for event in events)
        for choice in whole["choices"]:
            mine = [one for event in events for one in event["choices"] if one["index"] == choice["index"]]
            assert mine[0]["delta"] == {"role": "assistant", "content": ""}
            assert all("finish_reason" in one for one in mine)
            assert [one["finish_reason"] for one in mine[:-1]] == [None] * (len(mine) - 1)
            assert mine[-1]["finish_reason"] == "length"
            text = "".join(one["delta"].get("content", "") for one in mine)
            assert text == choice["message"]["content"]
            told = [entry for one in mine if one["logprobs"] for entry in one["logprobs"]["content"]]
            assert told == choice["logprobs"]["content"]
            assert len(told) == 12

    def test_events_without_usage_do_not_name_it(self, client):
        answer = client.post("/v1/chat/completions", json={**DRAWN, "stream": True})
        assert all("usage" not in event for event in events_of(answer.text))

    def test_logprobs_are_those_of_the_model(self, client, models):
        answer = post(client, "/v1/chat/completions", **DRAWN, logprobs=True, top_logprobs=2)
        config = GenerateConfig(max_new_tokens=12, temperature=1.0, seed=3, ignore_stop_tokens=True, logprobs=2)
        expected = alone(models.drawn, config).logprobs
        told = answer["choices"][0]["logprobs"]["content"]
        assert [entry["logprob"] for entry in told] == [one.logprob for one in expected]
        assert [[pair["logprob"] for pair in entry["top_logprobs"]] for entry in told] == [
            [logprob for _, logprob in one.top] for one in expected
        ]

    def test_reasoning_is_split_off(self, client, models):
        body = {"model": "drawn", "messages": ASKED, "max_tokens": 12, "temperature": 0.0}
        body["chat_template_kwargs"] = {"enable_thinking": True}
        answer = post(client, "/v1/chat/completions", **body, ignore_eos=True)["choices"][0]["message"]
        assert answer["content"] == ""
        assert answer["reasoning_content"]
        events = events_of(client.post("/v1/chat/completions", json={**body, "ignore_eos": True, "stream": True}).text)
        deltas = [choice["delta"] for event in events for choice in event["choices"]]
        assert "".join(delta.get("reasoning_content", "") for delta in deltas) == answer["reasoning_content"]

    def test_the_answer_is_json_by_a_schema(self, client):
        pytest.importorskip("llguidance")
        schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
        form = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": {**schema}}}
        form["json_schema"]["schema"]["additionalProperties"] = False
        answer = post(client, "/v1/chat/completions", model="told", messages=ASKED, seed=1, response_format=form)
        assert json.loads(answer["choices"][0]["message"]["content"])["n"] in (1, 2)
        body = {"model": "told", "messages": ASKED, "seed": 1, "grammar": 'root ::= "yes" | "no"'}
        answer = post(client, "/v1/chat/completions", **body)
        assert answer["choices"][0]["message"]["content"] in ("yes", "no")

    @pytest.mark.parametrize(("syntax", "definition"), [("regex", "a|b"), ("lark", 'start: "a" | "b"'),
                                                        ("gbnf", 'root ::= [ab]')])  # fmt: skip
    def test_a_grammar_has_a_syntax(self, client, syntax, definition):
        pytest.importorskip("llguidance")
        grammar = {"syntax": syntax, "definition": definition}
        body = {"seed": 1, "max_tokens": 9, "grammar": grammar}
        answer = post(client, "/v1/chat/completions", model="told", messages=ASKED, **body)
        assert answer["choices"][0]["message"]["content"] in ("a", "b")
        answer = post(client, "/v1/completions", model="told", prompt="x", **body)
        assert answer["choices"][0]["text"] in ("a", "b")

    def test_any_json_object(self, client):
        pytest.importorskip("llguidance")
        body = {"model": "told", "messages": ASKED, "seed": 4, "response_format": {"type": "json_object"}}
        choice = post(client, "/v1/chat/completions", **body, logit_bias={str(ord("}")): 60})["choices"][0]
        assert isinstance(json.loads(choice["message"]["content"]), dict)
        cut = post(client, "/v1/chat/completions", **body, max_tokens=1)["choices"][0]
        assert (cut["message"]["content"], cut["finish_reason"]) == ("{", "length")

    def test_tools_are_called(self, client):
        pytest.importorskip("llguidance")
        tool = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
        body = {"model": "calling", "messages": ASKED, "tools": [tool], "tool_choice": "required", "seed": 2}
        body |= {"parallel_tool_calls": False}
        choice = post(client, "/v1/chat/completions", **body)["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] is None
        (call,) = choice["message"]["tool_calls"]
        assert call["function"] == {"name": "now", "arguments": "{}"}
        events = events_of(client.post("/v1/chat/completions", json={**body, "stream": True}).text)
        deltas = [one["delta"] for event in events for one in event["choices"] if one["delta"].get("tool_calls")]
        first = deltas[0]["tool_calls"][0]
        assert (first["id"], first["function"]["name"], first["type"]) == (call["id"], "now", "function")
        assert "".join(part["function"]["arguments"] for d in deltas for part in d["tool_calls"]) == "{}"
        follow = [*ASKED, choice["message"], {"role": "tool", "tool_call_id": call["id"], "content": "noon"}]
        post(client, "/v1/chat/completions", **{**body, "messages": follow, "tool_choice": "none", "max_tokens": 3})


class TestCompletions:
    BODY: ClassVar = {"model": "drawn", "max_tokens": 8, "temperature": 0.9, "seed": 7, "ignore_eos": True}
    CONFIG = GenerateConfig(max_new_tokens=8, temperature=0.9, seed=7, ignore_stop_tokens=True, logprobs=1)

    def test_prompts_are_texts_or_token_ids(self, client, models):
        results = []
        for text in ("ab", "xyz"):
            with Session(models.drawn) as session:
                results.append(session.generate(text, self.CONFIG))
        expected = [result.text for result in results]
        answer = post(client, "/v1/completions", **self.BODY, prompt=["ab", "xyz"], logprobs=1)
        assert [choice["text"] for choice in answer["choices"]] == expected
        told = answer["choices"][1]["logprobs"]
        assert told["token_logprobs"] == [one.logprob for one in results[1].logprobs]
        assert told["text_offset"][0] == 0
        ids = models.drawn.tokenizer.encode("xyz").ids.tolist()
        for prompt in (ids, [ids]):
            assert post(client, "/v1/completions", **self.BODY, prompt=prompt)["choices"][0]["text"] == expected[1]
        echoed = post(client, "/v1/completions", **self.BODY, prompt="xyz", echo=True)
        assert echoed["choices"][0]["text"] == "xyz" + expected[1]

    def test_events_make_the_same_texts(self, client):
        body = {**self.BODY, "prompt": ["ab", "xyz"], "n": 2, "echo": True}
        whole = post(client, "/v1/completions", **body)
        events = events_of(client.post("/v1/completions", json={**body, "stream": True}).text)
        texts = ["", "", "", ""]
        for event in events:
            for choice in event["choices"]:
                texts[choice["index"]] += choice["text"]
        assert texts == [choice["text"] for choice in whole["choices"]]

    @pytest.mark.parametrize("model", ["drawn", "tuned"])
    def test_an_echoed_prompt_has_log_probabilities(self, client, models, model):
        adapter = "other" if model == "tuned" else None
        body = {**self.BODY, "model": model, "echo": True, "logprobs": 2, "n": 2}
        answer = post(client, "/v1/completions", **body, prompt=["xyz", "abcab"])
        events = events_of(
            client.post("/v1/completions", json={**body, "prompt": ["xyz", "abcab"], "stream": True}).text
        )
        for place, text in enumerate(["xyz", "xyz", "abcab", "abcab"]):
            choice = answer["choices"][place]
            ids = models.drawn.tokenizer.encode(text).ids.tolist()
            told = choice["logprobs"]
            assert "".join(told["tokens"][: len(ids)]) == text
            assert choice["text"].startswith(text)
            assert (told["token_logprobs"][0], told["top_logprobs"][0]) == (None, None)
            assert told["text_offset"][: len(ids) + 1] == [*range(len(ids) + 1)]
            assert told["text_offset"] == sorted(told["text_offset"])
            assert told["text_offset"][-1] <= len(choice["text"])
            expected = logprobs_of(models.drawn, ids, adapter)
            np.testing.assert_allclose(told["token_logprobs"][1 : len(ids)], expected, atol=1e-6)
            assert all(1 <= len(top) <= 2 for top in told["top_logprobs"][1:])  # two ids may have one text
            mine = [one for event in events for one in event["choices"] if one["index"] == place and one["logprobs"]]
            for name in told:
                assert [value for one in mine for value in one["logprobs"][name]] == told[name]

    def test_of_tokens_with_one_text_the_most_probable_is_told(self, client, models):
        told = post(client, "/v1/completions", **self.BODY, prompt="ab", logprobs=20)["choices"][0]["logprobs"]
        with Session(models.drawn) as session:
            result = session.generate("ab", replace(self.CONFIG, logprobs=20))
        for shown, one in zip(told["top_logprobs"], result.logprobs, strict=True):
            assert max(shown.values()) == max(logprob for _, logprob in one.top)
            assert len(shown) < 20  # bytes of no character have one text

    @pytest.mark.parametrize("streams", [True, False])
    def test_cached_tokens_are_those_that_no_text_has_run(self, models, streams):
        def cached(**changes):
            body = {**self.BODY, "max_tokens": 2, "stream": streams, **changes}
            body |= {"stream_options": {"include_usage": True}} if streams else {}
            answer = client.post("/v1/completions", json=body)
            told = events_of(answer.text)[-1] if streams else answer.json()
            return told["usage"]["prompt_tokens_details"]["cached_tokens"]

        with Engine(models.drawn, EngineConfig(page_tokens=16)) as engine:
            app = models.app(models={"drawn": engine}, adapters={})
            with client_of(app) as client:
                assert cached(prompt="a" * 40, n=3) == 0  # two of the texts share what the first one runs
                assert cached(prompt="b" * 40) == 0
                assert cached(prompt="b" * 40, n=2) == 32
                assert cached(prompt=["a" * 40, "b" * 40]) == 64
                text = client.get("/metrics").text
        assert 'lattice_tokens_total{model="drawn",kind="cached"} 96\n' in text

    @pytest.mark.parametrize("streams", [True, False])
    def test_an_empty_prompt_without_new_tokens_is_an_empty_echo(self, client, streams):
        body = {"model": "drawn", "prompt": "", "max_tokens": 0, "echo": True, "logprobs": 1, "stream": streams}
        answer = client.post("/v1/completions", json=body)
        choice = (events_of(answer.text)[-1] if streams else answer.json())["choices"][0]
        assert (answer.status_code, choice["text"], choice["finish_reason"]) == (200, "", "length")

    def test_tokens_of_a_prompt_are_told_as_if_they_were_drawn(self, client, models):
        with Session(models.drawn) as session:
            result = session.generate("xyz", self.CONFIG)
        ids = [*models.drawn.tokenizer.encode("xyz").ids.tolist(), *result.token_ids]
        body = {"model": "drawn", "prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 1}
        choice = post(client, "/v1/completions", **body)["choices"][0]
        assert choice["finish_reason"] == "length"
        told = choice["logprobs"]["token_logprobs"]
        assert len(told) == len(ids)
        assert told[-len(result.token_ids) :] == [one.logprob for one in result.logprobs]

    def test_left_out_max_tokens_fill_the_context(self, client):
        answer = post(client, "/v1/completions", model="drawn", prompt="abc", seed=1, ignore_eos=True)
        assert answer["usage"]["total_tokens"] == 128


class TestTexts:
    TEXTS: ClassVar = ["the cat sat", "a zebra", "", "dogs and cats are animals"]

    @pytest.mark.parametrize("form", ["float", "base64"])
    def test_long_answers_have_the_form_of_short_ones(self, client, models, form):
        count = 2 * (SHORT_NUMBERS // models.encoder.dimension // 2 + 1)
        body = {"model": "vectors", "input": ["a", "the"] * (count // 2), "encoding_format": form}
        answer = client.post("/v1/embeddings", json=body)
        assert answer.content == JSONResponse(answer.json()).body
        assert answer.headers["content-type"] == "application/json"
        entries = answer.json()["data"]
        assert [entry["index"] for entry in entries] == list(range(count))
        short = post(client, "/v1/embeddings", **{**body, "input": "the"})
        assert entries[-1]["embedding"] == short["data"][0]["embedding"]

    def test_vectors_are_the_encoders(self, client, models):
        expected = models.encoder.encode(self.TEXTS).vectors
        answer = post(client, "/v1/embeddings", model="vectors", input=self.TEXTS)
        told = np.array([entry["embedding"] for entry in answer["data"]], np.float32)
        assert told.tobytes() == expected.tobytes()
        assert answer["usage"]["prompt_tokens"] == int(models.encoder.count_tokens(self.TEXTS).sum())
        coded = post(client, "/v1/embeddings", model="vectors", input=self.TEXTS[0], encoding_format="base64")
        assert base64.b64decode(coded["data"][0]["embedding"]) == expected[0].tobytes()

    def test_token_ids_have_the_vectors_of_their_texts(self, client, models):
        expected = models.encoder.encode(self.TEXTS).vectors
        ids = [models.encoder.tokenizer.encode(text).ids.tolist() for text in self.TEXTS]
        for given, rows in ((ids, expected), (ids[1], expected[1:2])):
            answer = post(client, "/v1/embeddings", model="vectors", input=given)
            told = np.array([entry["embedding"] for entry in answer["data"]], np.float32)
            assert told.tobytes() == rows.tobytes()
        assert answer["usage"]["prompt_tokens"] == len(ids[1])

    def test_fewer_dimensions_have_length_one(self, client, models):
        answer = post(client, "/v1/embeddings", model="vectors", input="the cat", dimensions=5)
        whole = models.encoder.encode(["the cat"]).vectors[0, :5].astype(np.float64)
        np.testing.assert_allclose(answer["data"][0]["embedding"], whole / np.linalg.norm(whole), rtol=1e-6)

    def test_scores_are_the_cross_encoders(self, client, models):
        expected = models.scorer.score("the cat", self.TEXTS)
        answer = post(client, "/v1/rerank", model="scores", query="the cat", documents=self.TEXTS)
        assert [entry["index"] for entry in answer["results"]] == np.argsort(-expected, kind="stable").tolist()
        assert all(np.float32(one["relevance_score"]) == expected[one["index"]] for one in answer["results"])
        documents = [{"text": text} for text in self.TEXTS]
        body = {"model": "scores", "query": "the cat", "documents": documents, "top_n": 2, "return_documents": True}
        best = post(client, "/v1/rerank", **body)["results"]
        assert [one["index"] for one in best] == [one["index"] for one in answer["results"][:2]]
        assert all(one["document"]["text"] == self.TEXTS[one["index"]] for one in best)

    def test_many_at_once_have_the_bits_of_one_alone(self, client, models):
        texts = [[f"the cat {i}"] * (i % 4 + 1) for i in range(24)]
        expected = [models.encoder.encode(some).vectors.tolist() for some in texts]
        body = [{"model": "vectors", "input": some} for some in texts]
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda one: post(client, "/v1/embeddings", **one), body))
        assert [[entry["embedding"] for entry in answer["data"]] for answer in answers] == expected


class TestTokens:
    def test_tokens_and_back(self, client, models):
        answer = post(client, "/tokenize", model="drawn", prompt="abc 😀")
        assert answer["tokens"] == models.drawn.tokenizer.encode("abc 😀").ids.tolist()
        assert answer["count"] == len(answer["tokens"])
        back = post(client, "/detokenize", model="drawn", tokens=answer["tokens"], skip_special_tokens=True)
        assert back["prompt"] == "abc 😀"

    def test_the_prompt_of_a_conversation(self, client):
        answer = post(client, "/apply-template", model="told", messages=ASKED)
        assert answer["prompt"] == "<s>be brief<|user|>abc<|end|><|assistant|>"
        assert answer["count"] == len(answer["tokens"])


def test_models_are_listed(client):
    listed = client.get("/v1/models").json()["data"]
    assert [entry["id"] for entry in listed] == ["drawn", "told", "calling", "vectors", "scores", "tuned"]
    tuned = client.get("/v1/models/tuned").json()
    assert (tuned["object"], tuned["parent"], tuned["max_model_len"]) == ("model", "drawn", 128)
