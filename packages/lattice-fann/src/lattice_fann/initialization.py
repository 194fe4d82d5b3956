"""Random weights. One seed gives the same bits with every NumPy version: its legacy streams are frozen."""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np

from lattice_fann.errors import InvalidInputError

__all__ = ["Initialization", "random_generator", "random_weights"]

Initialization = Literal["xavier_normal", "xavier_uniform", "he_normal", "he_uniform"]


def random_generator(seed: int | None, *stream: int) -> np.random.RandomState:
    """Return the generator of a seed, and of a numbered stream under it; None takes entropy from the system."""
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0):
        raise InvalidInputError(f"seed must be a non-negative integer or None, not {seed!r}")
    sequence = np.random.SeedSequence(None if seed is None else [int(seed), *stream])
    return np.random.RandomState(np.random.MT19937(sequence))


def random_weights(
    generator: np.random.RandomState, num_inputs: int, num_outputs: int, initialization: Initialization
) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Return (outputs, inputs) random weights.

    ``xavier`` has variance 2 / (inputs + outputs) [Glorot and Bengio 2010], ``he`` 2 / inputs [He et al. 2015].
    """
    if initialization not in get_args(Initialization):
        raise InvalidInputError(
            f"initialization is {initialization!r}; take one of {', '.join(get_args(Initialization))}"
        )
    fan = num_inputs + num_outputs if initialization.startswith("xavier") else num_inputs
    deviation = math.sqrt(2.0 / fan)
    shape = (num_outputs, num_inputs)
    if initialization.endswith("normal"):
        return (generator.standard_normal(shape) * deviation).astype(np.float32)
    bound = math.sqrt(3.0) * deviation
    return generator.uniform(-bound, bound, shape).astype(np.float32)
