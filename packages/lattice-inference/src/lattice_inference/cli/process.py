"""What a command line owes the process that called it: an exit status, and no traceback for a user's mistake."""

from __future__ import annotations

import argparse
import io
import os
import sys
import warnings
from collections.abc import Callable, Sequence

from lattice_inference.errors import InvalidInputError, LatticeError

__all__ = ["run_command"]


def run_command(
    program: str, build_parser: Callable[[], argparse.ArgumentParser], arguments: Sequence[str] | None
) -> int:
    """Parse ``arguments``, call the chosen command (the parsed options' ``run``) and return the exit status.

    Args:
        program: the name before every message on standard error.
        build_parser: returns what parses the arguments, and ends the process itself, with status 2, for those that make no
            sense.
        arguments: what to parse; the process's own by default.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # texts may hold what the terminal's encoding does not

    def show_warning(message: Warning | str, *_: object, **__: object) -> None:
        """Say what a user should know without the line of our source that said it."""
        print(f"{program}: warning: {message}", file=sys.stderr)

    try:
        options = build_parser().parse_args(arguments)
        with warnings.catch_warnings():
            warnings.showwarning = show_warning
            status: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        _give_up_output()
        return 141
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        return 130
    except (LatticeError, OSError) as error:
        _give_up_output()
        print(f"{program}: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, InvalidInputError) else 1
    return status


def _give_up_output() -> None:
    """Write out what is left, or, where that fails, drop it: the interpreter would try again at exit and complain."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
