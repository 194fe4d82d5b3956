"""Weights of 16 bits: the same bits as a float32 model whose weights are rounded, and half the memory."""

from __future__ import annotations

import numpy as np
import pytest

from lattice_inference.backends.cpu import CpuBackend, _cpu
from lattice_inference.backends.cpu.weight_forms import WeightForms
from lattice_inference.backends.cpu.weights import ResidentWeights
from lattice_inference.backends.weight_reading import narrow
from lattice_inference.errors import CheckpointError, NonFiniteError, UnsupportedError
from lattice_inference.graph.compile import compile_program

from .programs import Tensors, batch_of, one_op, random_batch, random_bert

HALVES = ("bfloat16", "float16")
LENGTHS = [1, 2, 3, 5, 8, 13, 14, 15, 16, 17, 31, 47, 48, 49, 64, 100]


def widening(isa, precision, *, fused=True):
    """A backend that multiplies floats: what rounds activations to bfloat16 is tested in test_bfloat16.py."""
    return CpuBackend(isa=isa, precision=precision, fused=fused, bfloat16_products="float32")


def widened(halves, precision):
    """The float32 values of the bits, by NumPy's float16 or by the definition of bfloat16."""
    if precision == "float16":
        return halves.view(np.float16).astype(np.float32)
    return (halves.astype(np.uint32) << 16).view(np.float32)


def rounded(weight, precision):
    """``weight`` rounded to the nearest value of ``precision``, ties to the even one."""
    if precision == "float16":
        return weight.astype(np.float16).astype(np.float32)
    below = (weight.view(np.uint32) & 0xFFFF0000).view(np.float32)  # towards zero
    above = ((weight.view(np.uint32) & 0xFFFF0000) + 0x10000).view(np.float32)
    down, up = (np.abs(weight.astype(np.float64) - x.astype(np.float64)) for x in (below, above))
    odd = (below.view(np.uint32) >> 16 & 1).astype(bool)
    return np.where((down < up) | ((down == up) & ~odd), below, above)


def special_values():
    """Values around what rounding decides: ties, subnormals, the largest, zeros of both signs."""
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 1 << 32, 20_000, dtype=np.uint32)
    anything = bits.view(np.float32)
    ties = ((bits & 0xFFFF0000) | 0x8000).view(np.float32)
    small = (rng.standard_normal(5_000) * np.exp2(rng.uniform(-40, 15, 5_000))).astype(np.float32)
    edges = np.array([0.0, -0.0, 65504.0, 65519.9, 2.0**-24, 2.0**-25, 2.0**-14, 6.1e-5, 1e-40, -1e-45], np.float32)
    return np.concatenate([anything, ties, small, edges])


@pytest.mark.parametrize("precision", HALVES)
def test_weights_are_rounded_to_nearest_even(precision):
    values = special_values()
    limit = 65519.0 if precision == "float16" else 3.389e38
    values = values[np.abs(values) <= limit]
    stored = narrow(values, precision, "w")
    assert stored.dtype == np.uint16
    assert widened(stored, precision).tobytes() == rounded(values, precision).tobytes()


@pytest.mark.parametrize("precision", HALVES)
@pytest.mark.parametrize("isa", _cpu.available_isas())
def test_every_half_is_widened_exactly(isa, precision):
    finite = np.arange(1 << 16, dtype=np.uint16)
    values = widened(finite, precision)
    values = values[np.isfinite(values)]
    values = np.concatenate([values, np.zeros(-len(values) % 37, np.float32)]).reshape(-1, 37)
    program, tensors = one_op({"x": values}, lambda g, views: views["x"])
    ready = CpuBackend(isa=isa, precision=precision).compile(program, Tensors(tensors))
    result = ready.run(batch_of([len(values)]), outputs=("y",))["y"]
    assert (result.view(np.uint32) == values.view(np.uint32)).all()


@pytest.mark.parametrize("precision", HALVES)
@pytest.mark.parametrize("isa", _cpu.available_isas())
def test_results_are_those_of_float32_with_rounded_weights(isa, precision):
    program, tensors = random_bert(np.random.default_rng(11))
    matrices = {name for name, tensor in tensors.items() if tensor.ndim == 2}
    exact = {name: rounded(t, precision) if name in matrices else t for name, t in tensors.items()}
    batch = random_batch(np.random.default_rng(5), LENGTHS)
    half = widening(isa, precision).compile(program, Tensors(tensors)).run(batch)
    full = CpuBackend(isa=isa).compile(program, Tensors(exact)).run(batch)
    for name in program.outputs:
        assert half[name].tobytes() == full[name].tobytes(), name
    plain = widening(isa, precision, fused=False).compile(program, Tensors(tensors)).run(batch)
    assert all(half[name].tobytes() == plain[name].tobytes() for name in program.outputs)


@pytest.mark.parametrize("precision", HALVES)
@pytest.mark.parametrize("isa", _cpu.available_isas())
@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5, 7, 16, 37, 64])
def test_linears_of_any_depth_and_number_of_rows(isa, precision, depth):
    rng = np.random.default_rng(depth)
    weight = rounded(rng.standard_normal((45, depth), np.float32), precision)
    for rows in (1, 2, 3, 4, 6, 7, 9, 13, 29, 60):
        x = rounded(rng.standard_normal((rows, depth), np.float32), precision)
        program, tensors = one_op({"x": x}, lambda g, views: g.linear(views["x"], g.weight("w", (45, depth))))
        tensors["w"] = weight
        half, full = (
            widening(isa, kind).compile(program, Tensors(tensors)).run(batch_of([rows]))["y"]
            for kind in (precision, "float32")
        )
        assert half.tobytes() == full.tobytes(), rows


def resident(program, tensors, precision):
    forms = WeightForms(precision, Tensors(tensors))
    return ResidentWeights(compile_program(forms.choose(program)).program, Tensors(tensors), forms)


@pytest.mark.parametrize("precision", HALVES)
def test_weights_take_half_the_memory(precision):
    program, tensors = random_bert(np.random.default_rng(1), hidden=64, inner=256)
    half, full = (resident(program, tensors, kind) for kind in (precision, "float32"))
    assert half.memory.nbytes * 2 == full.memory.nbytes
    table = next(ref for op in program.ops for ref in op.weights.values() if ref.sources == ("words",))
    assert half.array(table).nbytes * 2 == full.array(table).nbytes


@pytest.mark.parametrize(("precision", "value"), [("float16", 65520.0), ("float16", -1e30), ("bfloat16", 3.4e38)])
def test_a_value_that_does_not_fit_is_refused(precision, value):
    x = np.ones((2, 8), np.float32)
    program, tensors = one_op({"x": x}, lambda g, views: g.linear(views["x"], g.weight("big", (4, 8))))
    tensors["big"] = np.zeros((4, 8), np.float32)
    tensors["big"][1, 3] = value
    with pytest.raises(CheckpointError, match=rf"big holds .* {precision} ends at"):
        CpuBackend(precision=precision).compile(program, Tensors(tensors))


@pytest.mark.parametrize("precision", HALVES)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("isa", _cpu.available_isas())
def test_weights_that_are_not_finite_stay_so(isa, precision, poison):
    x = np.ones((2, 8), np.float32)
    program, tensors = one_op({"x": x}, lambda g, views: g.linear(views["x"], g.weight("w", (20, 8))))
    tensors["w"] = np.zeros((20, 8), np.float32)
    tensors["w"][17, 3] = poison
    with pytest.raises(NonFiniteError):
        CpuBackend(isa=isa, precision=precision).compile(program, Tensors(tensors)).run(batch_of([2]))


def test_an_unknown_precision_is_refused():
    with pytest.raises(
        UnsupportedError, match="precision must be one of float32, bfloat16, float16, int8, stored, not 'int4'"
    ):
        CpuBackend(precision="int4")
