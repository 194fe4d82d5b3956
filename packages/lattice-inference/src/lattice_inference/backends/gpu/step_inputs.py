"""What a step's kernels read of its batch: one array of 32-bit words.

A header says where each part begins.

Records depend on row counts only, so that equal counts write none anew: whatever else varies from step to step is here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lattice_inference.graph.batch import Batch
from lattice_inference.graph.ops import KEY_SEGMENT
from lattice_inference.graph.program import Rows

__all__ = ["FEW_ROWS", "HEADER", "HEADER_WORDS", "StepShape", "attention_tiles", "step_shape", "step_words"]

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]

HEADER = {
    name: index
    for index, name in enumerate(
        (
            "TOKEN_IDS",
            "TOKEN_TYPE_IDS",
            "POSITIONS",
            "BOUNDS",
            "SEQUENCE_OF_ROW",
            "LOGIT_ROWS",
            "TILES",
            "TILE_COUNT",
            "CONTEXT",
            "PAGE_BOUNDS",
            "PAGES",
            "PAGE_TOKENS",
            "SEGMENTS",
            "ADAPTERS",
            "READ_SLOTS",
            "WRITE_SLOTS",
        )
    )
}
"""Entries of the header: where a part begins, counted in words, or (the last words of TILE, PAGE and SEGMENTS) a number."""

HEADER_WORDS = 16
"""Words of the header; where the tables begin follows it, a word each."""

FEW_ROWS = 8
"""Up to here kernels of few rows serve."""


class StepShape(NamedTuple):
    """What decides which kernels a step runs and how many workgroups each has.

    Attributes:
        tokens, sequences, logit_rows: row counts of the batch.
        is_short: whether no sequence has more than FEW_ROWS rows.
        tiles: tiles of rows that attention of many rows has.
        segments: segments of keys that the longest sequence has.
        kv_types: the number of the type that each layer's keys and values are kept in.
    """

    tokens: int
    sequences: int
    logit_rows: int
    is_short: bool
    tiles: int
    segments: int
    kv_types: tuple[int, ...]

    def count(self, rows: Rows) -> int:
        """Return how many rows there are."""
        if rows is Rows.TOKENS:
            return self.tokens
        return self.sequences if rows is Rows.SEQUENCES else self.logit_rows


def attention_tiles(batch: Batch, queries: int) -> Int32Array:
    """Return sequence and first row of each tile of ``queries`` rows, (tiles, 2)."""
    counts = -(-np.diff(batch.cu_seqlens) // queries)
    sequences = np.repeat(np.arange(batch.sequences, dtype=np.int32), counts)
    before = np.repeat(np.cumsum(counts) - counts, counts)
    firsts = (np.arange(len(sequences), dtype=np.int32) - before) * queries
    return np.stack([sequences, firsts], axis=1).astype(np.int32)


def step_shape(batch: Batch, tiles: Int32Array, kv_types: tuple[int, ...]) -> StepShape:
    """Return the shape of a step."""
    segments = 0
    if batch.context_lengths is not None:
        longest = int((batch.context_lengths + np.diff(batch.cu_seqlens)).max())
        segments = -(-longest // KEY_SEGMENT)
    return StepShape(
        batch.tokens,
        batch.sequences,
        batch.logit_count,
        batch.max_seqlen <= FEW_ROWS,
        len(tiles),
        segments,
        kv_types,
    )


def step_words(
    batch: Batch,
    tiles: Int32Array,
    tables: Sequence[Float32Array],
    *,
    page_tokens: int,
    segments: int,
    adapter_numbers: Int32Array | None = None,
) -> npt.NDArray[np.uint32]:
    """Return the words of a step.

    Args:
        batch: its batch; ids and pages are checked.
        tiles: of :func:`attention_tiles`.
        tables: rows of floats: those of each op of angles, then those that the caller gives, (tokens, width).
        page_tokens: tokens of a page; 0 without pages.
        segments: segments of keys.
        adapter_numbers: the number of each sequence's adapter, or 0.
    """
    assert batch.token_type_ids is not None  # Batch fills them in
    assert batch.positions is not None
    lengths = np.diff(batch.cu_seqlens)
    parts: dict[str, npt.NDArray[np.generic]] = {
        "TOKEN_IDS": batch.token_ids,
        "TOKEN_TYPE_IDS": batch.token_type_ids,
        "POSITIONS": batch.positions,
        "BOUNDS": batch.cu_seqlens,
        "SEQUENCE_OF_ROW": np.repeat(np.arange(batch.sequences, dtype=np.int32), lengths),
        "TILES": tiles.reshape(-1),
    }
    if batch.logit_rows is not None:
        parts["LOGIT_ROWS"] = batch.logit_rows
    if batch.block_table is not None:
        counts = np.array([0, *map(len, batch.block_table)])
        parts["PAGE_BOUNDS"] = np.cumsum(counts).astype(np.int32)
        parts["PAGES"] = np.concatenate(batch.block_table).astype(np.int32)
    if batch.read_slots is not None and batch.write_slots is not None:
        parts["READ_SLOTS"], parts["WRITE_SLOTS"] = batch.read_slots, batch.write_slots
    if batch.context_lengths is not None:
        parts["CONTEXT"] = batch.context_lengths
    if adapter_numbers is not None:
        parts["ADAPTERS"] = adapter_numbers
    header = np.zeros(HEADER_WORDS + len(tables), np.uint32)
    header[HEADER["TILE_COUNT"]] = len(tiles)
    header[HEADER["PAGE_TOKENS"]] = page_tokens
    header[HEADER["SEGMENTS"]] = segments
    words: list[npt.NDArray[np.uint32]] = [header]
    place = len(header)
    for name, part in parts.items():
        header[HEADER[name]] = place
        words.append(part.view(np.uint32))
        place += part.size
    for index, table in enumerate(tables):
        header[HEADER_WORDS + index] = place
        words.append(table.reshape(-1).view(np.uint32))
        place += table.size
    return np.concatenate(words)
