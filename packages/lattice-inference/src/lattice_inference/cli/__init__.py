"""The command line ``lattice``: a thin layer over the public Python API.

Exit status: 0 done; 1 the work failed (a model or file is missing, unreadable or not supported); 2 the request makes no
sense; 130 interrupted; 141 the reader of the output went away.

A command is a module ``NAME_command`` (dashes as underscores) in this package, and one line in
:data:`lattice_inference.cli.commands.COMMANDS`, which says what it must hold.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # without the module typing: see __main__
    import argparse
    from collections.abc import Sequence

__all__ = ["main", "status_of"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line on ``arguments`` (default: the process's) and return the exit status."""
    from lattice_inference.cli.process import run_command

    return run_command("lattice", _build_parser, status_of, arguments)


def status_of(error: Exception) -> int | None:
    """Return the exit status for an error, or ``None`` for a fault of the program."""
    from lattice_inference.errors import InvalidInputError, LatticeError

    if isinstance(error, InvalidInputError):
        return 2
    return 1 if isinstance(error, (LatticeError, OSError, MemoryError)) else None


def _build_parser() -> argparse.ArgumentParser:
    """Return the parser, which is imported where an interrupt is expected."""
    from lattice_inference.cli.parser import build_parser

    return build_parser()
