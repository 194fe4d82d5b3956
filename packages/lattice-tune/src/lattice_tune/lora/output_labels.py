"""The labels of a cross-encoder's outputs, from the model's files or from the examples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lattice_inference.checkpoint.json_file import load_json_object
from lattice_tune.errors import DatasetError, shown

__all__ = ["output_labels"]


def output_labels(path: Path, used: Sequence[str], outputs: int) -> tuple[str, ...]:
    """Return the label of each output.

    Labels that are numbers are the outputs' numbers. Others are those that the model's ``config.json`` names
    (``id2label``), or, if it names none of them, the examples' own by name, one for each output.

    Raises:
        DatasetError: the examples have a label of no output, or another number of labels.
    """
    if all(label.isdecimal() for label in used):
        numbers = tuple(str(number) for number in range(outputs))
        unknown = [label for label in used if label not in numbers]
        if unknown:
            raise DatasetError(f"there is the label {unknown[0]}, and the model's outputs are 0 to {outputs - 1}")
        return numbers
    config = path / "config.json"
    named = load_json_object(config).get("id2label") if config.is_file() else None
    if isinstance(named, dict):
        told = tuple(str(named.get(str(number))) for number in range(outputs))
        if set(used) <= set(told):
            return told
    if len(used) != outputs:
        raise DatasetError(
            f"the examples have {len(used)} labels, such as {shown(used[0])}, and the model has {outputs} outputs: "
            "use their numbers"
        )
    return tuple(used)
