"""Parsers of commands whose options a TOML file may give."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lattice_inference.cli.option_sources import file_values, named_file, parse_with
from lattice_inference.errors import LatticeError

__all__ = ["ConfiguredParser", "add_config"]


class ConfiguredParser(argparse.ArgumentParser):
    """A parser whose missing options come from the file that ``--config`` names.

    :func:`add_config` gives it that option; without, it is a plain parser.
    """

    tables: Mapping[str, argparse.ArgumentParser] = {}
    table = ""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse a command line."""
        file = named_file(args or ()) if self.tables else None
        values = {}
        if file:
            try:
                options = {name: parser._actions for name, parser in self.tables.items()}
                values = file_values(Path(file), self.table, self._actions, options)
            except LatticeError as error:
                self.error(str(error))
        parse = super().parse_known_args
        return parse_with(values, lambda: parse(args, namespace))


def add_config(parsers: Mapping[str, ConfiguredParser]) -> None:
    """Add ``--config`` to commands that share a file.

    Each has a table in it, and the top is for all of them.
    """
    for name, parser in parsers.items():
        parser.add_argument(
            "--config", metavar="FILE.toml", help=f"take options from a file: its top, or its table {name}"
        )
        parser.table, parser.tables = name, parsers
