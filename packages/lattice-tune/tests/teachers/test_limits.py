"""Limits of money, tokens, requests and time, each checked before a request is sent."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from fractions import Fraction

import pytest
from teacher_server import OUTPUT_TOKENS, Handler, TeacherServer

from lattice_tune import (
    ConfigError,
    LabelingTask,
    LabelStore,
    Outcome,
    RequestLimits,
    ServedTeacher,
    TeacherPrices,
    dry_run,
    label_texts,
)
from lattice_tune.teachers.limits import Budget, MinuteWindow, Stop, StoppedError

Make = Callable[..., ServedTeacher]
PRICES = TeacherPrices(3.0, 15.0)


def bill(server: TeacherServer) -> float:
    return (3 * server.billed_input + 15 * server.billed_output) / 1e6


@pytest.mark.parametrize("max_cost", [0.0, 0.01, 0.02, 0.04])
def test_max_cost_is_never_exceeded(
    max_cost: float, server: TeacherServer, teacher: Make, task: LabelingTask, store: LabelStore
) -> None:
    texts = [f"text {number} " + "word " * (number % 50) for number in range(200)]
    limits = RequestLimits(concurrency=8, max_cost=max_cost)
    report = label_texts(texts, teacher(max_tokens=100), task, limits=limits, store=store)
    assert bill(server) <= max_cost
    assert report.stopped == "max_cost"
    assert report.cost == pytest.approx(bill(server))
    assert report.outcomes.get(Outcome.LABELLED, 0) == len(store) == len(server.asked)
    dearest = PRICES.cost(3000, 100)
    assert bill(server) > max_cost - float(dearest)  # what is under way is waited for before it stops


def test_max_cost_counts_what_was_billed_for_nothing(server: TeacherServer, teacher: Make, task: LabelingTask) -> None:
    random.seed(7)
    bad = [server.cut_body, lambda: server.says(said="no"), lambda: server.status(500), lambda: server.right]
    server.script = [random.choice(bad)() for _ in range(2000)]
    texts = [f"text {number}" for number in range(400)]
    limits = RequestLimits(concurrency=8, max_cost=0.1, max_failures=1000)
    report = label_texts(texts, teacher(max_tokens=50, max_retries=3), task, limits=limits)
    assert report.stopped == "max_cost"
    assert 0.02 < bill(server) <= 0.1
    assert report.cost <= bill(server) <= report.cost + report.unknown_cost <= 0.1


def test_max_tokens_total_is_never_exceeded(server: TeacherServer, teacher: Make, task: LabelingTask) -> None:
    texts = [f"text {number}" for number in range(200)]
    limits = RequestLimits(concurrency=8, max_tokens_total=12_000)
    report = label_texts(texts, teacher(max_tokens=100), task, limits=limits)
    assert report.stopped == "max_tokens_total"
    assert 9_000 < server.billed_input + server.billed_output <= 12_000
    assert report.results[-1].outcome is Outcome.NOT_ASKED
    assert "max_tokens_total" in report.results[-1].detail


def test_max_cost_without_prices(teacher: Make, task: LabelingTask) -> None:
    with pytest.raises(ConfigError, match="prices"):
        label_texts(["a"], teacher(prices=None), task, limits=RequestLimits(max_cost=1.0))


def test_concurrency_is_kept(server: TeacherServer, teacher: Make, task: LabelingTask) -> None:
    together = threading.Barrier(3)

    def wait_and_answer(handler: Handler, asked: object) -> None:
        together.wait(30)  # fewer than three at once would never end
        server.right(handler, asked)  # type: ignore[arg-type]

    server.usual = wait_and_answer
    texts = [f"text {number}" for number in range(60)]
    report = label_texts(texts, teacher(timeout=60), task, limits=RequestLimits(concurrency=3))
    assert report.outcomes == {Outcome.LABELLED: 60}
    assert server.most_under_way == 3


def test_deadline_ends_the_labelling(server: TeacherServer, teacher: Make, task: LabelingTask) -> None:
    over = threading.Event()
    server.script = [server.right, server.right]
    server.usual = server.drip(over)
    limits = RequestLimits(concurrency=1, deadline=4.0)  # two answers of a busy machine fit well
    report = label_texts(["a", "b", "c", "d"], teacher(timeout=60), task, limits=limits)
    over.set()
    assert report.stopped == "deadline"
    assert report.outcomes == {Outcome.LABELLED: 2, Outcome.FAILED: 1, Outcome.NOT_ASKED: 1}
    assert len(server.asked) == 3


def test_a_pause_beyond_the_deadline_fails_one_text_alone(
    server: TeacherServer, teacher: Make, task: LabelingTask
) -> None:
    server.script = [server.status(500)]
    limits = RequestLimits(concurrency=1, deadline=30.0)
    report = label_texts(["a", "b", "c"], teacher(retry_delay=100.0), task, limits=limits)
    assert report.outcomes == {Outcome.LABELLED: 2, Outcome.FAILED: 1}
    assert report.stopped is None


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_requests_of_a_minute() -> None:
    clock = Clock()
    window = MinuteWindow(3, None, clock=clock)
    for _ in range(3):
        assert window.delay(1) == 0
        window.add(1)
        clock.now += 10
    assert window.delay(1) == 30  # 60 s after the first one
    clock.now += 30
    assert window.delay(1) == 0


def test_tokens_of_a_minute_are_corrected_by_the_bill() -> None:
    clock = Clock()
    window = MinuteWindow(None, 100, clock=clock)
    assert window.delay(1000) == 0  # larger than the limit, and alone
    entry = window.add(90)
    assert window.delay(20) == 60
    window.correct(entry, 30)
    assert window.delay(20) == window.delay(70) == 0
    window.add(70)
    clock.now += 1
    assert window.delay(1) == 59
    clock.now += 60
    assert window.delay(100) == 0
    window.correct(entry, 5)  # long past
    window.add(100)
    assert window.delay(1) == 60


@pytest.mark.parametrize("seed", range(20))
def test_no_window_of_a_minute_holds_more(seed: int) -> None:
    drawn = random.Random(seed)
    clock = Clock()
    window = MinuteWindow(10, 500, clock=clock)
    sent: list[tuple[float, int]] = []
    for _ in range(300):
        clock.now += drawn.choice([0, 0.1, 3, 20])
        tokens = drawn.randrange(1, 200)
        clock.now += window.delay(tokens)
        assert window.delay(tokens) == pytest.approx(0, abs=1e-6)
        window.add(tokens)
        sent.append((clock.now, tokens))
        last = [spent for moment, spent in sent if moment > clock.now - 60 + 1e-6]
        assert len(last) <= 10
        assert sum(last) <= 500


def test_reservations_are_exact_and_wait_for_bills() -> None:
    async def run() -> None:
        stop = Stop()
        budget = Budget(RequestLimits(max_cost=0.3), TeacherPrices(1.0, 1.0), stop)
        first = await budget.reserve(100_000, 0)
        second = await budget.reserve(100_000, 0)
        third = await budget.reserve(100_000, 0)  # 0.1 + 0.1 + 0.1 is not more than 0.3
        waiting = asyncio.ensure_future(budget.reserve(50_000, 0))
        await asyncio.sleep(0)
        assert not waiting.done()
        budget.settle(first, 10_000, 10_000)
        assert (await waiting).cost == Fraction(5, 100)
        budget.release(second)
        budget.settle(third, None, None)
        assert (budget.cost, budget.unknown_cost) == (Fraction(2, 100), Fraction(1, 10))
        budget.settle(await waiting, 50_000, 0)
        with pytest.raises(StoppedError):
            await budget.reserve(200_000, 0)
        assert stop.reason == "max_cost"

    asyncio.run(run())


def test_a_stop_wakes_sleepers() -> None:
    async def run() -> None:
        stop = Stop()
        sleeping = asyncio.ensure_future(stop.sleep(3600))
        await asyncio.sleep(0)
        stop.set("first")
        stop.set("second")
        with pytest.raises(StoppedError, match="first"):
            await sleeping

    asyncio.run(run())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("concurrency", 0),
        ("concurrency", 101),
        ("requests_per_minute", 0),
        ("tokens_per_minute", 1.5),
        ("max_cost", -1.0),
        ("max_cost", float("nan")),
        ("max_tokens_total", -1),
        ("deadline", 0),
        ("deadline", float("nan")),
        ("max_failures", 0),
    ],
)
def test_limits_that_make_no_sense(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        RequestLimits(**{name: value})  # type: ignore[arg-type]


def test_dry_run_asks_nothing_and_bounds_the_bill(
    server: TeacherServer, teacher: Make, task: LabelingTask, store: LabelStore
) -> None:
    texts = [f"text {number}" for number in range(20)] + ["text 0"]
    asks = teacher()
    label_texts(texts[:5], asks, task, store=store)
    asked, billed = len(server.asked), bill(server)
    planned = dry_run(texts, asks, task, store=store, first=2)
    assert len(server.asked) == asked
    assert (planned.texts, planned.stored, planned.requests) == (21, 5, 15)
    assert len(planned.prompts) == 2
    assert "\ntext 5\n" in planned.prompts[0]
    report = label_texts(texts, asks, task, store=store)
    assert report.requests == planned.requests
    assert planned.most_cost is not None
    assert bill(server) - billed <= planned.most_cost
    assert report.input_tokens <= planned.most_input_tokens
    assert 0.5 < report.input_tokens / planned.likely_input_tokens < 2
    assert report.output_tokens == 15 * OUTPUT_TOKENS <= planned.most_output_tokens


def test_dry_run_needs_neither_key_nor_client(task: LabelingTask, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from lattice_tune import TeacherConfig

    monkeypatch.setitem(sys.modules, "lattice_embed", None)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    planned = dry_run(["a", "b"], ServedTeacher(TeacherConfig.claude_sonnet()), task, votes=3)
    assert (planned.requests, planned.most_cost) == (6, None)
