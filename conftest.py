"""Quick and slow tests: which of them a run takes, and what a quick one may cost.

Without an option a run takes the tests that lack the marker ``slow``; ``--slow`` takes the others, ``--all`` both. A test
that is named by its node id always runs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator

import pytest

QUICK_SECONDS = 2.0
"""Processor time that a test without the marker ``slow`` may take under ``--hold-quick``, on the machine of REFERENCE.

Twice what it should take alone: two lanes of checks share the processors' caches and clock.
"""

REFERENCE = 0.026
"""Processor seconds of :func:`_loop` on the machine that the tests were marked on (AMD EPYC, 2 cores, idle)."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of this file."""
    group = parser.getgroup("quick and slow tests")
    group.addoption("--slow", action="store_true", help="run only the tests with the marker slow")
    group.addoption("--all", action="store_true", help="run the tests with the marker slow too")
    group.addoption(
        "--hold-quick", action="store_true", help="fail a test that takes two seconds of processor time and is not slow"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that this run does not take."""
    if config.getoption("--all") or any("::" in argument for argument in config.args):
        return
    slow = config.getoption("--slow")
    left_out = [item for item in items if (item.get_closest_marker("slow") is not None) != slow]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if (item.get_closest_marker("slow") is not None) == slow]


def _loop() -> float:
    start = time.process_time()
    total = 0
    for number in range(400_000):
        total += number & 7
    return time.process_time() - start


def _processor_seconds() -> float:
    """Processor time of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def pytest_configure(config: pytest.Config) -> None:
    """Measure how fast this machine is, where quick tests are held to their limit."""
    if config.getoption("--hold-quick"):
        config.stash[_ALLOWED] = QUICK_SECONDS * max(1.0, min(_loop() for _ in range(3)) / REFERENCE)


_ALLOWED = pytest.StashKey[float]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Fail a test that is not marked slow and takes more processor time than a quick one may."""
    allowed = item.config.stash.get(_ALLOWED, None)
    start = _processor_seconds()
    yield
    seconds = _processor_seconds() - start
    if allowed is not None and seconds > allowed and item.get_closest_marker("slow") is None:
        pytest.fail(f"took {seconds:.2f} s of processor time (limit {allowed:.2f} s): make it faster or mark it slow")
