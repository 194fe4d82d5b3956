"""Splits a long text into windows, in which every token but the first is predicted once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from lattice_inference.errors import InvalidInputError
from lattice_inference.token_ids import as_token_id
from lattice_inference.value_text import value_text

if TYPE_CHECKING:
    from lattice_inference.generate.causal_language_model import CausalLanguageModel
    from lattice_inference.state import CachedSequence

__all__ = ["Predictions", "Window", "check_windows", "log_probabilities", "predictions", "windows_of"]

LOGITS_AT_ONCE = 1 << 22
"""The most logits in memory at once for a model (16 MiB), unless a single row has more."""


@dataclass(frozen=True)
class Window:
    """Tokens ``start`` to ``end`` of a text; those from ``scored`` on are predicted."""

    start: int
    end: int
    scored: int


@dataclass(frozen=True)
class Predictions:
    """What a model predicts at consecutive positions.

    Attributes:
        logits: (n, vocabulary) float32.
        targets: (n,) the text's tokens at these positions.
        positions: (n,) the positions in the text.
    """

    logits: npt.NDArray[np.float32]
    targets: npt.NDArray[np.intp]
    positions: npt.NDArray[np.intp]


def check_windows(tokens: int, window: int, stride: int, context_length: int) -> None:
    """Check the sizes of the windows and the length of the text.

    Raises:
        InvalidInputError: a window is longer than the context, the stride leaves tokens out, or the text is too short.
    """
    if as_token_id(window) is None or not 2 <= window <= context_length:
        raise InvalidInputError(
            f"window is {value_text(window)}; expected 2 to {context_length:,}, the model's context"
        )
    if as_token_id(stride) is None or not 1 <= stride < window:
        raise InvalidInputError(f"stride is {value_text(stride)}; expected 1 to {window - 1:,}, less than the window")
    if tokens < 2:
        raise InvalidInputError(f"the text has {tokens} tokens; it takes 2 to predict one from another")


def windows_of(tokens: int, window: int, stride: int) -> Iterator[Window]:
    """Yield the windows, ``stride`` tokens apart; the last one ends with the text."""
    scored = 1
    for start in range(0, tokens, stride):
        end = min(start + window, tokens)
        yield Window(start, end, scored)
        scored = end
        if end == tokens:
            return


def predictions(
    model: CausalLanguageModel, sequence: CachedSequence, token_ids: Sequence[int], window: Window
) -> Iterator[Predictions]:
    """Yield the model's predictions of a window's scored tokens, some rows at a time.

    ``sequence`` is rewound to its start first.
    """
    from lattice_inference.generate.causal_language_model import Extension

    sequence.rewind(0)
    ids = token_ids[window.start : window.end]
    first = window.scored - window.start - 1  # the row that predicts the first scored token
    if first > 0:
        model.forward([Extension(sequence, ids[:first], "none")])
    rows = max(1, LOGITS_AT_ONCE // model.vocab_size)
    for begin in range(first, len(ids) - 1, rows):
        end = min(begin + rows, len(ids) - 1)
        logits = model.forward([Extension(sequence, ids[begin:end], "all")])
        positions = np.arange(window.start + begin + 1, window.start + end + 1)
        yield Predictions(logits, np.array(ids[begin + 1 : end + 1], np.intp), positions)


def log_probabilities(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Return the natural logarithm of the softmax of each row, (n, vocabulary) float64."""
    values = logits.astype(np.float64)
    values -= values.max(axis=1, keepdims=True)
    values -= np.log(np.exp(values).sum(axis=1, keepdims=True))
    return values
