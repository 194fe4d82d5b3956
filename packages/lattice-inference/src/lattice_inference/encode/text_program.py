"""Runs a compiled model over tokenized texts: what embedding and classifying have in common.

Texts are sorted by length and go through the program in steps of a bounded number of tokens. Which texts share a step
changes no bit of a result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from lattice_inference.backends.opening import as_adapting
from lattice_inference.backends.protocol import AdaptingProgram, BackendProgram, Pending
from lattice_inference.cancellation import check_cancelled
from lattice_inference.checkpoint.json_file import load_json_object
from lattice_inference.errors import InvalidInputError, NonFiniteError
from lattice_inference.graph.batch import Batch
from lattice_inference.models.family import TextConfig
from lattice_inference.tokenizer import PackedEncoding

if TYPE_CHECKING:
    from lattice_inference.encode.token_program import TokenProgram
    from lattice_inference.lora.attached_adapter import AttachedAdapter

__all__ = ["TextProgram", "batch_of_texts", "gives_token_types", "reads_token_types", "steps_of_texts"]

STEPS_IN_FLIGHT = 2
"""Steps that are submitted before the first of them is waited for."""

_FIRST_ROW: npt.NDArray[np.intp] = np.zeros(1, np.intp)

# transformers' classes that hand token types to a model unless their file says otherwise.
_TYPED_TOKENIZERS = frozenset({"BertTokenizer", "ElectraTokenizer"})


class TextProgram:
    """A compiled program over tokens of texts, and its model's numbering of tokens.

    Thread-safe; closed by its maker.

    Args:
        program: the compiled program.
        config: the model's configuration, which says how positions are counted.
        directory: where the weights came from, for messages.
        tokens: gives the vectors of single tokens; closed with this.

    Attributes:
        threads: the most threads that a call may use; ``None`` is all of the process's pool.
    """

    def __init__(
        self, program: BackendProgram, config: TextConfig, directory: Path, tokens: TokenProgram | None = None
    ) -> None:
        self._program: BackendProgram | None = program
        self.threads: int | None = program.threads
        self.device: str = program.device
        self.device_identity: str | None = program.device_identity
        self._config = config
        self._directory = directory
        self._tokens = tokens
        self._reads_token_types = reads_token_types(config, directory)

    def check_open(self) -> None:
        """Raise InvalidInputError if the program was closed."""
        if self._program is None:
            self._open()

    def close(self) -> None:
        """Give the weights back. Further runs raise InvalidInputError; closing twice is harmless."""
        program, self._program = self._program, None
        if program is not None:
            program.close()
        if self._tokens is not None:
            self._tokens.close()

    @property
    def numerics(self) -> str | None:
        """What decides the last bits of results beside ``NUMERICS_VERSION``; None if nothing does."""
        return self._open().numerics

    def adapting(self) -> AdaptingProgram:
        """Return the program, which may be given adapters.

        Raises:
            UnsupportedError: adapters are not built for its backend.
            InvalidInputError: it is closed.
        """
        return as_adapting(self._open())

    def trim(self) -> None:
        """Give the memory that steps left behind back to the operating system."""
        if self._program is not None:
            self._program.trim()
        if self._tokens is not None:
            self._tokens.trim()

    def run(
        self, packed: PackedEncoding, output: str, adapter: AttachedAdapter | None = None
    ) -> npt.NDArray[np.float32]:
        """Return one row of the program's ``output`` a text, in the order of the texts.

        All texts have one adapter, or none.

        Raises:
            InvalidInputError: the program is closed.
            NonFiniteError: a row would hold NaN or infinity; its ``rows`` are indices of texts.
            StepsCancelled: the caller no longer waits for the result; checked before every step.
        """
        program = self._program
        if program is None:
            program = self._open()
        check_cancelled()
        if len(packed.cu_seqlens) == 2:  # nothing to cut or to sort: a short text takes little longer than this would
            return self._run_step(program, packed, _FIRST_ROW, output, adapter)
        steps = list(steps_of_texts(packed.cu_seqlens, program.step_tokens))
        if len(steps) == 1:
            return self._run_step(program, packed, steps[0], output, adapter)
        results = np.empty((len(packed.cu_seqlens) - 1, program.program.outputs[output].width), np.float32)
        in_flight: deque[tuple[npt.NDArray[np.intp], Pending]] = deque()
        for rows in steps:
            check_cancelled()
            in_flight.append((rows, self._submit(program, packed, rows, output, adapter)))
            if len(in_flight) == STEPS_IN_FLIGHT:  # a device has the next step when it has done this one
                first, pending = in_flight.popleft()
                results[first] = self._finish(pending, first, output)
        for rows, pending in in_flight:
            results[rows] = self._finish(pending, rows, output)
        return results

    def token_rows(self, packed: PackedEncoding) -> list[npt.NDArray[np.float32]]:
        """Return the vectors of each text's tokens, before pooling; raises as :meth:`run`."""
        assert self._tokens is not None  # an encoder has them
        return self._tokens.run(packed)

    def run_tokens(self, packed: PackedEncoding, output: str) -> npt.NDArray[np.float32]:
        """Return one row of ``output`` a token, in the order of the tokens; raises as :meth:`run`."""
        program, bounds = self._open(), packed.cu_seqlens
        lengths = bounds[1:] - bounds[:-1]
        results = np.empty((len(packed.token_ids), program.program.outputs[output].width), np.float32)
        for rows in steps_of_texts(bounds, program.step_tokens):
            check_cancelled()
            texts = np.repeat(rows, lengths[rows])  # of each row of the step
            found = self._finish(self._submit(program, packed, rows, output, None), texts, output)
            first = 0
            for row in rows.tolist():
                results[bounds[row] : bounds[row + 1]] = found[first : first + lengths[row]]
                first += lengths[row]
        return results

    def _open(self) -> BackendProgram:
        program = self._program
        if program is None:
            raise InvalidInputError("this model is closed: load it again")
        return program

    def _run_step(
        self,
        program: BackendProgram,
        packed: PackedEncoding,
        rows: npt.NDArray[np.intp],
        output: str,
        adapter: AttachedAdapter | None,
    ) -> npt.NDArray[np.float32]:
        return self._finish(self._submit(program, packed, rows, output, adapter), rows, output)

    def _submit(
        self,
        program: BackendProgram,
        packed: PackedEncoding,
        rows: npt.NDArray[np.intp],
        output: str,
        adapter: AttachedAdapter | None,
    ) -> Pending:
        """Begin a step for the texts ``rows``."""
        batch = self._batch(packed, rows)
        if adapter is None:
            return program.submit(batch, outputs=(output,))
        batch = replace(batch, adapter=np.zeros(batch.sequences, np.int32))
        return as_adapting(program).submit(batch, outputs=(output,), adapters=[adapter.prepared])

    def _finish(self, pending: Pending, rows: npt.NDArray[np.intp], output: str) -> npt.NDArray[np.float32]:
        """Return the results of a step; ``rows`` are the texts that they are of."""
        try:
            return pending.wait()[output]
        except NonFiniteError as error:
            bad = tuple(dict.fromkeys(int(rows[row]) for row in error.rows))
            raise NonFiniteError(
                f"the result for text {bad[0]} holds NaN or infinity: the weights in {self._directory} are damaged", bad
            ) from error

    def _batch(self, packed: PackedEncoding, rows: npt.NDArray[np.intp]) -> Batch:
        return batch_of_texts(packed, rows, self._config, reads_types=self._reads_token_types)


def batch_of_texts(
    packed: PackedEncoding, rows: npt.NDArray[np.intp], config: TextConfig, *, reads_types: bool
) -> Batch:
    """Return the batch of some of the texts; all of them are the packed arrays as they are.

    ``reads_types``: see :func:`reads_token_types`.
    """
    if len(rows) < len(packed.cu_seqlens) - 1:
        packed = packed.select(rows)
    bounds, token_ids = packed.cu_seqlens, packed.token_ids
    return Batch(
        token_ids,
        bounds,
        token_type_ids=packed.type_ids if reads_types else None,
        positions=config.position_ids(token_ids, bounds),
    )


def reads_token_types(config: TextConfig, directory: Path) -> bool:
    """Whether the model gets the tokenizer's token types, as in transformers.

    Otherwise it gets zeros. The tokenizer's own file may list the model's inputs. Where it does not, its class
    decides: BERT's gives the types; general classes do not. RoBERTa has a single type.
    """
    return config.has_token_types and gives_token_types(directory)


def gives_token_types(directory: Path) -> bool:
    """Whether the tokenizer's own files say that it gives token types to the model."""
    path = directory / "tokenizer_config.json"
    if not path.is_file():
        return True
    options = load_json_object(path)
    inputs = options.get("model_input_names")
    if isinstance(inputs, list):
        return "token_type_ids" in inputs
    name = options.get("tokenizer_class")
    return not isinstance(name, str) or name.removesuffix("Fast") in _TYPED_TOKENIZERS


def steps_of_texts(bounds: npt.NDArray[np.int32], most_tokens: int) -> Iterator[npt.NDArray[np.intp]]:
    """Split texts into steps of at most ``most_tokens`` tokens, longest first.

    A step has texts of similar length, or one text.
    """
    lengths = bounds[1:] - bounds[:-1]
    if int(bounds[-1]) <= most_tokens:
        if len(lengths):
            yield np.arange(len(lengths))
        return
    order = np.argsort(-lengths, kind="stable")
    ends = np.cumsum(lengths[order])
    start = 0
    while start < len(order):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + most_tokens, side="right")))
        yield order[start:stop]
        start = stop
