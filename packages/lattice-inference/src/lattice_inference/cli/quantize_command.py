"""``lattice quantize``: write a model as a smaller GGUF file, or with int8 weights."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import get_args

from lattice_inference.checkpoint.formats import open_weights
from lattice_inference.cli.model_path import model_path
from lattice_inference.cli.options import add_json
from lattice_inference.cli.progress import progress_bar
from lattice_inference.cli.text_input import read_whole_text
from lattice_inference.errors import InvalidInputError
from lattice_inference.quantize import (
    Calibration,
    CalibrationMethod,
    Calibrator,
    QuantizedType,
    export_bert_gguf,
    quantize_gguf,
    quantize_int8,
)

__all__ = ["EXAMPLES", "add_arguments", "run"]

EXAMPLES = """\
examples:
  lattice quantize model-f16.gguf model-q8.gguf --type Q8_0
  lattice quantize model-00001-of-00003.gguf model-q4.gguf --type Q4_0 --json
  lattice quantize all-minilm-l6-v2 minilm-q8.gguf --type Q8_0
  lattice quantize all-minilm-l6-v2 minilm-int8 --precision int8
  lattice quantize smollm2 smollm2-int8 --precision int8 --calibrate corpus.txt --method max-abs

Matrices become the requested type; norms and biases stay as they are. For the types of four and five bits, the output
matrix becomes Q8_0 unless --pure is given. The new file appears when it is complete.

--precision int8 writes a directory: an encoder, cross-encoder or decoder with int8 weights. It is loaded with
--precision int8, and gives the same results as quantizing the original at each load. With --calibrate the model first
reads the text in FILE, and the input ranges of its linears are fixed to those found there. Without it each row of inputs
has a separate range, which is more exact and a little slower.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    parser.add_argument(
        "source", metavar="SOURCE", help="a GGUF file, one part of a split model, or a model's directory or name"
    )
    parser.add_argument("destination", metavar="DESTINATION", help="the GGUF file, or the directory, to be written")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--type", type=str.upper, choices=get_args(QuantizedType), help="write a GGUF file of this type")
    what.add_argument("--precision", choices=["int8"], help="write a directory with weights of this precision")
    parser.add_argument(
        "--calibrate", metavar="FILE", help="with --precision int8: fix the inputs' ranges by this text"
    )
    parser.add_argument(
        "--method", choices=get_args(CalibrationMethod), help="how a range is found (default: percentile)"
    )
    parser.add_argument("--percentile", type=float, metavar="F", help="percent of inputs within a range (99.99)")
    parser.add_argument("--momentum", type=float, metavar="F", help="what --method ema keeps of its past (0.9)")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="see so many tokens of the text (4,096)")
    parser.add_argument("--pure", action="store_true", help="make no exception for the output matrix")
    parser.add_argument("--overwrite", action="store_true", help="replace DESTINATION if it exists")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Write the file and say what it holds."""
    source = model_path(options.source)
    _check_calibration_options(options)
    calibration = None if options.calibrate is None else _calibrate(options, source)
    with open_weights(source) as checkpoint:
        total = len(checkpoint)
    with progress_bar(total, unit=" tensors") as bar:

        def on_tensor(name: str) -> None:
            bar.update(1)

        if options.precision is not None:
            if options.pure:
                raise InvalidInputError("--pure: is about types of GGUF files")
            report = quantize_int8(
                source,
                options.destination,
                calibration=calibration,
                overwrite=options.overwrite,
                on_tensor=on_tensor,
            )
        elif source.is_dir():
            if options.pure:
                raise InvalidInputError(
                    "--pure: an encoder has no output matrix, so there is no exception to leave out"
                )
            report = export_bert_gguf(
                source, options.destination, options.type, overwrite=options.overwrite, on_tensor=on_tensor
            )
        else:
            report = quantize_gguf(
                source,
                options.destination,
                options.type,
                pure=options.pure,
                overwrite=options.overwrite,
                on_tensor=on_tensor,
            )
    if options.json:
        print(
            json.dumps(
                {
                    "path": str(report.path),
                    "type": options.type or options.precision,
                    "calibration": None if calibration is None else json.loads(calibration.as_metadata()),
                    "tensors": dict(report.tensors),
                    "source_bytes": report.source_bytes,
                    "tensor_bytes": report.tensor_bytes,
                    "file_bytes": report.file_bytes,
                }
            )
        )
        return 0
    kinds = ", ".join(f"{count} x {kind}" for kind, count in report.tensors.items())
    print(f"{report.path}: {report.file_bytes / 1e6:,.1f} MB, {kinds}")
    print(f"tensors: {report.source_bytes / 1e6:,.1f} MB before, {report.tensor_bytes / 1e6:,.1f} MB now")
    return 0


def _check_calibration_options(options: argparse.Namespace) -> None:
    given = [
        f"--{name.replace('_', '-')}"
        for name in ("method", "percentile", "momentum", "max_tokens")
        if getattr(options, name) is not None
    ]
    if options.calibrate is None and given:
        raise InvalidInputError(f"{given[0]}: is about --calibrate FILE, which is not given")
    if options.calibrate is not None and options.precision != "int8":
        raise InvalidInputError("--calibrate: fixes how inputs are rounded to int8, so it needs --precision int8")
    method = options.method or "percentile"
    for name, belongs_to in (("percentile", "percentile"), ("momentum", "ema")):
        if getattr(options, name) is not None and method != belongs_to:
            raise InvalidInputError(f"--{name}: is about --method {belongs_to}, and the method is {method}")
    if options.max_tokens is not None and options.max_tokens < 1:
        raise InvalidInputError(f"--max-tokens: must be at least 1, not {options.max_tokens}")


def _calibrate(options: argparse.Namespace, source: Path) -> Calibration:
    """Run the model on the text and return the ranges.

    A decoder takes the whole text, other models line by line.
    """
    given = {name: getattr(options, name) for name in ("method", "percentile", "momentum")}
    chosen = {name: value for name, value in given.items() if value is not None}
    most = 4096 if options.max_tokens is None else options.max_tokens
    text = read_whole_text(None, options.calibrate, "a text")
    with Calibrator(source, **chosen) as calibrator, progress_bar(most, unit=" tokens") as bar:
        calibrator.observe(
            [text] if calibrator.reads_windows else text.splitlines(), max_tokens=most, on_step=bar.update
        )
        return calibrator.calibration()
