"""Two hundred requests of all kinds at random times over HTTP: each answer has the bits of the library's alone."""

from __future__ import annotations

import json
import random
import time
from concurrent.futures import ThreadPoolExecutor

import httpx2
import numpy as np
import pytest

from lattice_inference import GenerateConfig, LoraAdapter, Session
from lattice_inference.lora import LoraSite

from .conftest import served_at
from .test_answers import alone

WORDS = ("the", "cat", "sat", "a", "zebra", "dogs", "and", "animals", "abc", "xyz")


class Asked:
    """One drawn request, and what the library answers to it alone."""

    def __init__(self, models, rng):
        self.pause = rng.random() * 0.3
        self.kind = rng.choice(("chat", "completion", "embedding", "rerank"))
        texts = [" ".join(rng.choices(WORDS, k=rng.randint(1, 5))) for _ in range(rng.randint(1, 6))]
        tuned = rng.random() < 0.3
        settings = {"temperature": rng.choice((0.0, 0.7, 1.0)), "seed": rng.randrange(1000)}
        config = GenerateConfig(max_new_tokens=rng.randint(1, 20), ignore_stop_tokens=True, logprobs=1, **settings)
        settings |= {"max_tokens": config.max_new_tokens, "ignore_eos": True, "stream": rng.random() < 0.5}
        adapter = "other" if tuned else None
        if self.kind == "chat":
            messages = [{"role": "user", "content": texts[0]}]
            self.path, result = "/v1/chat/completions", alone(models.drawn, config, adapter, messages)
            self.body = {"messages": messages, "logprobs": True, "top_logprobs": 1, **settings}
            self.expected = [result.text, [one.logprob for one in result.logprobs]]
        elif self.kind == "completion":
            with Session(models.drawn, adapter=adapter) as session:
                result = session.generate(texts[0], config)
            self.path, self.body = "/v1/completions", {"prompt": texts[0], "logprobs": 1, **settings}
            self.expected = [result.text, [one.logprob for one in result.logprobs]]
        elif self.kind == "embedding":
            self.path, self.body = "/v1/embeddings", {"input": texts}
            self.expected = models.encoder.encode(texts, adapter=adapter).vectors.tolist()
        else:
            self.path, self.body = "/v1/rerank", {"query": "the cat", "documents": texts}
            scores = models.scorer.score("the cat", texts)
            self.expected = [(int(i), float(scores[i])) for i in np.argsort(-scores, kind="stable")]
        names = {"embedding": ("vectors", "tuned vectors"), "rerank": ("scores", "scores")}
        self.body["model"] = names.get(self.kind, ("drawn", "tuned"))[tuned]

    def answered(self, client):
        """Send it at its time, and return what came in the form of ``expected``."""
        time.sleep(self.pause)
        answer = client.post(self.path, json=self.body)
        assert answer.status_code == 200, answer.text
        if self.kind == "embedding":
            return [entry["embedding"] for entry in answer.json()["data"]]
        if self.kind == "rerank":
            return [(entry["index"], entry["relevance_score"]) for entry in answer.json()["results"]]
        if not self.body["stream"]:
            return _told(answer.json()["choices"], "message")
        events = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
        assert events.pop() == "[DONE]"
        return _told([choice for event in events for choice in json.loads(event)["choices"]], "delta")


def _told(choices, part):
    text, logprobs = "", []
    for choice in choices:
        text += choice["text"] if "text" in choice else choice[part].get("content") or ""
        told = choice["logprobs"] or {}
        logprobs += [entry["logprob"] for entry in told.get("content", ())] or told.get("token_logprobs", [])
    return [text, logprobs]


@pytest.fixture(scope="module")
def adapted(models):
    rng = np.random.default_rng(9)
    sites = {
        name: LoraSite(rng.normal(size=(3, inputs)), 0.3 * rng.normal(size=(outputs, 3)), 0.5)
        for name, (outputs, inputs) in models.encoder.adapter_sites.items()
    }
    models.encoder.attach_adapter(LoraAdapter(sites), "other")
    yield models
    models.encoder.remove_adapter("other")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_answers_are_the_librarys(adapted, seed):
    rng = random.Random(seed)
    asked = [Asked(adapted, rng) for _ in range(200)]
    assert len({one.body["model"] for one in asked}) == 5
    app = adapted.app(adapters={"tuned": ("drawn", "other"), "tuned vectors": ("vectors", "other")})
    with (
        served_at(app) as (_, address),
        httpx2.Client(base_url=address, timeout=60) as client,
        ThreadPoolExecutor(24) as pool,
    ):
        told = list(pool.map(lambda one: one.answered(client), asked))
    assert [one.body for one, answer in zip(asked, told, strict=True) if answer != one.expected] == []
    assert all(engine.stats().running == engine.stats().waiting == 0 for engine in adapted.engines.values())
