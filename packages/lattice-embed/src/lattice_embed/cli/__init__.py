"""The command line ``lattice-embed``: a thin layer over the public Python API.

Exit status: 0 done; 1 the work failed (a model or file is missing, unreadable or not supported); 2 the request makes no
sense; 130 interrupted; 141 the reader of the output went away.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # without the module typing: see __main__
    import argparse
    from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line on ``arguments`` (default: the process's) and return the exit status."""
    from lattice_inference.cli.process import run_command

    return run_command("lattice-embed", _build_parser, _status_of, arguments)


def _status_of(error: Exception) -> int | None:
    """Return the exit status for an error, or ``None`` for a fault of the program."""
    from lattice_embed.errors import ModelConfigError
    from lattice_inference.cli import status_of

    # that of lattice_inference is about a model's file, this one about a requested output dimension
    return 2 if isinstance(error, ModelConfigError) else status_of(error)


def _build_parser() -> argparse.ArgumentParser:
    """Return the parser, which is imported where an interrupt is expected."""
    from lattice_embed.cli.parser import build_parser

    return build_parser()
