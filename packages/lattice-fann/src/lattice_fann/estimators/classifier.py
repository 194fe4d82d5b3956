"""A classifier for labels of any type."""

from __future__ import annotations

import importlib
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from lattice_fann.activation import Activation
from lattice_fann.errors import InvalidInputError
from lattice_fann.estimators.base import BaseMLP
from lattice_fann.estimators.labels import Labels, distinct, indicators_of, labels_of, positions
from lattice_fann.layer import Float32Array
from lattice_fann.training.data import sample_weights
from lattice_fann.training.loss import Loss

__all__ = ["MLPClassifier"]


class MLPClassifier(BaseMLP):
    """A softmax classifier for scikit-learn; see :class:`BaseMLP` for arguments.

    Attributes after ``fit``:
        classes_: the labels, sorted.
        network_: the :class:`Network`.
        loss_curve_, n_iter_, loss_, history_: how training went.

    >>> from lattice_fann import MLPClassifier
    >>> x, y = [[0.0], [0.1], [0.9], [1.0]], ["no", "no", "yes", "yes"]
    >>> model = MLPClassifier(8, random_state=0, max_iter=300, learning_rate_init=0.05).fit(x, y)
    >>> model.predict([[0.05], [0.95]]).tolist()
    ['no', 'yes']
    """

    _estimator_type = "classifier"

    def fit(self, x: npt.ArrayLike, y: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None) -> Self:
        """Make a network and train it.

        Args:
            x: (samples, features), finite numbers.
            y: (samples,) labels: whole numbers, texts, booleans, anything that sorts. Or (samples, labels) of 0 and 1: which
                labels each sample has; the outputs are sigmoids then, and each label is learned by itself.
            sample_weight: (samples,), not negative.

        Raises:
            InvalidInputError, SizeMismatchError: data that do not fit, fewer than two classes, or numbers that are not
                whole (scikit-learn's "Unknown label type").
            NumericInstability, GradientError: training diverged.
        """
        samples = self._inputs(x, known=False)
        self._check_given(y)
        indicators = indicators_of(y, len(samples))
        self._loss = None if indicators is None else Loss.BINARY_CROSS_ENTROPY
        if indicators is not None:
            labels = indicators.shape[1]
            self._train(samples, indicators, Activation.SIGMOID, labels, sample_weight)
            self.classes_: Labels = np.arange(labels)
            return self
        classes, targets = distinct(labels_of(y, len(samples)))
        if classes.size < 2:
            raise InvalidInputError(
                f"there is only 1 class, {classes[:1].tolist()[0]!r}: a classifier needs at least two"
            )
        self._train(samples, targets, Activation.SOFTMAX, int(classes.size), sample_weight)
        self.classes_ = classes
        return self

    def partial_fit(
        self,
        x: npt.ArrayLike,
        y: npt.ArrayLike,
        classes: npt.ArrayLike | None = None,
        sample_weight: npt.ArrayLike | None = None,
    ) -> Self:
        """Train for one more epoch on these samples.

        Args:
            x: (samples, features).
            y: labels as :meth:`fit` takes them.
            classes: all labels that will ever come, needed in the first call unless ``fit`` was called before, or ``y`` says
                by 0 and 1 which labels a sample has.
            sample_weight: (samples,).

        Works after ``fit``, with early stopping or without: training goes on from the weights that ``fit`` ended with.

        Raises:
            InvalidInputError: ``classes`` missing in the first call, different later, or a label not among them.
        """
        started = hasattr(self, "network_")
        samples = self._inputs(x, known=started)
        self._check_given(y)
        indicators = indicators_of(y, len(samples))
        if indicators is not None or (started and self._loss is not None):
            return self._partial_fit_indicators(samples, indicators, classes, sample_weight, started=started)
        labels = labels_of(y, len(samples))
        named = None if classes is None else distinct(labels_of(classes, name="classes"))[0]
        if not started:
            if named is None:
                raise InvalidInputError("the first call needs all labels: partial_fit(x, y, classes=...)")
            known = named
            if known.size < 2:
                raise InvalidInputError("a classifier needs at least two classes")
        else:
            known = self.classes_
            if named is not None and not np.array_equal(named, known):
                raise InvalidInputError(f"classes differ from those known, {known.tolist()}: they cannot change")
        which = positions(labels, known)
        unseen = which < 0
        if unseen.any():
            raise InvalidInputError(
                f"the label {labels[unseen][0]!r} is not one of the classes {known.tolist()}: name it in the first call"
            )
        if not started:
            self._begin_partial(samples, int(known.size), Activation.SOFTMAX)
            self.classes_ = known
        self._train_on(samples, which, sample_weight)
        return self

    def _partial_fit_indicators(
        self,
        samples: Float32Array,
        indicators: npt.NDArray[np.int64] | None,
        classes: npt.ArrayLike | None,
        sample_weight: npt.ArrayLike | None,
        *,
        started: bool,
    ) -> Self:
        """Do :meth:`partial_fit` for rows of 0 and 1."""
        known = self.classes_.size if started and self._loss is not None else None
        if indicators is None or (started and indicators.shape[1] != known):
            wanted = "one label a sample" if known is None else f"rows of 0 and 1 for {known} labels"
            raise InvalidInputError(f"the classifier was fitted with {wanted}: y must be so, too")
        labels = indicators.shape[1]
        if classes is not None and not np.array_equal(np.asarray(classes), np.arange(labels)):
            raise InvalidInputError(f"classes of rows of 0 and 1 are their columns, 0 to {labels - 1}: leave them out")
        self._loss = Loss.BINARY_CROSS_ENTROPY
        if not started:
            self._begin_partial(samples, labels, Activation.SIGMOID)
            self.classes_ = np.arange(labels)
        self._train_on(samples, indicators, sample_weight)
        return self

    def predict_proba(self, x: npt.ArrayLike) -> Float32Array:
        """Return the classes' probabilities, (samples, classes), in the order of ``classes_``.

        A row adds up to 1 where a sample has one label; else each number is the probability of one label.
        """
        self._fitted()
        return self.network_.forward_batch(self._inputs(x, known=True))

    def predict_log_proba(self, x: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return the logarithms of the probabilities."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(x).astype(np.float64))

    def predict(self, x: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return the most probable labels, (samples,).

        Where samples have several labels, return (samples, labels) of 0 and 1.
        """
        chances = self.predict_proba(x)
        if self._loss is not None:
            return (chances > 0.5).astype(np.int64)
        best = chances.argmax(axis=1)
        labels: npt.NDArray[Any] = self.classes_[best]
        return labels

    def score(self, x: npt.ArrayLike, y: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None) -> float:
        """Return the (weighted) part of the samples all of whose labels are predicted."""
        if self._fitted() is not None and self._loss is not None:
            given = self.predict(x)
            wanted = indicators_of(y, len(given))
            if wanted is None or wanted.shape != given.shape:
                raise InvalidInputError(f"y must be rows of 0 and 1 for {given.shape[1]} labels")
            return float(np.average((given == wanted).all(axis=1), weights=sample_weights(sample_weight, len(given))))
        predicted = self.predict_proba(x).argmax(axis=1)
        weights = sample_weights(sample_weight, len(predicted))
        which = positions(labels_of(y, len(predicted)), self.classes_)
        return float(np.average(which == predicted, weights=weights))

    def __sklearn_tags__(self) -> Any:
        utils: Any = importlib.import_module("sklearn.utils")  # only scikit-learn asks for these
        return utils.Tags(
            estimator_type="classifier",
            target_tags=utils.TargetTags(required=True),
            transformer_tags=None,
            classifier_tags=utils.ClassifierTags(multi_label=True),
            regressor_tags=None,
            input_tags=utils.InputTags(),
        )
