"""What a teacher is asked to do: choose among labels for a text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, get_args

from lattice_tune.arguments import instance, whole
from lattice_tune.errors import ConfigError, shown

__all__ = ["LabelKind", "LabelingTask"]

LabelKind = Literal["hard", "soft"]

MOST_LABELS = 1000
MOST_LABEL_CHARACTERS = 200
MOST_CHARACTERS = 1_000_000

DEFAULT_INSTRUCTIONS = "Choose the label that fits the text best."


@dataclass(frozen=True)
class LabelingTask:
    """Labels, and how they are to be chosen.

    >>> task = LabelingTask(("praise", "complaint"), descriptions={"praise": "the writer is content"})
    >>> task.index_of(" Complaint ")
    1

    Attributes:
        labels: 2 to 1,000 different names of at most 200 characters, without control characters.
        kind: ``"hard"`` for one label, ``"soft"`` for a probability of each.
        instructions: what the teacher is told to do.
        descriptions: what a label means, by label; any of them may be left out.
        max_text_characters: characters of a text that a teacher is shown; the rest is cut, and the teacher is told.

    Raises:
        ConfigError: a field makes no sense.
    """

    labels: tuple[str, ...]
    kind: LabelKind = "hard"
    instructions: str = DEFAULT_INSTRUCTIONS
    descriptions: Mapping[str, str] = field(default_factory=dict)
    max_text_characters: int = 10_000

    def __post_init__(self) -> None:
        if isinstance(self.labels, str):  # type: ignore[unreachable]
            raise ConfigError(f"labels is {shown(self.labels)}; pass a tuple of names")
        try:
            labels = tuple(self.labels)
        except TypeError:
            raise ConfigError(f"labels is {shown(self.labels)}; pass a tuple of names") from None
        if not 2 <= len(labels) <= MOST_LABELS:
            raise ConfigError(f"there are {len(labels)} labels; pass 2 to {MOST_LABELS:,}")
        seen: dict[str, str] = {}
        for label in labels:
            _check_label(label)
            if (other := seen.get(_folded(label))) is not None:
                raise ConfigError(
                    f"the labels {shown(other)} and {shown(label)} are the same but for case and blanks: rename one"
                )
            seen[_folded(label)] = label
        object.__setattr__(self, "labels", labels)
        if not isinstance(self.kind, str) or self.kind not in get_args(LabelKind):
            raise ConfigError(f'kind is {shown(self.kind)}; it must be "hard" or "soft"')
        _check_text("instructions", self.instructions)
        if not isinstance(self.descriptions, Mapping):
            raise ConfigError(f"descriptions is {shown(self.descriptions)}; pass a mapping of labels to texts")
        for name, description in self.descriptions.items():
            if name not in labels:
                raise ConfigError(f"descriptions has {shown(name)}, which is none of the labels")
            _check_text(f"the description of {name}", description)
        object.__setattr__(self, "descriptions", dict(self.descriptions))
        whole(self.max_text_characters, "max_text_characters", least=1, most=MOST_CHARACTERS, refusal=ConfigError)

    def index_of(self, name: str) -> int | None:
        """Return the place of a label, whatever its case and blanks; ``None`` for no label.

        Raises:
            InvalidInputError: ``name`` is no str.
        """
        instance(name, "name", str)
        return self._places.get(_folded(name))

    @cached_property
    def _places(self) -> dict[str, int]:
        return {_folded(label): index for index, label in enumerate(self.labels)}


def _folded(label: str) -> str:
    return label.strip().casefold()


def _check_label(label: object) -> None:
    if not isinstance(label, str) or not label.strip() or not label.isprintable():
        raise ConfigError(f"the label {shown(label)} is no name: write one without control characters, and not empty")
    if not len(label) <= MOST_LABEL_CHARACTERS:
        raise ConfigError(
            f"the label {shown(label)} has {len(label):,} characters; at most {MOST_LABEL_CHARACTERS} are taken"
        )


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise ConfigError(f"{name} is {shown(value)}; it must be a str")
    if not len(value) <= MOST_CHARACTERS:
        raise ConfigError(f"{name} has {len(value):,} characters; at most {MOST_CHARACTERS:,} are taken")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{name} holds a lone surrogate, which is no character") from None
