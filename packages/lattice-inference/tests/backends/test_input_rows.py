"""Rows of floats that a batch brings: one for each token, sequence or logit row, read anywhere in a program."""

from __future__ import annotations

import numpy as np
import pytest

from lattice_inference.backends.cpu import CpuBackend, _cpu
from lattice_inference.backends.gpu.backend import GpuBackend
from lattice_inference.backends.reference_backend import ReferenceBackend
from lattice_inference.errors import InvalidInputError, UnsupportedError
from lattice_inference.graph.batch import Batch
from lattice_inference.graph.builder import GraphBuilder
from lattice_inference.graph.program import KvSpec, Rows

from .programs import Tensors
from .stand_in_device import StandInDevice

BOUNDS = np.array([0, 3, 4, 9], np.int32)
LOGIT_ROWS = np.array([8, 0], np.int32)


@pytest.fixture
def case():
    """A program that reads an input of each kind of rows, one of them twice, and the inputs."""
    rng = np.random.default_rng(3)
    tensors = {"w": rng.standard_normal((33, 17)).astype(np.float32)}
    g = GraphBuilder()
    tokens = g.linear(g.input_rows("x", Rows.TOKENS, 17), g.weight("w", (33, 17)))
    g.kv_write(tokens, tokens, layer=0, kv_heads=1, head_dim=33)
    kept = g.paged_attention(tokens, layer=0, heads=1, kv_heads=1, head_dim=33, scale=1.0)
    sequences = g.l2_normalize(g.input_rows("s", Rows.SEQUENCES, 5))
    logits = g.add(g.gather_rows(kept), g.input_rows("r", Rows.LOGIT_ROWS, 33))
    again = g.tanh(g.input_rows("x", Rows.TOKENS, 17))
    program = g.build({"s": sequences, "r": logits, "x": again}, kv_specs=[KvSpec(0, 1, 33, "float32")])
    inputs = {
        name: rng.standard_normal(shape).astype(np.float32)
        for name, shape in {"x": (9, 17), "s": (3, 5), "r": (2, 33)}.items()
    }
    return program, tensors, inputs


def batch_of(inputs):
    return Batch(
        np.zeros(9, np.int32),
        BOUNDS,
        context_lengths=np.zeros(3, np.int32),
        block_table=tuple(np.array([page], np.int32) for page in range(3)),
        logit_rows=LOGIT_ROWS,
        inputs=inputs,
    )


def run(backend, case, inputs):
    program, tensors, _ = case
    state = backend.open_state(program.kv_specs, page_tokens=16, pages=3)
    return backend.compile(program, Tensors(tensors)).run(batch_of(inputs), state=state)


def test_rows_of_every_kind_are_read_wherever_the_op_stands(case):
    expected = run(ReferenceBackend(), case, case[2])
    np.testing.assert_allclose(expected["x"], np.tanh(case[2]["x"]), atol=1e-6)
    for options in ({}, {"threads": 1}, {"fused": False}):
        found = run(CpuBackend(**options), case, case[2])
        for name, array in expected.items():
            np.testing.assert_allclose(found[name], array, atol=1e-4)


@pytest.mark.parametrize("backend", [CpuBackend, ReferenceBackend])
def test_inputs_that_are_not_those_of_the_program_are_refused(case, backend):
    inputs = case[2]
    others = (
        None,
        {},
        {**inputs, "y": inputs["x"]},
        {**inputs, "x": inputs["x"][:8]},
        {**inputs, "s": np.zeros((9, 5), np.float32)},
        {**inputs, "r": np.zeros((2, 32), np.float32)},
    )
    for other in others:
        with pytest.raises(InvalidInputError, match=r"reads inputs of the shapes \{'x': \(9, 17\), 's': \(3, 5\)"):
            run(backend(), case, other)
    with pytest.raises(InvalidInputError, match=r"inputs\['x'\] has the shape \(9,\); expected rows of numbers"):
        batch_of({"x": np.zeros(9, np.float32)})


def test_an_input_of_two_shapes_is_refused():
    g = GraphBuilder()
    program = g.build({"y": g.tanh(g.input_rows("x", Rows.TOKENS, 4)), "z": g.tanh(g.input_rows("x", Rows.TOKENS, 5))})
    for backend in (CpuBackend(), ReferenceBackend()):
        with pytest.raises(InvalidInputError, match="reads the input 'x' in two shapes"):
            backend.compile(program, Tensors({}))


def test_a_program_without_inputs_takes_none():
    g = GraphBuilder()
    table = g.weight("t", (4, 3), use="rows")
    program = g.build({"y": g.embed_rows(table, ids="token_ids")})
    batch = Batch(np.zeros(1, np.int32), np.array([0, 1], np.int32), inputs={"x": np.zeros((1, 3), np.float32)})
    for backend in (CpuBackend(), ReferenceBackend()):
        compiled = backend.compile(program, Tensors({"t": np.zeros((4, 3), np.float32)}))
        with pytest.raises(InvalidInputError, match=r"shapes \{\}, and the batch has \{'x': \(1, 3\)\}"):
            compiled.run(batch)


def test_a_gpu_reads_rows_of_tokens_only_and_says_so():
    g = GraphBuilder()
    program = g.build({"y": g.tanh(g.input_rows("x", Rows.SEQUENCES, 4))})
    backend = GpuBackend(StandInDevice())
    with pytest.raises(UnsupportedError, match="input_rows: GPUs read one row for each token only"):
        backend.compile(program, Tensors({}))
    table = g.weight("t", (4, 3), use="rows")
    plain = GraphBuilder()
    program = plain.build({"y": plain.embed_rows(table, ids="token_ids")})
    compiled = backend.compile(program, Tensors({"t": np.zeros((4, 3), np.float32)}))
    batch = Batch(np.zeros(1, np.int32), np.array([0, 1], np.int32), inputs={"x": np.zeros((1, 3), np.float32)})
    with pytest.raises(InvalidInputError, match=r"shapes \{\}, and the batch has \{'x': \(1, 3\)\}"):
        compiled.run(batch)


def test_a_plan_reads_no_array_of_another_size():
    plan = _cpu.Plan("baseline")
    plan.append("input_rows", rows="tokens", inputs=[], output=(0, 4, 0), k=4, n=4, name="x")
    ids = np.zeros(2, np.int32)
    step = {
        **dict.fromkeys(("token_ids", "token_type_ids", "positions"), ids),
        "cu_seqlens": np.array([0, 2], np.int32),
        "max_seqlen": 2,
        "arena": _cpu.Memory(1 << 12),
        "slot_offsets": [0],
        "scratch_offset": 1024,
        "scratch_bytes": 64,
        "threads": 1,
        "bookkeeping_offset": 2048,
    }
    with pytest.raises(ValueError, match="0 inputs are given to a program that reads 1"):
        plan.run(_cpu.Step(**step))
    with pytest.raises(ValueError, match="an input has 7 elements, not 2 rows of 4"):
        plan.run(_cpu.Step(**step, inputs=(np.zeros(7, np.float32),)))
    assert plan.run(_cpu.Step(**step, inputs=(np.arange(8, dtype=np.float32).reshape(2, 4),))) is None
    assert np.frombuffer(memoryview(step["arena"]), np.float32, 8).tolist() == list(range(8))
