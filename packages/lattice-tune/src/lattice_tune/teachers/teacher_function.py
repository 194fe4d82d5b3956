"""A teacher with its task, store and limits as one function from texts to probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

from lattice_tune.arguments import instance
from lattice_tune.errors import LabelStoreError, TeacherApiError
from lattice_tune.teachers.label_context import context_of
from lattice_tune.teachers.label_store import LabelStore
from lattice_tune.teachers.labeling import label_texts
from lattice_tune.teachers.limits import RequestLimits
from lattice_tune.teachers.provider import InProcessTeacher
from lattice_tune.teachers.report import LabelingProgress, LabelingReport
from lattice_tune.teachers.served_teacher import ServedTeacher
from lattice_tune.teachers.task import LabelingTask

__all__ = ["TeacherFunction"]


class TeacherFunction:
    """Labels the texts that it is called with; what is spent counts over all calls.

    >>> from lattice_tune import CallableTeacher
    >>> rule = CallableTeacher(lambda text: "question" if "?" in text else "other", name="mark")
    >>> function = TeacherFunction(rule, LabelingTask(("question", "other")))
    >>> function(["Where?", "Here."])
    [{'question': 1.0, 'other': 0.0}, {'question': 0.0, 'other': 1.0}]

    Args:
        teacher, task, store, limits, votes, progress: as for :func:`label_texts`. ``max_cost`` and ``max_tokens_total`` are
            for all calls together, the other limits for each.

    Raises:
        InvalidInputError, ConfigError: an argument makes no sense.

    Attributes:
        fingerprint: what its answers depend on beside the texts, as hexadecimal digits.
        reports: of all calls so far.
    """

    def __init__(
        self,
        teacher: InProcessTeacher | ServedTeacher,
        task: LabelingTask,
        *,
        store: LabelStore | None = None,
        limits: RequestLimits | None = None,
        votes: int = 1,
        progress: Callable[[LabelingProgress], object] | None = None,
    ) -> None:
        limits = RequestLimits() if limits is None else limits
        instance(limits, "limits", RequestLimits)
        label_texts([], teacher, task, store=store, limits=limits, votes=votes, progress=progress)  # checks them all
        self._teacher = teacher
        self._task = task
        self._store = store
        self._limits = limits
        self._votes = votes
        self._progress = progress
        self.fingerprint: str = f"{context_of(teacher, task).digest.hex()}:{votes}"
        self.reports: list[LabelingReport] = []

    def __call__(self, texts: Sequence[str], /) -> list[dict[str, float] | None]:
        """Return the probabilities of the labels for each text; ``None`` for a text without a label.

        Raises:
            InvalidInputError, MissingDependencyError, TeacherApiError, LabelStoreError: as :func:`label_texts`.
        """
        try:
            report = label_texts(
                texts,
                self._teacher,
                self._task,
                store=self._store,
                limits=self._left(),
                votes=self._votes,
                progress=self._progress,
            )
        except (TeacherApiError, LabelStoreError) as error:
            if isinstance(error.report, LabelingReport):
                self.reports.append(error.report)
            raise
        self.reports.append(report)
        return [dict(result.probabilities) or None for result in report.results]

    def _left(self) -> RequestLimits:
        """Return the limits of the next call."""
        limits = self._limits
        if limits.max_cost is not None:
            spent = sum(Fraction(report.cost) + Fraction(report.unknown_cost) for report in self.reports)
            left = float(Fraction(str(limits.max_cost)) - spent)
            # the costs of each earlier call were rounded to two floats, and what is left to one
            rounding = (2 * len(self.reports) + 1) * math.ulp(limits.max_cost) if self.reports else 0.0
            limits = replace(limits, max_cost=max(0.0, left - rounding))
        if limits.max_tokens_total is not None:
            tokens = sum(report.input_tokens + report.output_tokens + report.unknown_tokens for report in self.reports)
            limits = replace(limits, max_tokens_total=max(0, limits.max_tokens_total - tokens))
        return limits
