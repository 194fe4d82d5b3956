"""Writes a manual page of a command line: ``python ci/man_pages.py lattice_fann FOLDER``.

It is made from the parser. It runs in an environment in which the package is installed, and needs nothing else.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["main", "man_page"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page of a package's command line into a folder and print its path."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", help="the package that is imported, such as lattice_fann")
    parser.add_argument("folder", type=Path, help="where the page goes; made if it is missing")
    options = parser.parse_args(arguments)
    described: argparse.ArgumentParser = importlib.import_module(f"{options.package}.cli.parser").build_parser()
    version = importlib.import_module(options.package).__version__
    day = time.strftime("%Y-%m-%d", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))))
    options.folder.mkdir(parents=True, exist_ok=True)
    path = options.folder / f"{described.prog}.1"
    path.write_text(man_page(described, f"{options.package.replace('_', '-')} {version}", day), encoding="utf-8")
    print(path)
    return 0


def man_page(parser: argparse.ArgumentParser, source: str, day: str) -> str:
    """Return the page of a command line, with all its commands, as ``man`` reads it.

    Args:
        parser: the parser of the whole command line.
        source: package and version, which stand in the footer.
        day: the date there.
    """
    lines = [f'.TH "{parser.prog.upper()}" 1 "{day}" "{source}" "Lattice"']
    summary = (parser.description or "").rstrip(".")
    lines += [".SH NAME", _text(f"{parser.prog} - {summary[:1].lower()}{summary[1:]}"), ".SH SYNOPSIS"]
    lines += _synopsis(parser)
    lines += [".SH OPTIONS", *_arguments(parser), *_verbatim(parser.epilog)]
    for command in _commands(parser):
        lines += [f'.SH "{_text(command.prog.upper())}"', *_synopsis(command), ".PP", _text(command.description or "")]
        lines += [*_arguments(command), *_verbatim(command.epilog)]
    return "\n".join(lines) + "\n"


def _actions(parser: argparse.ArgumentParser) -> Sequence[argparse.Action]:
    """Return what a parser takes; that of ``lattice`` imports a command on first use."""
    found: Sequence[argparse.Action] = getattr(parser, "options", parser._actions)
    return [action for action in found if action.help is not argparse.SUPPRESS]


def _commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield every command, each followed by its own."""
    for action in _actions(parser):
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield command
                yield from _commands(command)


def _value(action: argparse.Action) -> str:
    """Return how the value of an option or an argument is written."""
    if action.nargs == 0:
        return ""
    if action.metavar is not None:
        name = action.metavar if isinstance(action.metavar, str) else " ".join(action.metavar)
    elif action.choices is not None:
        name = "|".join(map(str, action.choices))
    else:
        name = action.dest.upper() if action.option_strings else action.dest
    several = {"*": f"[{name} ...]", "+": f"{name} [{name} ...]", "?": f"[{name}]"}
    return several.get(str(action.nargs), name)


def _synopsis(parser: argparse.ArgumentParser) -> list[str]:
    words = ["[options]"]
    words += [f"{action.option_strings[-1]} {_value(action)}" for action in _actions(parser) if _is_needed(action)]
    words += [_value(action) for action in _actions(parser) if not action.option_strings]
    return [f".B {_text(parser.prog)}", _text(" ".join(words))]


def _is_needed(action: argparse.Action) -> bool:
    return bool(action.option_strings) and action.required


def _arguments(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield an entry for each argument, option and command."""
    for action in _actions(parser):
        if isinstance(action, argparse._SubParsersAction):
            for choice in action._choices_actions:
                yield from (".TP", f".B {_text(choice.dest)}", _text(choice.help or ""))
            continue
        term = " ".join(filter(None, [", ".join(action.option_strings), _value(action)]))
        details = {name: value for name, value in vars(action).items() if value is not argparse.SUPPRESS}
        yield from (".TP", f".B {_text(term)}", _text((action.help or "") % (details | {"prog": parser.prog})))


def _verbatim(text: str | None) -> Iterator[str]:
    """Yield the end of a command's help as it is."""
    if text:
        yield from (".PP", ".nf", *map(_text, text.strip("\n").splitlines()), ".fi")


def _text(text: str) -> str:
    """Return one line of text without meaning to ``man``."""
    plain = (
        text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga").replace("~", "\\(ti")
    )
    return f"\\&{plain}" if plain.startswith((".", "\\(aq")) else plain.replace('"', "\\(dq")


if __name__ == "__main__":
    sys.exit(main())
