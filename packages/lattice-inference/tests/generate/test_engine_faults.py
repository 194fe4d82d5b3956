"""What goes wrong in an engine ends one request: the others' bits are the same, and nothing is leaked."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import threading
import time
import tracemalloc
from functools import partial

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lattice_inference import Engine, EngineConfig, GenerateConfig, Session, SessionConfig, load_model
from lattice_inference.errors import (
    BusyError,
    CacheFullError,
    InvalidInputError,
    NonFiniteError,
    TextTooLongError,
    UnsupportedError,
)
from lattice_inference.generate import engine as engine_module
from lattice_inference.generate import engine_request
from lattice_inference.generate.ngram_drafts import NgramDrafts
from lattice_inference.generate.result import FinishReason
from tiny_decoders import write_drawn_model

DRAWN = GenerateConfig(max_new_tokens=24, temperature=1.0, seed=11, ignore_stop_tokens=True, logprobs=1)
LONG = dataclasses.replace(DRAWN, max_new_tokens=100)
BAD = ord("~")


@pytest.fixture(scope="module")
def expected(drawn_model):
    def of(prompt, config=DRAWN, **session):
        with Session(drawn_model, config=SessionConfig(**session)) as alone:
            return alone.generate(prompt, config)

    return of


def same(result, other):
    return (result.text, result.token_ids, result.logprobs, result.finish_reason) == (
        other.text,
        other.token_ids,
        other.logprobs,
        other.finish_reason,
    )


def nothing_is_held(engine):
    stats = engine.stats()
    return stats.waiting == stats.running == stats.parked == 0 and stats.used_pages == stats.remembered_pages


def read_while(thread, stream):
    thread.start()
    stream.finish()


class Clock:
    """Stands for the module ``time``."""

    def __init__(self):
        self.now = 1.0

    def monotonic(self):
        return self.now


class Gate:
    """A model whose steps wait, or fail, when the test says so."""

    def __init__(self, model):
        self._model = model
        self.may_run = threading.Event()
        self.may_run.set()
        self.runs = threading.Event()
        self.error = None
        self.steps = []

    def __getattr__(self, name):
        return getattr(self._model, name)

    def forward(self, extensions):
        self.runs.set()
        assert self.may_run.wait(60)
        self.steps.append([list(extension.token_ids) for extension in extensions])
        error, self.error = self.error, None
        if error is not None:
            raise error
        return self._model.forward(extensions)


@pytest.fixture
def gate(drawn_model):
    return Gate(drawn_model)


@pytest.fixture(scope="module")
def overflowing_model(tmp_path_factory):
    """A model whose values of the token "~" are too large for a float16 cache, so that all logits after it are NaN."""
    directory = write_drawn_model(tmp_path_factory.mktemp("models") / "nan", context=128)
    tensors = load_file(directory / "model.safetensors")
    tensors["model.embed_tokens.weight"][:, -1] = 0
    tensors["model.embed_tokens.weight"][BAD, -1] = 5
    tensors["model.layers.0.self_attn.v_proj.weight"][:, -1] = 1e6
    save_file(tensors, directory / "model.safetensors")
    with load_model(directory) as model:
        yield model


class TestBadRows:
    def test_a_row_of_nan_ends_its_own_request(self, overflowing_model):
        config = dataclasses.replace(DRAWN, logit_bias={BAD: -np.inf})
        with Engine(overflowing_model, EngineConfig(cache_tokens=1024)) as engine:
            good = [engine.submit(f"ab{index}", config) for index in range(4)]
            bad = [engine.submit(prompt, config) for prompt in ("a~b", "~", "ab~")]
            for stream in bad:
                with pytest.raises(NonFiniteError):
                    stream.finish()
                with pytest.raises(NonFiniteError):
                    _ = stream.result
            for index, stream in enumerate(good):
                with Session(overflowing_model) as session:
                    assert same(stream.finish(), session.generate(f"ab{index}", config))
            assert nothing_is_held(engine)
            assert (engine.stats().failed, engine.stats().finished) == (3, 4)

    def test_no_token_is_allowed(self, drawn_model, expected):
        nothing = dataclasses.replace(DRAWN, logit_bias=dict.fromkeys(range(264), -np.inf))
        with Engine(drawn_model) as engine:
            good, bad = engine.submit("ab", DRAWN), engine.submit("ab", nothing)
            with pytest.raises(NonFiniteError):
                bad.finish()
            assert same(good.finish(), expected("ab"))
            assert nothing_is_held(engine)


class TestFailures:
    @pytest.mark.parametrize("error", [ValueError("broken"), MemoryError(), CacheFullError("full")])
    def test_a_step_that_fails_ends_those_in_it(self, gate, expected, error):
        with Engine(gate, EngineConfig(cache_tokens=1024)) as engine:
            gate.may_run.clear()
            first = engine.submit("ab", LONG)
            gate.error = error
            gate.runs.wait(60)
            second = engine.submit("cd", DRAWN)  # it waits for the step that runs
            gate.may_run.set()
            with pytest.raises(type(error)):
                first.finish()
            assert same(second.finish(), expected("cd"))
            assert nothing_is_held(engine)

    @pytest.mark.parametrize("method", ["start", "propose"])
    def test_a_source_of_drafts_that_raises(self, drawn_model, monkeypatch, expected, method):
        def fail(*given):
            raise ValueError("broken")

        monkeypatch.setattr(NgramDrafts, method, fail)
        with Engine(drawn_model) as engine:
            drafting = engine.submit("ab", dataclasses.replace(LONG, speculate="ngram"))
            other = engine.submit("cd", DRAWN)
            with pytest.raises(ValueError, match="broken"):
                drafting.finish()
            assert same(other.finish(), expected("cd"))
            assert nothing_is_held(engine)

    def test_a_thread_that_dies_leaves_no_reader_waiting(self, gate):
        class Dead(BaseException):
            pass

        engine = Engine(gate)
        gate.error = Dead()
        stream = engine.submit("ab", DRAWN)
        with pytest.raises(Dead):
            stream.finish()
        with pytest.raises(InvalidInputError, match="failed"):
            engine.submit("ab")
        engine.close()

    def test_close_with_requests_in_flight(self, gate):
        gate.may_run.clear()
        engine = Engine(gate, EngineConfig(cache_tokens=256))
        streams = [engine.submit("ab", LONG) for _ in range(12)]
        gate.runs.wait(60)
        closing = threading.Thread(target=engine.close)
        closing.start()
        gate.may_run.set()
        closing.join(60)
        assert not closing.is_alive()
        for stream in streams:
            with pytest.raises(InvalidInputError, match="closed"):
                stream.finish()
        with pytest.raises(InvalidInputError, match="closed"):
            engine.submit("ab")
        engine.close()

    def test_a_model_that_is_closed(self, drawn_directory):
        with load_model(drawn_directory) as model, Engine(model) as engine:
            stream = engine.submit("ab", LONG)
            next(stream)
            model.close()
            with pytest.raises(InvalidInputError, match="closed"):
                stream.finish()


class TestFullCache:
    def test_requests_that_do_not_fit_together_are_run_again(self, drawn_model, expected):
        with Engine(drawn_model, EngineConfig(cache_tokens=112, page_tokens=16)) as engine:
            streams = [engine.submit(f"a{index}", LONG) for index in range(5)]
            for index, stream in enumerate(streams):
                assert same(stream.finish(), expected(f"a{index}", LONG))
            assert engine.stats().preemptions > 0
            assert nothing_is_held(engine)

    def test_what_can_never_fit_is_refused_on_arrival(self, drawn_model, expected):
        with Engine(drawn_model, EngineConfig(cache_tokens=64, page_tokens=16)) as engine:
            for n in (1, 3):
                with pytest.raises(CacheFullError, match="64 tokens"):
                    engine.submit_choices("ab", n, LONG)
            with pytest.raises(TextTooLongError):
                engine.submit("a" * 129, DRAWN)
            whole = dataclasses.replace(LONG, max_new_tokens=63)  # every page, and the last token is not run
            assert same(engine.submit("ab", whole).finish(), expected("ab", whole))
            assert same(engine.submit("ab", whole).finish(), expected("ab", whole))  # beside what is remembered
            assert nothing_is_held(engine)

    @pytest.mark.parametrize(("count", "choices"), [(100, 1), (50, 3), pytest.param(1000, 1, marks=pytest.mark.slow)])
    def test_many_cancelled_at_once(self, drawn_model, expected, count, choices):
        with Engine(drawn_model, EngineConfig(cache_tokens=512, page_tokens=16)) as engine:
            kept = engine.submit("ab", LONG)
            streams = [each for index in range(count) for each in engine.submit_choices(f"{index}", choices, LONG)]
            for stream in streams:
                stream.cancel()
            assert same(kept.finish(), expected("ab", LONG))
            reasons = {stream.finish().finish_reason for stream in streams}
            assert reasons <= {FinishReason.CANCELLED, FinishReason.LENGTH}
            assert nothing_is_held(engine)

    def test_a_waiting_request_is_small(self, gate):
        with Engine(gate, EngineConfig(cache_tokens=128)) as engine:
            gate.may_run.clear()
            tracemalloc.start()
            streams = [engine.submit("a" * 100, DRAWN) for _ in range(200)]
            size, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert size / len(streams) < 10_000
            for stream in streams:
                stream.cancel()
            gate.may_run.set()

    def test_a_dropped_stream_frees_its_pages(self, gate):
        with Engine(gate, EngineConfig(prefix_bytes=0)) as engine:
            for _ in engine.submit("ab", LONG):
                break
            assert engine.drain(60)
            assert engine.stats().cancelled == 1
            assert engine.stats().used_pages == 0


class TestReaders:
    def test_who_does_not_read_is_parked_and_goes_on_where_it_was(self, drawn_model, expected):
        config = EngineConfig(cache_tokens=192, page_tokens=16, outbox_pieces=4, stall_timeout=1e6)
        with Engine(drawn_model, config) as engine:
            slow = engine.submit("ab", LONG)
            others = [engine.submit(f"c{index}", LONG) for index in range(3)]
            for index, stream in enumerate(others):  # the parked one is preempted for them
                assert same(stream.finish(), expected(f"c{index}", LONG))
            assert engine.stats().parked == 1
            assert same(slow.finish(), expected("ab", LONG))
            assert nothing_is_held(engine)

    def test_who_stays_away_is_cancelled(self, drawn_model, expected):
        with Engine(drawn_model, EngineConfig(outbox_pieces=4, stall_timeout=0.01)) as engine:
            slow = engine.submit("ab", LONG)
            assert engine.drain(60)
            assert slow.result.finish_reason is FinishReason.CANCELLED
            assert slow.result.token_ids == expected("ab", LONG).token_ids[: len(slow.result.token_ids)]
            assert "".join(piece.text for piece in slow) == slow.result.text
            assert nothing_is_held(engine)

    def test_a_slow_reader_keeps_its_request(self, drawn_model, expected, monkeypatch):
        """Its reads are nine seconds apart, and an outbox takes several of them to become half empty."""
        clock = Clock()
        monkeypatch.setattr(engine_module, "time", clock)
        monkeypatch.setattr(engine_request, "time", clock)
        with Engine(drawn_model, EngineConfig(outbox_pieces=8, stall_timeout=10)) as engine:
            slow, pieces = engine.submit("ab", LONG), []
            while len(pieces) < 40:
                while not engine.stats().parked:
                    time.sleep(0.001)
                for _ in range(4):
                    clock.now += 9
                    pieces.append(next(slow))
            assert [piece.token_id for piece in pieces] == list(expected("ab", LONG).token_ids[:40])

    def test_a_parked_stream_that_is_dropped_ends_its_request(self, drawn_model):
        with Engine(drawn_model, EngineConfig(outbox_pieces=4, stall_timeout=1e6)) as engine:
            slow = engine.submit("ab", LONG)
            while not engine.stats().parked:
                time.sleep(0.001)
            del slow
            assert engine.drain(60)
            assert nothing_is_held(engine)

    def test_a_deadline_ends_a_request(self, gate):
        with Engine(gate) as engine:
            gate.may_run.clear()
            first = engine.submit("ab", LONG)
            gate.runs.wait(60)
            late = engine.submit("cd", LONG, deadline=1e-6)
            gate.may_run.set()
            assert late.finish().finish_reason is FinishReason.CANCELLED
            assert first.finish().finish_reason is FinishReason.LENGTH

    def test_an_event_loop_reads_many_streams(self, drawn_model, expected):
        calls = []

        async def read(engine):
            loop = asyncio.get_running_loop()
            tell = loop.call_soon_threadsafe
            loop.call_soon_threadsafe = lambda *given: (calls.append(given), tell(*given))[1]
            streams = [engine.submit(f"a{index}", DRAWN) for index in range(8)]
            return await asyncio.gather(*(stream.finish_async() for stream in streams))

        with Engine(drawn_model) as engine:
            results = asyncio.run(read(engine))
            steps = engine.stats().steps
        for index, result in enumerate(results):
            assert same(result, expected(f"a{index}"))
        assert 0 < len([given for given in calls if given[0].__name__ == "_answer"]) <= steps + 8

    def test_a_loop_that_is_gone_and_a_read_that_is_cancelled(self, gate, expected):
        async def give_up(stream):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(stream.__anext__(), 0.01)

        with Engine(gate) as engine:
            gate.may_run.clear()
            stream = engine.submit("ab", DRAWN)
            asyncio.run(give_up(stream))
            gate.may_run.set()
            assert same(stream.finish(), expected("ab"))

    @pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals go to the process here")
    def test_an_interrupted_reader_may_read_on(self, gate, expected, request):
        # a shell's background processes ignore interrupts
        request.addfinalizer(partial(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT)))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with Engine(gate) as engine:
            gate.may_run.clear()
            stream = engine.submit("ab", DRAWN)
            reader = threading.get_ident()

            def interrupt():
                while not stream._reader._lock.locked():
                    pass
                signal.pthread_kill(reader, signal.SIGINT)

            thread = threading.Thread(target=interrupt)
            with pytest.raises(KeyboardInterrupt):
                read_while(thread, stream)
            thread.join()
            gate.may_run.set()
            assert same(stream.finish(), expected("ab"))

    def test_one_reader_at_a_time(self, gate):
        with Engine(gate) as engine:
            gate.may_run.clear()
            stream = engine.submit("ab", DRAWN)
            reader = threading.Thread(target=stream.finish)
            reader.start()
            gate.runs.wait(60)
            while not stream._reader._lock.locked():
                pass
            with pytest.raises(BusyError):  # the step waits, so a reader cannot end before
                stream.finish()
            gate.may_run.set()
            reader.join(60)

    def test_drain_refuses_what_is_new_and_waits_for_the_rest(self, gate, expected):
        with Engine(gate) as engine:
            gate.may_run.clear()
            stream = engine.submit("ab", DRAWN)
            assert not engine.drain(0)
            with pytest.raises(InvalidInputError, match="drain"):
                engine.submit("ab")
            gate.may_run.set()
            assert engine.drain()
            assert same(stream.result, expected("ab"))


class TestChoices:
    def test_a_prompt_is_run_once_for_all_choices(self, gate, expected):
        prompt = "abcd" * 20
        with Engine(gate, EngineConfig(page_tokens=16, prefix_bytes=0, cache_tokens=1024)) as engine:
            streams = engine.submit_choices(prompt, 3, DRAWN)
            results = [stream.finish() for stream in streams]
        for stream, result in zip(streams, results, strict=True):
            assert result.seed == stream.seed
            assert same(result, expected(prompt, dataclasses.replace(DRAWN, seed=result.seed)))
        assert len({result.token_ids for result in results}) == 3
        assert results[0].seed == DRAWN.seed
        assert [result.reused_tokens for result in results] == [0, 64, 64]
        assert sum(len(ids) for step in gate.steps for ids in step) == 80 + 2 * 16 + 3 * 23

    def test_the_others_go_on_without_the_first(self, gate, expected):
        with Engine(gate, EngineConfig(page_tokens=16)) as engine:
            gate.may_run.clear()
            first, *others = engine.submit_choices("abcd" * 20, 3, DRAWN)
            first.cancel()
            gate.may_run.set()
            for stream in others:
                assert same(stream.finish(), expected("abcd" * 20, dataclasses.replace(DRAWN, seed=stream.seed)))
            assert nothing_is_held(engine)


class TestArguments:
    def test_nothing_to_generate(self, drawn_model, expected):
        nothing = dataclasses.replace(DRAWN, max_new_tokens=0)
        with Engine(drawn_model) as engine:
            assert same(engine.submit("ab", nothing).finish(), expected("ab", nothing))
            assert same(engine.submit("a" * 128, DRAWN).finish(), expected("a" * 128))
            with pytest.raises(InvalidInputError, match="nothing to generate"):
                engine.submit("")

    def test_arguments_are_checked_on_arrival(self, drawn_model):
        with Engine(drawn_model) as engine:
            for given in (
                {"config": 1},
                {"priority": 1001},
                {"deadline": 0},
                {"deadline": float("nan")},
                {"key": []},
                {"adapter": "none"},
                {"config": GenerateConfig(logit_bias={10**6: 1.0})},
            ):
                with pytest.raises(InvalidInputError):
                    engine.submit("ab", **given)
            with pytest.raises(InvalidInputError):
                engine.submit_choices("ab", 0)
            with pytest.raises(UnsupportedError):
                engine.submit("ab", GenerateConfig(speculate="mtp"))
            with pytest.raises(InvalidInputError):
                engine.drain(-1)
            assert nothing_is_held(engine)
            stream = engine.submit("ab", LONG)
            if engine.stats().finished == 0:
                with pytest.raises(InvalidInputError, match="not ended"):
                    _ = stream.result

    @pytest.mark.parametrize(
        "given",
        [
            {"cache_tokens": 0},
            {"max_tokens": 0},
            {"step_ms": 0},
            {"step_ms": "1"},
            {"step_tokens": 0},
            {"outbox_pieces": None},
            {"stall_timeout": float("nan")},
            {"use_model_config": 1},
        ],
    )
    def test_settings_are_checked(self, given):
        with pytest.raises(InvalidInputError, match=next(iter(given))):
            EngineConfig(**given)

    def test_settings_that_do_not_fit_the_model(self, drawn_model):
        for given in ({"max_tokens": 129}, {"page_tokens": 5}, {"sequences": 0}, {"cache_dtype": "float8"}):
            with pytest.raises(InvalidInputError):
                Engine(drawn_model, EngineConfig(**given))
        for given in ((None,), (drawn_model, 3), (drawn_model, None, 3)):
            with pytest.raises((InvalidInputError, TypeError)):
                Engine(*given)
