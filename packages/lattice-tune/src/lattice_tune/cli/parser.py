"""What may be written on the command line, and its help."""

from __future__ import annotations

import argparse
import importlib

from lattice_inference.cli.completion import add_completion
from lattice_tune._version import __version__
from lattice_tune.errors import MissingDependencyError

__all__ = ["build_parser"]

_GROUPS: tuple[str, ...] = (
    "distill_command",
    "label_command",
    "student_command",
    "dataset_command",
    "lora_command",
    "registry_commands",
    "doctor_command",
)
"""Modules of ``lattice_tune.cli``; each has ``add_commands(commands)`` and imports the work when a command runs."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser; the chosen command is the parsed options' ``run``."""
    parser = argparse.ArgumentParser(
        prog="lattice-tune",
        description="Label texts, train small classifiers and adapters on them, and keep them in a registry.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"lattice-tune {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for group in _GROUPS:
        importlib.import_module(f"lattice_tune.cli.{group}").add_commands(commands)
    add_completion(commands, parser, "lattice-tune[completion]", MissingDependencyError)
    return parser
