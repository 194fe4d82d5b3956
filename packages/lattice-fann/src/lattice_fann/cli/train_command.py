"""``lattice-fann train``: a table to a network."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_fann.activation import Activation
from lattice_fann.builder import NetworkBuilder
from lattice_fann.cli.loss_plot import check_plot_path, text_plot, write_plot
from lattice_fann.cli.one_hot import METADATA_KEY
from lattice_fann.cli.output import check_format, check_output, save_or_rescue
from lattice_fann.cli.table import Table, read_table
from lattice_fann.errors import InvalidInputError
from lattice_fann.estimators.labels import distinct, labels_of
from lattice_fann.layer import check_layer_shape
from lattice_fann.network import Network
from lattice_fann.training.config import Optimizer, TrainingConfig
from lattice_fann.training.result import EpochRecord, TrainingResult
from lattice_fann.training.schedules import CosineDecay, LinearDecay, Schedule
from lattice_fann.training.trainer import BackpropTrainer

__all__ = ["run"]

MOST_CLASSES = 100


def run(options: argparse.Namespace) -> int:
    """Train a network on a table, report, and write it."""
    output = check_output("--output", options.output, [options.data])
    inputs = [options.data] if options.output is None else [options.data, options.output]
    plot = None if options.plot is None else check_plot_path(options.plot, inputs)
    if plot is not None and output is not None and plot.resolve() == output.resolve():
        raise InvalidInputError(f"--output and --plot name the same file, {plot}")
    config = _config(options)
    hidden = _hidden(options)
    table = read_table(options.data, options.target, options.inputs, drop=options.drop, texts=options.text)
    classify = _is_classification(table, options.task)
    labels, targets = distinct(labels_of(table.target, name=options.target)) if classify else (None, table.target)
    if options.balanced and not classify:
        raise InvalidInputError("--balanced makes classes count alike, and the target is numbers to predict")
    network = _network(options, table, labels, hidden)
    if output is not None:
        check_format(network, output, options.weights)
    began = time.perf_counter()
    try:
        result = BackpropTrainer(network, config).train(
            table.inputs,
            targets,
            class_weight="balanced" if options.balanced else None,
            callbacks=[_progress(config.max_epochs)] if sys.stderr.isatty() else [],
        )
    finally:
        if sys.stderr.isatty():
            print(file=sys.stderr)
    seconds = time.perf_counter() - began
    failures = []
    if output is not None and (failure := save_or_rescue(network, output, options.weights)) is not None:
        failures.append(failure)
    report = _report(network, result, seconds, labels)
    report["text_columns"] = dict(table.values)
    report |= {"output": None if failures else options.output, "plot": None}
    if plot is not None:
        try:
            write_plot(plot, result.history)
            report["plot"] = options.plot
        except OSError as error:
            failures.append(f"--plot {plot}: {error.strerror or error}")
    if options.json:
        print(json.dumps(report))
    else:
        _print(report, result, asked=output is not None)
    for failure in failures:
        print(f"lattice-fann: error: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _config(options: argparse.Namespace) -> TrainingConfig:
    schedules: dict[str, Schedule | None] = {"constant": None, "cosine": CosineDecay(), "linear": LinearDecay()}
    if options.epochs < 1:
        raise InvalidInputError(f"--epochs is {options.epochs}; it must be at least 1")
    return TrainingConfig(
        optimizer=Optimizer[options.optimizer.upper()],
        learning_rate=options.learning_rate,
        weight_decay=options.weight_decay,
        max_epochs=options.epochs,
        batch_size=options.batch_size,
        schedule=schedules[options.schedule],
        validation_fraction=options.validation,
        patience=options.patience,
        target_error=None,
        seed=options.seed,
    )


def _is_classification(table: Table, task: str) -> bool:
    target = table.target
    if task == "auto":
        return target.dtype.kind in "USb" or (target.dtype.kind in "iu" and np.unique(target).size <= MOST_CLASSES)
    if task == "regress" and target.dtype.kind not in "biuf":
        raise InvalidInputError("the target holds texts: they are classes, not numbers to predict")
    return task == "classify"


def _hidden(options: argparse.Namespace) -> list[tuple[int, Activation]]:
    activation = Activation.from_name(options.activation)
    if activation.is_softmax:
        raise InvalidInputError("--activation softmax is for the last layer; hidden layers take another one")
    try:
        sizes = [int(part) for part in options.hidden.split(",") if part.strip()]
    except ValueError:
        raise InvalidInputError(f"--hidden is {options.hidden!r}; write the sizes as 64,32") from None
    for size in sizes:
        check_layer_shape(1, size)
    return [(size, activation) for size in sizes]


def _network(
    options: argparse.Namespace,
    table: Table,
    labels: npt.NDArray[Any] | None,
    hidden: list[tuple[int, Activation]],
) -> Network:
    builder = NetworkBuilder().input(table.inputs.shape[1])
    for size, activation in hidden:
        builder.hidden(size, activation)
    if labels is None:
        builder.output(1 if table.target.ndim == 1 else table.target.shape[1], Activation.LINEAR)
    else:
        if labels.size < 2:
            raise InvalidInputError(
                f"{options.target} holds only {labels[:1].tolist()[0]!r}: classes need at least two labels"
            )
        builder.output(int(labels.size), Activation.SOFTMAX)
    network = builder.build(seed=options.seed, initialization="he_uniform")
    if not options.no_scaling:
        network.fit_input_scaling(table.inputs)
    network.metadata = {
        "target": options.target,
        "columns": json.dumps(table.columns),
        **({METADATA_KEY: json.dumps(table.values)} if table.values else {}),
        **({} if labels is None else {"labels": json.dumps(labels.tolist())}),
    }
    return network


def _progress(epochs: int) -> Any:
    shown = [0.0]

    def show(record: EpochRecord) -> None:
        now = time.monotonic()
        if now - shown[0] < 0.1 and record.epoch + 1 < epochs:
            return
        shown[0] = now
        validation = "" if record.validation_loss is None else f", validation {record.validation_loss:.5f}"
        print(
            f"\r\x1b[Kepoch {record.epoch + 1}/{epochs}: loss {record.loss:.5f}{validation}",
            end="",
            file=sys.stderr,
            flush=True,
        )

    return show


def _report(
    network: Network, result: TrainingResult, seconds: float, labels: npt.NDArray[Any] | None
) -> dict[str, Any]:
    kept = result.history[result.best_epoch if result.best_epoch is not None else -1]
    return {
        "architecture": network.architecture(),
        "parameters": network.total_params,
        "labels": None if labels is None else labels.tolist(),
        "epochs": result.epochs_trained,
        "best_epoch": None if result.best_epoch is None else result.best_epoch + 1,
        "stopped_early": result.stopped_early,
        "loss": kept.loss,
        "validation_loss": kept.validation_loss,
        "validation_accuracy": kept.validation_accuracy if labels is not None else None,
        "seconds": round(seconds, 4),
        "history": [
            {
                "epoch": r.epoch + 1,
                "loss": r.loss,
                "validation_loss": r.validation_loss,
                "learning_rate": r.learning_rate,
            }
            for r in result.history
        ],
    }


def _print(report: dict[str, Any], result: TrainingResult, *, asked: bool) -> None:
    print(f"{report['architecture']}, {report['parameters']} parameters")
    if texts := report["text_columns"]:
        told = ", ".join(f"{column} ({len(values)})" for column, values in texts.items())
        print(f"columns of texts, an input for each value: {told}")
    print(text_plot(result.history))
    print(f"{report['epochs']} epochs in {report['seconds']:.2f} s; kept epoch {report['best_epoch']}: ", end="")
    print(f"loss {report['loss']:.5f}", end="")
    if report["validation_loss"] is not None:
        print(f", validation loss {report['validation_loss']:.5f}", end="")
        if report["labels"] is None and math.isfinite(report["validation_loss"]):
            print(f" (typical error {math.sqrt(report['validation_loss']):.4g})", end="")
    if report["validation_accuracy"] is not None:
        print(f", validation accuracy {report['validation_accuracy']:.2%}", end="")
    print()
    if report["output"] is not None:
        print(f"wrote {report['output']}")
    elif not asked:
        print("not written: give --output FILE to keep the network")
