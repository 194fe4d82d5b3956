"""Sequences laid end to end, in parts that fit into memory, without padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lattice_tune.lora.token_examples import TokenExample

__all__ = ["PackedTokens", "pack_tokens", "parts_of"]

Int32Array = npt.NDArray[np.int32]

IGNORED = -100
"""The target of a row that is not trained."""


@dataclass(frozen=True, eq=False)
class PackedTokens:
    """Some sequences: no token sees those of another one.

    Attributes:
        token_ids: (T,) of all sequences.
        cu_seqlens: (B + 1,) where each begins.
        targets: (T,) the next token of a row if it is trained, else -100.
    """

    token_ids: Int32Array
    cu_seqlens: Int32Array
    targets: Int32Array


def parts_of(lengths: Sequence[int], most_tokens: int) -> Iterator[list[int]]:
    """Yield consecutive indices whose lengths sum to at most ``most_tokens``.

    A longer one is alone.
    """
    part: list[int] = []
    total = 0
    for index, length in enumerate(lengths):
        if part and total + length > most_tokens:
            yield part
            part, total = [], 0
        part.append(index)
        total += length
    if part:
        yield part


def pack_tokens(examples: Sequence[TokenExample], most_tokens: int) -> Iterator[PackedTokens]:
    """Yield the sequences in parts of at most ``most_tokens`` tokens, in their order."""
    for part in parts_of([len(example.token_ids) for example in examples], most_tokens):
        chosen = [examples[index] for index in part]
        targets = []
        for example in chosen:
            shifted = np.full(len(example.token_ids), IGNORED, np.int32)
            shifted[:-1] = np.where(example.trained[1:], example.token_ids[1:], IGNORED)
            targets.append(shifted)
        yield PackedTokens(
            np.concatenate([example.token_ids for example in chosen]),
            np.cumsum([0, *(len(example.token_ids) for example in chosen)], dtype=np.int32),
            np.concatenate(targets),
        )
