"""What a labelling gives back: a result for each text, and what it took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lattice_tune.teachers.answer import Outcome, TeacherAnswer
from lattice_tune.teachers.label_context import LabelContext
from lattice_tune.teachers.label_store import row_metadata
from lattice_tune.teachers.rows import LabeledText

__all__ = ["DryRun", "LabelingProgress", "LabelingReport", "LabelingResult", "average_votes"]


@dataclass(frozen=True)
class LabelingResult:
    """What came of one text.

    Attributes:
        text: the text, as it was given.
        outcome: ``Outcome.LABELLED``, or why there is no label.
        probabilities: by label, adding up to 1; empty where there is no label.
        detail: why there is no label, in words.
        from_store: whether nothing was asked, because the answer was stored.
        cut_characters: characters at the text's end that the teacher has not seen.
    """

    text: str
    outcome: Outcome
    probabilities: Mapping[str, float] = field(default_factory=dict)
    detail: str = ""
    from_store: bool = False
    cut_characters: int = 0

    @property
    def label(self) -> str | None:
        """The most probable label, of equals the first; ``None`` without labels."""
        return max(self.probabilities, key=lambda name: self.probabilities[name]) if self.probabilities else None

    @property
    def confidence(self) -> float:
        """The probability of :attr:`label`; 0 without a label."""
        return max(self.probabilities.values(), default=0.0)


@dataclass(frozen=True)
class LabelingProgress:
    """How far a labelling is.

    Attributes:
        done: answers that are stored or settled, those of earlier runs included.
        total: answers wanted.
        failed: of ``done``, those that are no label.
        cost: what the server has billed so far, at most.
    """

    done: int
    total: int
    failed: int
    cost: float


@dataclass(frozen=True)
class LabelingReport:
    """Results in the order of the texts, and what they took.

    Attributes:
        results: one for each text.
        context: teacher, prompt template and labels.
        requests: sent, retries included.
        from_store: answers that were stored before.
        asked_anew: texts with stored answers of other contexts only, by what has changed: ``{"template": 12}``.
        input_tokens, output_tokens: those that the server told of.
        cost: what they cost.
        unknown_cost: the most that requests without a told bill can have cost beside.
        unknown_tokens: the most tokens of such requests.
        stopped: why not all texts were asked: ``"max_cost"``, ``"max_tokens_total"``, ``"deadline"``, or ``None``.
    """

    results: tuple[LabelingResult, ...]
    context: LabelContext
    requests: int = 0
    from_store: int = 0
    asked_anew: Mapping[str, int] = field(default_factory=dict)
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    unknown_cost: float = 0.0
    unknown_tokens: int = 0
    stopped: str | None = None

    @property
    def outcomes(self) -> dict[Outcome, int]:
        """How many texts had each outcome; those that none had are left out."""
        counts = Counter(result.outcome for result in self.results)
        return {outcome: counts[outcome] for outcome in Outcome if counts[outcome]}

    @property
    def is_complete(self) -> bool:
        """Whether every text has a label."""
        return all(result.outcome is Outcome.LABELLED for result in self.results)

    @property
    def label_counts(self) -> dict[str, int]:
        """How many texts have each label as their most probable one."""
        counts = Counter(result.label for result in self.results)
        return {label: counts[label] for label in self.context.labels}

    def rows(self) -> Iterator[LabeledText]:
        """Yield the labelled texts as rows of a dataset, in order, without the others."""
        for result in self.results:
            if result.outcome is Outcome.LABELLED:
                yield LabeledText(
                    result.text, result.probabilities, row_metadata(self.context, result.confidence, None)
                )

    def as_dict(self) -> dict[str, object]:
        """Return the counts as values that JSON holds, without texts."""
        return {
            "texts": len(self.results),
            "outcomes": {outcome.value: count for outcome, count in self.outcomes.items()},
            "labels": self.label_counts,
            "requests": self.requests,
            "from_store": self.from_store,
            "asked_anew": dict(self.asked_anew),
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cost": self.cost,
            "unknown_cost": self.unknown_cost,
            "unknown_tokens": self.unknown_tokens,
            "cut_texts": sum(result.cut_characters > 0 for result in self.results),
            "stopped": self.stopped,
        }


@dataclass(frozen=True)
class DryRun:
    """What a labelling would ask, without asking.

    Attributes:
        texts: how many there are.
        stored: answers that are stored, which are not asked for.
        requests: answers to request: one for each different text and vote.
        asked_anew: as in :class:`LabelingReport`.
        likely_input_tokens: at four bytes a token, which English texts have about.
        most_input_tokens, most_output_tokens: no request exceeds these together, retries left out.
        most_cost: the most that this costs; ``None`` without prices.
        cut_texts: texts of which the end would be cut.
        prompts: the first prompts, as the teacher would read them.
    """

    texts: int
    stored: int
    requests: int
    asked_anew: Mapping[str, int]
    likely_input_tokens: int
    most_input_tokens: int
    most_output_tokens: int
    most_cost: float | None
    cut_texts: int
    prompts: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        """Return the fields as values that JSON holds."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}


def average_votes(
    text: str, labels: Sequence[str], votes: Sequence[TeacherAnswer], *, from_store: bool
) -> LabelingResult:
    """Return the mean of a text's votes, or the outcome of the first that is no label."""
    for vote in votes:
        if vote.outcome is not Outcome.LABELLED:
            return LabelingResult(text, vote.outcome, detail=vote.detail, cut_characters=vote.cut_characters)
    means = [sum(column) / len(votes) for column in zip(*(vote.probabilities for vote in votes), strict=True)]
    return LabelingResult(
        text,
        Outcome.LABELLED,
        dict(zip(labels, means, strict=True)),
        from_store=from_store,
        cut_characters=max(vote.cut_characters for vote in votes),
    )
