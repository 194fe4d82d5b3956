"""The command line ``lattice-embed``: a thin door over the public Python API.

Exit status: 0 done; 1 the work failed (a model or file is missing, unreadable or not supported); 2 the request makes no
sense; 130 interrupted; 141 the reader of the output went away.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line on ``arguments`` (default: the process's) and return the exit status."""
    from lattice_embed.cli.parser import build_parser

    options = build_parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # texts may hold what the terminal's encoding does not
    from lattice_inference.errors import InvalidInputError, LatticeError

    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            status: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        _give_up_output()
        return 141
    except KeyboardInterrupt:
        print("lattice-embed: interrupted", file=sys.stderr)
        return 130
    except (LatticeError, OSError) as error:
        _give_up_output()
        print(f"lattice-embed: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, InvalidInputError) else 1
    return status


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Say what a user should know without the line of our source that said it."""
    print(f"lattice-embed: warning: {message}", file=sys.stderr)


def _give_up_output() -> None:
    """Write out what is left, or, where that fails, drop it: the interpreter would try again at exit and complain."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
