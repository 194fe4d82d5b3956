"""A task that is cancelled ends its work at the model's next step, unless others wait for the same; counted in steps."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lattice_embed import CachedEmbeddingService, EmbeddingService, NativeEmbeddingService

DATA = Path(__file__).parents[2] / "lattice-inference" / "tests" / "data" / "tiny_bert"
TEXTS = [f"text {number} of some" for number in range(12)]


class Steps:
    """Counts the steps of a service's model, a text each, and lets none end before it may."""

    def __init__(self, service: NativeEmbeddingService, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.begun, self.may_end = 0, threading.Event(), threading.Event()
        program = service._load().encoder._program._open()
        monkeypatch.setattr(program, "step_tokens", 8)
        self._submit = program.submit
        monkeypatch.setattr(program, "submit", self._step)

    def _step(self, *arguments: Any, **options: Any) -> Any:
        self.count += 1
        self.begun.set()
        assert self.may_end.wait(60)
        return self._submit(*arguments, **options)


@pytest.fixture
def service() -> Iterator[NativeEmbeddingService]:
    with NativeEmbeddingService(DATA) as made:
        yield made


@pytest.fixture
def steps(service: NativeEmbeddingService, monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(service, monkeypatch)


CALLS: dict[str, Callable[[EmbeddingService], Coroutine[Any, Any, Any]]] = {
    "aembed": lambda service: service.aembed(TEXTS),
    "aembed_query": lambda service: service.aembed_query(TEXTS),
    "aembed_passage": lambda service: service.aembed_passage(TEXTS),
    "aencode": lambda service: service.aencode(TEXTS),
}


async def cancel_in_the_first_step(work: Coroutine[Any, Any, Any], steps: Steps) -> None:
    task = asyncio.create_task(work)
    await asyncio.to_thread(steps.begun.wait, 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    steps.may_end.set()


@pytest.mark.parametrize("cached", [False, True], ids=["native", "cached"])
@pytest.mark.parametrize("name", CALLS)
def test_cancelled_work_ends_at_the_next_step(
    service: NativeEmbeddingService, steps: Steps, name: str, cached: bool
) -> None:
    used = CachedEmbeddingService(service) if cached else service
    asyncio.run(cancel_in_the_first_step(CALLS[name](used), steps))
    assert steps.count == 1
    assert used.encode(TEXTS).shape == (12, service.model_config().dimensions)
    assert steps.count == 13


def test_a_stream_of_batches_ends_within_its_batch(service: NativeEmbeddingService, steps: Steps) -> None:
    asyncio.run(cancel_in_the_first_step(service.aencode(iter(TEXTS * 200)), steps))
    assert steps.count == 1


def test_vectors_kept_on_disk_are_not_looked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with NativeEmbeddingService(DATA, cache=tmp_path) as service:
        steps = Steps(service, monkeypatch)
        asyncio.run(cancel_in_the_first_step(service.aembed(TEXTS), steps))
        assert steps.count == 1
        assert len(service.embed(TEXTS)) == 12


def test_an_integration_ends_as_its_service_does(service: NativeEmbeddingService, steps: Steps) -> None:
    pytest.importorskip("langchain_core")
    from lattice_embed.integrations.langchain import LatticeEmbeddings

    asyncio.run(cancel_in_the_first_step(LatticeEmbeddings(service).aembed_documents(TEXTS), steps))
    assert steps.count == 1


@pytest.mark.parametrize("kind", ["task", "thread"])
def test_work_that_another_waits_for_goes_on(service: NativeEmbeddingService, steps: Steps, kind: str) -> None:
    cached = CachedEmbeddingService(service)
    given: list[np.ndarray] = []

    async def both() -> None:
        leader = asyncio.create_task(cached.aembed(TEXTS))
        await asyncio.to_thread(steps.begun.wait, 60)
        if kind == "task":
            waiter = asyncio.create_task(cached.aembed(TEXTS))
        else:
            thread = threading.Thread(target=lambda: given.append(cached.embed(TEXTS).vectors))
            thread.start()
        while not cached._flights._waiting:
            await asyncio.sleep(0)
        leader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leader
        steps.may_end.set()
        if kind == "task":
            given.append((await waiter).vectors)
        else:
            await asyncio.to_thread(thread.join)

    asyncio.run(both())
    assert steps.count == 12
    assert given[0].tobytes() == service.embed(TEXTS).vectors.tobytes()


def test_work_that_all_have_left_ends(service: NativeEmbeddingService, steps: Steps) -> None:
    cached = CachedEmbeddingService(service)

    async def both() -> None:
        tasks = [asyncio.create_task(cached.aembed(TEXTS))]
        await asyncio.to_thread(steps.begun.wait, 60)
        tasks.append(asyncio.create_task(cached.aembed(TEXTS)))
        while not cached._flights._waiting:
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(end) for end in ends] == [asyncio.CancelledError] * 2
        steps.may_end.set()

    asyncio.run(both())
    assert steps.count == 1
    assert cached._flights._waiting == {}


def test_one_who_waits_for_another_thread_may_leave(service: NativeEmbeddingService, steps: Steps) -> None:
    """The loop ends while the other thread's first step goes on."""
    cached = CachedEmbeddingService(service)
    thread = threading.Thread(target=cached.embed, args=(TEXTS,))
    thread.start()
    assert steps.begun.wait(60)

    async def leave() -> None:
        task = asyncio.create_task(cached.aembed(TEXTS))
        while not cached._flights._waiting:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(leave())
    assert steps.count == 1
    assert thread.is_alive()
    steps.may_end.set()
    thread.join()
    assert steps.count == 12
