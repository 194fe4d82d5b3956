"""Fits the polynomials of ``vector_math.h``, ``simd_f64.h``, ``exp2.h``; prints C constants.

Each function is reduced to a polynomial on a short interval. A weighted least-squares fit on Chebyshev nodes in
60-digit arithmetic is close to minimax. The coefficients are then rounded to float32 or float64 one at a time, lowest
order first. After each the rest is fitted again, so that the higher orders absorb the rounding error.

Run it with mpmath installed: ``python tools/native/fit_polynomials.py``.
"""

from __future__ import annotations

from collections.abc import Callable

import mpmath as mp
import numpy as np

mp.mp.dps = 60


def fit(
    function: Callable[[mp.mpf], mp.mpf],
    low: float,
    high: float,
    terms: int,
    weight: Callable[[mp.mpf], mp.mpf],
    rounded: type[np.floating] = np.float32,
) -> list[np.floating]:
    """Return ``terms`` coefficients (lowest order first) of a polynomial close to ``function``.

    It is close on [low, high].

    ``weight`` turns an error of the polynomial into the error that counts; ``rounded`` is the type of the coefficients.
    """
    count = 8 * terms
    nodes = [
        (mp.mpf(low) + high) / 2 + (mp.mpf(high) - low) / 2 * mp.cos(mp.pi * (2 * i + 1) / (2 * count))
        for i in range(count)
    ]
    values = [function(x) for x in nodes]
    weights = [weight(x) for x in nodes]
    coefficients: list[np.floating] = []
    for order in range(terms):
        matrix = mp.matrix(count, terms - order)
        right = mp.matrix(count, 1)
        for row, (x, value, w) in enumerate(zip(nodes, values, weights, strict=True)):
            known = sum((mp.mpf(float(c)) * x**power for power, c in enumerate(coefficients)), mp.mpf(0))
            for column in range(terms - order):
                matrix[row, column] = w * x ** (order + column)
            right[row] = w * (value - known)
        solution = mp.lu_solve(matrix.T * matrix, matrix.T * right)
        coefficients.append(rounded(float(solution[0])))
    return coefficients


def show(name: str, coefficients: list[np.floating]) -> None:
    print(f"/* {name}, lowest order first */")
    for coefficient in coefficients:
        suffix = "f" if isinstance(coefficient, np.float32) else ""
        print(f"    {float(coefficient).hex():>24}{suffix}, /* {float(coefficient):.17g} */")


def main() -> None:
    half_ln2 = float(mp.log(2) / 2) * 1.01
    # exp(r) = 1 + r + r^2 q(r)
    show(
        "exp",
        fit(
            lambda r: (mp.exp(r) - 1 - r) / r**2 if abs(r) > 1e-12 else mp.mpf(1) / 2,
            -half_ln2,
            half_ln2,
            5,
            lambda r: r**2 / mp.exp(r),
        ),
    )
    # erf(x) = x + x p(x^2) for |x| <= 0.95
    show(
        "erf, small",
        fit(
            lambda s: mp.erf(mp.sqrt(s)) / mp.sqrt(s) - 1 if s > 1e-30 else 2 / mp.sqrt(mp.pi) - 1,
            0.0,
            0.95**2,
            6,
            lambda s: mp.mpf(1),
        ),
    )
    # erf(x) = 1 - exp(-(t + t q(t))) for t = |x| > 0.9
    show(
        "erf, large",
        fit(
            lambda t: -mp.log(mp.erfc(t)) / t - 1,
            0.9,
            4.0,
            7,
            lambda t: t * mp.erfc(t),
        ),
    )
    # tanh(x) = x + x^3 p(x^2) for |x| <= 0.6
    show(
        "tanh, small",
        fit(
            lambda s: (mp.tanh(mp.sqrt(s)) / mp.sqrt(s) - 1) / s if s > 1e-25 else mp.mpf(-1) / 3,
            0.0,
            0.6**2,
            5,
            lambda s: s,
        ),
    )
    # log(1 + f) = f - f^2/2 + f^3 p(f) for sqrt(1/2) <= 1 + f < sqrt(2)
    show(
        "log",
        fit(
            lambda f: (mp.log(1 + f) - f + f**2 / 2) / f**3 if abs(f) > 1e-12 else mp.mpf(1) / 3,
            float(mp.sqrt(0.5)) - 1,
            float(mp.sqrt(2)) - 1,
            9,
            lambda f: f**3 / (mp.log(1 + f) if abs(f) > 1e-12 else f) if abs(f) > 1e-12 else f**2,
        ),
    )
    ln2_high = 0.693359375  # 355/512: nine bits, so that n * ln2_high is exact for |n| < 2^15
    print("ln2_high", float(ln2_high).hex(), "ln2_low", float(np.float32(float(mp.log(2) - ln2_high))).hex())
    print("log2e", float(np.float32(float(1 / mp.log(2)))).hex())
    fit_float64(half_ln2)
    fit_exp2()


def fit_float64(half_ln2: float) -> None:
    """Show the constants of simd_f64.h."""
    show(
        "exp in float64: exp(r) = 1 + r + r^2 q(r)",
        fit(
            lambda r: (mp.exp(r) - 1 - r) / r**2 if abs(r) > 1e-20 else mp.mpf(1) / 2,
            -half_ln2,
            half_ln2,
            11,
            lambda r: r**2 / mp.exp(r),
            np.float64,
        ),
    )
    # log((1 + s) / (1 - s)) = 2 s + s z p(z) with z = s^2
    largest = float((mp.sqrt(2) - 1) / (mp.sqrt(2) + 1)) * 1.001
    show(
        "log in float64",
        fit(
            lambda z: (2 * mp.atanh(mp.sqrt(z)) / mp.sqrt(z) - 2) / z if z > 1e-40 else mp.mpf(2) / 3,
            0.0,
            largest**2,
            7,
            lambda z: z,
            np.float64,
        ),
    )
    for part, name in ((mp.mpf(0), "ln2_high"), (mp.mpf(1), "ln2_low")):
        high = mp.floor(mp.log(2) * mp.mpf(2) ** 40) / mp.mpf(2) ** 40  # 40 bits: n * high is exact for |n| < 2^13
        print(f"{name} in float64", float(mp.log(2) - high if part else high).hex())
    print("log2e in float64", float(1 / mp.log(2)).hex())


def fit_exp2() -> None:
    """Show the constants of exp2.h: 2^r = 1 + r p(r) for |r| <= 1/2."""
    for rounded, terms in ((np.float32, 5), (np.float64, 11)):
        show(
            f"exp2 in {rounded.__name__}",
            fit(
                lambda r: (mp.power(2, r) - 1) / r if abs(r) > 1e-20 else mp.log(2),
                -0.5005,
                0.5005,
                terms,
                lambda r: r / mp.power(2, r),
                rounded,
            ),
        )


if __name__ == "__main__":
    main()
