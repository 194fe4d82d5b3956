"""Times a model registry of ten thousand versions: finding the latest, and storing 1 MB.

A registration waits for the disk: for each call of fsync, and for two commits of SQLite, which end in one. The figure is
what it takes beside them: the time of the call less the time in ``os.fsync`` and in COMMIT. The processor's time of the
whole call, with what COMMIT computes, stands next to it, and must keep the same limit. On a machine that does other work
the processor's time says more.

The registry is filled without forcing anything to the disk; what is measured is forced as always.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any
from unittest import mock

from harness.options import Record, add_record_options, finish, limits, positive_int
from harness.progress import report
from harness.record import describe_run
from harness.tables import markdown_table, provenance

__all__ = ["main", "misses", "render"]

SCRIPT = "registry"
NAME = "intent"
CONTENT_BYTES = 1_000_000

EXAMPLES = """
examples:
  python benchmarks/registry.py                            10,000 versions; a minute
  python benchmarks/registry.py --versions 1000 --check    fewer; exit 1 if a limit is missed
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--versions", type=positive_int, default=10_000, metavar="N", help="in the registry (default: 10000)"
    )
    parser.add_argument("--rounds", type=positive_int, default=101, metavar="N", help="of each call (default: 101)")
    add_record_options(parser, SCRIPT)
    options = parser.parse_args(arguments)
    return finish(SCRIPT, options, measure=partial(measure, options), render=render, misses=misses)


def measure(options: argparse.Namespace) -> Record:
    """Run what the options ask for and return the record.

    Raises:
        RuntimeError: the registry found another version than the highest, or is not sound at the end.
    """
    from lattice_tune import ModelRegistry

    record = describe_run(SCRIPT)
    record |= {"count": options.versions, "get_latest": [], "register": []}
    with tempfile.TemporaryDirectory(prefix="lattice-registry-") as folder:
        _fill(folder, options.versions)
        with ModelRegistry(folder) as registry:
            highest = f"{options.versions - 1}.0.0"
            for _ in range(options.rounds):
                start, cpu = time.perf_counter(), time.process_time()
                found = registry.get_latest(NAME)
                record["get_latest"].append([time.perf_counter() - start, 0.0, time.process_time() - cpu])
                if str(found.version) != highest:
                    raise RuntimeError(f"the latest version is {found.version}, not {highest}")
            waits = _Waits(registry)
            for number in range(options.rounds):
                content = os.urandom(CONTENT_BYTES)
                waits.seconds = 0.0
                start, cpu = time.perf_counter(), time.process_time()
                registry.register(NAME, f"0.{number + 1}.0", content)
                wall = time.perf_counter() - start
                record["register"].append([wall, waits.seconds, time.process_time() - cpu])
            waits.stop()
            if not registry.verify(contents=False).is_clean:
                raise RuntimeError("the registry is not sound")
    report()
    return record


def _fill(folder: str, count: int) -> None:
    """Make a registry of so many versions, a tenth of them pre-releases.

    Its writes are not flushed.
    """
    from lattice_tune import ModelRegistry
    from lattice_tune.registry import database

    with (
        mock.patch.object(os, "fsync", return_value=None),
        mock.patch.object(database, "SYNCHRONOUS", "OFF"),
        ModelRegistry(folder) as registry,
    ):
        for number in range(count):
            if number % 500 == 0:
                report(f"version {number} of {count}")
            version = f"{number}.0.0-rc.1" if number % 10 == 3 and number < count - 1 else f"{number}.0.0"
            registry.register(NAME, version, b"%d" % (number % 100))


class _Waits:
    """Adds up the seconds in ``os.fsync`` and in COMMIT."""

    def __init__(self, registry: Any) -> None:
        self.seconds = 0.0
        self._database = registry.store.database
        self._fsync, self._rows = os.fsync, self._database.rows
        os.fsync = self._timed(self._fsync)
        self._database.rows = self._timed_commit

    def stop(self) -> None:
        """Put everything back."""
        os.fsync = self._fsync
        del self._database.rows

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            start = time.perf_counter()
            try:
                return call(*arguments)
            finally:
                self.seconds += time.perf_counter() - start

        return timed

    def _timed_commit(self, statement: str, values: Sequence[object] = (), **options: Any) -> Any:
        rows = self._timed(self._rows) if statement == "COMMIT" else self._rows
        return rows(statement, values, **options)


def _figures(record: Mapping[str, Any]) -> dict[str, tuple[float, float, float, float]]:
    """Return medians in milliseconds by call: total, disk waits, the rest, and processor time."""
    figures = {}
    for call in ("get_latest", "register"):
        walls, waits, cpus = zip(*record[call], strict=True)
        beside = [wall - wait for wall, wait in zip(walls, waits, strict=True)]
        figures[call] = (1e3 * median(walls), 1e3 * median(waits), 1e3 * median(beside), 1e3 * median(cpus))
    return figures


def render(record: Mapping[str, Any]) -> str:
    """Return the tables of a record."""
    names = {"get_latest": "`get_latest`", "register": "`register` of 1 MB"}
    rows = [[names[call], *(f"{figure:.2f}" for figure in figures)] for call, figures in _figures(record).items()]
    header = [f"of {record['count']:,} versions, ms", "call", "in fsync and COMMIT", "without them", "processor"]
    return f"{markdown_table(header, rows)}\n\n{provenance(record)}"


def misses(record: Mapping[str, Any]) -> list[str]:
    """Say which limits the record misses."""
    limit = limits(SCRIPT)
    found = []
    for call, (_, _, beside, cpu) in _figures(record).items():
        most = limit[f"{call}_ms"]
        if not max(beside, cpu) <= most:
            found.append(
                f"{call}: {beside:.2f} ms beside the disk, {cpu:.2f} ms of the processor, {most:g} is the limit"
            )
    return found


if __name__ == "__main__":
    raise SystemExit(main())
