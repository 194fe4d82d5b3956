"""Draws two plots of the packages for the manual, from seeded data.

They are a drift report and the losses of a training.

python tools/manual_plots.py [FOLDER]    by default docs/charts; needs matplotlib
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

__all__ = ["draw_drift", "draw_losses", "main"]

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "charts"


def draw_drift(path: Path) -> None:
    """Draw the report of 300 moved points and of a few far away.

    The points were moved by a quarter of their deviation.
    """
    from lattice_transport import detect_drift

    random = np.random.default_rng(0)
    reference, current = random.normal(size=(300, 8)), random.normal(size=(300, 8)) + 0.25
    current[:5] += 3.0
    detect_drift(reference, current, permutations=499).plot(str(path))


def draw_losses(path: Path) -> None:
    """Draw the losses of a network that learns a sine."""
    from lattice_fann import Activation, BackpropTrainer, NetworkBuilder, Optimizer, TrainingConfig
    from lattice_fann.cli.loss_plot import write_plot

    x = np.random.default_rng(0).uniform(-3, 3, (400, 1)).astype(np.float32)
    network = NetworkBuilder().input(1).hidden(24, Activation.TANH).output(1, Activation.LINEAR).build(seed=0)
    config = TrainingConfig(
        optimizer=Optimizer.ADAM, learning_rate=0.01, max_epochs=80, validation_fraction=0.25, patience=80, seed=0
    )
    result = BackpropTrainer(network, config).train(x, np.sin(x))
    write_plot(path, result.history)


def main(arguments: list[str]) -> int:
    """Draw both; returns the exit status."""
    import matplotlib

    folder = Path(arguments[0]) if arguments else FOLDER
    os.environ["SOURCE_DATE_EPOCH"] = "0"  # no date in the files
    matplotlib.rcParams |= {"svg.hashsalt": "lattice", "svg.fonttype": "none"}
    draw_drift(folder / "drift-report.svg")
    draw_losses(folder / "losses.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
