"""A labelling that is killed or interrupted loses nothing that was paid for."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from killed_labelling import CONCURRENCY
from teacher_server import Handler, TeacherServer, label_of

from lattice_tune import (
    CallableTeacher,
    LabelingTask,
    LabelStore,
    RequestLimits,
    ServedTeacher,
    alabel_texts,
    label_texts,
)

Make = Callable[..., ServedTeacher]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_is_paid_twice_and_nothing_is_lost(seed: int, server: TeacherServer, tmp_path: Path) -> None:
    count, kills = 300, 6
    script = Path(__file__).with_name("killed_labelling.py")
    arguments = [server.url, str(tmp_path / "labels.db"), str(count), str(kills), str(seed)]
    done = subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    labels = json.loads(done.stdout)
    assert labels == {f"text {number}": label_of(f"text {number}") for number in range(count)}
    assert server.again <= CONCURRENCY * kills
    assert len(server.asked) <= count + CONCURRENCY * kills
    with LabelStore(tmp_path / "labels.db") as store:
        assert len(store) == count


def test_a_cancelled_task_stores_what_is_under_way(
    server: TeacherServer, teacher: Make, task: LabelingTask, store: LabelStore
) -> None:
    go, texts = threading.Event(), [f"text {number}" for number in range(50)]

    def wait_and_answer(handler: Handler, asked: object) -> None:
        go.wait(20)
        server.right(handler, asked)  # type: ignore[arg-type]

    server.usual = wait_and_answer

    async def run() -> None:
        labelling = asyncio.ensure_future(
            alabel_texts(texts, teacher(), task, store=store, limits=RequestLimits(concurrency=4))
        )
        while len(server.asked) < 4:
            await asyncio.sleep(0.005)
        labelling.cancel()
        await asyncio.sleep(0.01)
        assert not labelling.done()  # it waits for the four
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await labelling

    asyncio.run(run())
    assert len(server.asked) == 4
    assert len(store) == 4


def test_a_task_that_is_cancelled_twice_ends_at_once(
    server: TeacherServer, teacher: Make, task: LabelingTask, store: LabelStore
) -> None:
    over = threading.Event()
    server.usual = server.drip(over)

    async def run() -> None:
        labelling = asyncio.ensure_future(alabel_texts(["a", "b"], teacher(timeout=60), task, store=store))
        while len(server.asked) < 2:
            await asyncio.sleep(0.005)
        for _ in range(2):
            labelling.cancel()
            await asyncio.sleep(0.01)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asyncio.shield(labelling), 10)

    asyncio.run(run())
    over.set()
    assert len(store) == 0


def test_a_cancelled_task_of_a_teacher_here_keeps_what_it_has(task: LabelingTask, store: LabelStore) -> None:
    began, go = threading.Event(), threading.Event()
    asked: list[str] = []

    def slow(text: str) -> str:
        asked.append(text)
        if len(asked) == 3:
            began.set()
            go.wait(20)
        return "alpha"

    async def run() -> None:
        labelling = asyncio.ensure_future(
            alabel_texts([str(n) for n in range(50)], CallableTeacher(slow, name="slow"), task, store=store)
        )
        while not began.is_set():
            await asyncio.sleep(0.005)
        labelling.cancel()
        await asyncio.sleep(0.01)
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await labelling

    asyncio.run(run())
    assert len(asked) == len(store) == 3


def test_ctrl_c_in_a_notebook_stores_what_is_under_way(
    server: TeacherServer, teacher: Make, task: LabelingTask, store: LabelStore
) -> None:
    """There a loop runs already, so that the sync call runs its own one in a thread."""
    main = threading.get_ident()

    def interrupt_and_answer(handler: Handler, asked: object) -> None:
        if len(server.asked) == 1:
            signal.pthread_kill(main, signal.SIGINT)
        server.right(handler, asked)  # type: ignore[arg-type]

    server.usual = interrupt_and_answer

    async def notebook() -> None:
        label_texts([str(n) for n in range(2000)], teacher(), task, store=store, limits=RequestLimits(concurrency=1))

    loop = asyncio.new_event_loop()  # without asyncio.run, which would take the interrupt for itself
    # a shell starts what runs in its background with interrupts ignored
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(notebook())
    finally:
        signal.signal(signal.SIGINT, before)
        loop.close()
    assert len(store) == len(server.asked) < 2000


INTERRUPTED = """
import sys
from lattice_tune import LabelingTask, LabelStore, RequestLimits, ServedTeacher, TeacherConfig, label_texts
url, path = sys.argv[1:]
with LabelStore(path) as store:
    texts = [f"text {number}" for number in range(100)]
    limits = RequestLimits(concurrency=4)
    try:
        label_texts(texts, ServedTeacher(TeacherConfig("openai", "m", url)), LabelingTask(("alpha", "beta", "gamma")),
                    store=store, limits=limits)
    except KeyboardInterrupt:
        print(len(store))
"""


@pytest.mark.slow
def test_ctrl_c_stores_what_is_under_way(server: TeacherServer, tmp_path: Path) -> None:
    go, all_asked = threading.Event(), threading.Event()

    def wait_and_answer(handler: Handler, asked: object) -> None:
        if len(server.asked) >= 4:
            all_asked.set()
        go.wait(20)
        server.right(handler, asked)  # type: ignore[arg-type]

    server.usual = wait_and_answer
    command = [sys.executable, "-c", INTERRUPTED, server.url, str(tmp_path / "labels.db")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    ) as process:
        assert all_asked.wait(30)
        process.send_signal(signal.SIGINT)
        threading.Event().wait(0.3)  # until it has been seen; an answer before it would only let more be asked
        go.set()
        out, _ = process.communicate(timeout=30)
    assert out == f"{len(server.asked)}\n"
    assert len(server.asked) == 4
