"""Checks of a batch and of results, for every backend.

The CPU backend checks ids and pages in C, as it reads them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import numpy.typing as npt

from lattice_inference.errors import InvalidInputError, NonFiniteError
from lattice_inference.graph.batch import Batch
from lattice_inference.graph.program import KvSpec, Program, Rows
from lattice_inference.graph.recurrent_ops import DELTA_BLOCK

if TYPE_CHECKING:
    from lattice_inference.backends.protocol import SlotStorage

__all__ = [
    "check_adapters",
    "check_ids",
    "check_inputs",
    "check_pages",
    "check_slots",
    "check_specs",
    "check_state",
    "id_tables",
    "input_shapes",
    "refuse_closed",
    "refuse_foreign_adapter",
    "refuse_foreign_state",
    "refuse_id",
    "refuse_non_finite",
]


def refuse_closed() -> NoReturn:
    """Raise InvalidInputError: the program was closed."""
    raise InvalidInputError("this model is closed: load it again")


def refuse_foreign_state() -> NoReturn:
    """Raise InvalidInputError: the pages belong to another backend."""
    raise InvalidInputError("the cache was not opened by this model: use model.open_cache()")


def id_tables(program: Program) -> dict[str, int]:
    """Return, for each id field of a batch, the rows of the smallest table that it indexes."""
    tables: dict[str, int] = {}
    for op in program.ops:
        if op.kind.startswith("embed_rows"):
            field, rows = str(op.attributes["ids"]), op.weights["table"].shape[0]
            tables[field] = min(rows, tables.get(field, rows))
    return tables


def check_ids(batch: Batch, tables: Mapping[str, int]) -> None:
    """Raise InvalidInputError for the first id that has no row in its table.

    ``tables`` comes from :func:`id_tables`.
    """
    for field, rows in tables.items():
        ids = getattr(batch, field)
        outside = np.flatnonzero((ids < 0) | (ids >= rows))
        if len(outside):
            refuse_id(batch, field, int(outside[0]))


def refuse_id(batch: Batch, field: str, row: int) -> NoReturn:
    """Raise InvalidInputError: the id in ``row`` of ``field`` has no row in its table."""
    sequence = int(np.searchsorted(batch.cu_seqlens, row, side="right")) - 1
    value = int(getattr(batch, field)[row])
    raise InvalidInputError(f"{field} of sequence {sequence} holds {value}, which the model's table has no row for")


def check_state(program: Program, batch: Batch, *, has_state: bool) -> None:
    """Raise InvalidInputError unless batch and state fit the program.

    A program that keeps state needs a state and a batch that refers to it. Any other program takes neither.
    """
    if not program.kv_specs and not program.recurrent_specs:
        if batch.carries_state or has_state:
            raise InvalidInputError("this program keeps no state: pages, slots and logit rows have no meaning")
    elif not has_state or batch.context_lengths is None or (program.kv_specs and batch.block_table is None):
        raise InvalidInputError(
            "this program keeps keys and values: it needs a state, and a batch with context_lengths and block_table"
        )
    if (batch.read_slots is None) == bool(program.recurrent_specs):
        raise InvalidInputError(
            "a batch has read_slots and write_slots if the program keeps recurrent state, and only then"
        )


def check_adapters(batch: Batch, adapters: Sequence[object]) -> None:
    """Raise InvalidInputError unless the batch gives each sequence a valid adapter number.

    The number is an index into ``adapters``, or -1 for no adapter.
    """
    numbers = batch.adapter
    if numbers is None:
        if adapters:
            raise InvalidInputError("adapters are given, and the batch does not say which sequence has which")
    elif int(numbers.min()) < -1 or int(numbers.max()) >= len(adapters):
        raise InvalidInputError(f"adapter must be from -1 to {len(adapters) - 1}, got {numbers[:8].tolist()}")


def refuse_foreign_adapter() -> NoReturn:
    """Raise InvalidInputError: the adapter was prepared for another program."""
    raise InvalidInputError("the adapter was attached to another model: attach it to this one")


def check_specs(program: Program, specs: Sequence[KvSpec]) -> None:
    """Raise InvalidInputError unless a state with ``specs`` fits the layers of the program."""
    if [(spec.kv_heads, spec.head_dim) for spec in specs] != [
        (spec.kv_heads, spec.head_dim) for spec in program.kv_specs
    ]:
        raise InvalidInputError("the state was opened for another program: its layers are not of the same shape")


def input_shapes(program: Program) -> dict[str, tuple[Rows, int]]:
    """Return rows and width of each of the batch's ``inputs`` that a program reads, by name.

    Raises:
        InvalidInputError: two ops read one input in two shapes.
    """
    shapes: dict[str, tuple[Rows, int]] = {}
    for op in program.ops:
        if op.kind == "input_rows":
            name, shape = str(op.attributes["name"]), (op.outputs[0].rows, op.outputs[0].width)
            if shapes.setdefault(name, shape) != shape:
                raise InvalidInputError(f"the program reads the input {name!r} in two shapes")
    return shapes


def check_inputs(shapes: Mapping[str, tuple[Rows, int]], batch: Batch) -> None:
    """Raise InvalidInputError unless the batch has these ``inputs``, and no others.

    ``shapes`` comes from :func:`input_shapes`.
    """
    counts = {Rows.TOKENS: batch.tokens, Rows.SEQUENCES: batch.sequences, Rows.LOGIT_ROWS: batch.logit_count}
    wanted = {name: (counts[rows], width) for name, (rows, width) in shapes.items()}
    given = {name: array.shape for name, array in (batch.inputs or {}).items()}
    if given != wanted:
        raise InvalidInputError(f"the program reads inputs of the shapes {wanted}, and the batch has {given}")


def check_pages(batch: Batch, *, page_tokens: int, pages: int) -> None:
    """Raise InvalidInputError unless each sequence's pages exist and hold all its tokens.

    These are the tokens that the pages hold already and those that the batch adds.
    """
    assert batch.block_table is not None  # check_state was called
    assert batch.context_lengths is not None
    lengths = batch.context_lengths.astype(np.int64) + np.diff(batch.cu_seqlens)
    for sequence, (numbers, length) in enumerate(zip(batch.block_table, lengths.tolist(), strict=True)):
        if len(numbers) * page_tokens < length:
            raise InvalidInputError(
                f"block_table: sequence {sequence} needs room for {length} tokens and has {len(numbers)} pages"
            )
    for numbers in batch.block_table:
        for number in numbers.tolist():
            if not 0 <= number < pages:
                raise InvalidInputError(f"block_table: there is no page {number} among {pages}")


def check_slots(program: Program, batch: Batch, storage: SlotStorage | None) -> None:
    """Raise InvalidInputError unless the slots fit the program and the sequences.

    They exist, and each belongs to one sequence.

    A sequence that crosses the end of a block needs two.
    """
    if not program.recurrent_specs:
        return
    if storage is None or storage.specs != program.recurrent_specs:
        raise InvalidInputError("the state was opened for another program: its recurrent layers differ")
    read, write = batch.read_slots, batch.write_slots
    assert read is not None  # check_state was called
    assert write is not None
    assert batch.context_lengths is not None
    ends = batch.context_lengths.astype(np.int64) + np.diff(batch.cu_seqlens)
    crosses = ends // DELTA_BLOCK != batch.context_lengths // DELTA_BLOCK
    used = [*read.tolist(), *write[crosses].tolist()]
    if min(used) < 0 or max(used) >= storage.slots:
        raise InvalidInputError(f"there is no slot {min(used) if min(used) < 0 else max(used)} among {storage.slots}")
    if len(set(used)) < len(used):
        raise InvalidInputError(
            "sequences must not share slots, and one that crosses the end of a block needs two slots"
        )


def refuse_non_finite(outputs: Mapping[str, npt.NDArray[np.float32]]) -> None:
    """Raise NonFiniteError if an output holds NaN or infinity."""
    for name, array in outputs.items():
        # min and max are NaN if an element is; a sum in double precision takes four times as long
        if array.size and not (math.isfinite(float(array.min())) and math.isfinite(float(array.max()))):
            bad = np.flatnonzero(~np.isfinite(array).all(axis=1))
            raise NonFiniteError(
                f"output {name!r} holds NaN or infinity in rows {bad[:8].tolist()}: the weights are damaged or the "
                "computation overflowed",
                tuple(bad.tolist()),
            )
