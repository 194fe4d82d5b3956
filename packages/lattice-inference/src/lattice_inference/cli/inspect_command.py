"""``lattice inspect``: what the files of a model or an adapter hold."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lattice_inference.checkpoint.summary import ArraySummary, CheckpointSummary, Share, summarize
from lattice_inference.cli.model_path import model_path
from lattice_inference.cli.options import add_json
from lattice_inference.lora.description import adapter_weights, describe_adapter

__all__ = ["EXAMPLES", "add_arguments", "run"]

EXAMPLES = """\
examples:
  lattice inspect model.gguf
  lattice inspect model-00001-of-00003.gguf --tensors
  lattice inspect all-minilm-l6-v2 --layers
  lattice inspect ./my-adapter
  lattice inspect model.gguf --json | jq '.metadata["general.architecture"]'

Nothing of a model's weights is read, so even a large one is described at once. A LoRA adapter (the directory of PEFT's or
mlx-lm's, or a GGUF adapter) is read and checked. Shapes are given as NumPy has them, with the dimension that changes fastest
last; llama.cpp's tools print them the other way round.
"""

_SHOWN_CHARACTERS = 72


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    parser.add_argument(
        "model",
        metavar="FILE|DIR|NAME",
        help="a GGUF or safetensors file, the directory of a model or an adapter, a model's name",
    )
    parser.add_argument("--tensors", action="store_true", help="list every tensor")
    parser.add_argument("--layers", action="store_true", help="list what each layer takes, by type")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print the description."""
    weights = adapter_weights(Path(options.model))
    summary = summarize(model_path(options.model) if weights is None else weights)
    adapter = None if weights is None else describe_adapter(Path(options.model))
    idle = _idle(summary) if adapter is None else Share()
    if options.json:
        report = _as_json(summary, options.tensors, options.layers) | {"idle": _share(idle)}
        print(json.dumps(report if adapter is None else report | {"adapter": adapter}))
        return 0
    if adapter is not None:
        print("LoRA adapter")
        for key, value in adapter.items():
            print(f"  {key:<44} {_for_people(value)}")
    for path, size in summary.files.items():
        print(f"{path}  {size / 1e6:,.1f} MB  {summary.format}")
    if summary.metadata:
        print("metadata")
        for key, value in summary.metadata.items():
            print(f"  {_printable(key):<44} {_for_people(value)}")
    _print_shares("type", summary.by_dtype, summary.total)
    if idle.tensors:
        print(
            f"{'idle':<10} {idle.tensors:>8,} {idle.parameters:>16,} {idle.nbytes / 1e6:>10,.1f}  not read by the model"
        )
    if options.layers:
        _print_shares("layer", summary.by_layer, summary.total)
    if options.tensors:
        width = max(map(len, summary.tensors), default=0)
        print("tensors")
        for name, info in summary.tensors.items():
            shape = " x ".join(map(str, info.shape)) or "scalar"
            print(f"  {_printable(name):<{width}}  {info.dtype:<8} {shape:>20} {info.nbytes:>14,} bytes")
    return 0


def _idle(summary: CheckpointSummary) -> Share:
    """Return the share of the tensors that the model does not read."""
    from lattice_inference.models.opened_model import idle_tensors

    share = Share()
    for name in idle_tensors(summary.path):
        share.add(summary.tensors[name])
    return share


def _print_shares(title: str, shares: Mapping[str, Share], total: Share) -> None:
    print(f"{title:<10} {'tensors':>8} {'parameters':>16} {'MB':>10}")
    for name, share in [*shares.items(), ("all", total)]:
        kinds = (
            ""
            if title == "type"
            else "  " + ", ".join(f"{kind} {nbytes / 1e6:,.1f}" for kind, nbytes in share.bytes_by_dtype.items())
        )
        print(f"{name:<10} {share.tensors:>8,} {share.parameters:>16,} {share.nbytes / 1e6:>10,.1f}{kinds}")


def _for_people(value: object) -> str:
    if isinstance(value, ArraySummary):
        more = "" if value.count <= len(value.first) else ", ..."
        return f"{value.count:,} x {value.kind}: [{_cut(', '.join(map(repr, value.first)))}{more}]"
    return _cut(repr(value) if isinstance(value, str) else str(value))


def _printable(name: str) -> str:
    """Return a name that a terminal does not take for commands."""
    return name if name.isprintable() else repr(name)


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _as_json(summary: CheckpointSummary, tensors: bool, layers: bool) -> dict[str, Any]:
    report: dict[str, Any] = {
        "path": str(summary.path),
        "format": summary.format,
        "files": [{"path": str(path), "bytes": size} for path, size in summary.files.items()],
        "architecture": summary.architecture,
        "name": summary.name,
        "metadata": {key: _plain(value) for key, value in summary.metadata.items()},
        **_share(summary.total),
        "by_dtype": {name: _share(share) for name, share in summary.by_dtype.items()},
    }
    if layers:
        report["by_layer"] = {name: _share(share) for name, share in summary.by_layer.items()}
    if tensors:
        report["tensors"] = [
            {
                "name": name,
                "dtype": info.dtype,
                "shape": list(info.shape),
                "bytes": info.nbytes,
                "file": str(info.file),
                "offset": info.offset,
            }
            for name, info in summary.tensors.items()
        ]
    return report


def _share(share: Share) -> dict[str, Any]:
    return {
        "tensor_count": share.tensors,
        "parameters": share.parameters,
        "bytes": share.nbytes,
        "bytes_by_dtype": share.bytes_by_dtype,
    }


def _plain(value: object) -> object:
    """Return a metadata value as JSON has it, where there is neither NaN nor infinity nor bytes."""
    if isinstance(value, ArraySummary):
        return {"type": value.kind, "count": value.count, "first": [_plain(item) for item in value.first]}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value
