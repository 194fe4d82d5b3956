"""exp, erf, tanh and log of the kernels: within 2 ulp of the true value over the whole range of float32."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lattice_inference.backends.cpu import _cpu

ISAS = _cpu.available_isas()
TRUTH = {
    "exp": np.exp,
    "tanh": np.tanh,
    "log": np.log,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
}


def sample(step):
    """Every ``step``-th float32 by its bits: all exponents, both signs, subnormals, infinities and NaNs."""
    return np.arange(0, 2**32, step, dtype=np.uint64).astype(np.uint32).view(np.float32)


def ulps(got, want):
    """The distance in units of the last place of a float32 near ``want``; subnormals have the smallest unit."""
    exponent = np.maximum(np.frexp(want)[1] - 24, -149)
    return np.abs(got.astype(np.float64) - want) / np.ldexp(1.0, exponent)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", TRUTH)
def test_function_is_within_two_ulp(isa, name):
    x = sample(9973 if name == "erf" else 2003)
    got = _cpu.elementwise(name, x, isa=isa)
    with np.errstate(all="ignore"):
        want = TRUTH[name](x.astype(np.float64))
        nan = np.isnan(want)
        assert np.isnan(got[nan]).all()
        overflow = np.abs(want) >= float(np.finfo(np.float32).max) * (1 + 2.0**-25)
        assert (got[overflow] == want[overflow].astype(np.float32)).all()
        finite = ~nan & ~overflow
        distance = ulps(got[finite], want[finite])
    assert distance.max() <= 2.0, f"{distance.max():.3f} ulp at {x[finite][distance.argmax()]!r}"


@pytest.mark.parametrize("isa", ISAS)
def test_special_values(isa):
    infinity = np.float32(np.inf)
    x = np.array([0.0, -0.0, infinity, -infinity, np.nan], np.float32)
    cases = {
        "exp": [1, 1, np.inf, 0, np.nan],
        "erf": [0, -0.0, 1, -1, np.nan],
        "tanh": [0, -0.0, 1, -1, np.nan],
        "log": [-np.inf, -np.inf, np.inf, np.nan, np.nan],
    }
    for name, want in cases.items():
        got = _cpu.elementwise(name, x, isa=isa)
        np.testing.assert_array_equal(got, np.array(want, np.float32), err_msg=name)
        if name in ("erf", "tanh"):
            assert np.signbit(got[1])
            assert not np.signbit(got[0])


def test_levels_with_fma_agree_on_every_bit():
    levels = [isa for isa in ISAS if isa != "baseline"]
    x = sample(50_021)
    for name in TRUTH:
        results = [_cpu.elementwise(name, x, isa=isa) for isa in levels]
        finite = np.isfinite(results[0]) if results else slice(0)
        for other in results[1:]:
            assert (other[finite] == results[0][finite]).all()
