"""The end at which a long text is cut, as transformers reads it from the tokenizer's files."""

from __future__ import annotations

import os
from pathlib import Path

from lattice_inference.checkpoint.json_file import load_json_object
from lattice_inference.errors import ModelConfigError
from lattice_inference.tokenizer import Tokenizer, Truncation
from lattice_inference.tokenizer.limits import Side

__all__ = ["cut_side", "cut_to"]


def cut_side(path: Path, tokenizer: Tokenizer) -> Side:
    """Return the end that loses tokens.

    It is ``truncation_side``, else the direction in the tokenizer.json.

    Args:
        path: the model's directory, or a GGUF file.
        tokenizer: its tokenizer.

    Raises:
        ModelConfigError: ``truncation_side`` is neither left nor right.
    """
    file = path / "tokenizer_config.json"
    if os.path.lexists(file):
        side = load_json_object(file).get("truncation_side")
        if side == "left" or side == "right":
            return side
        if side is not None:
            raise ModelConfigError(f"{file}: truncation_side is {side!r:.80}; expected 'left' or 'right'")
    stated = tokenizer.definition.truncation
    return "right" if stated is None else stated.side


def cut_to(limit: int | None, side: Side) -> Truncation | int | None:
    """Return how to cut texts to ``limit`` tokens."""
    return limit if limit is None or side == "right" else Truncation(limit, side=side)
