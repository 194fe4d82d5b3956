"""Int8 linears whose inputs are rounded within a fixed range: exactly the definition, beyond the range the end of it."""

from __future__ import annotations

import numpy as np
import pytest

from lattice_inference.backends.cpu import CpuBackend
from lattice_inference.calibration import InputRange
from lattice_inference.errors import CheckpointError, InvalidInputError, NonFiniteError

from .programs import Tensors, batch_of, one_op, random_batch, random_bert
from .test_int8 import FMA_BODIES, every_body

RANGE = InputRange(-1.5, 2.25)


def static_linear(x, weight, limits):
    """Static quantization in float64: the rows rounded by one scale and zero point, the weights by one scale a row."""
    scale = (limits.high - limits.low) / 255
    zero = np.rint(-limits.low / scale)
    q = np.clip(np.rint(x.astype(np.float64) / scale) + zero, 0, 255)
    scales_w = np.abs(weight.astype(np.float64)).max(axis=1) / 127
    return ((q - zero) * scale) @ (np.rint(weight / scales_w[:, None]) * scales_w[:, None]).T


def linear_by_definition(x, weight, limits):
    """The same in float32, one operation after another, as kernels/rows/integer_rows.h says."""
    extent = np.float32(limits.high) - np.float32(limits.low)
    inverse = np.float32(255) / extent
    zero = np.rint(-np.float32(limits.low) * inverse)
    q = np.clip(np.rint(x * inverse) + zero, 0, 255).astype(np.int64)
    scales_w = np.abs(weight).max(axis=1) / np.float32(127)
    w = np.rint(weight / scales_w[:, None]).astype(np.int64)
    return ((q - int(zero)) @ w.T).astype(np.float32) * scales_w * (extent / np.float32(255))


def run(x, weight, body, limits):
    program, tensors = one_op({"x": x}, lambda g, views: g.linear(views["x"], g.weight("w", weight.shape)))
    backend = CpuBackend(**body, precision="int8", input_ranges={"w": limits})
    result = backend.compile(program, Tensors(tensors | {"w": weight})).run(batch_of([len(x)]))["y"]
    return result, x.astype(np.float16).astype(np.float32)


@every_body
@pytest.mark.parametrize("depth", [1, 5, 16, 37, 384])
def test_a_linear_is_its_definition_bit_for_bit(body, depth):
    rng = np.random.default_rng(depth)
    weight = rng.standard_normal((45, depth), np.float32)
    for rows in (1, 2, 5, 13, 60):
        x = 2 * rng.standard_normal((rows, depth), np.float32)  # about a third lies beyond the range
        got, x = run(x, weight, body, RANGE)
        assert got.tobytes() == linear_by_definition(x, weight, RANGE).tobytes(), rows


@every_body
def test_a_linear_is_static_quantization_in_float64(body):
    rng = np.random.default_rng(3)
    weight, x = rng.standard_normal((33, 256), np.float32), rng.standard_normal((9, 256), np.float32)
    got, x = run(x, weight, body, RANGE)
    want = static_linear(x, weight, RANGE)
    # a quotient that lies between two integers may be rounded to the other one
    assert np.abs(got - want).max() <= 2 * RANGE.scale * np.abs(weight).max() + 1e-4


@every_body
def test_what_lies_beyond_the_range_becomes_its_end(body):
    weight = np.full((17, 32), 0.5, np.float32)
    inside = np.full((1, 32), RANGE.high, np.float32)
    inside = np.concatenate([inside, np.full((1, 32), RANGE.low, np.float32)])
    beyond = np.stack([np.full(32, 30000, np.float32), np.full(32, -30000, np.float32)])
    want, _ = run(inside, weight, body, RANGE)
    got, _ = run(beyond, weight, body, RANGE)
    assert got.tobytes() == want.tobytes()
    assert np.abs(got[:, 0] - 16 * np.array([RANGE.high, RANGE.low])).max() <= 16 * RANGE.scale


@every_body
def test_a_row_does_not_change_the_scale_of_another_nor_its_own(body):
    """With a range of its own, a row of small numbers keeps them apart; within a wide fixed one they are all zero."""
    x = np.full((2, 32), 1e-3, np.float32)
    x[1, 0] = 100
    weight = np.ones((16, 32), np.float32)
    got, _ = run(x, weight, body, InputRange(0, 100))
    assert (got[0] == 0).all()
    assert np.abs(got[1] - 100).max() < 0.5


@every_body
def test_a_flat_range_makes_everything_zero(body):
    got, _ = run(np.ones((3, 20), np.float32), np.ones((16, 20), np.float32), body, InputRange(0, 0))
    assert (got == 0).all()


@every_body
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_inputs_that_are_not_finite_are_refused(body, poison):
    program, tensors = one_op(
        {"x": np.full((3, 40), 1e-3, np.float32)},
        lambda g, views: g.linear(
            g.layer_norm(
                views["x"], *(g.weight(name, (40,), use="vector") for name in ("scale", "shift")), epsilon=1e-12
            ),
            g.weight("w", (20, 40)),
        ),
    )
    tensors |= {"w": np.ones((20, 40), np.float32), "scale": np.ones(40, np.float32)}
    tensors["shift"] = np.full(40, poison, np.float32)
    backend = CpuBackend(**body, precision="int8", input_ranges={"w": RANGE})
    with pytest.raises(NonFiniteError):
        backend.compile(program, Tensors(tensors)).run(batch_of([3]))


def ranges_of(program):
    """A range for each linear, the same for those that read one input."""
    ranges = {}
    for op in program.ops:
        if op.kind == "linear":
            seed = op.inputs[0].buffer.index % 7
            ranges |= dict.fromkeys(op.weights["weight"].sources, InputRange(-1 - seed / 4, 1 + seed / 5))
    return ranges


@pytest.mark.parametrize("body", FMA_BODIES)
def test_fused_or_not_and_on_every_level_the_bits_are_the_same(body):
    program, tensors = random_bert(np.random.default_rng(11))
    batch = random_batch(np.random.default_rng(5), [1, 2, 13, 16, 31, 100])
    results = set()
    for fused in (True, False):
        backend = CpuBackend(**body, precision="int8", fused=fused, input_ranges=ranges_of(program))
        results.add(backend.compile(program, Tensors(tensors)).run(batch)["pooled"].tobytes())
    first = CpuBackend(**FMA_BODIES[0], precision="int8", input_ranges=ranges_of(program))
    results.add(first.compile(program, Tensors(tensors)).run(batch)["pooled"].tobytes())
    assert len(results) == 1
    plain = CpuBackend(**body, precision="int8").compile(program, Tensors(tensors)).run(batch)
    assert plain["pooled"].tobytes() not in results


def test_weights_side_by_side_with_ranges_that_differ_are_refused():
    program, tensors = random_bert(np.random.default_rng(1))
    ranges = ranges_of(program)
    ranges["0.q.w"] = InputRange(-9, 9)
    with pytest.raises(CheckpointError, match=r"0\.q\.w.* multiply one input and have different ranges"):
        CpuBackend(precision="int8", input_ranges=ranges).compile(program, Tensors(tensors))


@pytest.mark.parametrize("ends", [(0.1, 1), (-1, -0.1), (np.nan, 1), (-1, np.inf), (-3e38, 3e38), (1, 0)])
def test_ranges_that_make_no_sense_are_refused(ends):
    with pytest.raises(InvalidInputError, match="must be finite and enclose 0"):
        InputRange(*ends)


def test_scale_and_zero_point_are_those_of_the_definition():
    assert InputRange(-1, 1).zero_point == 128
    assert InputRange(0, 255).scale == 1.0
    assert (InputRange(0, 0).scale, InputRange(0, 0).zero_point) == (0.0, 0)
