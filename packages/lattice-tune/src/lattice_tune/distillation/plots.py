"""Pictures of a distillation. Needs matplotlib, which the extra ``plot`` brings."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lattice_inference.checkpoint.atomic_file import atomic_file
from lattice_tune.errors import InvalidInputError, MissingDependencyError, shown

if TYPE_CHECKING:
    from lattice_tune.distillation.evaluation import Evaluation
    from lattice_tune.distillation.report import DistillationReport

__all__ = ["check_picture", "plot_report"]

FORMATS = ("png", "svg", "pdf")

DOTS_PER_INCH = 120
MOST_LABELS = 20
"""Labels whose names and counts are written out; of more, only the colours are readable."""


def check_picture(path: str | os.PathLike[str]) -> str:
    """Return the format of a picture by its suffix.

    Raises:
        InvalidInputError: it is none of ``FORMATS``.
        MissingDependencyError: matplotlib is not installed.
    """
    suffix = Path(path).suffix.lower()[1:]
    if suffix not in FORMATS:
        raise InvalidInputError(f"{shown(os.fspath(path))}: pictures are .{', .'.join(FORMATS)} files")
    _matplotlib()
    return suffix


def _matplotlib() -> tuple[Any, Any]:
    try:
        return importlib.import_module("matplotlib.backends.backend_agg"), importlib.import_module("matplotlib.figure")
    except ImportError:
        raise MissingDependencyError(
            "plots need matplotlib, which is not installed: pip install 'lattice-tune[plot]'"
        ) from None


def plot_report(report: DistillationReport, path: str | os.PathLike[str] | None = None) -> Any:
    """Draw the losses by epoch and the confusion table of the best evaluation there is.

    Raises:
        InvalidInputError: the path is no .png, .svg or .pdf file.
        MissingDependencyError: matplotlib is not installed.
        WriteError: the picture cannot be written.
    """
    form = None if path is None else check_picture(path)
    canvas, pictures = _matplotlib()
    figure = pictures.Figure(figsize=(10.0, 4.2), layout="constrained")
    canvas.FigureCanvasAgg(figure)  # draws to memory: no window, no global state
    left, right = figure.subplots(1, 2)
    epochs = [metrics.epoch + 1 for metrics in report.training.history]
    left.plot(epochs, [metrics.train_loss for metrics in report.training.history], label="training")
    validation = [(m.epoch + 1, m.val_loss) for m in report.training.history if m.val_loss is not None]
    if validation:
        left.plot(*zip(*validation, strict=True), label="held out")
    left.set_xlabel("epoch")
    left.set_ylabel("loss")
    left.set_title(f"{report.trained:,} examples")
    left.legend()
    _draw_confusion(right, *_best_evaluation(report))
    if path is not None:
        with atomic_file(Path(path)) as file:
            figure.savefig(file, format=form, dpi=DOTS_PER_INCH)
    return figure


def _best_evaluation(report: DistillationReport) -> tuple[str, Evaluation]:
    """Return the most trusted evaluation: test before held-out, gold before teacher labels."""
    for name, evaluation in (
        ("test, gold labels", report.test_gold),
        ("held out, gold labels", report.held_out_gold),
        ("test, the teacher's labels", report.test_teacher),
    ):
        if evaluation is not None:
            return name, evaluation
    return "held out, the teacher's labels", report.held_out_teacher


def _draw_confusion(axes: Any, name: str, evaluation: Evaluation) -> None:
    counts = np.array(evaluation.confusion, float)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1.0)
    axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0)
    axes.set_title(f"{name}: accuracy {evaluation.accuracy:.1%}")
    axes.set_xlabel("predicted")
    axes.set_ylabel("expected")
    if len(evaluation.labels) > MOST_LABELS:
        return
    places = range(len(evaluation.labels))
    axes.set_xticks(places, evaluation.labels, rotation=45, ha="right")
    axes.set_yticks(places, evaluation.labels)
    for row in places:
        for column in places:
            colour = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, f"{counts[row, column]:.0f}", ha="center", va="center", color=colour)
