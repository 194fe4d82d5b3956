"""Options that several commands share, and what they name."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lattice_tune.errors import DatasetError, InvalidInputError, shown

if TYPE_CHECKING:
    from lattice_tune.datasets.config import DatasetConfig
    from lattice_tune.datasets.dataset import Dataset
    from lattice_tune.datasets.example import TrainingExample

__all__ = [
    "add_dataset",
    "add_dry_run",
    "add_json",
    "add_training",
    "check_output",
    "open_dataset",
    "print_json",
    "split_names",
]

_TEXT_SUFFIX = ".txt"


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``."""
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object, and nothing else, on standard output"
    )


def add_dry_run(parser: argparse.ArgumentParser, what: str) -> None:
    """Add ``--dry-run``."""
    parser.add_argument("--dry-run", action="store_true", help=what)


def add_dataset(parser: argparse.ArgumentParser) -> None:
    """Add how files are read."""
    group = parser.add_argument_group("how files are read")
    group.add_argument(
        "--on-error", choices=("raise", "skip"), default="raise", help="end at a bad row, or skip and list it"
    )
    group.add_argument(
        "--text-field", metavar="NAME", default="text", help="field or column of the text (default: text)"
    )
    group.add_argument(
        "--label-field", metavar="NAME", default="label", help="field or column of the label (default: label)"
    )
    group.add_argument(
        "--max-line-bytes", type=int, metavar="N", default=16 << 20, help="longest line (default: 16 MiB)"
    )


def add_training(parser: argparse.ArgumentParser) -> None:
    """Add how a student is trained."""
    group = parser.add_argument_group("training")
    group.add_argument(
        "--hidden", metavar="N,N", default="256", help="widths of the hidden layers, or none (default: 256)"
    )
    group.add_argument("--epochs", type=int, metavar="N", default=100, help="most epochs (default: 100)")
    group.add_argument("--batch-size", type=int, metavar="N", default=32, help="examples in a mini-batch (default: 32)")
    group.add_argument("--learning-rate", type=float, metavar="X", default=0.001, help="of AdamW (default: 0.001)")
    group.add_argument(
        "--dropout", type=float, metavar="X", default=0.5, help="part of a vector set to zero (default: 0.5)"
    )
    group.add_argument(
        "--label-smoothing", type=float, metavar="X", default=0.1, help="part of a target spread over all labels"
    )
    group.add_argument(
        "--soft-temperature", type=float, metavar="T", default=2.0, help="at which the teacher is learned (default: 2)"
    )
    group.add_argument(
        "--hard-share", type=float, metavar="X", default=0.5, help="hard labels' share of the loss (default: 0.5)"
    )
    group.add_argument(
        "--patience", type=int, metavar="N", default=10, help="epochs to wait for a better one (default: 10)"
    )
    group.add_argument(
        "--val-split", type=float, metavar="X", default=0.1, help="part kept out of training (default: 0.1)"
    )
    group.add_argument("--balance", action="store_true", help="weight examples so that all labels count alike")
    group.add_argument(
        "--confidence", type=float, metavar="X", help="pass texts of a lower confidence back to the teacher"
    )
    group.add_argument("--seed", type=int, metavar="N", default=42, help="of weights, orders and splits (default: 42)")
    group.add_argument("--prompt", metavar="TEXT", default="", help="put before every text by the encoder")


def open_dataset(paths: list[str], options: argparse.Namespace) -> Dataset:
    """Return the dataset that ``paths`` name; a ``.txt`` file holds a text a line."""
    from lattice_tune.datasets.config import DatasetConfig
    from lattice_tune.datasets.dataset import Dataset

    config = DatasetConfig(
        on_error=options.on_error,
        text_field=options.text_field,
        label_field=options.label_field,
        max_line_bytes=options.max_line_bytes,
    )
    if len(paths) == 1 and Path(paths[0]).suffix.lower() == _TEXT_SUFFIX:
        return Dataset(_texts(Path(paths[0]), config), config=config)
    return Dataset.open(list(paths), config=config)


def _texts(path: Path, config: DatasetConfig) -> list[TrainingExample]:
    from lattice_tune.datasets.example import TrainingExample
    from lattice_tune.datasets.lines import numbered_lines
    from lattice_tune.datasets.rows import RowError

    found = []
    for number, line in numbered_lines(path, config.max_line_bytes):
        if isinstance(line, RowError):
            raise DatasetError(f"{path}:{number}: {line}")
        if line.strip():
            found.append(TrainingExample(text=line.rstrip("\r\n")))
    return found


def split_names(text: str, name: str) -> list[str]:
    """Return the parts of a list with commas.

    Raises:
        InvalidInputError: one is empty.
    """
    parts = [part.strip() for part in text.split(",")]
    if "" in parts:
        raise InvalidInputError(f"{name} is {shown(text)}; write names with commas between them: a,b,c")
    return parts


def check_output(name: str, suffix: str = "", option: str = "--output") -> Path:
    """Return a path that can be written, before any work is done.

    Raises:
        InvalidInputError: it has another suffix, or is a folder.
        DatasetError: its folder is not there or cannot be written to.
    """
    from lattice_inference.checkpoint.atomic_file import check_replaceable

    path = Path(name)
    if not path.name or path.is_dir() or (suffix and path.suffix.lower() != suffix):
        raise InvalidInputError(
            f"{option} is {shown(name)}; it must name a file{' ending in ' + suffix if suffix else ''}"
        )
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise DatasetError(f"{path}: there is no folder {path.parent} that can be written to")
    try:
        check_replaceable(path)
    except PermissionError as error:
        raise DatasetError(f"{path}: {error.strerror}") from None
    return path


def print_json(value: Any) -> None:
    """Print an object as JSON."""
    print(json.dumps(value, ensure_ascii=False, allow_nan=False))
