"""The reverse reads weights of every form where they lie: the bits are those over float32 weights of the same values."""

from __future__ import annotations

import numpy as np
import pytest

from lattice_inference.backends.cpu import CpuBackend, _cpu
from lattice_inference.backends.weight_reading import narrow
from lattice_inference.checkpoint.int8_weights import quantize_matrix

from .programs import Tensors
from .reverse_programs import ReverseCase
from .test_blocks import COLUMNS, DEPTH, FORMATS, StoredTensors, dequantized, drawn_blocks

ROWS = 21
FLOATS = ("bfloat16", "float16", "int8")


def _case(weight, depth):
    """A loss over a linear's outputs, and the gradient of a linear's input, over one weight."""
    rng = np.random.default_rng(5)
    case = ReverseCase([ROWS])
    ref = case.weight("w", weight)
    inputs = {"x": ("logit_rows", depth), "dy": ("tokens", len(weight))}  # tables would take the form, too
    x, dy = (
        case.writer.append("input_rows", (), {}, {"name": name, "rows": rows, "width": width})[0]
        for name, (rows, width) in inputs.items()
    )
    sums, dx = case.writer.append("linear_cross_entropy", (x,), {"weight": ref}, {"gradient": True})
    (input_grad,) = case.writer.append("linear_input_grad", (dy,), {"weight": ref}, {})
    case.outputs |= {"sums": sums, "dx": dx, "input_grad": input_grad}
    batch = case.batch(
        logit_rows=np.arange(ROWS, dtype=np.int32),
        targets=rng.integers(0, len(weight), ROWS).astype(np.int32),
        target_weights=np.ones(ROWS, np.float32),
        inputs={name: rng.standard_normal((ROWS, width)).astype(np.float32) for name, (_, width) in inputs.items()},
    )
    return case, batch


def _compare(case, batch, isa, source=None, **options):
    expected = case.results(batch, CpuBackend(isa=isa))
    results = case.results(batch, CpuBackend(isa=isa, activations="float32", **options), source)
    assert set(results) == set(case.outputs)
    for name, rows in results.items():
        assert np.array_equal(rows, expected[name]), (name, isa)


@pytest.mark.parametrize("isa", _cpu.available_isas())
@pytest.mark.parametrize("precision", FLOATS)
def test_floats_and_int8(precision, isa):
    rng = np.random.default_rng(1)
    weight = rng.standard_normal((70, 51)).astype(np.float32)
    if precision == "int8":
        values = quantize_matrix(weight, "w").float32()
    else:
        halves = narrow(weight, precision, "w").view(np.uint16)
        values = (
            (halves.astype(np.uint32) << 16).view(np.float32)
            if precision == "bfloat16"
            else halves.view(np.float16).astype(np.float32)
        )
    case, batch = _case(values, 51)
    _compare(case, batch, isa, Tensors(case.tensors | {"w": weight}), precision=precision)


@pytest.mark.parametrize("isa", _cpu.available_isas())
@pytest.mark.parametrize("name", FORMATS)
def test_blocks(name, isa):
    blocks = drawn_blocks(name)
    case, batch = _case(dequantized(blocks), DEPTH)
    assert COLUMNS % 16 != 0  # the last panel is not full
    _compare(case, batch, isa, StoredTensors(case.tensors | {"w": blocks}), precision="stored")


PRODUCTS = [(isa, products) for isa in _cpu.available_isas() for products in _cpu.bfloat16_products(isa)]


@pytest.mark.parametrize(("isa", "products"), PRODUCTS)
@pytest.mark.parametrize(("n", "k", "rows"), [(17, 33, 5), (64, 48, 70), (1, 1, 1), (130, 300, 40), (1100, 40, 3)])
def test_rows_of_bfloat16(n, k, rows, isa, products):
    """Both factors are rounded to bfloat16: their products are exact, and only sums round."""
    rng = np.random.default_rng(n)
    weight, dy = (rng.standard_normal(shape).astype(np.float32) for shape in ((n, k), (rows, n)))
    case = ReverseCase([rows])
    (view,) = case.writer.append("input_rows", (), {}, {"name": "dy", "rows": "tokens", "width": n})
    (case.outputs["y"],) = case.writer.append("linear_input_grad", (view,), {"weight": case.weight("w", weight)}, {})
    batch = case.batch(inputs={"dy": dy})
    rounded_weight, rounded = (
        (narrow(x, "bfloat16", "x").view(np.uint16).astype(np.uint32) << 16).view(np.float32) for x in (weight, dy)
    )
    expected = rounded.astype(np.float64) @ rounded_weight
    found = [
        case.results(batch, CpuBackend(isa=isa, precision="bfloat16", bfloat16_products=products, threads=threads))["y"]
        for threads in (1, 2)
    ]
    assert np.array_equal(*found)
    tolerance = np.finfo(np.float32).eps * (n + 2) * (np.abs(rounded) @ np.abs(rounded_weight))
    assert (np.abs(found[0] - expected) <= tolerance).all()
