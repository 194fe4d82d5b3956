"""What a distillation has shown."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

from lattice_tune.distillation.evaluation import Deferral, Evaluation
from lattice_tune.distillation.stages import StageRecord
from lattice_tune.training.metrics import TrainingMetrics

__all__ = ["DistillationReport", "PassBack"]


@dataclass(frozen=True)
class PassBack:
    """What the student should pass back to the teacher.

    Attributes:
        measured_on: ``"test"`` or ``"held_out"``, and against ``"gold"`` or ``"teacher"`` labels.
        threshold: the student's own; 0 if none was set.
        table: what each threshold would do.
        least_confident: texts of the training data that the student is least sure of, least sure first.
    """

    measured_on: tuple[str, str]
    threshold: float
    table: tuple[Deferral, ...]
    least_confident: tuple[str, ...]


@dataclass(frozen=True)
class DistillationReport:
    """What a distillation has shown.

    Attributes:
        examples: texts given.
        unanswered: texts that the teacher had no answer for.
        left_out: texts whose teacher was less sure than ``min_confidence``.
        trained: examples that the student was trained on.
        teacher_accuracy: the teacher's accuracy on training texts that have a gold label; None without any.
        temperature: of the calibration.
        calibrated_log_loss, uncalibrated_log_loss: on the examples kept out of training.
        held_out_teacher: the student against the teacher, on the examples kept out of training.
        held_out_gold, test_teacher, test_gold: the same against gold labels, and on the test set; None without them.
        overlap: test texts that are training texts, too.
        pass_back: what the student should pass back.
        training: how training went.
        stages: what was done and what was skipped.
    """

    examples: int
    unanswered: int
    left_out: int
    trained: int
    teacher_accuracy: float | None
    temperature: float
    calibrated_log_loss: float
    uncalibrated_log_loss: float
    held_out_teacher: Evaluation
    held_out_gold: Evaluation | None
    test_teacher: Evaluation | None
    test_gold: Evaluation | None
    overlap: int
    pass_back: PassBack
    training: TrainingMetrics
    stages: tuple[StageRecord, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON has it."""
        return asdict(self) | {"training": self.training.to_dict()}

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Draw the losses by epoch and the best evaluation's confusion table; return the figure.

        Args:
            path: a .png, .svg or .pdf file to write; None writes nothing.

        Raises:
            InvalidInputError: another suffix.
            MissingDependencyError: matplotlib is not installed; install ``lattice-tune[plot]``.
            WriteError: the picture cannot be written.
        """
        from lattice_tune.distillation.plots import plot_report

        return plot_report(self, path)
