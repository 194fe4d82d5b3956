"""Every check that scikit-learn has for estimators, but for those published below, which cannot be met here."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

from lattice_fann import InvalidInputError, MLPClassifier, MLPRegressor

WEIGHTS = "training in mini-batches: a sample of weight 2 is one sample of a batch, the same sample twice is two"
EXPECTED = {
    "MLPClassifier": {
        "check_sample_weight_equivalence_on_dense_data": WEIGHTS,
        "check_supervised_y_2d": "a column of labels is one label a sample: there is nothing to warn about",
    },
    "MLPRegressor": {
        "check_sample_weight_equivalence_on_dense_data": WEIGHTS,
        "check_regressor_multioutput": "predictions are float32, as the network computes them",
    },
}
"""At most five a class (docs/fann.md lists them)."""

pytestmark = pytest.mark.filterwarnings("ignore")


def expected_failures(estimator: Any) -> dict[str, str]:
    return EXPECTED[type(estimator).__name__]


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the classes have scikit-learn's methods without its base class
    EVERY_CHECK = parametrize_with_checks([MLPClassifier(), MLPRegressor()], expected_failed_checks=expected_failures)


@pytest.mark.slow
@EVERY_CHECK
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize("kind", [MLPClassifier, MLPRegressor])
def test_a_call_before_fit_is_scikit_learns_error_and_ours(kind: Any) -> None:
    with pytest.raises(NotFittedError, match="call fit first") as caught:
        kind().predict([[1.0]])
    assert isinstance(caught.value, InvalidInputError)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), copy.args) == (type(caught.value), caught.value.args)


def test_scikit_learn_is_not_imported() -> None:
    code = (
        "import sys; from lattice_fann import InvalidInputError, MLPRegressor\n"
        "try: MLPRegressor().predict([[1.0]])\n"
        "except InvalidInputError as error: assert type(error) is InvalidInputError\n"
        "model = MLPRegressor(2, max_iter=1).fit([[1.0], [2.0]], [1.0, 2.0])\n"
        "assert not any(name.startswith('sklearn') for name in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).stderr == b""


class Frame:
    """As much of a data frame as estimators look at."""

    def __init__(self, **columns: list[float]) -> None:
        self.columns = list(columns)
        self._array = np.array(list(columns.values())).T

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self._array


@pytest.mark.filterwarnings("error")
def test_columns_must_be_those_of_fit() -> None:
    fitted = MLPRegressor(2, max_iter=1, random_state=0).fit(Frame(age=[1.0, 2.0], size=[3.0, 5.0]), [0.0, 1.0])
    assert fitted.feature_names_in_.tolist() == ["age", "size"]
    fitted.predict(Frame(age=[1.0], size=[2.0]))
    for other, message in (
        (Frame(size=[1.0], age=[2.0]), "must be in the same order as they were in fit"),
        (
            Frame(age=[1.0], width=[2.0]),
            "unseen at fit time:\n- width\nFeature names seen at fit time, yet now missing:\n- size",
        ),
    ):
        with pytest.raises(InvalidInputError, match=message):
            fitted.predict(other)
    with pytest.warns(UserWarning, match="X does not have valid feature names, but MLPRegressor was fitted with"):
        fitted.predict([[1.0, 2.0]])
    with pytest.raises(InvalidInputError, match="names of several types"):
        fitted.predict(type("Mixed", (), {"columns": ["age", 1], "__array__": lambda self, *_: np.ones((1, 2))})())
    fitted.fit([[1.0, 2.0], [2.0, 1.0]], [0.0, 1.0])
    assert not hasattr(fitted, "feature_names_in_")
    with pytest.warns(UserWarning, match="X has feature names, but MLPRegressor was fitted without feature names"):
        fitted.predict(Frame(age=[1.0], size=[2.0]))
