"""Where the memory of one step lies in its arena, for inference and for training.

The order is slots, one stretch of scratch for each thread, bookkeeping.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lattice_inference.backends.cpu import _cpu
from lattice_inference.backends.cpu.step_plan import StepPlan
from lattice_inference.graph.batch import Batch
from lattice_inference.graph.program import Rows

__all__ = ["StepMemory", "step_memory"]

Int32Array = npt.NDArray[np.int32]


class StepMemory(NamedTuple):
    """Places in an arena of ``nbytes`` bytes.

    Attributes:
        counts: rows of each kind.
        slot_offsets: of each slot.
        threads: that the step uses.
        scratch_bytes: of one thread.
        scratch_offset, bookkeeping_offset: where these parts begin.
        nbytes: of everything.
    """

    counts: Mapping[Rows, int]
    slot_offsets: Sequence[int]
    threads: int
    scratch_bytes: int
    scratch_offset: int
    bookkeeping_offset: int
    nbytes: int

    def step(self, batch: Batch, arena: _cpu.Memory, **more: Any) -> _cpu.Step:
        """Return the step of a batch in an arena; ``more`` is what else :class:`_cpu.Step` takes."""
        types, positions = batch.token_type_ids, batch.positions
        assert types is not None  # Batch fills them in
        assert positions is not None
        return _cpu.Step(
            token_ids=batch.token_ids,
            token_type_ids=types,
            positions=positions,
            cu_seqlens=batch.cu_seqlens,
            max_seqlen=batch.max_seqlen,
            logit_rows=batch.logit_rows,
            arena=arena,
            slot_offsets=self.slot_offsets,
            scratch_offset=self.scratch_offset,
            scratch_bytes=self.scratch_bytes,
            threads=self.threads,
            bookkeeping_offset=self.bookkeeping_offset,
            **more,
        )


def step_memory(
    plan: StepPlan, batch: Batch, threads: int | None, *, context: Int32Array | None = None, least_scratch: int = 0
) -> StepMemory:
    """Lay out a step.

    Args:
        plan: what runs.
        batch: its rows.
        threads: the most threads; None for all of the process's pool.
        context: tokens of each sequence that are kept already, for a program with state.
        least_scratch: bytes that a thread's scratch has at least.
    """
    counts = {Rows.TOKENS: batch.tokens, Rows.SEQUENCES: batch.sequences, Rows.LOGIT_ROWS: batch.logit_count}
    offsets, slots_bytes = plan.memory.offsets(counts)
    pool = _cpu.get_num_threads()
    used = min(pool, threads or pool)
    scratch_bytes = max(plan.native.scratch_bytes(batch.max_seqlen), least_scratch)
    bookkeeping_offset = slots_bytes + used * scratch_bytes
    nbytes = bookkeeping_offset + plan.native.bookkeeping_bytes(batch.cu_seqlens, context)
    return StepMemory(counts, offsets, used, scratch_bytes, slots_bytes, bookkeeping_offset, nbytes)
