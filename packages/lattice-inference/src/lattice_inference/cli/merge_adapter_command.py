"""``lattice merge-adapter``: a model with an adapter of low rank merged into its weights."""

from __future__ import annotations

import argparse
import json
import math
import os
from typing import get_args

from lattice_inference.checkpoint.formats import open_weights
from lattice_inference.checkpoint.rounding import QuantizedType
from lattice_inference.cli.model_path import model_path
from lattice_inference.cli.options import add_json
from lattice_inference.cli.progress import progress_bar
from lattice_inference.errors import InvalidInputError
from lattice_inference.lora import LoraAdapter, blend, load_adapter_file, merge_adapter, unmerge
from lattice_inference.models.weight_check import refuse_adapters

__all__ = ["EXAMPLES", "adapter_of", "add_arguments", "run"]

EXAMPLES = """\
examples:
  lattice merge-adapter ./smollm2 ./my-adapter --output ./smollm2-mine
  lattice merge-adapter model-q4.gguf ./my-adapter --output model-mine.gguf
  lattice merge-adapter model-q4.gguf adapter.gguf --output model-mine.gguf --type Q8_0 --json
  lattice merge-adapter ./smollm2 ./style:0.7 ./facts:0.3 --output ./smollm2-both
  lattice merge-adapter ./smollm2-mine ./my-adapter --unmerge --output ./smollm2-again

An adapter is a directory of PEFT's or mlx-lm's, or a GGUF adapter of llama.cpp. Several are added up, each times the weight
after its last colon (1 without one). Of a directory a directory is written, of a GGUF file a GGUF file. The result appears
when it is complete, and is a model like any other.

Sums are in float32. Changed matrices keep their type; quantized ones become F16 unless --type says otherwise, since an
update is mostly smaller than what a quantized weight can show. The report says how much of the update rounding kept.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    parser.add_argument(
        "base", metavar="BASE", help="the model: a directory with safetensors weights, a GGUF file, or a name"
    )
    parser.add_argument("adapters", metavar="ADAPTER[:WEIGHT]", nargs="+", help="an adapter's directory or GGUF file")
    parser.add_argument("--output", metavar="PATH", required=True, help="the directory, or GGUF file, to be written")
    parser.add_argument(
        "--type", type=str.upper, choices=get_args(QuantizedType), help="write changed matrices in this type"
    )
    parser.add_argument("--unmerge", action="store_true", help="take the adapter out of BASE, where it was merged")
    parser.add_argument("--overwrite", action="store_true", help="replace PATH if it is a model")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Write the model and say what was changed."""
    base = model_path(options.base)
    refuse_adapters(base)
    adapter = adapter_of(options.adapters)
    with open_weights(base) as checkpoint:
        total = len(checkpoint)
    work = unmerge if options.unmerge else merge_adapter
    with progress_bar(total, unit=" tensors") as bar:
        report = work(
            base,
            adapter,
            options.output,
            dtype=options.type,
            overwrite=options.overwrite,
            on_tensor=lambda name: bar.update(1),
        )
    if options.json:
        print(
            json.dumps(
                {
                    "path": str(report.path),
                    "adapter_sha256": adapter.sha256,
                    "merged": report.merged,
                    "replaced": report.replaced,
                    "tensors": dict(report.tensors),
                    "kept": report.kept,
                    "rounding_error": report.rounding_error,
                    "kept_by_site": dict(report.kept_by_site),
                }
            )
        )
        return 0
    kinds = ", ".join(f"{count} x {kind}" for kind, count in report.tensors.items())
    print(f"{report.path}: {report.merged} linears changed, {report.replaced} tensors replaced; {kinds}")
    print(f"of the update, rounding kept {report.kept:.2%}; its error is {report.rounding_error:.2%} of the update")
    return 0


def adapter_of(named: list[str]) -> LoraAdapter:
    """Read the adapters; several, or one with a weight, are added up."""
    pairs = [_with_weight(text) for text in named]
    if len(pairs) == 1 and pairs[0][1] is None:
        return load_adapter_file(pairs[0][0])
    return blend([(load_adapter_file(path), 1.0 if weight is None else weight) for path, weight in pairs])


def _with_weight(text: str) -> tuple[str, float | None]:
    path, colon, number = text.rpartition(":")
    if os.path.exists(text):
        return text, None
    try:
        weight = float(number)
    except ValueError:
        return text, None
    if not colon or not path:
        return text, None
    if not math.isfinite(weight):
        raise InvalidInputError(f"{text}: the weight is not a finite number")
    return path, weight
