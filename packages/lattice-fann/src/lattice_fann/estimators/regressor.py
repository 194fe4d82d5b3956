"""A regressor for one or several targets."""

from __future__ import annotations

import importlib
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from lattice_fann.activation import Activation
from lattice_fann.arrays import float32_of, number_array
from lattice_fann.errors import InvalidInputError, SizeMismatchError
from lattice_fann.estimators.base import BaseMLP
from lattice_fann.layer import Float32Array
from lattice_fann.training.data import sample_weights

__all__ = ["MLPRegressor"]


class MLPRegressor(BaseMLP):
    """A least-squares regressor for scikit-learn; see :class:`BaseMLP` for arguments.

    Attributes after ``fit``:
        network_: the :class:`Network`.
        loss_curve_, n_iter_, loss_, history_: how training went.

    >>> from lattice_fann import MLPRegressor
    >>> x, y = [[0.0], [0.25], [0.5], [0.75], [1.0]], [0.0, 0.5, 1.0, 1.5, 2.0]
    >>> model = MLPRegressor(8, random_state=0, max_iter=500, learning_rate_init=0.05).fit(x, y)
    >>> f"{model.predict([[0.6]])[0]:.1f}"
    '1.2'
    """

    _estimator_type = "regressor"

    def fit(self, x: npt.ArrayLike, y: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None) -> Self:
        """Make a network and train it.

        Args:
            x: (samples, features), finite numbers.
            y: (samples,) or (samples, targets) numbers.
            sample_weight: (samples,), not negative.

        Raises:
            InvalidInputError, SizeMismatchError: data that do not fit.
            NumericInstability, GradientError: training diverged.
        """
        samples = self._inputs(x, known=False)
        self._check_given(y)
        targets, flat = _targets(y, len(samples))
        self._train(samples, targets, Activation.LINEAR, targets.shape[1], sample_weight)
        self._flat = flat
        return self

    def partial_fit(self, x: npt.ArrayLike, y: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None) -> Self:
        """Train for one more epoch on these samples.

        Works after ``fit``, with early stopping or without.

        Raises:
            InvalidInputError, SizeMismatchError: data that do not fit, or another number of targets than before.
        """
        started = hasattr(self, "network_")
        samples = self._inputs(x, known=started)
        self._check_given(y)
        targets, flat = _targets(y, len(samples))
        if not started:
            self._begin_partial(samples, targets.shape[1], Activation.LINEAR)
            self._flat = flat
        elif targets.shape[1] != self.network_.num_outputs:
            raise SizeMismatchError(
                f"y has {targets.shape[1]} targets, this was fitted with {self.network_.num_outputs}"
            )
        self._train_on(samples, targets, sample_weight)
        return self

    def predict(self, x: npt.ArrayLike) -> Float32Array:
        """Return the predictions, shaped as ``y`` was: (samples,) or (samples, targets)."""
        self._fitted()
        predicted = self.network_.forward_batch(self._inputs(x, known=True))
        return predicted[:, 0] if self._flat else predicted

    def score(self, x: npt.ArrayLike, y: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None) -> float:
        """Return the coefficient of determination R^2, averaged over the targets."""
        predicted = self.predict(x).reshape(-1, self.network_.num_outputs).astype(np.float64)
        targets = _targets(y, len(predicted))[0].astype(np.float64)
        weights = sample_weights(sample_weight, len(predicted))
        mean = np.asarray(np.average(targets, axis=0, weights=weights))
        residual = np.asarray(np.average((targets - predicted) ** 2, axis=0, weights=weights))
        spread = np.asarray(np.average((targets - mean) ** 2, axis=0, weights=weights))
        constant = np.where(residual == 0, 1.0, 0.0)
        return float(np.where(spread > 0, 1 - residual / np.where(spread > 0, spread, 1.0), constant).mean())

    def __sklearn_tags__(self) -> Any:
        utils: Any = importlib.import_module("sklearn.utils")  # only scikit-learn asks for these
        return utils.Tags(
            estimator_type="regressor",
            target_tags=utils.TargetTags(required=True, multi_output=True),
            transformer_tags=None,
            classifier_tags=None,
            regressor_tags=utils.RegressorTags(),
            input_tags=utils.InputTags(),
        )


def _targets(y: npt.ArrayLike, samples: int) -> tuple[Float32Array, bool]:
    array = number_array(y, "y", objects=True)
    if array.ndim not in (1, 2) or array.shape[0] != samples or not array.size:
        raise SizeMismatchError(f"y must have shape ({samples},) or ({samples}, targets), not {array.shape}")
    targets = float32_of(array.reshape(samples, -1))
    if not np.isfinite(targets).all():
        raise InvalidInputError("y has a value that is not finite")
    return targets, array.ndim == 1
