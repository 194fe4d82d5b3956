"""A batch of a session shares the engine's scheduler: beginnings run once, and a full cache makes prompts run again."""

from __future__ import annotations

import dataclasses
import threading

import pytest

from lattice_inference import GenerateConfig, Session, SessionConfig
from lattice_inference.errors import CacheFullError
from lattice_inference.generate import session_drafts

DRAWN = GenerateConfig(max_new_tokens=40, temperature=1.0, seed=11, ignore_stop_tokens=True, logprobs=1)
SYSTEM = "you are a small model that answers in few words " * 2


class Counting:
    """A model that notes how many tokens each of its calls runs."""

    def __init__(self, model):
        self._model = model
        self.calls = []

    def __getattr__(self, name):
        return getattr(self._model, name)

    def forward(self, extensions):
        self.calls.append([len(extension.token_ids) for extension in extensions])
        return self._model.forward(extensions)


def told(result):
    return result.text, result.token_ids, result.logprobs, result.finish_reason


@pytest.fixture(scope="module")
def alone(drawn_model):
    def of(prompt, config=DRAWN):
        with Session(drawn_model) as session:
            return told(session.generate(prompt, config))

    return of


@pytest.mark.parametrize("source", [None, "ngram", "model"])
def test_prompts_that_do_not_fit_together_have_the_same_bits(drawn_model, alone, source, monkeypatch):
    monkeypatch.setattr(session_drafts, "_weight_bytes", lambda model: 1 if model is drawn_model else 100)
    speculate = drawn_model if source == "model" else source
    prompts = [f"{index} ab ab ab" for index in range(9)]
    configs = [dataclasses.replace(DRAWN, seed=index, max_new_tokens=20 + 4 * index) for index in range(9)]
    model = Counting(drawn_model)
    with Session(model, config=SessionConfig(cache_tokens=128, page_tokens=16)) as session:
        results = session.generate_batch(
            prompts, [dataclasses.replace(config, speculate=speculate) for config in configs]
        )
        assert session.cache_bytes == 0
    assert [told(result) for result in results] == [*map(alone, prompts, configs)]
    if source == "model":
        assert sum(result.accepted_tokens for result in results) > 100
    if source is None:
        needed = sum(len(prompt) + len(result.token_ids) - 1 for prompt, result in zip(prompts, results, strict=True))
        assert sum(map(sum, model.calls)) > needed  # some were run again


def test_a_common_beginning_is_run_once(drawn_model, alone):
    model = Counting(drawn_model)
    short = dataclasses.replace(DRAWN, max_new_tokens=1)
    with Session(model, config=SessionConfig(cache_tokens=1024, page_tokens=16)) as session:
        results = session.generate_batch([f"{SYSTEM}{index}" for index in range(8)], short)
    assert [told(result) for result in results] == [alone(f"{SYSTEM}{index}", short) for index in range(8)]
    assert sum(map(sum, model.calls)) == 97 + 7
    assert [result.reused_tokens for result in results] == [0] + [96] * 7


def test_no_step_runs_more_of_the_prompts_than_a_chunk(drawn_model):
    model = Counting(drawn_model)
    with Session(model, config=SessionConfig(cache_tokens=1024, chunk_tokens=30)) as session:
        session.generate_batch([f"{index}" * 70 for index in range(6)], DRAWN)
    assert max(sum(tokens for tokens in call if tokens > 1) for call in model.calls) <= 30


def test_what_the_cache_has_no_room_for_is_an_error_and_frees_all(drawn_model, alone):
    """The session's own context takes half of the cache, and stays."""
    with Session(drawn_model, config=SessionConfig(page_tokens=16)) as session:
        session.generate("a" * 64, dataclasses.replace(DRAWN, max_new_tokens=0))
        session.extend("b", dataclasses.replace(DRAWN, max_new_tokens=1))
        held, used = session.token_ids, session.cache_bytes
        with pytest.raises(CacheFullError):
            session.generate_batch(["x" * 60, "y"], DRAWN)
        assert (session.token_ids, session.cache_bytes) == (held, used)
        assert told(session.generate_batch(["y"], DRAWN)[0]) == alone("y")


def test_an_event_ends_all_of_a_batch(drawn_model):
    event = threading.Event()
    event.set()
    with Session(drawn_model, config=SessionConfig(cache_tokens=128)) as session:
        results = session.generate_batch([f"{index}" * 90 for index in range(5)], DRAWN, cancelled=event)
        assert {(result.finish_reason.value, result.token_ids) for result in results} == {("cancelled", ())}
        assert [result.prompt_tokens for result in results] == [90] * 5
        assert session.cache_bytes == 0
