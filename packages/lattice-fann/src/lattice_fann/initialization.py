"""Random weights.

One seed gives the same bits with every NumPy version: its legacy streams are frozen.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np

from lattice_fann.arguments import shown
from lattice_fann.errors import InvalidInputError

__all__ = ["LARGEST_SEED", "Initialization", "check_seed", "random_generator", "random_weights"]

LARGEST_SEED = 10**400  # as many digits as a saved training state is read with

Initialization = Literal["xavier_normal", "xavier_uniform", "he_normal", "he_uniform"]


def check_seed(seed: int) -> None:
    """Refuse what is no seed.

    Raises:
        InvalidInputError: it is none.
    """
    is_whole = isinstance(seed, (int, np.integer)) and not isinstance(seed, bool)
    if not is_whole or not 0 <= seed < LARGEST_SEED:
        raise InvalidInputError(f"seed is {shown(seed)}; it must be None or an integer from 0 to below 10**400")


def random_generator(seed: int | None, *stream: int) -> np.random.RandomState:
    """Return the generator of a seed and stream number.

    None takes entropy from the system.
    """
    if seed is not None:
        check_seed(seed)
    sequence = np.random.SeedSequence(None if seed is None else [int(seed), *stream])
    return np.random.RandomState(np.random.MT19937(sequence))


def random_weights(
    generator: np.random.RandomState, num_inputs: int, num_outputs: int, initialization: Initialization
) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Return (outputs, inputs) random weights.

    ``xavier`` has variance 2 / (inputs + outputs) [Glorot and Bengio 2010], ``he`` 2 / inputs [He et al. 2015].
    """
    if not isinstance(initialization, str) or initialization not in get_args(Initialization):
        raise InvalidInputError(
            f"initialization is {shown(initialization)}; take one of {', '.join(get_args(Initialization))}"
        )
    fan = num_inputs + num_outputs if initialization.startswith("xavier") else num_inputs
    deviation = math.sqrt(2.0 / fan)
    shape = (num_outputs, num_inputs)
    if initialization.endswith("normal"):
        return (generator.standard_normal(shape) * deviation).astype(np.float32)
    bound = math.sqrt(3.0) * deviation
    return generator.uniform(-bound, bound, shape).astype(np.float32)
