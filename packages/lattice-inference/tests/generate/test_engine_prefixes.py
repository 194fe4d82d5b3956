"""Requests of an engine with the same beginning run it once, for Transformers and for models with recurrent state."""

from __future__ import annotations

import dataclasses
import threading

import numpy as np
import pytest

import qwen35_files
from drawn_checkpoints import draw_ids
from lattice_inference import Engine, EngineConfig, GenerateConfig, LoraAdapter, Session, SessionConfig, load_model
from lattice_inference.lora import LoraSite

DRAWN = GenerateConfig(max_new_tokens=8, temperature=1.0, seed=5, ignore_stop_tokens=True, logprobs=0)


class Gate:
    """A model whose first step waits for the test."""

    def __init__(self, model):
        self._model = model
        self.may_run = threading.Event()

    def __getattr__(self, name):
        return getattr(self._model, name)

    def forward(self, extensions):
        assert self.may_run.wait(60)
        return self._model.forward(extensions)


SYSTEM = "you are a small model that answers in few words " * 2  # 96 tokens: 6 pages


def told(result):
    return result.text, result.token_ids, result.logprobs, result.finish_reason


@pytest.fixture(scope="module")
def plain(drawn_model):
    def of(prompt, adapter=None):
        with Session(drawn_model, adapter=adapter) as session:
            return told(session.generate(prompt, DRAWN))

    return of


@pytest.fixture(scope="module")
def recurrent_model(tmp_path_factory):
    directory = qwen35_files.write(tmp_path_factory.mktemp("qwen35") / "m", qwen35_files.CASES["double"])
    with load_model(directory) as loaded:
        yield loaded


class TestPages:
    def test_a_common_beginning_is_run_once_though_all_come_at_once(self, drawn_model, plain):
        for prefix_bytes in (0, 2**20):
            config = EngineConfig(cache_tokens=2048, page_tokens=16, prefix_bytes=prefix_bytes)
            gate = Gate(drawn_model)
            with Engine(gate, config) as engine:
                streams = [engine.submit(f"{SYSTEM}{index}", DRAWN) for index in range(8)]
                gate.may_run.set()
                results = [stream.finish() for stream in streams]
                run = engine.stats().prompt_tokens
            assert [told(result) for result in results] == [plain(f"{SYSTEM}{index}") for index in range(8)]
            assert run == 97 + 7
            assert sorted(result.reused_tokens for result in results) == [0] + [96] * 7

    def test_a_new_leader_shares_less_than_the_old_one(self, drawn_model, plain):
        prompts = [SYSTEM, SYSTEM[:48] + "z" * 60, SYSTEM + "ab"]
        gate = Gate(drawn_model)
        config = EngineConfig(cache_tokens=2048, page_tokens=16, prefix_bytes=0, step_tokens=16)
        with Engine(gate, config) as engine:
            first, *others = [engine.submit(prompt, DRAWN) for prompt in prompts]
            first.cancel()
            gate.may_run.set()
            assert [told(stream.finish()) for stream in others] == [plain(prompt) for prompt in prompts[1:]]
            assert others[1].result.reused_tokens == 48

    def test_a_prompt_is_remembered_while_it_runs_and_after(self, drawn_model, plain):
        with Engine(drawn_model, EngineConfig(cache_tokens=512, page_tokens=16, step_tokens=16)) as engine:
            first = engine.submit(SYSTEM, DRAWN)
            next(first)
            assert engine.stats().remembered_pages >= 6
            first.cancel()
            second = engine.submit(SYSTEM + "ab", DRAWN).finish()
            assert second.reused_tokens == 96
            assert told(second) == plain(SYSTEM + "ab")

    def test_nobody_waits_for_a_lower_priority_or_shares_with_another_adapter(self, drawn_directory):
        with load_model(drawn_directory) as model:
            rng = np.random.default_rng(0)
            sites = {
                name: LoraSite(rng.normal(size=(2, inputs)), 0.3 * rng.normal(size=(outputs, 2)), 1.0)
                for name, (outputs, inputs) in model.adapter_sites.items()
            }
            model.attach_adapter(LoraAdapter(sites), "a")
            model.attach_adapter(LoraAdapter(sites), "same")
            gate = Gate(model)
            with Engine(gate, EngineConfig(cache_tokens=2048, page_tokens=16)) as engine:
                given = [(None, 0), ("a", 0), (None, 5), ("same", 0)]
                streams = [engine.submit(SYSTEM, DRAWN, adapter=name, priority=rank) for name, rank in given]
                gate.may_run.set()
                results = [stream.finish() for stream in streams]
            for (name, _), result in zip(given, results, strict=True):
                with Session(model, adapter=name) as session:
                    assert told(result) == told(session.generate(SYSTEM, DRAWN))
            assert results[1].reused_tokens == 0 == results[2].reused_tokens * results[0].reused_tokens
            assert results[3].reused_tokens == 80


class TestRecurrentState:
    @pytest.mark.parametrize("prefix_bytes", [0, 2**24])
    def test_requests_with_few_slots_and_few_pages(self, recurrent_model, prefix_bytes):
        def drawn(name, length):
            return [int(token) for token in draw_ids(f"engine {name}", length, qwen35_files.VOCAB)]

        system = drawn("system", 150)
        requests = [
            ((system if number % 2 else []) + drawn(f"prompt {number}", 20 + 9 * number), number)
            for number in range(10)
        ]
        config = EngineConfig(
            max_tokens=320, cache_tokens=640, page_tokens=16, sequences=3, prefix_bytes=prefix_bytes, step_tokens=100
        )
        drafted = dataclasses.replace(DRAWN, max_new_tokens=40, speculate="ngram")
        with Engine(recurrent_model, config) as engine:
            streams = [each for ids, number in requests for each in engine.submit_choices(ids, 1 + number % 2, drafted)]
            results = [stream.finish() for stream in streams]
            stats = engine.stats()
            assert stats.used_pages == stats.remembered_pages
        with Session(recurrent_model, config=SessionConfig(max_tokens=320)) as session:
            expected = []
            for ids, number in requests:
                for choice in range(1 + number % 2):
                    seed = results[len(expected)].seed
                    assert choice or seed == DRAWN.seed
                    expected.append(
                        told(session.generate(ids, dataclasses.replace(drafted, seed=seed, speculate=None)))
                    )
        assert [told(result) for result in results] == expected
