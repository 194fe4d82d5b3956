"""Every op of encoders on every body of this machine (levels of the CPU, WGPU), against the float64 reference."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from lattice_inference.backends import reference
from lattice_inference.graph.builder import GraphBuilder
from lattice_inference.graph.program import View, WeightRef

from .bodies import BODIES
from .programs import EMULATED, Tensors, batch_of, one_op

EPSILON = float(np.finfo(np.float32).eps)
WIDTHS = (1, 3, 15, 16, 17, 33, 64, 100, 384)


def check(inputs, write, *, lengths, tolerance, tensors=None):
    """Compare every body with the reference, which takes longer than all of them and is computed once."""
    program, weights = one_op(inputs, write)
    weights |= tensors or {}
    batch = batch_of(lengths)
    want = reference.run(program, weights, batch)["y"]
    for body in BODIES:
        error = np.abs(body.backend().compile(program, Tensors(weights)).run(batch)["y"] - want)
        assert (error <= tolerance).all(), f"{body} is off by {error.max():.3g}"


SHAPES = [(width, depth) for width in WIDTHS for depth in (1, 2, 16, 31, 384)]


@pytest.mark.slow
@pytest.mark.parametrize(("width", "depth"), [shape for shape in SHAPES if not EMULATED or shape != (384, 384)])
def test_linear_is_within_the_bound_of_a_chain(width, depth):
    rng = np.random.default_rng(width * 1000 + depth)
    for rows in (1, 2, 3, 4, 5, 7, 13, 14, 15, 29):
        x = rng.standard_normal((rows, depth)).astype(np.float32)
        w = rng.standard_normal((width, depth)).astype(np.float32)
        b = rng.standard_normal(width).astype(np.float32)
        weight, bias = GraphBuilder.weight("w", w.shape), GraphBuilder.weight("b", b.shape, use="vector")
        bound = EPSILON * (depth + 1) * (np.abs(x) @ np.abs(w).T + np.abs(b))
        tensors = {"w": w, "b": b}
        for vector in (None, bias):
            write = partial(linear_of, weight=weight, bias=vector)
            check({"x": x}, write, lengths=[rows], tolerance=bound, tensors=tensors)


def linear_of(g: GraphBuilder, views: dict[str, View], *, weight: WeightRef, bias: WeightRef | None) -> View:
    return g.linear(views["x"], weight, bias)


ELEMENTWISE: dict[str, Callable[[GraphBuilder, View], View]] = {
    "gelu": lambda g, x: g.gelu(x),
    "gelu_tanh": lambda g, x: g.gelu(x, form="tanh"),
    "relu": lambda g, x: g.relu(x),
    "silu": lambda g, x: g.silu(x),
    "tanh": lambda g, x: g.tanh(x),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
@pytest.mark.parametrize("width", WIDTHS)
def test_elementwise_ops(name, width):
    rng = np.random.default_rng(width)
    x = (rng.standard_normal((37, width)) * 4).astype(np.float32)
    x[0, 0] = 60.0
    x[1, 0] = -60.0
    tolerance = 4 * EPSILON * np.maximum(np.abs(x), 1e-3)
    check({"x": x}, lambda g, v: ELEMENTWISE[name](g, v["x"]), lengths=[37], tolerance=tolerance)


@pytest.mark.parametrize("width", WIDTHS)
def test_sigmoid(width):
    x = (np.random.default_rng(width).standard_normal((37, width)) * 8).astype(np.float32)
    x[:4, 0] = 60, -60, -100, 100
    check({"x": x}, lambda g, v: g.sigmoid(v["x"]), lengths=[37], tolerance=np.full(x.shape, 3 * EPSILON))


@pytest.mark.parametrize("width", WIDTHS)
def test_add(width):
    rng = np.random.default_rng(width)
    a, b = (rng.standard_normal((21, width)).astype(np.float32) for _ in range(2))
    check({"a": a, "b": b}, lambda g, v: g.add(v["a"], v["b"]), lengths=[21], tolerance=EPSILON * np.abs(a + b))


@pytest.mark.parametrize("width", [2, *WIDTHS[1:]])
def test_layer_norm(width):
    rng = np.random.default_rng(width)
    x = (rng.standard_normal((9, width)) * 3 + 5).astype(np.float32)
    w, b = (rng.standard_normal(width).astype(np.float32) for _ in range(2))

    def write(g: GraphBuilder, views: dict[str, View]) -> View:
        scale, shift = g.weight("w", w.shape, use="vector"), g.weight("b", b.shape, use="vector")
        return g.layer_norm(views["x"], scale, shift, epsilon=1e-5)

    spread = x.std(axis=1, keepdims=True)
    tolerance = 8 * EPSILON * (np.abs(x).max(axis=1, keepdims=True) / spread + 3) * (np.abs(w) + np.abs(b))
    check({"x": x}, write, lengths=[9], tolerance=tolerance, tensors={"w": w, "b": b})


def test_layer_norm_of_a_constant_row_is_the_shift():
    x = np.full((1, 20), 3.0, np.float32)
    w, b = np.ones(20, np.float32), np.arange(20, dtype=np.float32)

    def write(g: GraphBuilder, views: dict[str, View]) -> View:
        scale, shift = g.weight("w", w.shape, use="vector"), g.weight("b", b.shape, use="vector")
        return g.layer_norm(views["x"], scale, shift, epsilon=1e-12)

    check({"x": x}, write, lengths=[1], tolerance=1e-6, tensors={"w": w, "b": b})


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(1, 1, 1), (2, 2, 8), (3, 3, 20), (4, 2, 32), (6, 1, 48)])
def test_attention(heads, kv_heads, head_dim):  # H7
    rng = np.random.default_rng(heads * 100 + head_dim)
    lengths = [1, 2, 15, 16, 17, 49, 100]
    rows = sum(lengths)
    inputs = {
        "q": rng.standard_normal((rows, heads * head_dim)).astype(np.float32) * 2,
        "k": rng.standard_normal((rows, kv_heads * head_dim)).astype(np.float32) * 2,
        "v": rng.standard_normal((rows, kv_heads * head_dim)).astype(np.float32),
    }
    check(
        inputs,
        lambda g, v: g.attention(
            v["q"], v["k"], v["v"], heads=heads, kv_heads=kv_heads, head_dim=head_dim, scale=head_dim**-0.5
        ),
        lengths=lengths,
        tolerance=1e-5,
    )


@pytest.mark.parametrize("length", [511, 512, 513, 1030])
def test_attention_over_several_segments_of_keys(length):
    rng = np.random.default_rng(length)
    inputs = {name: rng.standard_normal((length, 16)).astype(np.float32) for name in "qkv"}
    inputs["k"][:512] *= 3  # the running maximum moves between segments
    check(
        inputs,
        lambda g, v: g.attention(v["q"], v["k"], v["v"], heads=2, kv_heads=2, head_dim=8, scale=0.35),
        lengths=[length],
        tolerance=1e-5,
    )


def test_attention_with_scores_beyond_the_range_of_exp():  # H8
    """No sentinel stands for a missing key: scores of -20000 beside one another are still a softmax."""
    rng = np.random.default_rng(7)
    inputs = {name: rng.standard_normal((5, 16)).astype(np.float32) for name in "qkv"}
    inputs["q"] += 100
    inputs["k"] -= 100
    check(
        inputs,
        lambda g, v: g.attention(v["q"], v["k"], v["v"], heads=1, kv_heads=1, head_dim=16, scale=1.0),
        lengths=[5],
        tolerance=5e-2,
    )


@pytest.mark.parametrize("mode", ["cls", "mean", "last"])
@pytest.mark.parametrize("width", [1, 16, 50])
def test_pool(mode, width):
    rng = np.random.default_rng(width)
    lengths = [1, 2, 7, 130]
    x = rng.standard_normal((sum(lengths), width)).astype(np.float32)
    check({"x": x}, lambda g, v: g.pool(v["x"], mode=mode), lengths=lengths, tolerance=2e-6)


@pytest.mark.parametrize("width", WIDTHS)
def test_l2_normalize(width):
    rng = np.random.default_rng(width)
    x = rng.standard_normal((6, width)).astype(np.float32)
    x[3] = 0.0  # stays zero: the length is never below 1e-12
    x[4] *= 1e-20
    check({"x": x}, lambda g, v: g.l2_normalize(g.pool(v["x"], mode="cls")), lengths=[1] * 6, tolerance=3 * EPSILON)


def test_l2_normalize_of_short_vectors_is_exact():
    """The reference too: beside a tolerance of 3e-7 its own rows of 1e-20 would pass as anything."""
    x = np.array([[3e-7, 4e-7], [3e-11, 4e-11], [3e-13, 4e-13]], np.float32)
    program, weights = one_op({"x": x}, lambda g, v: g.l2_normalize(g.pool(v["x"], mode="cls")))
    batch = batch_of([1] * 3)
    expected = [[0.6, 0.8], [0.6, 0.8], [0.3, 0.4]]  # the length is never below 1e-12
    np.testing.assert_allclose(reference.run(program, weights, batch)["y"], expected, rtol=1e-6)
    for body in BODIES:
        vectors = body.backend().compile(program, Tensors(weights)).run(batch)["y"]
        np.testing.assert_allclose(vectors, expected, rtol=1e-6, err_msg=str(body))


def test_embedding_tables_are_looked_up_by_each_kind_of_id():
    rng = np.random.default_rng(0)
    tables = {name: rng.standard_normal((40, 24)).astype(np.float32) for name in ("a", "b")}

    def write(g: GraphBuilder, views: dict[str, View]) -> View:
        positions = g.embed_rows(g.weight("b", (40, 24), use="rows"), ids="positions")
        return g.add(positions, views["a"])

    check({"a": tables["a"]}, write, lengths=[19, 21], tolerance=1e-6, tensors={"b": tables["b"]})


@pytest.mark.parametrize("body", BODIES, ids=str)
@pytest.mark.parametrize("sequences", [1, 2, 15, 33])
def test_heads_compute_over_rows_of_sequences(body, sequences):
    """What stands on a pooling: products with a row a sequence, a residual from the product's own input, one output."""
    rng = np.random.default_rng(sequences)
    x = rng.standard_normal((3 * sequences, 48)).astype(np.float32)
    tensors = {
        "w": (rng.standard_normal((48, 48)) * 0.1).astype(np.float32),
        "b": rng.standard_normal(48).astype(np.float32),
        "scale": rng.standard_normal(48).astype(np.float32),
        "last": (rng.standard_normal((1, 48)) * 0.1).astype(np.float32),
    }

    def write(g: GraphBuilder, views: dict[str, View]) -> View:
        weight, bias = g.weight("w", (48, 48)), g.weight("b", (48,), use="vector")
        first = g.tanh(g.linear(g.pool(views["x"], mode="cls"), weight, bias))
        y = g.add(g.linear(first, weight), first)
        y = g.layer_norm(y, g.weight("scale", (48,), use="vector"), bias, epsilon=1e-5)
        return g.linear(y, g.weight("last", (1, 48)))

    program, weights = one_op({"x": x}, write)
    weights |= tensors
    batch = batch_of([3] * sequences)
    fused, unfused = (
        body.backend(fused=choice).compile(program, Tensors(weights)).run(batch)["y"] for choice in (True, False)
    )
    assert fused.tobytes() == unfused.tobytes()
    assert fused.shape == (sequences, 1)
    assert np.abs(fused - reference.run(program, weights, batch)["y"]).max() <= 5e-6
