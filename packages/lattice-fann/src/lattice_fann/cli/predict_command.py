"""``lattice-fann predict``: a network and a table to answers."""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
from typing import Any

import numpy as np

from lattice_fann.cli.one_hot import stored_values
from lattice_fann.cli.output import check_output
from lattice_fann.cli.table import read_inputs
from lattice_fann.errors import FormatError, InvalidInputError
from lattice_fann.network import Network

__all__ = ["run"]

_OTHER_FORMATS = (".json", ".jsonl", ".npz", ".npy", ".parquet", ".xlsx")


def run(options: argparse.Namespace) -> int:
    """Run the network on every row and print, or write, the answers."""
    if options.output is not None and options.json:
        raise InvalidInputError("--json prints to standard output and --output writes CSV: use one of them")
    output = check_output("--output", options.output, [options.model, options.data])
    if output is not None and output.suffix.lower() in _OTHER_FORMATS:
        raise InvalidInputError(f"--output {output}: predictions are written as CSV; name a .csv file")
    network = Network.load(options.model)
    columns = _texts(network, "columns")
    labels = _labels(network)
    values = stored_values(network.metadata, columns)
    x = read_inputs(options.data, columns, network.num_inputs, options.inputs, values)
    y = network.forward_batch(x)
    names = [str(label) for label in labels] if labels is not None else [str(i) for i in range(network.num_outputs)]
    target = network.metadata.get("target", "prediction")
    if labels is not None:
        best = y.argmax(axis=1)
        answers: list[list[Any]] = [[labels[i], float(row[i])] for i, row in zip(best, y, strict=True)]
        header = [target, "probability"]
        if options.probabilities:
            answers = [[answer[0], *map(float, row)] for answer, row in zip(answers, y, strict=True)]
            header = [target, *names]
    else:
        answers = [list(map(float, row)) for row in y]
        header = [target] if network.num_outputs == 1 else [f"{target}[{name}]" for name in names]
    if options.json:
        predictions = [dict(zip(header, answer, strict=True)) for answer in answers]
        print(json.dumps({"model": options.model, "target": target, "predictions": predictions}, ensure_ascii=False))
        return 0
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([[_cell(value) for value in answer] for answer in answers])
    if output is None:
        sys.stdout.write(text.getvalue())
        return 0
    from lattice_fann.formats.atomic_write import atomic_write

    try:
        with atomic_write(output) as file:
            file.write(text.getvalue().encode())
    except OSError as error:
        sys.stdout.write(text.getvalue())
        message = f"--output: {error.strerror}; the predictions were printed to standard output instead"
        raise type(error)(error.errno, message, str(output)) from None
    print(f"{output}: {len(answers)} predictions")
    return 0


def _cell(value: Any) -> Any:
    """Numbers as short as their float32 allows."""
    return str(np.float32(value)) if isinstance(value, float) else value


def _texts(network: Network, key: str) -> list[str] | None:
    values = _json(network, key)
    if values is not None and not all(isinstance(value, str) for value in values):
        raise FormatError(f"the network's metadata {key!r} must be a list of texts")
    return values


def _labels(network: Network) -> list[Any] | None:
    labels = _json(network, "labels")
    if labels is not None and len(labels) != network.num_outputs:
        raise FormatError(f"the network has {network.num_outputs} outputs, its metadata {len(labels)} labels")
    if labels is None and network.layers[-1].activation.is_softmax:
        return list(range(network.num_outputs))
    return labels


def _json(network: Network, key: str) -> list[Any] | None:
    if key not in network.metadata:
        return None
    try:
        values = json.loads(network.metadata[key])
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, list):
        raise FormatError(f"the network's metadata {key!r} must be a JSON list")
    return values
