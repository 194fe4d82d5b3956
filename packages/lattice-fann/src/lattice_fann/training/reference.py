"""Readable reference of the kernels: forward, loss and gradient in float64 NumPy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lattice_fann.activation import Activation
from lattice_fann.network import Network
from lattice_fann.training.loss import Loss

__all__ = ["Float64Array", "ReferenceNetwork", "apply", "loss_of_rows", "slope"]

Float64Array = npt.NDArray[np.float64]

_erf = np.vectorize(math.erf, otypes=[np.float64])


def apply(activation: Activation, z: Float64Array) -> Float64Array:
    """Return the activation of sums ``z``, (rows, n)."""
    match activation.name:
        case "Sigmoid":
            return np.asarray(0.5 * (1.0 + np.tanh(0.5 * z)))
        case "Tanh":
            return np.tanh(z)
        case "ReLU":
            return np.maximum(z, 0.0)
        case "LeakyReLU":
            return np.where(z < 0, activation.alpha * z, z)
        case "Softmax":
            e = np.exp(z - z.max(axis=1, keepdims=True))
            return np.asarray(e / e.sum(axis=1, keepdims=True))
        case "GELU":
            return np.asarray(0.5 * z * (1.0 + _erf(z / math.sqrt(2.0))))
        case "SiLU":
            return np.asarray(z * 0.5 * (1.0 + np.tanh(0.5 * z)))
        case _:
            return z


def slope(activation: Activation, z: Float64Array) -> Float64Array:
    """Return the activation's derivative at ``z``.

    Not for the softmax, whose derivative is a matrix.
    """
    match activation.name:
        case "Sigmoid":
            y = apply(activation, z)
            return np.asarray(y * (1.0 - y))
        case "Tanh":
            return np.asarray(1.0 - np.tanh(z) ** 2)
        case "ReLU":
            return np.where(z > 0, 1.0, 0.0)
        case "LeakyReLU":
            return np.where(z > 0, 1.0, activation.alpha)
        case "GELU":
            density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
            return np.asarray(0.5 * (1.0 + _erf(z / math.sqrt(2.0))) + z * density)
        case "SiLU":
            s = 0.5 * (1.0 + np.tanh(0.5 * z))
            return np.asarray(s * (1.0 + z * (1.0 - s)))
        case _:
            return np.ones_like(z)


def _log_softmax(z: Float64Array) -> Float64Array:
    shifted = z - z.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def _log_sum_exp(z: Float64Array) -> Float64Array:
    return np.asarray((z - _log_softmax(z))[:, 0])


def loss_of_rows(
    loss: Loss, parameter: float, z: Float64Array, y: Float64Array, t: Float64Array, hard_share: float = 0.0
) -> Float64Array:
    """Return the loss of each row. The definitions stand at :class:`Loss`."""
    n = z.shape[1]
    match loss:
        case Loss.MSE:
            return np.asarray(((y - t) ** 2).sum(axis=1) / n)
        case Loss.HUBER:
            e = np.abs(y - t)
            return np.asarray(np.where(e <= parameter, e * e / 2, parameter * (e - parameter / 2)).sum(axis=1) / n)
        case Loss.CROSS_ENTROPY:
            return np.asarray(-(t * _log_softmax(z)).sum(axis=1))
        case Loss.KL:
            entropy = np.where(t > 0, t * np.log(np.where(t > 0, t, 1.0)), 0.0)
            return np.asarray(parameter**2 * (entropy - t * _log_softmax(z / parameter)).sum(axis=1))
        case Loss.DISTILLATION:
            soft = (1.0 - hard_share) * parameter**2 * _log_sum_exp(z / parameter)
            return np.asarray(soft + hard_share * _log_sum_exp(z) - (t * z).sum(axis=1))
        case Loss.BINARY_CROSS_ENTROPY:
            return np.asarray((np.maximum(z, 0) - z * t + np.log1p(np.exp(-np.abs(z)))).sum(axis=1) / n)


@dataclass
class ReferenceNetwork:
    """A network in float64: lists of weights (outputs, inputs), biases (outputs,), activations."""

    weights: list[Float64Array]
    biases: list[Float64Array]
    activations: Sequence[Activation]
    mean: Float64Array | float = 0.0
    scale: Float64Array | float = 1.0

    @classmethod
    def of(cls, network: Network) -> ReferenceNetwork:
        """Return a copy of ``network`` in float64."""
        scaling = network.input_scaling
        return cls(
            [layer.weights.astype(np.float64, order="C") for layer in network.layers],
            [layer.biases.astype(np.float64) for layer in network.layers],
            [layer.activation for layer in network.layers],
            0.0 if scaling is None else scaling.mean.astype(np.float64),
            1.0 if scaling is None else scaling.scale.astype(np.float64),
        )

    def forward(self, x: Float64Array) -> tuple[list[Float64Array], list[Float64Array]]:
        """Return the inputs of every layer followed by the outputs, and the sums of every layer."""
        values, sums = [(x - self.mean) * self.scale], []
        for weights, biases, activation in zip(self.weights, self.biases, self.activations, strict=True):
            sums.append(values[-1] @ weights.T + biases)
            values.append(apply(activation, sums[-1]))
        return values, sums

    def loss(
        self,
        x: Float64Array,
        t: Float64Array,
        loss: Loss,
        parameter: float,
        row_weights: Float64Array,
        hard_share: float = 0.0,
    ) -> float:
        """Return the weighted mean loss."""
        values, sums = self.forward(x)
        losses = loss_of_rows(loss, parameter, sums[-1], values[-1], t, hard_share)
        return float(row_weights @ losses / row_weights.sum())

    def gradient(
        self,
        x: Float64Array,
        t: Float64Array,
        loss: Loss,
        parameter: float,
        row_weights: Float64Array,
        hard_share: float = 0.0,
    ) -> tuple[list[Float64Array], list[Float64Array]]:
        """Return the loss's derivatives by the weights and by the biases of every layer."""
        values, sums = self.forward(x)
        z, y, last = sums[-1], values[-1], self.activations[-1]
        share = (row_weights / row_weights.sum())[:, None]
        n = z.shape[1]
        match loss:
            case Loss.CROSS_ENTROPY:
                delta = share * (t.sum(axis=1, keepdims=True) * np.exp(_log_softmax(z)) - t)
            case Loss.KL:
                soft = np.exp(_log_softmax(z / parameter))
                delta = share * parameter * (t.sum(axis=1, keepdims=True) * soft - t)
            case Loss.DISTILLATION:
                soft = (1.0 - hard_share) * parameter * np.exp(_log_softmax(z / parameter))
                delta = share * (soft + hard_share * np.exp(_log_softmax(z)) - t)
            case Loss.BINARY_CROSS_ENTROPY:
                delta = share * (apply(Activation.SIGMOID, z) - t) / n
            case _:
                error = y - t
                by_output = 2 * error if loss is Loss.MSE else np.clip(error, -parameter, parameter)
                by_output = share * by_output / n
                if last.is_softmax:
                    delta = y * (by_output - (by_output * y).sum(axis=1, keepdims=True))
                else:
                    delta = by_output * slope(last, z)
        by_weights: list[Float64Array] = []
        by_biases: list[Float64Array] = []
        for i in reversed(range(len(self.weights))):
            by_weights.insert(0, delta.T @ values[i])
            by_biases.insert(0, delta.sum(axis=0))
            if i:
                delta = (delta @ self.weights[i]) * slope(self.activations[i - 1], sums[i - 1])
        return by_weights, by_biases
