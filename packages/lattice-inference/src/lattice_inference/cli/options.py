"""Options that several commands share, spelled and explained once."""

from __future__ import annotations

import argparse
from typing import get_args

from lattice_inference.device_name import DeviceName
from lattice_inference.errors import InvalidInputError
from lattice_inference.thread_count import check_thread_count

__all__ = ["add_device", "add_json", "add_model", "add_texts", "add_threads", "thread_count"]


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``."""
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object, and nothing else, on standard output"
    )


def add_model(parser: argparse.ArgumentParser, what: str = "a GGUF file, a model's directory, or its name") -> None:
    """Add ``--model``, which is required."""
    parser.add_argument("--model", metavar="PATH|NAME", required=True, help=what)


def add_threads(parser: argparse.ArgumentParser) -> None:
    """Add ``--threads``."""
    parser.add_argument(
        "--threads",
        type=thread_count,
        metavar="N",
        help="threads to compute with, 1 to 256 (default: all allowed CPUs)",
    )


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add ``--device``."""
    parser.add_argument(
        "--device",
        choices=get_args(DeviceName),
        default="cpu",
        help="what computes: the CPU, a GPU by Vulkan (wgpu) or Metal, or a GPU if one can be used (auto; default: cpu)",
    )


def thread_count(text: str) -> int:
    """Return the number of threads that ``text`` writes out.

    Raises:
        argparse.ArgumentTypeError: it is no integer from 1 to 256.
    """
    try:
        count: int | str = int(text)
    except ValueError:
        count = text
    try:
        return check_thread_count(count, "the number of threads")
    except InvalidInputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_texts(parser: argparse.ArgumentParser, what: str) -> None:
    """Add texts as arguments, and ``--input``."""
    parser.add_argument("texts", nargs="*", metavar="TEXT", help=what)
    parser.add_argument(
        "--input",
        metavar="FILE",
        help="read texts from a UTF-8 file, one a line, blank lines included; - for standard input",
    )
