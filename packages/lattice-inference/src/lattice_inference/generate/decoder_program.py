"""Runs a compiled decoder over tokens of several sequences, and updates their cache."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from lattice_inference.backends.opening import BackendName, DeviceName, as_adapting, open_backend
from lattice_inference.backends.protocol import AdaptingProgram, BackendProgram, PageStorage, Pending, WeightSize
from lattice_inference.backends.tensor_source import TensorSource
from lattice_inference.calibration import InputRange
from lattice_inference.errors import InvalidInputError, NonFiniteError
from lattice_inference.graph.batch import Batch
from lattice_inference.graph.program import Program, RecurrentSpec
from lattice_inference.graph.recurrent_ops import DELTA_BLOCK
from lattice_inference.precision import Activations, Precision
from lattice_inference.state import CachedSequence, Room
from lattice_inference.state.recurrent_slots import SequenceSlots

if TYPE_CHECKING:
    from lattice_inference.lora.attached_adapter import AttachedAdapter

__all__ = ["DecoderProgram"]

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]
STEPS_IN_FLIGHT = 2
"""The most steps of a long prompt that are submitted before the first one is awaited."""

Request = tuple[CachedSequence, Int32Array, Literal["last", "all", "none"]]


class _Piece(NamedTuple):
    """A run of one request's tokens that goes through the model in one step."""

    request: int
    token_ids: Int32Array
    start: int  # index into the request's tokens
    logit_rows: range  # rows of the piece
    result_row: int  # where its logits begin in the result


class DecoderProgram:
    """A compiled decoder; see ``CausalLanguageModel.forward`` for what a call does.

    Args:
        program: the model's program.
        source: where the weights come from.
        precision, activations, input_ranges, threads, backend, device: as :func:`load_model` has them.
        predicting: the programs of layers that predict further tokens; ``program`` then also gives ``hidden``.
        recurrent_only: a program of the recurrent layers alone, for drafts. It is not compiled for a GPU, whose programs
            share no weights.
    """

    STEP_LOGITS = 1 << 24
    """The most logits of a step (64 MiB), unless a single row has more."""

    def __init__(
        self,
        program: Program,
        source: TensorSource,
        *,
        precision: Precision,
        activations: Activations | None = None,
        input_ranges: Mapping[str, InputRange] | None = None,
        threads: int | None = None,
        backend: BackendName = "cpu",
        device: DeviceName = "cpu",
        predicting: Sequence[Program] = (),
        recurrent_only: Program | None = None,
    ) -> None:
        self._specs = program.kv_specs
        self._recurrent_specs = program.recurrent_specs
        self._vocab_size = program.outputs["logits"].width
        self._backend = open_backend(
            backend,
            device=device,
            threads=threads,
            precision=precision,
            activations=activations,
            input_ranges=input_ranges,
        )
        compiled = self._backend.compile(program, source)
        self._program: BackendProgram | None = compiled
        self._layers = [self._backend.compile(layer, source, beside=compiled) for layer in predicting]
        self._recurrent_layers: BackendProgram | None = None
        if recurrent_only is not None and compiled.device == "cpu":
            self._recurrent_layers = self._backend.compile(recurrent_only, source, beside=compiled)
        self._outputs = ("logits", "hidden") if predicting else ("logits",)
        self.device: str = compiled.device
        self.device_identity: str | None = compiled.device_identity

    @property
    def recurrent_specs(self) -> Sequence[RecurrentSpec]:
        """What its recurrent layers keep."""
        return self._recurrent_specs

    def open_state(
        self,
        *,
        dtype: Literal["float16", "float32", "bfloat16", "int8"],
        page_tokens: int,
        pages: int,
        slots: int = 0,
    ) -> PageStorage:
        """Return pages for keys and values, kept as ``dtype``, and slots for recurrent layers."""
        self._open()
        specs = [replace(spec, dtype=dtype) for spec in self._specs]
        return self._backend.open_state(
            specs, page_tokens=page_tokens, pages=pages, recurrent_specs=self._recurrent_specs, slots=slots
        )

    @property
    def weight_sizes(self) -> tuple[WeightSize, ...]:
        """The memory that each weight takes."""
        return self._open().weight_sizes

    @property
    def arena_bytes(self) -> int:
        """Bytes that are kept for the activations of later steps."""
        return self._open().arena_bytes

    @property
    def numerics(self) -> str | None:
        """What the last bits of results depend on besides ``NUMERICS_VERSION``, or None."""
        return self._open().numerics

    @property
    def predicting_layers(self) -> int:
        """How many layers that predict further tokens are loaded."""
        return len(self._layers)

    @property
    def predicting_share(self) -> float:
        """The bytes that a step of such a layer reads, as a share of the model's."""
        layer, model = self._layers[0], self._open()
        own = sum(weight.nbytes for weight in layer.weight_sizes)
        head = layer.program.ops[-1].weights["weight"].text  # it is shared, so that it counts for the model
        shared = sum(weight.nbytes for weight in model.weight_sizes if weight.name == head)
        return (own + shared) / sum(weight.nbytes for weight in model.weight_sizes)

    def predict(
        self, sequence: CachedSequence, position: int, token_ids: Int32Array, hidden: Float32Array, *, layer: int = 0
    ) -> tuple[Float32Array, Float32Array]:
        """Run a layer that predicts further tokens over the pages of ``sequence``.

        Args:
            sequence: whose pages are read up to ``position`` and written from there on, by this layer alone.
            position: where the first row stands.
            token_ids: the token that each row reads.
            hidden: (T, width), the rows: of the model, of the layer before, or of this layer.
            layer: the number of the layer.

        Returns:
            Logits (1, vocab_size) of the last row, and hidden (1, width) of the last layer or (T, width) of another.

        Raises:
            InvalidInputError: the program or the sequence is closed.
            CacheFullError: the cache has too few free pages.
            NonFiniteError: logits hold NaN or infinity.
        """
        self._open()
        count = len(token_ids)
        batch = Batch(
            token_ids,
            np.array([0, count], np.int32),
            context_lengths=np.array([position], np.int32),
            block_table=(sequence.reserve(position, position + count),),
            logit_rows=np.array([count - 1], np.int32),
            inputs={"hidden": hidden},
        )
        results = self._layers[layer].run(batch, state=sequence.cache.storage)
        return results["logits"], results["hidden"]

    @property
    def guesses(self) -> bool:
        """Whether :meth:`guess` can be called."""
        return self._recurrent_layers is not None

    def guess_share(self, kv_bytes: int) -> float:
        """Return the bytes that :meth:`guess` reads, as a share of a step's with ``kv_bytes``."""
        own, whole = self._bytes_read
        return own / (whole + kv_bytes)

    @cached_property
    def _bytes_read(self) -> tuple[int, int]:
        """The bytes of weights and state that the recurrent layers read, and those of the model."""
        assert self._recurrent_layers is not None
        compiled = self._open()
        own, whole = _elements_read(self._recurrent_layers.program), _elements_read(compiled.program)
        state = sum(4 * math.prod(spec.shape) for spec in self._recurrent_specs)
        nbytes = sum(weight.nbytes for weight in compiled.weight_sizes)
        return nbytes * own // whole + state, nbytes + state

    def guess(self, slots: SequenceSlots, storage: PageStorage, token_ids: Int32Array) -> Float32Array:
        """Run the recurrent layers alone and return the last token's logits, (1, vocab_size).

        Args:
            slots: the state of these layers before the tokens, in a call of the caller's; it counts them as seen.
            storage: the cache's memory.
            token_ids: the tokens.

        Raises:
            InvalidInputError: the program is closed.
            CacheFullError: no slot is free.
            NonFiniteError: logits hold NaN or infinity.
        """
        self._open()
        assert self._recurrent_layers is not None
        count = len(token_ids)
        batch = Batch(
            token_ids,
            np.array([0, count], np.int32),
            context_lengths=np.array([slots.length], np.int32),
            block_table=(np.empty(0, np.int32),),
            logit_rows=np.array([count - 1], np.int32),
        )
        return self._recurrent_layers.run(_with_slots(batch, [slots]), state=storage)["logits"]

    def adapting(self) -> AdaptingProgram:
        """Return the program as one that takes adapters.

        Raises:
            UnsupportedError: its backend does not support adapters.
            InvalidInputError: the program is closed.
        """
        return as_adapting(self._open())

    def close(self) -> None:
        """Free the weights. Later runs raise InvalidInputError; closing twice is harmless."""
        program, self._program = self._program, None
        if program is not None:
            program.close()
        for layer in (*self._layers, self._recurrent_layers):
            if layer is not None:
                layer.close()

    @property
    def step_tokens(self) -> int:
        """The best number of tokens for a step."""
        return self._open().step_tokens

    def trim(self) -> None:
        """Return the unused memory of earlier steps to the operating system."""
        if self._program is not None:
            self._program.trim()

    def run(self, requests: Sequence[Request]) -> Float32Array:
        """Run the requests and return the logits wanted, (R, vocab_size).

        Raises:
            InvalidInputError: the program or a sequence is closed, a sequence occurs twice, or caches are mixed.
            CacheFullError: the cache has too few free pages.
            NonFiniteError: logits hold NaN or infinity; its ``rows`` are rows of the result.
        """
        program = self._program
        if program is None:
            return self._refuse()
        sequences = [sequence for sequence, _, _ in requests]
        if len(requests) > 1:
            if len(set(map(id, sequences))) < len(sequences):
                raise InvalidInputError("a sequence may occur once in a call: join its tokens")
            if len({id(sequence.cache) for sequence in sequences}) > 1:
                raise InvalidInputError("the sequences of a call must belong to one cache")
        results = np.empty((0, self._vocab_size), np.float32)
        if not sequences or sequences[0].cache.slots is None:
            states, runs, unseen = _NOTHING_KEPT, requests, None
        else:
            states, runs, unseen = _begin(requests)
        steps, total = self._steps(runs, program.step_tokens, unseen)
        before = [sequence.length for sequence in sequences]
        try:
            rooms = [sequence.extend(ids) for sequence, ids, _ in requests]
            if unseen is not None:
                rooms = [Room(room.position - skip, room.pages) for room, skip in zip(rooms, unseen, strict=True)]
            in_flight: deque[tuple[Pending, list[int], list[_Piece]]] = deque()
            for index, pieces in enumerate(steps):
                in_flight.append((*self._submit(program, sequences, rooms, pieces), pieces))
                while in_flight and (len(in_flight) == STEPS_IN_FLIGHT or index == len(steps) - 1):
                    pending, rows, of_step = in_flight.popleft()
                    try:
                        outputs = pending.wait()
                    except NonFiniteError as error:
                        raise _with_rows_of_result(error, rows) from error
                    logits = outputs["logits"]
                    if self._layers:
                        _keep_hidden(outputs["hidden"], sequences, rooms, of_step)
                    if len(rows) == total:  # one step computes all logits wanted
                        results = logits
                    elif rows:
                        results = results if len(results) else np.empty((total, self._vocab_size), np.float32)
                        results[rows] = logits
        except BaseException:
            for state in states:
                state.undo()
            for sequence, length in zip(sequences, before, strict=True):
                if sequence.length != length:
                    sequence.rewind(length)
            raise
        for state in states:
            state.settle()
        return results

    def _open(self) -> BackendProgram:
        return self._refuse() if self._program is None else self._program

    @staticmethod
    def _refuse() -> NoReturn:
        raise InvalidInputError("this model is closed: load it again")

    def _submit(
        self,
        program: BackendProgram,
        sequences: Sequence[CachedSequence],
        rooms: Sequence[Room],
        pieces: Sequence[_Piece],
    ) -> tuple[Pending, list[int]]:
        """Submit one step; return it and the result rows of its logits."""
        parts: list[Int32Array] = []
        bounds, context, tables = [0], [], []
        logit_rows: list[int] = []
        result_rows: list[int] = []
        for piece in pieces:
            room, first = rooms[piece.request], bounds[-1]
            parts.append(piece.token_ids)
            bounds.append(first + len(piece.token_ids))
            context.append(room.position + piece.start)
            tables.append(room.pages)
            logit_rows += range(first + piece.logit_rows.start, first + piece.logit_rows.stop)
            result_rows += range(piece.result_row, piece.result_row + len(piece.logit_rows))
        adapters, numbers = _NO_ADAPTERS
        for piece in pieces:
            if sequences[piece.request].adapter is not None:
                adapters, numbers = _adapters_of([sequences[each.request] for each in pieces])
                break
        batch = Batch(
            parts[0] if len(parts) == 1 else np.concatenate(parts),
            np.array(bounds, np.int32),
            context_lengths=np.array(context, np.int32),
            block_table=tuple(tables),
            adapter=numbers,
            logit_rows=np.array(logit_rows, np.int32),
        )
        storage = sequences[0].cache.storage
        if storage.recurrent is not None:
            batch = _with_slots(batch, [sequences[piece.request].slots for piece in pieces])
        if not adapters:
            return program.submit(batch, outputs=self._outputs, state=storage), result_rows
        prepared = [adapter.prepared for adapter in adapters]
        return as_adapting(program).submit(batch, outputs=self._outputs, state=storage, adapters=prepared), result_rows

    def _steps(
        self, requests: Sequence[Request], most_tokens: int, unseen: Sequence[int] | None = None
    ) -> tuple[list[list[_Piece]], int]:
        """Split the requests into steps; return them and the number of logit rows wanted.

        A step has at most ``most_tokens`` tokens and STEP_LOGITS logits. ``unseen`` counts the first tokens of each request
        that the state of recurrent layers has not seen; their logits are not wanted.
        """
        most_rows = max(1, self.STEP_LOGITS // self._vocab_size)
        steps: list[list[_Piece]] = []
        tokens = rows = total = 0
        for index, (sequence, ids, logits) in enumerate(requests):
            start = 0
            skip = 0 if unseen is None else unseen[index]
            while start < len(ids):
                if not steps or tokens == most_tokens or rows == most_rows:
                    steps.append([])
                    tokens = rows = 0
                count = min(len(ids) - start, most_tokens - tokens)
                if logits == "all":
                    count = min(count, most_rows - rows)
                if unseen is not None and sequence.slots is not None:
                    count = sequence.slots.split(sequence.slots.length + start, count)
                if logits == "all":
                    first = 0 if start >= skip else min(count, skip - start)
                else:
                    first = count - (logits == "last" and start + count == len(ids))
                part = ids if count == len(ids) else ids[start : start + count]
                steps[-1].append(_Piece(index, part, start, range(first, count), total))
                start += count
                tokens = most_tokens if unseen is not None and start < len(ids) else tokens + count
                rows += count - first
                total += count - first
        return steps, total


def _keep_hidden(
    hidden: Float32Array, sequences: Sequence[CachedSequence], rooms: Sequence[Room], pieces: Sequence[_Piece]
) -> None:
    """Give each sequence that collects them the hidden rows of its tokens."""
    first = 0
    for piece in pieces:
        end = first + len(piece.token_ids)
        collected = sequences[piece.request].hidden
        if collected is not None:
            collected.put(rooms[piece.request].position + piece.start, hidden[first:end])
        first = end


def _with_rows_of_result(error: NonFiniteError, result_rows: Sequence[int]) -> NonFiniteError:
    """Return a step's error with the rows of the whole result."""
    bad = tuple([result_rows[row] for row in error.rows])
    return NonFiniteError(
        f"the logits of row {bad[0]} hold NaN or infinity: the weights are damaged, or a float16 cache overflowed "
        "(open one with dtype='bfloat16')",
        bad,
    )


def _elements_read(program: Program) -> int:
    """Return the numbers in the weights that a step reads whole."""
    read = {ref.text: ref for op in program.ops if op.kind != "embed_rows" for ref in op.weights.values()}
    return sum(math.prod(ref.shape) for ref in read.values())


_NOTHING_KEPT: Sequence[SequenceSlots] = ()


def _begin(requests: Sequence[Request]) -> tuple[Sequence[SequenceSlots], Sequence[Request], Sequence[int]]:
    """Begin a call of sequences with recurrent state.

    Return the states, the requests with the tokens before them that a state has not seen, and the numbers of these tokens.
    """
    states: list[SequenceSlots] = []
    runs: list[Request] = []
    unseen: list[int] = []
    for sequence, ids, logits in requests:
        sequence.check_open()
        slots = sequence.slots
        assert slots is not None
        missing = sequence.length - slots.length
        if slots.prompt_end is None and len(ids) >= DELTA_BLOCK:
            slots.prompt_end = sequence.length + len(ids)
        if missing:
            again = np.array(sequence.token_ids[slots.length :], np.int32)
            runs.append((sequence, np.concatenate([again, ids]), logits))
        else:
            runs.append((sequence, ids, logits))
        unseen.append(missing)
        states.append(slots)
    for state in states:
        state.begin()
    return states, runs, unseen


def _with_slots(batch: Batch, states: Sequence[SequenceSlots | None]) -> Batch:
    """Return the batch with the slots of its sequences, which count its tokens as seen."""
    counts = np.diff(batch.cu_seqlens).tolist()
    slots = [state.step(count) for state, count in zip(states, counts, strict=True) if state is not None]
    read, write = np.array(slots, np.int32).T
    return replace(batch, read_slots=np.ascontiguousarray(read), write_slots=np.ascontiguousarray(write))


_NO_ADAPTERS: tuple[list[AttachedAdapter], Int32Array | None] = ([], None)


def _adapters_of(sequences: Sequence[CachedSequence]) -> tuple[list[AttachedAdapter], Int32Array | None]:
    """Return a step's distinct adapters and each sequence's index into them.

    A sequence without an adapter has the index -1. If no sequence has one, the second value is None.
    """
    adapters = list(dict.fromkeys([sequence.adapter for sequence in sequences if sequence.adapter is not None]))
    if not adapters:
        return adapters, None
    places = {adapter: number for number, adapter in enumerate(adapters)}
    numbers = [-1 if sequence.adapter is None else places[sequence.adapter] for sequence in sequences]
    return adapters, np.array(numbers, np.int32)
