"""Losses: what training makes small."""

from __future__ import annotations

from enum import Enum

import numpy as np

from lattice_fann._engine import activate, row_losses
from lattice_fann.arguments import instance
from lattice_fann.errors import InvalidInputError
from lattice_fann.layer import Float32Array
from lattice_fann.network import Network

__all__ = ["Loss", "check_loss", "default_loss", "evaluate_loss"]


class Loss(Enum):
    """A loss, for n outputs y, targets t and the last layer's sums z.

    All are means over the samples.

    ========================  ==========================================================================
    ``MSE``                   sum (y - t)^2 / n
    ``HUBER``                 sum (e^2 / 2 if |e| <= d else d (|e| - d / 2)) / n, e = y - t
    ``CROSS_ENTROPY``         -sum t log softmax(z), for a softmax output
    ``KL``                    T^2 sum t (log t - log softmax(z / T)), for a softmax output: t are a teacher's
                              probabilities at temperature T [Hinton et al. 2015]
    ``BINARY_CROSS_ENTROPY``  -sum (t log y + (1 - t) log(1 - y)) / n, for sigmoid outputs
    ``DISTILLATION``          -(1 - w) T^2 sum t log softmax(z / T) - w sum h log softmax(z), for a softmax output,
                              with soft t and hard h in one row of :func:`mixed_targets`; w is the hard share
    ========================  ==========================================================================
    """

    MSE = 0
    HUBER = 1
    CROSS_ENTROPY = 2
    KL = 3
    BINARY_CROSS_ENTROPY = 4
    DISTILLATION = 6

    @property
    def wants_distributions(self) -> bool:
        """Whether each row of targets must be a probability distribution."""
        return self in (Loss.CROSS_ENTROPY, Loss.KL, Loss.DISTILLATION)

    def target_sum(self, temperature: float, hard_share: float) -> float:
        """What a row of targets sums to, if :attr:`wants_distributions`."""
        return (1.0 - hard_share) * temperature + hard_share if self is Loss.DISTILLATION else 1.0


def default_loss(network: Network) -> Loss:
    """Return the loss that fits the output: cross-entropy for softmax, MSE for all others."""
    return Loss.CROSS_ENTROPY if network.layers[-1].activation.is_softmax else Loss.MSE


def check_loss(network: Network, loss: Loss) -> None:
    """Refuse a loss whose formula needs another output activation.

    Raises:
        InvalidInputError: it does.
    """
    instance(network, "network", Network)
    instance(loss, "loss", Loss)
    name = network.layers[-1].activation.name
    needed = "Softmax" if loss.wants_distributions else "Sigmoid" if loss is Loss.BINARY_CROSS_ENTROPY else name
    if name != needed:
        raise InvalidInputError(f"{loss.name} needs a {needed} output, the network's is {name}: choose another loss")


def evaluate_loss(
    network: Network,
    inputs: Float32Array,
    targets: Float32Array,
    weights: Float32Array | None,
    loss: Loss,
    parameter: float,
    hard_share: float = 0.0,
) -> tuple[float, Float32Array]:
    """Return the (weighted) mean loss over a data set, and the outputs.

    Raises:
        NumericInstability: an input or output is not finite.
    """
    sums = network._sums_batch(inputs)
    last = network.layers[-1].activation
    outputs = activate(last.tag, last.alpha, sums, isa=network.isa)
    losses = row_losses(loss.value, parameter, sums, outputs, targets, hard_share=hard_share, isa=network.isa)
    return float(np.average(losses.astype(np.float64), weights=weights)), outputs
