"""The loss over the epochs, as text and as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lattice_fann.cli.output import check_output
from lattice_fann.errors import InvalidInputError, UnsupportedError
from lattice_fann.training.result import EpochRecord

__all__ = ["check_plot_path", "text_plot", "write_plot"]

HEIGHT, WIDTH = 10, 60


def text_plot(history: Sequence[EpochRecord]) -> str:
    """Return a text plot of the training (``*``) and validation loss (``o``) on a log scale."""
    series: dict[str, list[float | None]] = {
        "*": [record.loss for record in history],
        "o": [record.validation_loss for record in history],
    }
    values = [value for points in series.values() for value in points if value is not None and value > 0]
    if not values:
        return "no loss above zero to plot"
    low, high = math.log(min(values)), math.log(max(values))
    span = high - low or 1.0
    width = min(WIDTH, len(history))
    grid = [[" "] * width for _ in range(HEIGHT)]
    for mark, points in series.items():
        for column in range(width):
            value = points[round(column * (len(history) - 1) / max(width - 1, 1))]
            if value is not None and value > 0:
                row = round((high - math.log(value)) / span * (HEIGHT - 1))
                grid[row][column] = mark
    lines = []
    for i, row_cells in enumerate(grid):
        label = f"{math.exp(high - span * i / (HEIGHT - 1)):.4g}" if i in (0, HEIGHT - 1) else ""
        lines.append(f"{label:>10} |{''.join(row_cells).rstrip()}")
    lines.append(f"{'':>10} +{'-' * width}")
    lines.append(f"{'':>12}epoch 1 to {len(history)}; * training, o validation")
    return "\n".join(lines)


def check_plot_path(name: str, inputs: Sequence[str] = ()) -> Path:
    """Return the path of a picture to be drawn, before any work is done for it.

    Raises:
        InvalidInputError: no such folder, a suffix that is no picture's, or one of the command's ``inputs``.
        OSError: the folder cannot be written to.
        UnsupportedError: matplotlib is not installed.
    """
    path = Path(name)
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise InvalidInputError(f"--plot {name}: pictures are .png, .svg or .pdf files")
    check_output("--plot", name, inputs)
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise UnsupportedError("--plot needs matplotlib: pip install 'lattice-fann[plot]'")
    return path


def write_plot(path: Path, history: Sequence[EpochRecord]) -> None:
    """Draw the losses into a file.

    Raises:
        OSError: it cannot be written.
    """
    import importlib

    from lattice_fann.formats.atomic_write import atomic_write

    figure: Any = importlib.import_module("matplotlib.figure").Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    epochs = [record.epoch + 1 for record in history]
    axes.plot(epochs, [record.loss for record in history], label="training")
    validation = [record.validation_loss for record in history]
    if any(value is not None for value in validation):
        axes.plot(epochs, validation, label="validation")
    axes.set(xlabel="epoch", ylabel="loss", yscale="log")
    axes.legend()
    with atomic_write(path) as file:
        figure.savefig(file, format=path.suffix[1:].lower())
