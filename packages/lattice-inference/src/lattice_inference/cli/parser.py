"""What may be written on the command line. Each command's own part is in its module."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from lattice_inference._version import __version__
from lattice_inference.cli.commands import COMMANDS
from lattice_inference.cli.option_sources import parse_with, sourced_values
from lattice_inference.errors import LatticeError

__all__ = ["build_parser", "command_module"]

_EXAMPLES = """\
examples:
  lattice tokenize --model ./model.gguf "How many tokens is this?"
  lattice doctor

`lattice COMMAND --help` shows what a command takes, with examples.

An option that is not on the command line is taken from the environment (LATTICE_MAX_TOKENS for --max-tokens), else from
the file that --config names, else it has its default.
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser; the chosen command is the parsed options' ``run``."""
    parser = argparse.ArgumentParser(
        prog="lattice",
        description="Run language models and look into their files.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"lattice {__version__}")
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, parser_class=CommandParser, dest="command"
    )
    for name, summary in COMMANDS.items():
        commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            command=name,
        )
    return parser


def command_module(name: str) -> ModuleType:
    """Return the module of the command ``name``."""
    return importlib.import_module(f"lattice_inference.cli.{name.replace('-', '_')}_command")


class CommandParser(argparse.ArgumentParser):
    """The parser of one command, which imports the command's module when it is first used."""

    def __init__(self, *arguments: Any, command: str, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._command = command
        self._is_complete = False

    @property
    def options(self) -> Sequence[argparse.Action]:
        """Everything that the command takes."""
        self._complete()
        return self._actions

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; what is left out comes from the environment or the configuration file."""
        self._complete()
        try:
            values = sourced_values(self._command, self.options, args or (), _options_of_all_commands)
        except LatticeError as error:
            self.error(str(error))
        parse = super().parse_known_args
        return parse_with(values, lambda: parse(args, namespace))

    def _complete(self) -> None:
        if self._is_complete:
            return
        self._is_complete = True
        module = command_module(self._command)
        module.add_arguments(self)
        self.epilog = module.EXAMPLES
        self.add_argument(
            "--config", metavar="FILE.toml", help="take options from a file: its top, or its table named as the command"
        )
        self.set_defaults(run=module.run)


def _options_of_all_commands() -> dict[str, Sequence[argparse.Action]]:
    """Return the options of each command: a configuration file serves all of them."""
    return {name: CommandParser(command=name).options for name in COMMANDS}
