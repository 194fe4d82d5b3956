"""``lattice doctor``: what would be used on this machine."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
from typing import Any

import lattice_inference
from lattice_inference.cli.model_path import model_path
from lattice_inference.cli.options import add_json
from lattice_inference.errors import InvalidInputError
from lattice_inference.memory_fit import estimate_memory

__all__ = ["EXAMPLES", "add_arguments", "run"]

EXAMPLES = """\
examples:
  lattice doctor
  lattice doctor --json > report.json
  lattice doctor model.gguf --context 8192

With a model, it says before anything is loaded whether weights and context fit into the memory that is available now.
"""

DEPENDENCIES = ("numpy", "jinja2", "huggingface_hub", "regex")
VARIABLES = (
    "LATTICE_MODEL_CACHE",
    "LATTICE_OFFLINE",
    "HF_HUB_OFFLINE",
    "HF_HOME",
    "LATTICE_NUM_THREADS",
    "OMP_NUM_THREADS",
    "LATTICE_ISA",
    "LATTICE_CONFIG",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    parser.add_argument(
        "model", nargs="?", metavar="FILE|DIR|NAME", help="a model to be weighed against the memory here"
    )
    parser.add_argument(
        "--context", type=int, metavar="N", help="tokens of context (default: the model's, at most 4,096)"
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print the report."""
    report = _report()
    if options.model is not None:
        report["memory"] = _memory(options.model, options.context)
    elif options.context is not None:
        raise InvalidInputError("--context is of use with a model only")
    if options.json:
        print(json.dumps(report))
        return 0
    for title, section in report.items():
        print(title)
        for name, value in section.items():
            print(f"  {name:<20} {_for_people(value)}")
    return 0


def _for_people(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "not set" if value is None else str(value)


def _report() -> dict[str, dict[str, Any]]:
    return {
        "versions": {
            "lattice-inference": lattice_inference.__version__,
            "python": platform.python_version(),
            **{name: _version(name) for name in DEPENDENCIES},
            "numerics": lattice_inference.NUMERICS_VERSION,
        },
        "platform": {"system": platform.platform(), "machine": platform.machine()},
        "cpu": dict(lattice_inference.cpu_info()),
        "environment": {name: os.environ.get(name) for name in VARIABLES},
    }


def _memory(model: str, context: int | None) -> dict[str, Any]:
    need = estimate_memory(model_path(model), context=context)
    return {
        "model": str(need.path),
        "weights_bytes": need.weights_bytes,
        "context": need.context,
        "kv_bytes": need.kv_bytes,
        "needed_bytes": need.needed_bytes,
        "available_bytes": need.available_bytes,
        "fits": need.fits,
    }


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
