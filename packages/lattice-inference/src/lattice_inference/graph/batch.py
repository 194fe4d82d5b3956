"""A batch: its sequences packed one after the other, without padding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from lattice_inference.errors import InvalidInputError

__all__ = ["Batch"]

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]

FEW_SEQUENCES = 8
"""For at most this many sequences, Python's min and max of the lengths are faster than NumPy's."""


@dataclass(frozen=True)
class Batch:
    """T tokens of B sequences, packed.

    ``token_ids[T]``, ``token_type_ids[T]`` and ``positions[T]`` hold the sequences in order; sequence ``b`` is the rows
    ``cu_seqlens[b]`` to ``cu_seqlens[b + 1]``. Positions continue from ``context_lengths`` unless they are given.
    ``adapter[B]`` is the index of each sequence's adapter in the step's list of adapters; -1 is none.

    Programs that keep state use these fields:

    - ``context_lengths[B]``: how many tokens of each sequence the cache holds already.
    - ``block_table``: each sequence's pages, enough for its present and its new tokens.
    - ``read_slots[B]``: the slot that holds each sequence's recurrent state. The step appends the rows of its block.
    - ``write_slots[B]``: the slot that gets the state of the next block if the step crosses the end of one. It then is the
      slot of the sequence, and ``read_slots`` still has what came before. Otherwise it is not used.
    - ``logit_rows``: the rows whose logits are wanted.

    ``inputs`` has rows of float32 by name for ``input_rows``: (rows, width), with a row for each token, sequence or logit
    row, as the op says.

    ``tokens`` is T, ``sequences`` is B and ``logit_count`` is the length of ``logit_rows``.

    Raises:
        InvalidInputError: lengths disagree, ``cu_seqlens`` does not start at 0, does not end at T, or a sequence is empty.
    """

    token_ids: Int32Array
    cu_seqlens: Int32Array
    token_type_ids: Int32Array | None = None
    positions: Int32Array | None = None
    context_lengths: Int32Array | None = None
    block_table: tuple[Int32Array, ...] | None = None
    read_slots: Int32Array | None = None
    write_slots: Int32Array | None = None
    adapter: Int32Array | None = None
    logit_rows: Int32Array | None = None
    inputs: Mapping[str, Float32Array] | None = None
    max_seqlen: int = field(init=False)
    tokens: int = field(init=False)
    sequences: int = field(init=False)
    logit_count: int = field(init=False)

    def __post_init__(self) -> None:
        tokens, bounds = self.token_ids, self.cu_seqlens
        if not (
            type(tokens) is np.ndarray and tokens.dtype == np.int32 and tokens.ndim == 1 and tokens.flags.c_contiguous
        ):
            tokens = _int32(self, "token_ids")
        if not (
            type(bounds) is np.ndarray and bounds.dtype == np.int32 and bounds.ndim == 1 and bounds.flags.c_contiguous
        ):
            bounds = _int32(self, "cu_seqlens")
        if len(bounds) < 2 or bounds[0] != 0 or bounds[-1] != len(tokens):
            _refuse_bounds(tokens, bounds)
        lengths = bounds[1:] - bounds[:-1]
        counts = lengths.tolist() if len(lengths) <= FEW_SEQUENCES else [int(lengths.min()), int(lengths.max())]
        if min(counts) <= 0:
            raise InvalidInputError(f"sequence {int(np.argmax(lengths <= 0))} of the batch has no tokens")
        most = max(counts)
        # a difference that int32 does not hold looks like another one
        if most > len(tokens) or (len(lengths) > FEW_SEQUENCES and lengths.sum(dtype=np.int64) != len(tokens)):
            _refuse_bounds(tokens, bounds)
        if self.context_lengths is not None:
            self._check_context(lengths)
        if self.logit_rows is not None:
            rows = _int32(self, "logit_rows")
            if len(rows) and not (int(rows.min()) >= 0 and int(rows.max()) < len(tokens)):
                raise InvalidInputError(
                    f"logit_rows must name rows of the {len(tokens)} tokens, got {rows[:8].tolist()}"
                )
        if self.adapter is not None and len(_int32(self, "adapter")) != len(lengths):
            raise InvalidInputError(f"adapter has {len(self.adapter)} entries for {len(lengths)} sequences")
        if self.read_slots is not None or self.write_slots is not None:
            for name in ("read_slots", "write_slots"):
                if getattr(self, name) is None or len(_int32(self, name)) != len(lengths):
                    raise InvalidInputError(f"{name} must have a slot for each of {len(lengths)} sequences")
        for name, default in (("token_type_ids", _zeros), ("positions", _positions)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, default(bounds, lengths, self.context_lengths))
            elif len(_int32(self, name)) != len(tokens):
                raise InvalidInputError(f"{name} has {len(getattr(self, name))} entries for {len(tokens)} tokens")
        if self.inputs is not None:
            object.__setattr__(self, "inputs", _float_inputs(self.inputs))
        object.__setattr__(self, "max_seqlen", most)
        object.__setattr__(self, "tokens", len(tokens))
        object.__setattr__(self, "sequences", len(bounds) - 1)
        object.__setattr__(self, "logit_count", 0 if self.logit_rows is None else len(self.logit_rows))

    def _check_context(self, lengths: Int32Array) -> None:
        context = _int32(self, "context_lengths")
        if len(context) != len(lengths) or int(context.min()) < 0:
            raise InvalidInputError(
                f"context_lengths must have a length of at least 0 for each of {len(lengths)} sequences, got "
                f"{context[:8].tolist()}"
            )
        if self.block_table is not None and len(self.block_table) != len(lengths):
            raise InvalidInputError(f"block_table has {len(self.block_table)} rows for {len(lengths)} sequences")

    @property
    def carries_state(self) -> bool:
        """Whether the batch names cache pages, slots or logit rows."""
        return not (
            self.context_lengths is None
            and self.block_table is None
            and self.read_slots is None
            and self.write_slots is None
            and self.logit_rows is None
        )


def _refuse_bounds(tokens: Int32Array, bounds: Int32Array) -> NoReturn:
    raise InvalidInputError(
        f"cu_seqlens must run from 0 to the {len(tokens)} tokens of the batch with one entry more than there are "
        f"sequences, got {bounds[:8].tolist()}"
    )


def _int32(batch: Batch, name: str) -> Int32Array:
    array = np.ascontiguousarray(getattr(batch, name), dtype=np.int32)
    if array.ndim != 1:
        raise InvalidInputError(f"{name} must be one-dimensional, got shape {array.shape}")
    object.__setattr__(batch, name, array)
    return array


def _float_inputs(inputs: Mapping[str, Float32Array]) -> dict[str, Float32Array]:
    arrays = {name: np.ascontiguousarray(array, np.float32) for name, array in inputs.items()}
    for name, array in arrays.items():
        if array.ndim != 2:
            raise InvalidInputError(f"inputs[{name!r}] has the shape {array.shape}; expected rows of numbers")
    return arrays


def _zeros(bounds: Int32Array, lengths: Int32Array, context: Int32Array | None) -> Int32Array:
    return np.zeros(int(bounds[-1]), np.int32)


def _positions(bounds: Int32Array, lengths: Int32Array, context: Int32Array | None) -> Int32Array:
    """Return each token's position, counted from its sequence's context length or from 0."""
    rows = np.arange(int(bounds[-1]), dtype=np.int32)
    if context is None:
        return rows if len(lengths) == 1 else rows - np.repeat(bounds[:-1], lengths)
    return rows + np.repeat(context - bounds[:-1], lengths)
