"""Options of every script: where the record goes, and tables from an existing record."""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from harness.progress import ask_for_progress
from harness.record import RESULTS, read_record, write_record
from harness.tables import replace_section

__all__ = [
    "add_record_options",
    "add_threads_option",
    "finish",
    "limits",
    "partial_path",
    "positive_int",
    "save_so_far",
    "thread_count",
]

LIMITS_FILE = Path(__file__).parent.parent / "limits.toml"

Record = dict[str, Any]


def limits(script: str) -> dict[str, Any]:
    """Return the limits of ``limits.toml`` for a script."""
    section = tomllib.loads(LIMITS_FILE.read_text(encoding="utf-8"))[script]
    assert isinstance(section, dict)
    return section


def positive_int(text: str) -> int:
    """Read an integer of at least 1, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


def thread_count(text: str) -> int:
    """Read a number of threads, as ``set_num_threads`` takes it, for argparse."""
    number = int(text)
    if not 1 <= number <= 256:
        raise argparse.ArgumentTypeError(f"{text} is not from 1 to 256")
    return number


def add_threads_option(parser: argparse.ArgumentParser, default: Iterable[int], meaning: str) -> None:
    """Add the option for the numbers of threads that everything is measured with, in turn.

    Args:
        parser: the script's.
        default: numbers of threads.
        meaning: of the default, for ``--help``.
    """
    parser.add_argument(
        "--threads", nargs="+", type=thread_count, default=list(default), metavar="N", help=f"(default: {meaning})"
    )


def partial_path(options: argparse.Namespace) -> Path:
    """Return the path of an unfinished record, beside the record."""
    path: Path = options.json
    return path.with_name(f"{path.stem}.partial{path.suffix}")


def save_so_far(options: argparse.Namespace, record: Record) -> None:
    """Write the measurements so far, so that a killed script leaves them.

    ``--from`` reads them.
    """
    write_record(partial_path(options), record)


def add_record_options(parser: argparse.ArgumentParser, script: str) -> None:
    """Add ``--json``, ``--from``, ``--markdown`` and ``--check``."""
    group = parser.add_argument_group("record")
    group.add_argument(
        "--json",
        type=Path,
        default=RESULTS / f"{script}.json",
        metavar="FILE",
        help=f"where to write the record, every raw sample in it (default: benchmarks/results/{script}.json)",
    )
    group.add_argument(
        "--from", dest="source", type=Path, metavar="FILE", help="measure nothing: use the record in FILE instead"
    )
    group.add_argument(
        "--markdown",
        type=Path,
        metavar="FILE",
        help=f"also rewrite the section '{script}' of a document, such as docs/benchmarks.md",
    )
    group.add_argument(
        "--progress",
        action="store_true",
        help="say on standard error what is measured, where that is no terminal: a line each",
    )
    group.add_argument(
        "--check", action="store_true", help="exit with 1 if a limit of benchmarks/limits.toml is missed"
    )


def finish(
    script: str,
    options: argparse.Namespace,
    *,
    measure: Callable[[], Record],
    render: Callable[[Mapping[str, Any]], str],
    misses: Callable[[Mapping[str, Any]], list[str]],
) -> int:
    """Measure or read the record, write it, print its tables, and return the exit status."""
    if options.progress:
        ask_for_progress()
    try:
        if options.source is not None:
            record = read_record(options.source, script)
        else:
            record = measure()
            write_record(options.json, record)
            partial_path(options).unlink(missing_ok=True)
        text = render(record)
        if options.markdown is not None:
            replace_section(options.markdown, script, text)
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("lattice_"):
            raise
        print(
            f"{script}: {error.name} is not installed: "
            "pip install ./packages/lattice-inference ./packages/lattice-embed",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        kept = partial_path(options)
        left = f"what was measured is in {kept}" if kept.exists() else "no record was written"
        print(f"\n{script}: interrupted; {left}", file=sys.stderr)
        return 130
    except (OSError, ValueError, RuntimeError) as error:
        print(f"{script}: {error}", file=sys.stderr)
        return 1
    print(text)
    missed = misses(record)
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if options.check and missed else 0
