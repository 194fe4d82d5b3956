"""``lattice completion``: a script that completes the command line in a shell."""

from __future__ import annotations

import argparse

from lattice_inference.cli import completion
from lattice_inference.errors import UnsupportedError

__all__ = ["EXAMPLES", "add_arguments", "run"]

_EXTRA = "lattice-inference[completion]"

EXAMPLES = completion.EXAMPLES.format(program="lattice", extra=_EXTRA)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    completion.add_shell(parser)


def run(options: argparse.Namespace) -> int:
    """Print the script."""
    from lattice_inference.cli.parser import build_parser  # which imports this module

    print(completion.completion_script(build_parser(), options.shell, _EXTRA, UnsupportedError))
    return 0
