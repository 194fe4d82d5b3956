"""A forked child has no thread of an engine: what waits for it there gets an error, and what the child makes works."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from lattice_inference import Engine, EngineConfig, GenerateConfig
from lattice_inference.errors import InvalidInputError

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "register_at_fork"), reason="no forks here"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]

LONG = GenerateConfig(max_new_tokens=100, temperature=1.0, seed=3, ignore_stop_tokens=True)


def in_child(function):
    """Return whether ``function`` returns true in a forked child, within 20 seconds."""
    child = os.fork()
    if not child:
        signal.alarm(20)
        try:
            os._exit(0 if function() else 1)
        except BaseException:
            os._exit(2)
    return os.waitpid(child, 0)[1] == 0


def refuses(function):
    try:
        function()
    except InvalidInputError as error:
        return "forked" in str(error)
    return False


def test_nothing_waits_in_a_child_and_the_parent_goes_on(drawn_model):
    with Engine(drawn_model, EngineConfig(outbox_pieces=8, stall_timeout=1e6)) as engine:
        expected = engine.submit("ab", LONG).finish()
        stream = engine.submit("ab", LONG)
        next(stream)
        assert in_child(lambda: refuses(stream.finish))
        assert in_child(lambda: refuses(lambda: engine.submit("ab", LONG)))
        assert in_child(lambda: refuses(lambda: engine.between_steps(int)))
        assert in_child(lambda: engine.drain() and engine.stats().waiting == engine.stats().running == 0)
        assert in_child(lambda: engine.close() is None)
        assert next(stream).token_id == expected.token_ids[1]
        assert stream.finish() is not None
        assert stream.result.token_ids == expected.token_ids


def test_a_child_has_engines_of_its_process(drawn_model):
    with Engine(drawn_model) as engine:
        expected = engine.submit("ab", LONG).finish().token_ids

        def generated():
            with Engine(drawn_model) as other:
                return other.submit("ab", LONG).finish().token_ids

        assert in_child(lambda: generated() == expected)
        assert generated() == expected


def test_a_fork_waits_until_the_lock_is_free(drawn_model):
    """A child that inherits a lock which a thread held could never take it."""
    with Engine(drawn_model) as engine:
        held, may_free = threading.Event(), threading.Event()

        def hold():
            with engine._lock:
                held.set()
                may_free.wait(0.05)

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait(60)
        assert in_child(lambda: engine.close() is None)
        thread.join()
