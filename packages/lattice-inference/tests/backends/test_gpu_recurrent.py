"""The recurrent ops on a GPU: near float64 in any chunks and company, and slots that are copied and moved as bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lattice_inference.backends.reference_backend import ReferenceBackend
from lattice_inference.errors import InvalidInputError
from lattice_inference.graph.batch import Batch

from .bodies import GPU_BODIES, gpu_backend
from .programs import Tensors
from .test_recurrent_ops import ROWS, drawn, run

if not GPU_BODIES:
    pytest.skip("no GPU, nor one that is emulated", allow_module_level=True)

pytestmark = pytest.mark.slow

CASES = [
    ((1, 1, 8, 8, 2), "blocks"),
    ((2, 4, 8, 16, 4), "interleaved"),
    ((2, 4, 24, 70, 4), "blocks"),
    ((3, 6, 33, 17, 16), "interleaved"),
]


@pytest.mark.parametrize(("sizes", "grouping"), CASES, ids=str)
def test_every_cut_is_near_float64_and_has_the_same_bits(sizes, grouping):
    program, tensors = drawn(sizes, grouping=grouping)
    ids = np.random.default_rng(1).permutation(ROWS).astype(np.int32)
    want = run(ReferenceBackend(), program, tensors, [0, ROWS], ids)
    bits = set()
    for cuts in ([0, ROWS], [0, 5, 33, 64, 96, 97, ROWS], [0, 1, 2, 3, 30, 31, 32, 33, 63, 128, 129, ROWS]):
        got = run(gpu_backend(), program, tensors, cuts, ids)
        np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max(), rtol=0)
        bits.add(got.tobytes())
    assert len(bits) == 1


def test_strong_and_weak_decays_side_by_side():
    program, tensors = drawn((1, 4, 32, 32, 4), seed=3)
    tensors["decay"] = np.array([-20, -0.01, -20, -1e-4], np.float32)
    tensors["bias"] = np.zeros(4, np.float32)
    tensors["a"] = np.random.default_rng(4).choice(np.array([-15, 0, 1, 40], np.float32), (ROWS, 4))
    ids = np.arange(ROWS, dtype=np.int32)
    want = run(ReferenceBackend(), program, tensors, [0, ROWS], ids)
    got = run(gpu_backend(), program, tensors, [0, 70, ROWS], ids)
    np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max(), rtol=0)


def step(ids, first, end, read, write):
    return Batch(
        ids[first:end],
        np.array([0, end - first], np.int32),
        context_lengths=np.array([first], np.int32),
        read_slots=np.array([read], np.int32),
        write_slots=np.array([write], np.int32),
    )


def test_sequences_of_a_step_do_not_see_one_another():
    program, tensors = drawn((2, 4, 16, 24, 4))
    backend = gpu_backend()
    ready = backend.compile(program, Tensors(tensors))
    lengths, starts = [40, 33, 70], [31, 0, 63]
    ids = [np.random.default_rng(seed).integers(0, ROWS, 140).astype(np.int32) for seed in range(3)]
    alone = [run(backend, program, tensors, [0, 140], each) for each in ids]
    state = backend.open_state([], page_tokens=16, pages=1, recurrent_specs=program.recurrent_specs, slots=9)
    ready.run(step(ids[0], 0, 31, 0, 8), state=state)
    ready.run(step(ids[2], 0, 63, 8, 2), state=state)
    bounds = np.cumsum([0, *lengths]).astype(np.int32)
    batch = Batch(
        np.concatenate([each[a : a + n] for each, a, n in zip(ids, starts, lengths, strict=True)]),
        bounds,
        context_lengths=np.array(starts, np.int32),
        read_slots=np.array([0, 1, 2], np.int32),
        write_slots=np.array([5, 4, 3], np.int32),
    )
    got = ready.run(batch, state=state)["y"]
    for index in range(3):
        part = slice(starts[index], starts[index] + lengths[index])
        assert np.array_equal(got[bounds[index] : bounds[index + 1]], alone[index][part]), index


def test_a_slot_is_copied_and_moved_as_bytes_and_what_was_read_stays_whole():
    program, tensors = drawn((1, 2, 8, 8, 2))
    ids = np.arange(ROWS, dtype=np.int32)
    backend = gpu_backend()
    want = run(backend, program, tensors, [0, ROWS], ids)
    ready = backend.compile(program, Tensors(tensors))
    state = backend.open_state([], page_tokens=16, pages=1, recurrent_specs=program.recurrent_specs, slots=7)
    ready.run(step(ids, 0, 80, 0, 1), state=state)
    state.recurrent.copy(1, 2)
    state.recurrent.import_(6, state.recurrent.export(1))  # memory grows
    assert np.array_equal(ready.run(step(ids, 80, 90, 2, 2), state=state)["y"], want[80:90])
    assert np.array_equal(ready.run(step(ids, 80, ROWS, 6, 0), state=state)["y"], want[80:])
    assert np.array_equal(ready.run(step(ids, 70, 75, 1, 0), state=state)["y"], want[70:75])  # a row of the block
    with pytest.raises(InvalidInputError, match="a slot has"):
        state.recurrent.import_(0, b"short")
    with pytest.raises(InvalidInputError, match="no slot 7"):
        ready.run(step(ids, 80, 90, 7, 0), state=state)
    with pytest.raises(InvalidInputError, match="read_slots"):
        ready.run(replace(step(ids, 80, 90, 1, 0), read_slots=None, write_slots=None), state=state)
