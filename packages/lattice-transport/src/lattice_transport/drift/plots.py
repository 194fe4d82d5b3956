"""Pictures of a drift report. Needs matplotlib, which the ``plot`` extra brings."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np

from lattice_transport.errors import MissingDependencyError

if TYPE_CHECKING:
    from lattice_transport.drift.report import DriftReport

__all__ = ["DOTS_PER_INCH", "check_plots", "plot_report"]

DOTS_PER_INCH = 120


def check_plots() -> None:
    """Raise MissingDependencyError if matplotlib is not installed."""
    _matplotlib()


def _matplotlib() -> tuple[Any, Any]:
    try:
        return importlib.import_module("matplotlib.backends.backend_agg"), importlib.import_module("matplotlib.figure")
    except ImportError:
        raise MissingDependencyError(
            "plots need matplotlib, which is not installed: pip install 'lattice-transport[plot]'"
        ) from None


def plot_report(report: DriftReport, path: str | None = None) -> Any:
    """Draw the report: the divergence with its null distribution, and the items' expected costs.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    canvas, pictures = _matplotlib()
    figure = pictures.Figure(figsize=(9.0, 3.5), layout="constrained")
    canvas.FigureCanvasAgg(figure)  # draws to memory: no window, no global state
    left, right = figure.subplots(1, 2)
    left.hist(report.null, bins=30, color="0.7", label="permuted samples")
    left.axvline(report.threshold, color="tab:orange", linestyle="--", label="alarm")
    left.axvline(report.divergence, color="tab:red", label="observed")
    left.set_xlabel("Sinkhorn divergence")
    left.set_ylabel("permutations")
    left.set_title(f"p = {report.p_value:.3g}: {report.verdict.decision.value}")
    left.legend()
    costs = np.sort(report.items.expected_costs)[::-1]
    outliers = int(report.items.outliers.sum())
    right.plot(np.arange(1, len(costs) + 1), costs, color="tab:blue")
    right.plot(np.arange(1, outliers + 1), costs[:outliers], ".", color="tab:red", label=f"{outliers} outliers")
    right.set_xlabel("current item, dearest first")
    right.set_ylabel("expected cost")
    if outliers:
        right.legend()
    if path is not None:
        figure.savefig(path, dpi=DOTS_PER_INCH)
    return figure
