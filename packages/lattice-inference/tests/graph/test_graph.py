"""The program language: what the builder refuses, what fusion rewrites, where buffers lie."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice_inference.errors import InvalidInputError
from lattice_inference.graph import builder
from lattice_inference.graph.batch import Batch
from lattice_inference.graph.builder import GraphBuilder
from lattice_inference.graph.fusion import Concat, Fusion, fuse
from lattice_inference.graph.memory import plan_memory
from lattice_inference.graph.ops import OPS, validate
from lattice_inference.graph.program import Op, Rows


def words(g, width=8, name="words"):
    return g.embed_rows(g.weight(name, (50, width), use="rows"), ids="token_ids")


def test_examples_of_the_builder_run():
    assert doctest.testmod(builder).failed == 0


def test_every_op_says_what_it_means():
    for name, definition in OPS.items():
        assert len(definition.meaning) > 5, name


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda g: g.linear(words(g), g.weight("w", (4, 9))), "cannot take 8 columns"),
        (lambda g: g.linear(words(g), g.weight("w", (4, 8)), g.weight("b", (5,), use="vector")), "one entry an output"),
        (lambda g: g.add(words(g), words(g, 9, "other")), "cannot add"),
        (lambda g: g.pool(g.pool(words(g), mode="mean"), mode="mean"), "only rows of tokens"),
        (lambda g: g.pool(words(g), mode="max"), "mode must be"),
        (lambda g: g.gelu(words(g), form="quick"), "form must be"),
        (lambda g: g.embed_rows(g.weight("t", (3, 3), use="rows"), ids="colours"), "ids names no input"),
        (
            lambda g: g.attention(words(g), words(g), words(g), heads=3, kv_heads=2, head_dim=2, scale=1.0),
            "cannot share",
        ),
        (
            lambda g: g.attention(words(g), words(g), words(g), heads=2, kv_heads=2, head_dim=3, scale=1.0),
            "not 2 x 3",
        ),
        (
            lambda g: g.attention(
                words(g), words(g), words(g), heads=2, kv_heads=2, head_dim=4, scale=1.0, mask="forward"
            ),
            "mask must be",
        ),
    ],
)
def test_operands_that_do_not_fit_are_refused(write, message):
    with pytest.raises(InvalidInputError, match=message):
        write(GraphBuilder())


def test_unknown_ops_and_attributes_are_refused():
    with pytest.raises(InvalidInputError, match="no op named 'frobnicate'"):
        validate(Op("frobnicate", (), {}, ()))
    x = words(GraphBuilder())
    with pytest.raises(InvalidInputError, match="takes the attributes"):
        validate(Op("gelu", (x,), {}, (), {"form": "erf", "speed": 3}))
    with pytest.raises(InvalidInputError, match="must be of type str"):
        validate(Op("gelu", (x,), {}, (), {"form": 1}))


def test_a_producer_with_two_readers_is_not_fused():
    g = GraphBuilder()
    y = g.linear(words(g), g.weight("w", (8, 8)))
    program = g.build({"y": g.add(g.gelu(y), y)})
    kinds = [op.kind for op in fuse(program, [Fusion("linear_gelu", ("linear", "gelu"))]).ops]
    assert kinds == ["embed_rows", "linear", "gelu", "add"]


def test_an_output_of_the_program_is_not_fused_away():
    g = GraphBuilder()
    y = g.linear(words(g), g.weight("w", (8, 8)))
    program = g.build({"z": g.gelu(y), "y": y})
    assert fuse(program, [Fusion("linear_gelu", ("linear", "gelu"))]).ops == program.ops


def test_a_fusion_can_be_declined():
    g = GraphBuilder()
    program = g.build({"y": g.gelu(g.linear(words(g), g.weight("w", (8, 8))), form="tanh")})
    rule = Fusion(
        "linear_gelu", ("linear", "gelu"), when=lambda producer, consumer: consumer.attributes["form"] == "erf"
    )
    assert fuse(program, [rule]).ops == program.ops


def test_linears_of_one_input_are_laid_side_by_side():
    g = GraphBuilder()
    x = words(g)
    q, k, v = (g.linear(x, g.weight(name, (8, 8))) for name in "qkv")
    program = g.build({"y": g.attention(q, k, v, heads=2, kv_heads=2, head_dim=4, scale=1.0)})
    fused = fuse(program, [Concat("attention")])
    linear, attention = fused.ops[1], fused.ops[2]
    assert [op.kind for op in fused.ops] == ["embed_rows", "linear", "attention"]
    assert linear.weights["weight"].sources == ("q", "k", "v")
    assert linear.weights["weight"].shape == (24, 8)
    assert [(view.column, view.width) for view in attention.inputs] == [(0, 8), (8, 8), (16, 8)]


def test_linears_of_different_inputs_stay_apart():
    g = GraphBuilder()
    x, other = words(g), words(g, name="other")
    q, k = g.linear(x, g.weight("q", (8, 8))), g.linear(other, g.weight("k", (8, 8)))
    v = g.linear(x, g.weight("v", (8, 8)))
    program = g.build({"y": g.attention(q, k, v, heads=2, kv_heads=2, head_dim=4, scale=1.0)})
    assert fuse(program, [Concat("attention")]).ops == program.ops


@pytest.mark.parametrize("with_bias", ["q", "k", "v", "qk"])
def test_linears_of_which_some_have_a_bias_stay_apart(with_bias):
    g = GraphBuilder()
    x = words(g)
    q, k, v = (
        g.linear(x, g.weight(name, (8, 8)), g.weight(f"{name}.bias", (8,), use="vector") if name in with_bias else None)
        for name in "qkv"
    )
    program = g.build({"y": g.attention(q, k, v, heads=2, kv_heads=2, head_dim=4, scale=1.0)})
    for consumer in ("attention", None):
        assert fuse(program, [Concat(consumer)]).ops == program.ops


@st.composite
def chains(draw):
    """Programs of elementwise ops whose operands are drawn from all earlier results."""
    g = GraphBuilder()
    values = [words(g)]
    for _ in range(draw(st.integers(1, 12))):
        a, b = (values[draw(st.integers(0, len(values) - 1))] for _ in range(2))
        values.append(draw(st.sampled_from([g.gelu, g.relu]))(a) if draw(st.booleans()) else g.add(a, b))
    used = {view.buffer for op in g.build({"y": values[-1]}).ops for view in op.inputs}
    return g.build({f"y{i}": v for i, v in enumerate(values) if v.buffer not in used or v is values[-1]})


@given(chains())
@settings(max_examples=60, deadline=None)
def test_buffers_that_live_at_once_never_share_a_slot(program):
    """Walk the program: a value read from its slot must still be the one that was written there."""
    memory = plan_memory(program, {"add": 0, "gelu": 0, "relu": 0})
    content = {}
    for op in program.ops:
        for view in op.inputs:
            assert content[memory.placement[view.buffer]] == view.buffer
        content[memory.placement[op.outputs[0].buffer]] = op.outputs[0].buffer
    for view in program.outputs.values():
        assert content[memory.placement[view.buffer]] == view.buffer


def test_an_op_that_reads_one_buffer_twice_does_not_write_over_it():
    """y = W x + x: the product still reads rows of x when the first columns of y are written."""
    g = GraphBuilder()
    x = words(g, 10)
    program = g.build({"y": g.add(g.linear(x, g.weight("w", (10, 10))), x)})
    fused = fuse(program, [Fusion("linear_add", ("linear", "add"))])
    assert [op.kind for op in fused.ops] == ["embed_rows", "linear_add"]
    placement = plan_memory(fused, {"linear_add": 1}).placement
    assert len(set(placement.values())) == 2


def test_slots_are_reused_and_aligned():
    g = GraphBuilder()
    x = words(g, 10)
    for _ in range(20):
        x = g.linear(x, g.weight("w", (10, 10)))
    memory = plan_memory(g.build({"y": g.pool(x, mode="mean")}), {})
    assert len(memory.slots) == 3
    offsets, total = memory.offsets({Rows.TOKENS: 7, Rows.SEQUENCES: 2})
    assert all(offset % 64 == 0 for offset in offsets)
    assert total >= 2 * 7 * 10 * 4 + 2 * 10 * 4


def test_a_result_that_nobody_reads_is_an_error():
    g = GraphBuilder()
    x = words(g)
    g.gelu(x)
    with pytest.raises(ValueError, match="remove the op that computes it"):
        plan_memory(g.build({"y": x}), {})


def test_a_batch_fills_in_positions_and_types():
    batch = Batch(np.arange(5, dtype=np.int32), np.array([0, 2, 5], np.int32))
    assert batch.positions.tolist() == [0, 1, 0, 1, 2]
    assert batch.token_type_ids.tolist() == [0] * 5
    assert (batch.tokens, batch.sequences, batch.max_seqlen) == (5, 2, 3)


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ([0, 2], "must run from 0 to the 5 tokens"),
        ([1, 5], "must run from 0"),
        ([0], "must run from 0"),
        ([0, 3, 3, 5], "sequence 1 of the batch has no tokens"),
        ([0, 4, 3, 5], "sequence 1 of the batch has no tokens"),
        ([0, 2**31 - 1, -2, 5], "cu_seqlens must run from 0 to the 5 tokens"),  # lengths that wrap around, all above 0
    ],
)
def test_a_batch_with_wrong_bounds_is_refused(bounds, message):
    with pytest.raises(InvalidInputError, match=message):
        Batch(np.arange(5, dtype=np.int32), np.array(bounds, np.int32))


def test_bounds_of_many_sequences_that_wrap_around_are_refused():
    tokens = 70_000
    whole, rest = divmod(tokens + 2**32, tokens)
    bounds = np.cumsum([0, *[tokens] * whole, rest]).astype(np.int32)  # no length is above that of the batch
    assert bounds[-1] == tokens
    with pytest.raises(InvalidInputError, match="cu_seqlens must run from 0 to the 70000 tokens"):
        Batch(np.zeros(tokens, np.int32), bounds)


def test_a_batch_with_a_short_companion_is_refused():
    with pytest.raises(InvalidInputError, match="positions has 4 entries for 5 tokens"):
        Batch(np.arange(5, dtype=np.int32), np.array([0, 5], np.int32), positions=np.zeros(4, np.int32))
