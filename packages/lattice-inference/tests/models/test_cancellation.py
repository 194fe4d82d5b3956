"""Work that a cancelled task of asyncio has begun ends at the model's next step; counted in steps, not in seconds."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import pytest

from drawn_checkpoints import write_directory
from lattice_inference import load_cross_encoder, load_encoder
from lattice_inference.cancellation import StepsCancelled, check_cancelled, in_thread, shared

TEXTS = [f"text {number} of some" for number in range(12)]


class Steps:
    """Counts a model's steps, and lets none end before it may."""

    def __init__(self, model, monkeypatch):
        self.count, self.begun, self.may_end = 0, threading.Event(), threading.Event()
        program = model._program._open()
        monkeypatch.setattr(program, "step_tokens", 8)
        self._submit = program.submit
        monkeypatch.setattr(program, "submit", self._step)

    def _step(self, *arguments, **options):
        self.count += 1
        self.begun.set()
        assert self.may_end.wait(60)
        return self._submit(*arguments, **options)


@pytest.fixture(scope="module", params=["encoder", "cross-encoder"])
def call(request, tmp_path_factory):
    """A model, and a call of it that takes a step a text."""
    data = Path(__file__).parents[1] / "data"
    if request.param == "encoder":
        with load_encoder(data / "tiny_bert") as model:
            yield model, lambda: model.encode(TEXTS).vectors
        return
    cases = json.loads((data / "architectures" / "cases.json").read_text())["cases"]
    with load_cross_encoder(write_directory(tmp_path_factory.mktemp("m") / "m", cases["cross-encoder-bert"])) as model:
        yield model, lambda: model.score_pairs([(text, text) for text in TEXTS])


async def cancelled_in_its_first_step(work, steps):
    task = asyncio.create_task(in_thread(work))
    await asyncio.to_thread(steps.begun.wait, 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    steps.may_end.set()


def test_cancelled_work_ends_at_its_next_step(call, monkeypatch):
    model, work = call
    expected = work()
    with monkeypatch.context() as patch:
        steps = Steps(model, patch)
        asyncio.run(cancelled_in_its_first_step(work, steps))
        assert steps.count == 1
        assert work().tobytes() == expected.tobytes()  # outside of the task nothing is cancelled
        assert steps.count == 1 + len(TEXTS)


def test_work_that_is_waited_for_is_whole(call):
    _, work = call
    assert asyncio.run(in_thread(work)).tobytes() == work().tobytes()


def test_shared_work_goes_on_while_others_want_it():
    wanted, begun, may_go_on, rounds = [True], threading.Event(), threading.Event(), []

    def work():
        with shared(lambda: wanted[0]):
            for number in range(5):
                check_cancelled()
                rounds.append(number)
                begun.set()
                assert may_go_on.wait(60)
                wanted[0] = number < 2

    async def cancel():
        task = asyncio.create_task(in_thread(work))
        await asyncio.to_thread(begun.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        may_go_on.set()

    asyncio.run(cancel())
    assert rounds == [0, 1, 2]


def test_a_task_within_a_thread_of_a_task_ends_with_either():
    """A loop in the worker thread: its own tasks see the outer cancellation too."""
    seen = []

    def inner():
        try:
            check_cancelled()
            seen.append("goes on")
        except StepsCancelled:
            seen.append("ends")
            raise

    async def cancel():
        begun, may_go_on = threading.Event(), threading.Event()

        def outer():
            begun.set()
            assert may_go_on.wait(60)
            asyncio.run(in_thread(inner))

        task = asyncio.create_task(in_thread(outer))
        await asyncio.to_thread(begun.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        may_go_on.set()

    asyncio.run(cancel())
    asyncio.run(in_thread(inner))
    assert seen == ["ends", "goes on"]
