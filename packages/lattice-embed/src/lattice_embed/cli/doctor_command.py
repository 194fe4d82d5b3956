"""``lattice-embed doctor``: what would be used on this machine."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
from dataclasses import asdict
from typing import Any

import lattice_inference
from lattice_embed._version import __version__
from lattice_embed.cli.model_sources import report_models
from lattice_embed.model_source import default_model, resolve_model
from lattice_embed.vectors import _vectors
from lattice_inference.files.environment import is_offline

__all__ = ["run"]

DEPENDENCIES = ("numpy", "blake3", "jinja2", "huggingface_hub", "regex", "httpx2", "pyarrow")
"""What this package and lattice-inference import, the last four only where they are installed."""

VARIABLES = (
    "LATTICE_EMBED_MODEL",
    "LATTICE_EMBED_DIM",
    "LATTICE_QWEN_MODEL_DIR",
    "LATTICE_MODEL_CACHE",
    "LATTICE_VECTOR_CACHE",
    "LATTICE_OFFLINE",
    "LATTICE_ALLOW_PLAIN_HTTP",
    "HF_HUB_OFFLINE",
    "HF_HOME",
    "LATTICE_NUM_THREADS",
    "OMP_NUM_THREADS",
    "LATTICE_ISA",
)


def run(options: argparse.Namespace) -> int:
    """Print the report."""
    report = _report()
    if options.json:
        print(json.dumps(report))
        return 0
    for title in ("versions", "platform", "cpu", "environment"):
        print(title)
        for name, value in report[title].items():
            print(f"  {name:<20} {_for_people(value)}")
    print(f"models (default: {report['default_model']}; {'offline' if report['offline'] else 'online'})")
    for model in report["models"]:
        print(f"  {model['name']}{'' if model['runs_here'] else ': ' + model['reason']}")
        for source in model["sources"] if model["runs_here"] else ():
            found = "found" if source["found"] else "no"
            detail = source["note"] or (f"lacks {', '.join(source['missing'])}" if source["missing"] else "")
            print(f"    {source['source']:<9} {found:<5} {source['location']}{' (' + detail + ')' if detail else ''}")
    return 0


def _for_people(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "not set" if value is None else str(value)


def _report() -> dict[str, Any]:
    cpu = lattice_inference.cpu_info()
    return {
        "versions": {
            "lattice-embed": __version__,
            "lattice-inference": lattice_inference.__version__,
            "python": platform.python_version(),
            **{name: _version(name) for name in DEPENDENCIES},
            "numerics": lattice_inference.NUMERICS_VERSION,
        },
        "platform": {"system": platform.platform(), "machine": platform.machine()},
        "cpu": {**cpu, "vector_isa": _vectors.isa_name()},
        "environment": {name: os.environ.get(name) for name in VARIABLES},
        "default_model": resolve_model(default_model()).name,
        "offline": is_offline(),
        "models": [
            {
                "name": report.model.slug,
                "runs_here": report.reason is None,
                "reason": report.reason,
                "sources": [asdict(source) for source in report.sources],
            }
            for report in report_models()
        ],
    }


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
