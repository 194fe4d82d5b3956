"""``lattice quantize``: a model as a GGUF file of a smaller type, or an encoder's directory with int8 weights."""

from __future__ import annotations

import argparse
import json
from typing import get_args

from lattice_inference.checkpoint.formats import open_weights
from lattice_inference.cli.model_path import model_path
from lattice_inference.cli.options import add_json
from lattice_inference.cli.progress import progress_bar
from lattice_inference.errors import InvalidInputError
from lattice_inference.quantize import QuantizedType, export_bert_gguf, quantize_gguf, quantize_int8

__all__ = ["EXAMPLES", "add_arguments", "run"]

EXAMPLES = """\
examples:
  lattice quantize model-f16.gguf model-q8.gguf --type Q8_0
  lattice quantize model-00001-of-00003.gguf model-q4.gguf --type Q4_0 --json
  lattice quantize all-minilm-l6-v2 minilm-q8.gguf --type Q8_0
  lattice quantize all-minilm-l6-v2 minilm-int8 --precision int8

Matrices become the type that is asked for; norms and biases stay as they are. For the types of four and five bits, the
output matrix becomes Q8_0 unless --pure is given. The new file appears when it is complete.

--precision int8 writes a directory: an encoder or cross-encoder with int8 weights, to be loaded with precision="int8"
(lattice-embed --precision int8), which gives the same vectors as quantizing the original when it is loaded.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    parser.add_argument(
        "source", metavar="SOURCE", help="a GGUF file, one part of a split model, or a BERT encoder's directory or name"
    )
    parser.add_argument("destination", metavar="DESTINATION", help="the GGUF file, or the directory, to be written")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--type", type=str.upper, choices=get_args(QuantizedType), help="write a GGUF file of this type")
    what.add_argument("--precision", choices=["int8"], help="write a directory with weights of this precision")
    parser.add_argument("--pure", action="store_true", help="make no exception for the output matrix")
    parser.add_argument("--overwrite", action="store_true", help="replace DESTINATION if it exists")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Write the file and say what it holds."""
    source = model_path(options.source)
    with open_weights(source) as checkpoint:
        total = len(checkpoint)
    with progress_bar(total, unit=" tensors") as bar:

        def on_tensor(name: str) -> None:
            bar.update(1)

        if options.precision is not None:
            if options.pure:
                raise InvalidInputError("--pure: is about types of GGUF files")
            if not source.is_dir():
                raise InvalidInputError(f"--precision {options.precision}: {source} is no directory of an encoder")
            report = quantize_int8(source, options.destination, overwrite=options.overwrite, on_tensor=on_tensor)
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
