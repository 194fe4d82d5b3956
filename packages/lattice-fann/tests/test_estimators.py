"""Classifier and regressor in scikit-learn's conventions."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest

from lattice_fann import Activation, CosineDecay, InvalidInputError, MLPClassifier, MLPRegressor, SizeMismatchError


def blobs(count: int = 200, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.RandomState(seed)
    labels = generator.randint(0, 3, count)
    return np.array([[0, 3], [3, 0], [-2, -2]])[labels] + generator.standard_normal((count, 2)), labels


@pytest.mark.parametrize(
    "names",
    [
        np.array(["ant", "bee", "cat"]),
        np.array([10, 20, 35]),
        np.array([-1.0, 0.0, 2.0]),
        np.array([b"x", b"y", b"z"]),
        np.array(["ä", "", "long name"], dtype=object),
    ],
    ids=str,
)
def test_labels_of_any_type_come_back(names: np.ndarray) -> None:
    x, labels = blobs()
    model = MLPClassifier(16, random_state=0, max_iter=50, learning_rate_init=0.01).fit(x, names[labels])
    predicted = model.predict(x)
    assert predicted.dtype == names.dtype
    assert set(predicted) <= set(names)
    assert model.score(x, names[labels]) > 0.9
    assert model.predict_proba(x).sum(axis=1) == pytest.approx(1, abs=1e-5)
    assert np.exp(model.predict_log_proba(x)) == pytest.approx(model.predict_proba(x), abs=1e-6)


def test_two_boolean_classes() -> None:
    x, labels = blobs()
    model = MLPClassifier(16, random_state=0, max_iter=50, learning_rate_init=0.01).fit(x, labels == 1)
    assert model.predict(x).dtype == np.bool_
    assert model.score(x, labels == 1) > 0.9


def test_same_state_gives_the_same_model() -> None:
    x, labels = blobs()
    first, second = (MLPClassifier(8, random_state=3, max_iter=5).fit(x, labels) for _ in range(2))
    assert first.network_.to_bytes() == second.network_.to_bytes()
    assert (first.predict_proba(x) == pickle.loads(pickle.dumps(first)).predict_proba(x)).all()


def test_fitting_again_begins_anew() -> None:
    x, labels = blobs()
    model = MLPClassifier(8, random_state=3, max_iter=5)
    once = model.fit(x, labels).network_.to_bytes()
    assert model.fit(x, labels).network_.to_bytes() == once


@pytest.mark.parametrize("early_stopping", [False, True])
def test_partial_fit_goes_on_after_fit(early_stopping: bool) -> None:
    """scikit-learn 25693: partial_fit after fit with early stopping."""
    x, labels = blobs()
    model = MLPClassifier(8, random_state=0, max_iter=5, early_stopping=early_stopping).fit(x, labels)
    before, epochs = model.network_.to_bytes(), model.n_iter_
    losses = [model.partial_fit(x, labels).loss_ for _ in range(20)]
    assert model.network_.to_bytes() != before
    assert losses[-1] < losses[0]
    assert model.n_iter_ == epochs + 20


def test_partial_fit_from_nothing_learns() -> None:
    x, labels = blobs()
    names = np.array(["a", "b", "c"])
    model = MLPClassifier(16, random_state=0, learning_rate_init=0.01)
    model.partial_fit(x[:10], names[labels[:10]], classes=names)
    for _ in range(40):
        model.partial_fit(x, names[labels])
    assert model.score(x, names[labels]) > 0.9


def test_a_label_unseen_in_a_later_batch_is_named() -> None:
    """scikit-learn 6994."""
    x, labels = blobs()
    model = MLPClassifier(8, random_state=0, max_iter=2).fit(x, np.array(["a", "b", "c"])[labels])
    before = model.network_.to_bytes()
    with pytest.raises(InvalidInputError, match=r"'zebra'.*not one of the classes"):
        model.partial_fit(x, np.array(["zebra"] * len(x)))
    with pytest.raises(InvalidInputError, match="cannot change"):
        model.partial_fit(x, np.array(["a"] * len(x)), classes=["a", "b"])
    assert model.network_.to_bytes() == before
    with pytest.raises(InvalidInputError, match="needs all labels"):
        MLPClassifier().partial_fit(x, labels)


def test_early_stopping_keeps_a_part_out() -> None:
    x, labels = blobs(400)
    model = MLPClassifier(
        32, random_state=0, early_stopping=True, n_iter_no_change=4, learning_rate_init=0.02, max_iter=500, tol=0.0
    ).fit(x, labels)
    assert model.n_iter_ < 500
    assert model.validation_losses_ is not None
    assert len(model.validation_losses_) == model.n_iter_


def test_training_stops_when_the_loss_no_longer_falls() -> None:
    x, labels = blobs()
    model = MLPClassifier(16, random_state=0, max_iter=1000, learning_rate_init=0.02, tol=1e-3, n_iter_no_change=5)
    assert model.fit(x, labels).n_iter_ < 1000


@pytest.mark.slow
@pytest.mark.parametrize("targets", [1, 3])
def test_regression_keeps_the_targets_shape(targets: int) -> None:
    x, _ = blobs()
    y = np.stack([x[:, 0] * (i + 1) - x[:, 1] for i in range(targets)], axis=1)
    y = y[:, 0] if targets == 1 else y
    model = MLPRegressor(32, "tanh", random_state=0, max_iter=200, learning_rate_init=0.01, schedule=CosineDecay())
    assert model.fit(x, y).predict(x).shape == y.shape
    assert model.score(x, y) > 0.98
    sklearn = pytest.importorskip("sklearn.metrics")
    assert model.score(x, y) == pytest.approx(sklearn.r2_score(y, model.predict(x)), abs=1e-6)
    before = model.loss_
    for _ in range(5):
        model.partial_fit(x, y)
    assert model.loss_ < 2 * before + 0.1


def test_scaling_is_learned_and_stored() -> None:
    x, labels = blobs()
    x = x * [1e4, 1e-4] + [1e5, 0]
    options = {"random_state": 0, "max_iter": 60, "learning_rate_init": 0.01}
    scaled = MLPClassifier(16, scale_inputs=True, **options).fit(x, labels)
    assert scaled.score(x, labels) > 0.9
    assert scaled.network_.input_scaling is not None


@pytest.mark.parametrize(
    "column", [1764500000 + np.arange(60), 1e9 + np.linspace(0, 1, 60), np.linspace(1, 2, 60) * 1e-40]
)
def test_a_column_that_float32_cannot_hold_is_named(column: np.ndarray) -> None:
    x = np.stack([np.linspace(-1, 1, 60), column], axis=1)
    with pytest.warns(UserWarning, match="X, feature 1: float32 does not hold the differences between"):
        MLPClassifier(4, max_iter=2, scale_inputs=True).fit(x, x[:, 0] > 0)


def test_a_column_that_float32_holds_is_fine() -> None:
    """Far but exact whole numbers, rounding errors around a constant, times of some hours."""
    far, times = 2.0**30 + 128 * np.arange(6), 1.7e9 + 3600.0 * np.arange(6)
    constant = 1 + 1e-15 * np.arange(6)
    x = np.stack([far, times, constant], axis=1)
    MLPClassifier(4, max_iter=2, scale_inputs=True).fit(x, [0, 1] * 3)


def test_one_class_is_refused_by_its_name() -> None:
    with pytest.raises(InvalidInputError, match="there is only 1 class, 7: "):
        MLPClassifier().fit([[1.0], [2.0]], np.array([7, 7]))


def test_parameters_are_read_and_set() -> None:
    model = MLPClassifier((5, 6), solver="sgd")
    assert model.get_params()["hidden_layer_sizes"] == (5, 6)
    assert model.set_params(alpha=0.5, activation=Activation.GELU).alpha == 0.5
    assert "alpha=0.5" in repr(model)
    with pytest.raises(InvalidInputError, match="no parameter 'beta'"):
        model.set_params(beta=1)
    x, labels = blobs(20)
    for wrong in ({"solver": "lbfgs"}, {"activation": "relu6"}, {"activation": "softmax"}, {"alpha": -1.0}):
        with pytest.raises(InvalidInputError):
            MLPClassifier(**wrong).fit(x, labels)  # type: ignore[arg-type]


def test_scikit_learn_takes_them_for_its_own() -> None:
    pytest.importorskip("sklearn")
    from sklearn.base import clone, is_classifier, is_regressor
    from sklearn.model_selection import GridSearchCV, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, labels = blobs(300)
    model = MLPClassifier(16, random_state=0, max_iter=30, learning_rate_init=0.01)
    assert is_classifier(model)
    assert is_regressor(MLPRegressor())
    assert clone(model).get_params() == model.get_params()
    assert cross_val_score(make_pipeline(StandardScaler(), model), x, labels, cv=3).min() > 0.85
    search = GridSearchCV(model, {"alpha": [1e-4, 1.0]}, cv=2).fit(x, labels)
    assert search.best_score_ > 0.85


def test_scikit_learn_is_not_imported() -> None:
    code = (
        "import sys; from lattice_fann import MLPClassifier; MLPClassifier(4, max_iter=1).fit([[0.], [1.]], [0, 1]);"
        "assert 'sklearn' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (np.zeros((3, 2)), [0, 1]),
        (np.zeros(3), [0, 1, 1]),
        (np.zeros((0, 2)), []),
        (np.zeros((3, 0)), [0, 1, 1]),
        (np.array([[np.nan, 0]] * 3), [0, 1, 1]),
        (np.array([["a", "b"]] * 3), [0, 1, 1]),
        (np.zeros((3, 2)), [1, 1, 1]),
        (np.zeros((3, 2)), [0, 1, np.nan]),
    ],
)
def test_data_that_do_not_fit_are_refused(x: np.ndarray, y: list[float]) -> None:
    with pytest.raises((InvalidInputError, SizeMismatchError)):
        MLPClassifier(4).fit(x, y)


def test_an_unfitted_model_says_so() -> None:
    for model in (MLPClassifier(), MLPRegressor()):
        with pytest.raises(InvalidInputError, match="not fitted"):
            model.predict([[1.0]])
    model = MLPClassifier(4, max_iter=1).fit([[0.0], [1.0]], [0, 1])
    with pytest.raises(SizeMismatchError, match="X has 2 features, but MLPClassifier is expecting 1 features as input"):
        model.predict([[1.0, 2.0]])


def test_samples_may_have_several_labels() -> None:
    generator = np.random.RandomState(0)
    x = generator.standard_normal((300, 3)).astype(np.float32)
    y = (x + 0.1 * generator.standard_normal((300, 3)) > 0).astype(int)
    model = MLPClassifier(16, random_state=0, max_iter=60, learning_rate_init=0.01).fit(x[:200], y[:200])
    assert model.out_activation_ == "sigmoid"
    assert model.classes_.tolist() == [0, 1, 2]
    chances, predicted = model.predict_proba(x[200:]), model.predict(x[200:])
    assert chances.shape == (100, 3)
    assert np.array_equal(predicted, (chances > 0.5).astype(int))
    assert model.score(x[200:], y[200:]) == (predicted == y[200:]).all(axis=1).mean() > 0.7
    other = MLPClassifier(16, random_state=0, learning_rate_init=0.01)
    for _ in range(30):
        other.partial_fit(x[:200], y[:200].astype(bool))
    assert other.score(x[200:], y[200:]) > 0.7
    assert other.partial_fit(x, y, classes=[0, 1, 2]) is other
    for wrong, message in (
        (y[:, :2], "rows of 0 and 1 for 3 labels"),
        (y[:, 0], "rows of 0 and 1 for 3 labels"),
        (y * 2, "Unknown label type"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            other.partial_fit(x, wrong)
    with pytest.raises(InvalidInputError, match="leave them out"):
        other.partial_fit(x, y, classes=[1, 2, 3])
    with pytest.raises(InvalidInputError, match="one label a sample"):
        MLPClassifier(4, max_iter=1).fit(x, y[:, 0]).partial_fit(x, y)
    assert MLPClassifier(4, max_iter=1).fit(x, y).fit(x, y[:, 0]).predict(x).shape == (300,)
