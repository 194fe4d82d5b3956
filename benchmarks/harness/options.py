"""The options that every script has: where the record goes, and tables made from a record without measuring."""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.record import RESULTS, read_record, write_record
from harness.tables import replace_section

__all__ = ["add_record_options", "finish", "limits", "positive_int"]

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
    try:
        if options.source is not None:
            record = read_record(options.source, script)
        else:
            record = measure()
            write_record(options.json, record)
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
        print(f"\n{script}: interrupted; no record was written", file=sys.stderr)
        return 130
    except (OSError, ValueError, RuntimeError) as error:
        print(f"{script}: {error}", file=sys.stderr)
        return 1
    print(text)
    missed = misses(record)
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if options.check and missed else 0
