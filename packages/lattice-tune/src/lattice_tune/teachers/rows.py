"""Labelled texts as rows of a dataset: one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lattice_inference.checkpoint.atomic_file import atomic_file
from lattice_tune.arguments import instance, number
from lattice_tune.errors import ConfigError, InvalidInputError, shown
from lattice_tune.teachers.texts import check_file_path, check_texts

__all__ = ["LabeledText", "write_jsonl"]


@dataclass(frozen=True)
class LabeledText:
    """A text with the probability of each label.

    Attributes:
        text: the text.
        labels: probabilities by label, all labels of the task in its order, adding up to 1.
        metadata: where the label comes from: ``teacher_model``, ``teacher_confidence``, ``labeled_at``.
    """

    text: str
    labels: Mapping[str, float]
    metadata: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_texts([self.text])
        instance(self.labels, "labels", Mapping)  # type: ignore[type-abstract]
        instance(self.metadata, "metadata", Mapping)  # type: ignore[type-abstract]
        if not self.labels:
            raise InvalidInputError("labels is empty: a row has a probability of at least one label")
        for name, value in self.labels.items():
            instance(name, "a label", str)
            number(value, f"the probability of {shown(name)}", least=0.0, most=1.0, refusal=ConfigError)

    @property
    def label(self) -> str:
        """The most probable label; of equals the first."""
        return max(self.labels, key=lambda name: self.labels[name])

    def to_json(self) -> str:
        """Return the row as one line of JSON, without the line's end.

        Raises:
            InvalidInputError: the metadata hold something that JSON has not.
        """
        row = {"text": self.text, "labels": dict(self.labels), "metadata": dict(self.metadata)}
        try:
            line = json.dumps(row, ensure_ascii=False, allow_nan=False)
            line.encode()
        except UnicodeEncodeError:  # a lone surrogate, which UTF-8 cannot hold
            line = json.dumps(row)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInputError(f"the row cannot be written as JSON: {error}") from None
        return line


def write_jsonl(path: Path, rows: Iterable[LabeledText]) -> int:
    """Write rows to a file that is whole or not there, and return how many.

    Raises:
        InvalidInputError: ``path`` names no file, or a row is no :class:`LabeledText`.
        WriteError: it cannot be written.
    """
    try:
        checked = iter(rows)
    except TypeError:
        raise InvalidInputError(f"rows is {shown(rows)}; pass LabeledText rows") from None
    count = 0
    with atomic_file(check_file_path("path", path)) as file:
        for row in checked:
            instance(row, "a row", LabeledText)
            file.write(row.to_json().encode() + b"\n")
            count += 1
    return count
