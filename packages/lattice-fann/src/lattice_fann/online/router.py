"""Losses that keep a router in shape."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lattice_fann.arrays import number_array
from lattice_fann.errors import InvalidInputError

__all__ = ["load_balance_aux_loss", "router_z_loss"]


def load_balance_aux_loss(probabilities: npt.ArrayLike) -> float:
    """Return the mean squared distance of the experts' mean load p from equal load.

    It is sum (p_j - 1/K)^2 / K.

    Args:
        probabilities: (experts,) of one decision, or (decisions, experts).

    Raises:
        InvalidInputError: not finite, or without experts.
    """
    load = np.atleast_2d(_checked(probabilities, "probabilities")).mean(axis=0)
    with np.errstate(over="ignore"):
        return _finite(float(np.mean((load - 1.0 / load.size) ** 2)))


def router_z_loss(logits: npt.ArrayLike) -> float:
    """Return the mean of log(sum exp(logits))^2 over decisions.

    As a loss it keeps logits small [Zoph et al. 2022].

    Args:
        logits: (experts,) of one decision, or (decisions, experts).

    Raises:
        InvalidInputError: not finite, or without experts.
    """
    rows = np.atleast_2d(_checked(logits, "logits"))
    largest = rows.max(axis=1, keepdims=True)
    log_sum = largest[:, 0] + np.log(np.exp(rows - largest).sum(axis=1))
    with np.errstate(over="ignore"):
        return _finite(float(np.mean(log_sum**2)))


def _finite(loss: float) -> float:
    if not np.isfinite(loss):
        raise InvalidInputError("the values are too large: the loss is not finite")
    return loss


def _checked(values: npt.ArrayLike, name: str) -> npt.NDArray[np.float64]:
    array = number_array(values, name).astype(np.float64)
    if array.ndim not in (1, 2) or not array.size:
        raise InvalidInputError(
            f"{name} must be a vector or a matrix with at least one entry; the shape is {array.shape}"
        )
    if not np.isfinite(array).all():
        raise InvalidInputError(f"{name} hold a value that is not finite")
    return array
