"""Vectors of single tokens: a model's program up to its pooling, over the same weights."""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt

from lattice_inference.backends.protocol import Backend, BackendProgram
from lattice_inference.encode.text_program import TextProgram
from lattice_inference.errors import InvalidInputError
from lattice_inference.files.fingerprint import ModelSnapshot
from lattice_inference.graph.program import Program
from lattice_inference.models.family import TextConfig, vectors
from lattice_inference.models.opened_model import open_model
from lattice_inference.process_lock import ProcessLock
from lattice_inference.tokenizer import PackedEncoding

__all__ = ["TokenProgram", "before_pooling"]

TOKENS = "tokens"
"""The output with one row a token."""

#: A pooling before which every family has the final state of each token.
_HEAD = vectors("mean")


class TokenProgram:
    """A model's program up to its pooling, compiled when it is first run. Thread-safe.

    Most callers want vectors of texts alone: they pay nothing for it.

    Args:
        backend: what compiled the model's program.
        beside: that program; the two share the weights if the backend can.
        snapshot: the files that it was loaded from.
        config: the model's configuration.
    """

    def __init__(self, backend: Backend, beside: BackendProgram, snapshot: ModelSnapshot, config: TextConfig) -> None:
        self._compile = partial(_compile, backend, beside, snapshot, config)
        self._program: TextProgram | None = None
        self._is_closed = False
        self._lock = ProcessLock()

    def run(self, packed: PackedEncoding) -> list[npt.NDArray[np.float32]]:
        """Return an array (tokens, width) for each text; a text without tokens has no rows.

        Raises:
            InvalidInputError: it is closed.
            ModelNotFoundError, CheckpointError: at the first run, the model's files are gone or were changed.
            NonFiniteError: as :meth:`TextProgram.run` does.
        """
        bounds = packed.cu_seqlens
        program = self._compiled()
        if not np.diff(bounds).all():
            packed = packed.select(np.flatnonzero(np.diff(bounds)))
        rows = program.run_tokens(packed, TOKENS)
        return [rows[first:end] for first, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)]

    def close(self) -> None:
        """Give its memory back. Later runs raise InvalidInputError."""
        with self._lock:
            self._is_closed = True
            program, self._program = self._program, None
        if program is not None:
            program.close()

    def trim(self) -> None:
        """Give the memory that steps left behind back to the operating system."""
        program = self._program
        if program is not None:
            program.trim()

    def _compiled(self) -> TextProgram:
        program = self._program
        if program is not None:
            return program
        with self._lock:
            if self._is_closed:
                raise InvalidInputError("this model is closed: load it again")
            if self._program is None:
                self._program = self._compile()
            return self._program


def _compile(backend: Backend, beside: BackendProgram, snapshot: ModelSnapshot, config: TextConfig) -> TextProgram:
    with open_model(snapshot.model, causal=False) as model:
        snapshot.check_unchanged()
        program = backend.compile(before_pooling(model.program(_HEAD)), model.tensors(_HEAD), beside=beside)
    return TextProgram(program, config, snapshot.model)


def before_pooling(program: Program) -> Program:
    """Return what a program computes before its pooling: the output ``tokens``, (T, width)."""
    place = next(number for number, op in enumerate(program.ops) if op.kind == "pool")
    return Program(program.ops[:place], {TOKENS: program.ops[place].inputs[0]})
