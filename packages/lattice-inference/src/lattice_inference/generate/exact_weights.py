"""Probabilities as whole numbers, so that sums are exact in any order.

A token's surplus is (logit - greatest logit) * log2(e) / temperature: 0 for the most probable token, negative for others.
Its weight is 2**surplus in units of 2**-bits, rounded to a whole number. Sums of weights are exact, so every order of
additions, every instruction set and every number of threads gives the same sums. The arithmetic uses sums and products of
float64 without fused operations, which kernels/weights.h repeats bit for bit.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

__all__ = ["LOG2_E", "Weights", "natural_log", "reached_at", "weight_bits", "weights_of"]

Doubles = npt.NDArray[np.float64]
Weights = npt.NDArray[np.int64]

LOG2_E = 1.4426950408889634
MOST_BITS = 46
LEAST_SURPLUS = -64.0  # far below half of the smallest unit, 2**-MOST_BITS
ROUNDING = 1.5 * 2.0**52  # adding it leaves a whole number in the low bits

# 2**r for |r| <= 1/2, the highest power first
_POWER_OF_TWO = tuple(
    map(
        float.fromhex,
        (
            "0x1.e93d1a71620e4p-32",
            "0x1.e61c77e9b3d79p-28",
            "0x1.b525466519baep-24",
            "0x1.62bfc6ec81944p-20",
            "0x1.ffcbfc55e5e99p-17",
            "0x1.4309130f22cc5p-13",
            "0x1.5d87fe78a1c43p-10",
            "0x1.3b2ab6fb9ff86p-7",
            "0x1.c6b08d704a11fp-5",
            "0x1.ebfbdff82c5a5p-3",
            "0x1.62e42fefa39efp-1",
            "0x1p+0",
        ),
    )
)
LOGARITHM_TERMS = 12


def weight_bits(vocab_size: int) -> int:
    """Return the number of binary places of weights.

    The sum of ``vocab_size`` weights stays below 2**63.
    """
    return min(MOST_BITS, 62 - vocab_size.bit_length())


def weights_of(surplus: Doubles, bits: int) -> Weights:
    """Return 2**surplus in units of 2**-bits; ``surplus`` is 0 or less."""
    bounded = np.maximum(surplus, LEAST_SURPLUS)
    whole = (bounded + ROUNDING) - ROUNDING
    rest = bounded - whole
    power = np.full_like(rest, _POWER_OF_TWO[0])
    for coefficient in _POWER_OF_TWO[1:]:
        power = power * rest + coefficient
    return np.asarray(np.rint(np.ldexp(power, whole.astype(np.int32) + bits)).astype(np.int64))


def reached_at(total: int, mass: float) -> int:
    """Return the sum of weights that reaches the share ``mass`` of ``total``, at least 1."""
    return min(total, max(1, math.ceil(mass * float(total))))


def natural_log(x: float) -> float:
    """Return ln(x) for a finite x > 0, from sums, products and one quotient of float64.

    With f = (m - 1) / (m + 1) it is exponent * ln 2 + 2 (f + f**3 / 3 + f**5 / 5 + ...), for a mantissa m near 1.
    """
    mantissa, exponent = math.frexp(x)
    if mantissa < 0.7071067811865476:
        mantissa, exponent = 2 * mantissa, exponent - 1
    f = (mantissa - 1) / (mantissa + 1)
    square = f * f
    series = 0.0
    for term in range(LOGARITHM_TERMS, 0, -1):
        series = series * square + 1 / (2 * term + 1)
    return exponent * 0.6931471805599453 + (f + f * (series * square)) * 2
