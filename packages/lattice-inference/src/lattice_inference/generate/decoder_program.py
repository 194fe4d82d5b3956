"""Runs a compiled decoder over tokens of several sequences, step by step, and keeps their cache in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

import numpy as np
import numpy.typing as npt

from lattice_inference.backends.cpu import CpuBackend, CpuProgram, CpuState
from lattice_inference.backends.cpu.weight_forms import Activations
from lattice_inference.backends.cpu.weights import TensorSource
from lattice_inference.backends.weight_sizes import WeightSize
from lattice_inference.calibration import InputRange
from lattice_inference.errors import InvalidInputError, NonFiniteError
from lattice_inference.graph.batch import Batch
from lattice_inference.graph.program import Program
from lattice_inference.precision import Precision
from lattice_inference.state import CachedSequence

__all__ = ["DecoderProgram"]

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]
Request = tuple[CachedSequence, Int32Array, Literal["last", "all", "none"]]


@dataclass(frozen=True)
class _Piece:
    """A run of one request's tokens that goes through the model in one step."""

    request: int
    token_ids: Int32Array
    logit_rows: range  # rows of the piece


class DecoderProgram:
    """A decoder ready to run; see ``CausalLanguageModel.forward`` for what a call does."""

    STEP_TOKENS = 512
    """Tokens that go through the model at once: enough to keep every core busy, few enough to answer a cancellation soon."""

    STEP_LOGITS = 1 << 24
    """Logits that a step computes at most (64 MiB of them), if that is a row or more."""

    def __init__(
        self,
        program: Program,
        source: TensorSource,
        *,
        precision: Precision,
        activations: Activations = "int8",
        input_ranges: Mapping[str, InputRange] | None = None,
        threads: int | None = None,
    ) -> None:
        self._specs = program.kv_specs
        self._vocab_size = program.outputs["logits"].width
        self._backend = CpuBackend(
            threads=threads, precision=precision, activations=activations, input_ranges=input_ranges
        )
        self._program: CpuProgram | None = self._backend.compile(program, source)

    def open_state(
        self, *, dtype: Literal["float16", "float32", "bfloat16", "int8"], page_tokens: int, pages: int
    ) -> CpuState:
        """Return pages for this program's keys and values, kept as ``dtype``."""
        self._open()
        specs = [replace(spec, dtype=dtype) for spec in self._specs]
        return self._backend.open_state(specs, page_tokens=page_tokens, pages=pages)

    @property
    def weight_sizes(self) -> tuple[WeightSize, ...]:
        """What each weight takes."""
        return self._open().weight_sizes

    @property
    def arena_bytes(self) -> int:
        """Bytes that are kept for the activations of later steps."""
        return self._open().arena_bytes

    @property
    def bfloat16_products(self) -> str | None:
        """What rows that are rounded to bfloat16 are multiplied by; None if none are."""
        return self._open().bfloat16_products

    def close(self) -> None:
        """Give the weights back. Further runs raise InvalidInputError; closing twice is harmless."""
        self._program = None

    def trim(self) -> None:
        """Give the memory that steps left behind back to the operating system."""
        if self._program is not None:
            self._program.trim()

    def run(self, requests: Sequence[Request]) -> Float32Array:
        """Run the requests and return the logits wanted, (R, vocab_size).

        Raises:
            InvalidInputError: the program or a sequence is closed, a sequence occurs twice, or caches are mixed.
            CacheFullError: there is no room.
            NonFiniteError: logits hold NaN or infinity; its ``rows`` are rows of the result.
        """
        program = self._open()
        sequences = [sequence for sequence, _, _ in requests]
        if len({id(sequence) for sequence in sequences}) < len(sequences):
            raise InvalidInputError("a sequence may occur once in a call: join its tokens")
        if len({id(sequence.cache) for sequence in sequences}) > 1:
            raise InvalidInputError("the sequences of a call must belong to one cache")
        before = [sequence.length for sequence in sequences]
        *done, total = [0, *accumulate(_wanted(ids, logits) for _, ids, logits in requests)]
        results = np.empty((0, self._vocab_size), np.float32)
        try:
            for sequence, ids, _ in requests:
                sequence.reserve(len(ids))
            for pieces in self._steps(requests):
                rows = [row for p in pieces for row in range(done[p.request], done[p.request] + len(p.logit_rows))]
                logits = self._step(program, sequences, pieces, rows)
                if len(rows) == total:  # one step had all that is wanted
                    results = logits
                elif rows:
                    results = results if len(results) else np.empty((total, self._vocab_size), np.float32)
                    results[rows] = logits
                for piece in pieces:
                    done[piece.request] += len(piece.logit_rows)
                    sequences[piece.request].commit(piece.token_ids)
        except BaseException:
            for sequence, length in zip(sequences, before, strict=True):
                sequence.rewind(length)
            raise
        return results

    def _open(self) -> CpuProgram:
        if self._program is None:
            raise InvalidInputError("this model is closed: load it again")
        return self._program

    @staticmethod
    def _step(
        program: CpuProgram,
        sequences: Sequence[CachedSequence],
        pieces: Sequence[_Piece],
        result_rows: Sequence[int],
    ) -> Float32Array:
        bounds = [0, *accumulate(len(piece.token_ids) for piece in pieces)]
        rows = [row + first for piece, first in zip(pieces, bounds, strict=False) for row in piece.logit_rows]
        batch = Batch(
            np.concatenate([piece.token_ids for piece in pieces]),
            np.array(bounds, np.int32),
            context_lengths=np.array([sequences[piece.request].length for piece in pieces], np.int32),
            block_table=tuple(sequences[piece.request].block_table for piece in pieces),
            logit_rows=np.array(rows, np.int32),
        )
        state = sequences[0].cache.storage
        if not isinstance(state, CpuState):
            raise InvalidInputError("the cache was not opened by this model: use model.open_cache()")
        try:
            return program.run(batch, outputs=("logits",), state=state)["logits"]
        except NonFiniteError as error:
            bad = tuple(result_rows[row] for row in error.rows)
            raise NonFiniteError(
                f"the logits of row {bad[0]} hold NaN or infinity: the weights are damaged, or a float16 cache overflowed "
                "(open one with dtype='bfloat16')",
                bad,
            ) from error

    def _steps(self, requests: Sequence[Request]) -> list[list[_Piece]]:
        """Cut the requests into steps within STEP_TOKENS and STEP_LOGITS."""
        most_rows = max(1, self.STEP_LOGITS // self._vocab_size)
        steps: list[list[_Piece]] = []
        tokens = rows = 0
        for index, (_, ids, logits) in enumerate(requests):
            start = 0
            while start < len(ids):
                if not steps or tokens == self.STEP_TOKENS or rows == most_rows:
                    steps.append([])
                    tokens = rows = 0
                count = min(len(ids) - start, self.STEP_TOKENS - tokens)
                if logits == "all":
                    count = min(count, most_rows - rows)
                first = 0 if logits == "all" else count - (logits == "last" and start + count == len(ids))
                steps[-1].append(_Piece(index, ids[start : start + count], range(first, count)))
                start += count
                tokens += count
                rows += count - first
        return steps


def _wanted(token_ids: Int32Array, logits: str) -> int:
    return {"all": len(token_ids), "last": 1, "none": 0}[logits]
