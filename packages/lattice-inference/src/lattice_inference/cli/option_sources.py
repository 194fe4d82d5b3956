"""Options that the command line leaves out: from the environment, else from a TOML file.

Precedence: the command line, ``LATTICE_<OPTION>``, the file that ``--config`` (or ``LATTICE_CONFIG``) names, the option's
default. In the file an option has its long name, with dashes or underscores. An option in a table named as the
command counts first. One at the top applies to every command that has it::

    threads = 4

    [generate]
    max-tokens = 200
    stop = ["\\n\\n"]
"""

from __future__ import annotations

import argparse
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lattice_inference.checkpoint.model_file import read_model_file
from lattice_inference.errors import InvalidInputError, LatticeError

__all__ = ["file_values", "named_file", "option_name", "parse_with", "sourced_values"]

MAX_CONFIG_BYTES = 1 << 20

_FLAG_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}

Options = Sequence[argparse.Action]


def option_name(action: argparse.Action) -> str | None:
    """Return an option's long name without dashes.

    None if it has none or ends the program.
    """
    names = [name[2:] for name in action.option_strings if name.startswith("--")]
    return names[0] if names and names[0] not in ("help", "version") else None


def sourced_values(
    command: str, options: Options, arguments: Sequence[str], options_by_command: Callable[[], Mapping[str, Options]]
) -> dict[argparse.Action, Any]:
    """Return the values that the environment and the configuration file have for ``options``.

    Args:
        command: the command, whose table in the file counts first.
        options: the command's own.
        arguments: the command line after the command's name; only ``--config`` is looked for.
        options_by_command: the options of every command, asked for only when there is a file.

    Raises:
        InvalidInputError: a value does not suit its option, or the file names an option or command that does not exist.
        LatticeError: the file cannot be read.
    """
    file = named_file(arguments) or os.environ.get("LATTICE_CONFIG")
    values = file_values(Path(file), command, options, options_by_command()) if file else {}
    for name, action in _by_name(options).items():
        variable = f"LATTICE_{name.replace('-', '_').upper()}"
        text = os.environ.get(variable)
        if text:
            values[action] = _converted(action, _from_text(action, text, variable), variable)
    return values


def file_values(
    path: Path, command: str, options: Options, options_by_command: Mapping[str, Options]
) -> dict[argparse.Action, Any]:
    """Return the values that a file has for ``options``; see :func:`sourced_values`."""
    named = _by_name(options)
    return {
        named[name]: _converted(named[name], value, f"{path}: {name}")
        for name, value in _read_file(path, command, options_by_command).items()
        if name in named and name != "config"
    }


def parse_with(
    values: Mapping[argparse.Action, Any], parse: Callable[[], tuple[argparse.Namespace, list[str]]]
) -> tuple[argparse.Namespace, list[str]]:
    """Return what ``parse`` reads from a command line, with ``values`` where it has nothing."""
    for action in values:
        # not a default, to which an option that collects values would add
        action.default = argparse.SUPPRESS
        action.required = False
    parsed, rest = parse()
    for action, value in values.items():
        if not hasattr(parsed, action.dest):
            setattr(parsed, action.dest, value)
    return parsed, rest


def named_file(arguments: Sequence[str]) -> str | None:
    """Return what ``--config`` names on a command line; None without it."""
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--config", nargs="?")
    found: str | None = finder.parse_known_args(arguments)[0].config
    return found


def _by_name(options: Options) -> dict[str, argparse.Action]:
    return {name: action for action in options if (name := option_name(action)) is not None}


def _read_file(path: Path, command: str, options_by_command: Mapping[str, Options]) -> dict[str, Any]:
    """Return the file's options for ``command`` by their long names."""
    content = read_model_file(path, max_bytes=MAX_CONFIG_BYTES, error=LatticeError)
    try:
        table = tomllib.loads(content.decode("utf-8-sig"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as cause:
        raise InvalidInputError(f"{path}: not TOML: {cause}") from cause
    names = {
        known: {name for action in options if (name := option_name(action)) is not None}
        for known, options in options_by_command.items()
    }
    top = {key: value for key, value in table.items() if not isinstance(value, dict)}
    _check_keys(path, "", top, set().union(*names.values()))
    for key, value in table.items():
        if isinstance(value, dict):
            if key not in names:
                raise InvalidInputError(f"{path}: no command is called {key!r}; there are {', '.join(names)}")
            _check_keys(path, f"[{key}] ", value, names[key])
    return {key.replace("_", "-"): value for key, value in (top | table.get(command, {})).items()}


def _check_keys(path: Path, where: str, keys: Iterable[str], known: set[str]) -> None:
    for key in keys:
        if key.replace("_", "-") not in known:
            raise InvalidInputError(f"{path}: {where}{key}: no such option; there are {', '.join(sorted(known))}")


def _from_text(action: argparse.Action, text: str, where: str) -> object:
    """Return the value that an environment variable's text means to the option."""
    if action.nargs != 0:
        return text
    if text.lower() not in _FLAG_WORDS:
        raise InvalidInputError(f"{where} is {text!r}; expected 1 or 0")
    return _FLAG_WORDS[text.lower()]


def _converted(action: argparse.Action, value: object, where: str) -> Any:
    """Return ``value`` as the option itself would have it."""
    if action.nargs == 0:  # a flag
        if not isinstance(value, bool):
            raise InvalidInputError(f"{where} is {value!r}; expected true or false")
        if isinstance(action, argparse.BooleanOptionalAction):
            return value
        return action.const if value else action.default
    several = action.nargs in ("*", "+") or isinstance(action, argparse._AppendAction)
    if isinstance(value, list) != several and not several:
        raise InvalidInputError(f"{where} is an array; expected one value")
    if several:
        return [_one(action, item, where) for item in (value if isinstance(value, list) else [value])]
    return _one(action, value, where)


def _one(action: argparse.Action, value: object, where: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise InvalidInputError(f"{where} is {value!r}, which the option does not take")
    convert: Callable[[str], Any] = action.type if callable(action.type) else str
    try:
        converted = convert(str(value))
    except argparse.ArgumentTypeError as cause:
        raise InvalidInputError(f"{where} is {value!r}: {cause}") from cause
    except (ValueError, TypeError) as cause:
        kind = getattr(convert, "__name__", "value")
        raise InvalidInputError(f"{where} is {value!r}; expected {kind}") from cause
    if action.choices is not None and converted not in action.choices:
        raise InvalidInputError(f"{where} is {value!r}; expected one of {', '.join(map(str, action.choices))}")
    return converted
