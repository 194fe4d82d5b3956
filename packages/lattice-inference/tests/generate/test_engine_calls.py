"""Functions that an engine's thread runs between its steps."""

from __future__ import annotations

import threading

import pytest

from lattice_inference import Engine, GenerateConfig, Session
from lattice_inference.errors import InvalidInputError

LONG = GenerateConfig(max_new_tokens=60, temperature=1.0, seed=11, ignore_stop_tokens=True)


def test_they_take_turns_with_steps(drawn_model):
    with Session(drawn_model) as session:
        expected = session.generate("ab", LONG)
    steps, threads = [], set()

    def look():
        steps.append(engine.stats().steps)
        threads.add(threading.current_thread().name)

    with Engine(drawn_model) as engine:
        stream = engine.submit("ab", LONG)
        next(stream)
        calls = [engine.between_steps(look) for _ in range(20)]
        assert stream.finish().text == expected.text
        for call in calls:
            call.result(60)
    assert threads == {"lattice-engine"}
    while_it_ran = [step for step in steps if step < 60]
    assert len(set(while_it_ran)) == len(while_it_ran)  # one after each step


def test_an_idle_engine_runs_them_too(drawn_model):
    with Engine(drawn_model) as engine:
        assert engine.between_steps(lambda: 3).result(60) == 3
        with pytest.raises(ZeroDivisionError):
            engine.between_steps(lambda: 1 // 0).result(60)
        assert engine.between_steps(lambda: 4).result(60) == 4
        with pytest.raises(InvalidInputError, match="function is 3"):
            engine.between_steps(3)
        assert engine.drain(60)
        assert engine.between_steps(lambda: 5).result(60) == 5


def test_one_that_was_cancelled_is_not_run(drawn_model):
    began, may_go = threading.Event(), threading.Event()

    def wait():
        began.set()
        may_go.wait(60)

    ran = []
    with Engine(drawn_model) as engine:
        first = engine.between_steps(wait)
        began.wait(60)
        dropped, last = engine.between_steps(lambda: ran.append(1)), engine.between_steps(lambda: ran.append(2))
        assert dropped.cancel()
        may_go.set()
        first.result(60)
        last.result(60)
    assert ran == [2]


def test_a_closed_engine_fails_those_that_wait(drawn_model):
    began, may_go = threading.Event(), threading.Event()

    def wait():
        began.set()
        may_go.wait(60)

    engine = Engine(drawn_model)
    engine.between_steps(wait)
    began.wait(60)
    left = engine.between_steps(lambda: 1)
    closing = threading.Thread(target=engine.close)
    closing.start()
    while not engine._is_closed:
        threading.Event().wait(0.001)
    may_go.set()
    closing.join(60)
    with pytest.raises(InvalidInputError, match="closed"):
        left.result(60)
    with pytest.raises(InvalidInputError, match="closed"):
        engine.between_steps(lambda: 1)
