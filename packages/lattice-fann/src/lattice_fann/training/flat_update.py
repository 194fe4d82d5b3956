"""Updates parameters that belong to no network of this package, such as an adapter's."""

from __future__ import annotations

import math

from lattice_fann import _engine
from lattice_fann.arguments import instance, real, whole
from lattice_fann.errors import InvalidInputError
from lattice_fann.layer import Float32Array
from lattice_fann.training.config import LEAST_EPSILON, Optimizer

__all__ = ["FLAT_STEP", "update_parameters"]

#: Vectors have a multiple of this many numbers.
FLAT_STEP = 16

_MOST_STEPS = 2**53
_MOST_SCALE = 3e38

_ADAPTIVE = (Optimizer.ADAM, Optimizer.ADAMW)
_FLAT = (*_ADAPTIVE, Optimizer.SGD, Optimizer.NESTEROV, Optimizer.RMSPROP)


def update_parameters(
    optimizer: Optimizer,
    parameters: Float32Array,
    gradients: Float32Array,
    moment1: Float32Array,
    moment2: Float32Array,
    *,
    learning_rate: float,
    step: int,
    momentum: float = 0.0,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    weight_decay: float = 0.0,
    gradient_scale: float = 1.0,
) -> None:
    """Move a vector of parameters, and its moments, in place, as PyTorch's rules do.

    Args:
        optimizer: the rule; all but Rprop.
        parameters, gradients, moment1, moment2: float32 vectors of one size, a multiple of 16. Zeros fill the rest.
        learning_rate: of this update.
        step: updates before this one and this one, from 1: the correction of Adam's moments.
        momentum, beta1, beta2, epsilon, weight_decay: as in :class:`TrainingConfig`.
        gradient_scale: what gradients are multiplied by first.

    Raises:
        InvalidInputError: vectors of other kinds or sizes, or a number that makes no sense.
    """
    kind = instance(optimizer, "optimizer", Optimizer)
    if kind not in _FLAT:
        raise InvalidInputError(f"optimizer is {kind.name}; take one of {', '.join(one.name for one in _FLAT)}")
    rate = real(learning_rate, "learning_rate", "of at least 0", least=0)
    done = whole(step, "step", least=1, most=_MOST_STEPS)
    adapts = kind in _ADAPTIVE
    _engine.update_flat(
        kind.value,
        rate,
        parameters,
        gradients,
        moment1,
        moment2,
        momentum=real(momentum, "momentum", "in [0, 1)", least=0, below=1),
        beta1=real(beta1, "beta1", "in [0, 1)", least=0, below=1),
        beta2=real(beta2, "beta2", "in [0, 1)", least=0, below=1),
        epsilon=real(epsilon, "epsilon", "of at least 2**-126", least=LEAST_EPSILON),
        weight_decay=real(weight_decay, "weight_decay", "of at least 0", least=0),
        correction1=1.0 - beta1**done if adapts else 1.0,
        correction2_root=math.sqrt(1.0 - beta2**done) if adapts else 1.0,
        gradient_scale=real(gradient_scale, "gradient_scale", "of float32", least=-_MOST_SCALE, most=_MOST_SCALE),
    )
