"""Quick and slow tests: selection, time limit of quick ones, and Hypothesis profiles.

Without an option a run takes the tests that lack the marker ``slow``; ``--slow`` takes the others, ``--all`` both. A test
that is named by its node id always runs.

Hypothesis draws the same examples in every run (profiles ``quick`` and ``ci``), so that an unchanged tree cannot fail by a
new one. ``--hypothesis-profile fresh`` draws others each time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The load of a machine fails no test: neither a limit of an example's time nor a check of how fast examples are drawn.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", PATIENT, derandomize=True, max_examples=30)
settings.register_profile("ci", PATIENT, derandomize=True, max_examples=100)
settings.register_profile("fresh", PATIENT, derandomize=False, max_examples=300, print_blob=True)

QUICK_SECONDS = 1.0
"""Processor time that a test without the marker ``slow`` should take at most, on the machine of REFERENCE.

``--hold-quick`` names the tests that take more.
"""

MOST_TIMES = 4.0
"""How many times :data:`QUICK_SECONDS` fails a test under ``--hold-quick``.

A busy host doubles the processor time of a test: what is slow by accident is named, what is slow by itself fails.
"""

REFERENCE = 0.026
"""Processor seconds of :func:`_loop` on the machine that the tests were marked on (AMD EPYC, 2 cores, idle)."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of this file."""
    group = parser.getgroup("quick and slow tests")
    group.addoption("--slow", action="store_true", help="run only the tests with the marker slow")
    group.addoption("--walks", type=int, default=1_000, help="random walks through masks of grammars (default: 1,000)")
    group.addoption("--all", action="store_true", help="run the tests with the marker slow too")
    group.addoption(
        "--hold-quick",
        action="store_true",
        help="name tests over a second of processor time without the marker slow; fail those over four",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files of quick tests where only slow ones run: to import them takes longer."""
    if not config.getoption("--slow") or collection_path.suffix != ".py":
        return None
    return None if _names_marker(collection_path) else True


def _names_marker(path: Path) -> bool:
    return "mark.slow" in path.read_text(encoding="utf-8")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that this run does not take."""
    if config.getoption("--all") or any("::" in argument for argument in config.args):
        return
    slow = config.getoption("--slow")
    left_out = [item for item in items if (item.get_closest_marker("slow") is not None) != slow]
    for path in {item.path for item in left_out if not slow}:
        if not _names_marker(path):
            raise pytest.UsageError(
                f"{path} has slow tests and must say mark.slow itself: --slow looks for these words"
            )
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
    """Choose a Hypothesis profile, and measure this machine's speed.

    The speed is needed if quick tests are held to their limit.
    """
    if config.getoption("--hypothesis-profile") is None:
        settings.load_profile("ci" if config.getoption("--slow") or config.getoption("--all") else "quick")
    if config.getoption("--hold-quick"):
        config.stash[_QUICK] = QUICK_SECONDS * max(1.0, min(_loop() for _ in range(3)) / REFERENCE)


_QUICK = pytest.StashKey[float]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Report or fail an unmarked test that takes more processor time than a quick one may."""
    quick = item.config.stash.get(_QUICK, None)
    start = _processor_seconds()
    yield
    seconds = _processor_seconds() - start
    if quick is None or seconds <= quick or item.get_closest_marker("slow") is not None:
        return
    message = f"took {seconds:.2f} s of processor time (limit {quick:.2f} s): make it faster or mark it slow"
    if seconds > MOST_TIMES * quick:
        pytest.fail(message)
    item.user_properties.append((_OVER, message))  # goes to the main process with the report, also from a worker


_OVER = "over the limit of quick tests"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the tests that were over the limit and did not fail."""
    for report in terminalreporter.getreports("passed"):
        for name, message in report.user_properties:
            if name == _OVER:
                terminalreporter.write_line(f"SLOW {report.nodeid} - {message}")
