"""The command ``completion``: a script that completes a command line in a shell.

The packages' command lines have the same file, but for the package's name; a check of the workspace compares them.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable

__all__ = ["EXAMPLES", "SUMMARY", "add_completion", "add_shell", "completion_script"]

SUMMARY = "print a script that completes this command line in a shell"

EXAMPLES = """\
examples:
  {program} completion bash > ~/.local/share/bash-completion/completions/{program}
  {program} completion zsh > ~/.zfunc/_{program}
  {program} completion fish > ~/.config/fish/completions/{program}.fish

The script is made by shtab, which the extra {extra} brings. It does not change by itself: print it again after an upgrade.
"""

SHELLS = ("bash", "zsh", "fish")

FOLDERS = frozenset({"DIR", "FOLDER"})
"""Placeholders of values that are folders; the shell offers folders alone."""

FILES = FOLDERS | {
    *("ADAPTER", "BASE", "BASELINE", "DATA", "DESTINATION", "FILE", "MODEL", "MODEL_A", "MODEL_B", "PATH", "REPORT"),
    *("SOURCE", "STORE", "STUDENT", "TEACHER", "TEXTS"),
}
"""Placeholders of values that may be files or folders; those with a suffix, such as ``FILE.npy``, are files, too."""


def add_completion(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    parser: argparse.ArgumentParser,
    extra: str,
    error: Callable[[str], Exception],
) -> None:
    """Add the command ``completion`` for all that ``parser`` takes.

    Args:
        commands: where it is added.
        parser: the parser of the whole command line.
        extra: what to install for shtab.
        error: makes the error for a missing shtab of its message.
    """
    command = commands.add_parser(
        "completion",
        help=SUMMARY,
        description=f"{SUMMARY[0].upper()}{SUMMARY[1:]}.",
        epilog=EXAMPLES.format(program=parser.prog, extra=extra),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_shell(command)

    def run(options: argparse.Namespace) -> int:
        """Print the script."""
        print(completion_script(parser, options.shell, extra, error))
        return 0

    command.set_defaults(run=run)


def add_shell(command: argparse.ArgumentParser) -> None:
    """Add the shell's name."""
    command.add_argument("shell", choices=SHELLS, help="the shell that is to read it")


def completion_script(
    parser: argparse.ArgumentParser, shell: str, extra: str, error: Callable[[str], Exception]
) -> str:
    """Return the script; see :func:`add_completion`."""
    try:
        import shtab
    except ImportError:
        raise error(f"completion needs shtab, which is not installed: pip install '{extra}'") from None
    _mark_paths(parser, shtab.FILE, shtab.DIRECTORY)
    script: str = shtab.complete(parser, shell)
    return script


def _mark_paths(parser: argparse.ArgumentParser, files: object, folders: object) -> None:
    """Tell shtab which values of ``parser`` and its commands are names of files or folders."""
    for action in getattr(parser, "options", parser._actions):
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _mark_paths(command, files, folders)
        elif isinstance(action.metavar, str) and action.nargs != 0:
            words = set(re.split(r"[|:[\]]+", action.metavar))
            if words & FILES or any(re.fullmatch(r"\w+\.[a-z]+", word) for word in words):
                action.complete = folders if words <= FOLDERS else files
