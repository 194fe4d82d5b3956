"""Runs a command line: returns an exit status, and no traceback for a user's mistake.

The packages' command lines have the same file, but for the package's name; a check of the workspace compares them.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Sequence

from lattice_inference.cli.standard_streams import give_up_output, standard_streams

__all__ = ["run_command"]

INTERRUPTED, NO_READER = 130, 141


def run_command(
    program: str,
    build_parser: Callable[[], argparse.ArgumentParser],
    status_of: Callable[[Exception], int | None],
    arguments: Sequence[str] | None,
) -> int:
    """Parse ``arguments``, call the chosen command and return the exit status.

    The command is the parsed options' ``run``.

    Args:
        program: the name before every message on standard error.
        build_parser: returns what parses the arguments, and ends the process itself, with status 2, for those that make no
            sense.
        status_of: returns the exit status for an error, or ``None`` for one that is a fault of the program.
        arguments: what to parse; the process's own by default.
    """
    with standard_streams():
        try:
            return _run(program, build_parser, status_of, arguments)
        except KeyboardInterrupt:
            give_up_output()
            print(f"{program}: interrupted", file=sys.stderr)
            return INTERRUPTED


def _run(
    program: str,
    build_parser: Callable[[], argparse.ArgumentParser],
    status_of: Callable[[Exception], int | None],
    arguments: Sequence[str] | None,
) -> int:
    def show_warning(message: Warning | str, *_: object, **__: object) -> None:
        """Say what a user should know without the line of our source that said it."""
        print(f"{program}: warning: {message}", file=sys.stderr)

    try:
        try:
            parser = build_parser()
            _check_command(parser, sys.argv[1:] if arguments is None else arguments)
            options = parser.parse_args(arguments)
            with warnings.catch_warnings():
                warnings.showwarning = show_warning
                status: int = options.run(options)
        except SystemExit:  # the parser has printed help, or what is wrong with the arguments
            sys.stdout.flush()
            raise
        sys.stdout.flush()
    except Exception as error:
        give_up_output()
        if isinstance(error, BrokenPipeError):
            return NO_READER
        failure = status_of(error)
        if failure is None:
            raise
        print(f"{program}: error: {str(error) or type(error).__name__}", file=sys.stderr)
        return failure
    return status


def _check_command(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """End the process, with status 2, where no command of ours is named.

    Without a command the help is printed. A name that is nearly one of ours is answered with that one.
    """
    for place in range(len(words) + 1):
        commands = next((_.choices for _ in parser._actions if isinstance(_, argparse._SubParsersAction)), None)
        if commands is None:
            return
        if place == len(words):
            parser.print_help(sys.stderr)
            parser.exit(2, f"\n{parser.prog}: error: name one of the commands above\n")
        word = words[place]
        if word in commands:
            parser = commands[word]
        else:
            import difflib

            if close := difflib.get_close_matches(word, commands, n=1):
                parser.error(f"there is no command {word!r:.80}; did you mean {close[0]!r}?")
            return
