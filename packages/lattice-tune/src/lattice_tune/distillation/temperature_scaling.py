"""Calibration of probabilities by one temperature [Guo et al. 2017]."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from lattice_fann import Layer, Network
from lattice_tune.arguments import instance, number_rows, real
from lattice_tune.errors import InvalidInputError

__all__ = ["calibrated_network", "fit_temperature"]

_LEAST, _MOST = 0.05, 20.0
_TINY = float(np.finfo(np.float32).tiny)
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


def fit_temperature(probabilities: npt.ArrayLike, expected: npt.ArrayLike) -> float:
    """Return the temperature in [0.05, 20] with the lowest log loss.

    A part 1 / (examples + 1) of each expected row is spread over all labels, as in Platt's scaling. Otherwise a few
    examples, all right, would make every prediction certain.

    Args:
        probabilities: (examples, labels) of a softmax.
        expected: (examples, labels) the true labels as distributions.

    Raises:
        InvalidInputError: no examples, or arrays that do not fit each other.
    """
    given, wanted = number_rows(probabilities, "probabilities"), number_rows(expected, "expected")
    if given.shape != wanted.shape or not given.size:
        raise InvalidInputError(f"probabilities and expected have shapes {given.shape} and {wanted.shape}")
    logits = np.log(np.maximum(given.astype(np.float64), _TINY))
    targets = (len(wanted) * wanted.astype(np.float64) + 1.0 / wanted.shape[1]) / (len(wanted) + 1.0)

    def loss(power: float) -> float:
        scaled = logits / math.exp(power)
        shifted = scaled - scaled.max(axis=1, keepdims=True)
        return float((np.log(np.exp(shifted).sum(axis=1)) - (targets * shifted).sum(axis=1)).mean())

    # the loss has one minimum in 1 / T, so golden sections close in on it
    low, high = math.log(_LEAST), math.log(_MOST)
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = loss(left), loss(right)
    while high - low > 1e-4:
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = loss(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = loss(right)
    return math.exp((low + high) / 2.0)


def calibrated_network(network: Network, temperature: float) -> Network:
    """Return ``network`` at ``temperature``: its last layer is divided by it."""
    heat = real(temperature, "temperature", "from 0.05 to 20", least=_LEAST * 0.99, most=_MOST * 1.01)
    layers = list(instance(network, "network", Network).layers)
    last = layers[-1]
    layers[-1] = Layer(last.weights / np.float32(heat), last.biases / np.float32(heat), last.activation)
    return Network(layers, input_scaling=network.input_scaling, metadata=network.metadata)
