"""Many requests in one engine: each has the bits of a session alone, whatever happens around it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import random
import threading
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from gguf_models import write_decoder_gguf
from lattice_inference import Engine, EngineConfig, GenerateConfig, LoraAdapter, Session, load_model, load_tokenizer
from lattice_inference.errors import TextTooLongError
from lattice_inference.generate.engine import choice_seed
from lattice_inference.generate.engine_config import EngineStats
from lattice_inference.generate.engine_request import EngineRequest
from lattice_inference.generate.result import GenerateResult
from lattice_inference.grammar.specification import Regex
from lattice_inference.lora import LoraSite
from lattice_inference.memory.resident import resident_bytes
from lattice_inference.quantize import quantize_gguf
from tiny_decoders import write_drawn_model

SECONDS = float(os.environ.get("LATTICE_ENGINE_SECONDS", "6"))
"""How long the test of memory runs; 600 before a release."""

SYSTEM = "you are a small model that answers in few words: "


def drawn_adapter(model, seed):
    rng = np.random.default_rng(seed)
    sites = {
        name: LoraSite(rng.normal(size=(3, inputs)), 0.3 * rng.normal(size=(outputs, 3)), 0.5)
        for name, (outputs, inputs) in model.adapter_sites.items()
    }
    return LoraAdapter(sites)


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """Return the model of a form of weights, with three adapters."""
    directory = write_drawn_model(tmp_path_factory.mktemp("models") / "drawn", context=128)
    config = json.loads((directory / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": config["rope_theta"]}
    (directory / "config.json").write_text(json.dumps(config))
    loaded = {}

    def of_form(form):
        if form not in loaded:
            if form.startswith("Q"):
                path = directory.parent / f"{form}.gguf"
                quantize_gguf(
                    write_decoder_gguf(directory.parent / "whole.gguf", directory), path, form, overwrite=True
                )
                loaded[form] = load_model(path)  # the file has no tokenizer: the directory's is used for all
            else:
                loaded[form] = load_model(directory, precision=form)
            for seed, name in enumerate("abc"):
                loaded[form].attach_adapter(drawn_adapter(loaded[form], seed), name)
        return loaded[form]

    of_form.tokenizer = load_tokenizer(directory)
    yield of_form
    for model in loaded.values():
        model.close()


def told(result):
    """Return what must be equal: all but times, what was reused, and how many drafts there were."""
    return (
        result.text,
        result.token_ids,
        result.logprobs,
        result.finish_reason,
        result.stop,
        result.stop_token_id,
        result.prompt_tokens,
        result.seed,
    )


def alone(model, tokenizer, prompt, config, adapter=None):
    config = dataclasses.replace(config, speculate=None)
    with Session(model, tokenizer, adapter=adapter) as session:
        return session.generate(prompt, config)


def drawn_request(rng):
    """Return a prompt, a configuration, an adapter and a number of choices."""
    prompt = SYSTEM * (rng.random() < 0.4) + "".join(rng.choices("abcdef ", k=rng.randint(1, 60)))
    config = GenerateConfig(
        max_new_tokens=rng.randint(1, 48),
        temperature=rng.choice([0.0, 0.8, 1.0, 2.0]),
        top_k=rng.choice([0, 0, 5, 50]),
        top_p=rng.choice([0.9, 1.0]),
        repetition_penalty=rng.choice([1.0, 1.0, 1.2]),
        frequency_penalty=rng.choice([0.0, 0.3]),
        logit_bias=rng.choice([None, {97: 40.0, 98: 40.0}]),  # texts with repetitions have drafts
        seed=rng.randrange(2**64),
        stop=rng.choice([None, None, ["ab", "~"]]),
        logprobs=rng.choice([None, 0, 3]),
        grammar=rng.choice([None, None, None, Regex("[a-f]{3,20}(yes|no, not at all)")]),
        stop_token_ids={10, 257},
        speculate=rng.choice([None, "ngram"]),
    )
    if config.grammar is None:
        config = dataclasses.replace(config, ignore_stop_tokens=rng.random() < 0.7)
    return prompt, config, rng.choice([None, None, "a", "b", "c"]), rng.choice([1, 1, 1, 2])


class RandomBudget:
    """Lets steps run random numbers of prompt tokens."""

    def __init__(self, seed):
        self._rng = random.Random(seed)

    def prompt_tokens(self, decoding):
        return self._rng.choice([1, 3, 16, 40, 200])

    def measure(self, decoding, prompt_tokens, seconds):
        pass


class Sender(threading.Thread):
    """Submits requests at random times, and reads or cancels some of them meanwhile."""

    def __init__(self, engine, requests, seed):
        super().__init__()
        self.engine, self.requests, self.rng = engine, requests, random.Random(seed)
        self.sent, self.error = [], None

    def run(self):
        try:
            for prompt, config, adapter, n in self.requests:
                time.sleep(self.rng.choice([0, 0, 0, 0, 0.001, 0.004]))
                streams = self.engine.submit_choices(
                    prompt, n, config, adapter=adapter, key=self.name, priority=self.rng.choice([0, 0, 1, -1])
                )
                for choice, stream in enumerate(streams):
                    own = dataclasses.replace(config, seed=choice_seed(config.seed, choice))
                    self.sent.append((stream, prompt, own, adapter))
                if self.rng.random() < 0.3:
                    next(self.rng.choice(self.sent)[0], None)
                if self.rng.random() < 0.15:
                    self.rng.choice(self.sent)[0].cancel()
        except BaseException as error:
            self.error = error


class Run(NamedTuple):
    """What became of many requests."""

    stats: EngineStats
    results: list[GenerateResult]
    preempted: list[EngineRequest]


def run_many(model, tokenizer, count, seed, *, senders=3, most=208, **settings):
    """Run requests that come at random times, in random chunks, and compare each with a session."""
    rng = random.Random(seed)
    requests = [drawn_request(rng) for _ in range(count)]
    needed = sum((len(prompt) + config.max_new_tokens) * n for prompt, config, _, n in requests)
    config = EngineConfig(cache_tokens=min(needed // 4, most), page_tokens=16, **settings)
    preempted = []
    with Engine(model, config, tokenizer=tokenizer) as engine:
        engine._steps.scheduler._budget = RandomBudget(seed)
        release = engine._steps.room.release
        engine._steps.room.release = lambda name: (preempted.append(engine._requests[name]), release(name))
        threads = [Sender(engine, requests[first::senders], seed + first) for first in range(senders)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
            assert thread.error is None
        sent = [each for thread in threads for each in thread.sent]
        rests = ["".join(piece.text for piece in stream) for stream, *_ in sent]
        stats = engine.stats()
        assert stats.waiting == stats.running == stats.failed == 0
        assert stats.used_pages == stats.remembered_pages
        assert stats.finished + stats.cancelled == len(sent)
        assert stats.preemptions == len(preempted) > 0
    for (stream, prompt, config, adapter), rest in zip(sent, rests, strict=True):
        result, expected = stream.result, alone(model, tokenizer, prompt, config, adapter)
        assert result.text.endswith(rest)
        if result.finish_reason == "cancelled":
            assert result.token_ids == expected.token_ids[: len(result.token_ids)]
            if expected.logprobs is not None:
                assert result.logprobs == expected.logprobs[: len(result.logprobs)]
            cut = result.text.rstrip("\ufffd")  # a character may have been incomplete
            assert expected.text.startswith(cut) or config.stop
        else:
            assert told(result) == told(expected)
    return Run(stats, [stream.result for stream, *_ in sent], preempted)


class TestBits:
    def test_each_of_many_requests_is_as_if_it_were_alone(self, adapted):
        run_many(adapted("float32"), adapted.tokenizer, 16, 0, senders=1, most=160)

    @pytest.mark.slow
    @pytest.mark.parametrize("form", ["float32", "bfloat16", "int8", "Q8_0", "Q4_1"])
    def test_each_of_two_hundred_is_in_any_form_of_weights(self, adapted, form):
        run = run_many(adapted(form), adapted.tokenizer, 200, 1)
        assert any(result.accepted_tokens for result in run.results)
        assert run.stats.cancelled > 0
        assert {request.adapter and request.adapter.name for request in run.preempted} >= {None, "a", "b", "c"}
        assert any(request.config.grammar for request in run.preempted)
        assert any(request.config.speculate for request in run.preempted)

    @pytest.mark.slow
    @pytest.mark.parametrize("settings", [{"prefix_bytes": 0}, {"outbox_pieces": 3}], ids=str)
    def test_without_remembered_prefixes_and_with_readers_that_fall_behind(self, adapted, settings):
        run_many(adapted("float32"), adapted.tokenizer, 60, 2, **settings)


def descriptors():
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else None


class Load:
    """Keeps an engine busy: readers that read, that cancel, that leave, and that fall behind."""

    def __init__(self, engine, seed):
        self.engine, self.rng = engine, random.Random(seed)
        self.open = []
        self.requests = self.refused = 0

    def run_until(self, end):
        while time.monotonic() < end:
            while len(self.open) < 24:
                self.send()
            self.rng.shuffle(self.open)
            stream = self.open.pop()
            action = self.rng.random()
            if action < 0.2:
                stream.cancel()
            elif action < 0.3:
                next(stream, None)  # and it is dropped
            elif action < 0.4:
                asyncio.run(stream.finish_async())
            else:
                stream.finish()

    def send(self):
        prompt, config, adapter, n = drawn_request(self.rng)
        self.requests += n
        try:
            self.open += self.engine.submit_choices(prompt, n, config, adapter=adapter, key=self.rng.randrange(3))
            self.engine.submit("x" * 126, dataclasses.replace(config, max_new_tokens=48, grammar=None)).cancel()
            self.engine.submit("x" * 200, config)
        except TextTooLongError:
            self.refused += 1


@pytest.mark.slow
def test_a_long_run_keeps_no_memory_pages_or_files(adapted):
    """What is held after a fifth of the time is what is held after all of it: see ``SECONDS``."""
    model = adapted("float32")
    config = EngineConfig(cache_tokens=600, page_tokens=16, prefix_bytes=2**16, outbox_pieces=8, stall_timeout=0.2)
    with Engine(model, config, tokenizer=adapted.tokenizer) as engine:
        load, start = Load(engine, 5), time.monotonic()
        load.run_until(start + SECONDS / 5)
        early = resident_bytes(), descriptors(), load.requests
        load.run_until(start + SECONDS)
        late = resident_bytes(), descriptors()
        load.open.clear()
        assert engine.drain(60)
        stats = engine.stats()
    assert load.requests > early[2] > 0 < load.refused
    assert stats.preemptions > 0
    assert stats.cancelled > 0
    assert stats.used_pages == stats.remembered_pages
    assert early[1] == late[1]
    if early[0] is not None:
        assert late[0] <= 1.05 * early[0] + 2**20  # the allocator's own pools come and go
