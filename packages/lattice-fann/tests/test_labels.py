"""What a classifier takes for labels: scikit-learn's rule for targets of classifiers, and clear refusals of the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lattice_fann import InvalidInputError, MLPClassifier, MLPRegressor, SizeMismatchError
from lattice_fann.cli import main

X = np.random.RandomState(0).standard_normal((8, 2))
NAN = float("nan")

REFUSED: dict[str, tuple[Any, str]] = {
    "continuous": (X[:, 0], "Unknown label type: continuous.*MLPRegressor"),
    "continuous float32": (X[:, 0].astype(np.float32), "Unknown label type: continuous"),
    "continuous in a list": (X[:, 0].tolist(), "Unknown label type: continuous"),
    "continuous column": (X[:, :1], "Unknown label type: continuous"),
    "continuous objects": (X[:, 0].astype(object), "Unknown label type: continuous"),
    "one that is not whole": ([0, 1, 0, 1, 0, 1, 0, 0.5], "continuous.*holds 0.5"),
    "not a number": ([0, 1, 0, 1, 0, 1, 0, NAN], "label 7 of y is not finite"),
    "infinite": ([0, 1, 0, 1, 0, 1, 0, np.inf], "label 7 of y is not finite"),
    "not a number among objects": (np.array([0, 1, 0, 1, 0, 1, 0, NAN], dtype=object), "not finite"),
    "complex": (np.array([0, 1] * 4) + 0j, "Unknown label type: complex128"),
    "records": (np.zeros(8, dtype="i4,i4"), "Unknown label type"),
    "nothing among texts": (np.array(["a", None] * 4, dtype=object), "Unknown label type.*NoneType"),
    "mixed objects": (np.array(["a", 1] * 4, dtype=object), "sorted|compared|type"),
    "several labels a sample, not of 0 and 1": (np.full((8, 3), 2), "several labels a sample are rows of 0 and 1"),
    "rows of texts": (np.full((8, 3), "a"), "one label a sample is needed"),
    "not a date": (np.array(["2020-01-01", "NaT"] * 4, dtype="M8[D]"), "NaT"),
    "nothing": (None, "y is None"),
    "one number": (1, r"shape \(8,\), not \(\)"),
    "too few": ([0, 1], r"shape \(8,\), not \(2,\)"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_targets_that_are_no_labels_are_refused(kind: str) -> None:
    y, message = REFUSED[kind]
    with pytest.raises(InvalidInputError, match=message):
        MLPClassifier(2, max_iter=1).fit(X, y)
    with pytest.raises(InvalidInputError, match=message):
        MLPClassifier(2, max_iter=1).partial_fit(
            X, y, classes=["a", "b"] if "objects" in kind and "mixed" in kind else [0, 1]
        )
    with pytest.raises(InvalidInputError):
        MLPClassifier(2, max_iter=1, random_state=0).fit(X, [0, 1] * 4).score(X, y)


@pytest.mark.parametrize("kind", [kind for kind in REFUSED if kind not in ("nothing", "too few")])
def test_classes_that_are_no_labels_are_refused(kind: str) -> None:
    with pytest.raises(InvalidInputError):
        MLPClassifier(2, max_iter=1).partial_fit(X, [0, 1] * 4, classes=REFUSED[kind][0])


@pytest.mark.slow
def test_the_rule_is_that_of_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.utils.multiclass")
    targets: list[Any] = [X[:, 0], np.arange(8.0) % 3, np.arange(8) % 3, np.array(["a", "b"] * 4), [True, False] * 4]
    targets += [np.array(["a", "b"] * 4, dtype=object), (X[:, 0] > 0).astype(np.float32), np.arange(8.0) % 3 + 0.25]
    for y in targets:
        try:
            sklearn.check_classification_targets(y)
            theirs = True
        except ValueError:
            theirs = False
        try:
            MLPClassifier(2, max_iter=1, random_state=0).fit(X, y)
            ours = True
        except InvalidInputError:
            ours = False
        assert ours == theirs, y


def test_whole_numbers_stored_as_floats_are_classes() -> None:
    model = MLPClassifier(2, max_iter=1, random_state=0).fit(X, np.array([1.0, 3.0, -2.0, 1.0] * 2))
    assert model.classes_.tolist() == [-2.0, 1.0, 3.0]


@pytest.mark.parametrize(("known", "later"), [(["a", "b"], [0, 1]), ([0, 1], ["a", "b"]), ([0, 1], [b"a", b"b"])])
def test_labels_of_another_type_than_the_classes_are_refused(known: list[Any], later: list[Any]) -> None:
    model = MLPClassifier(2, max_iter=1, random_state=0).fit(X, known * 4)
    with pytest.raises(InvalidInputError, match="type"):
        model.partial_fit(X, later * 4)
    with pytest.raises(InvalidInputError, match="type"):
        model.score(X, later * 4)


def test_a_label_never_seen_counts_as_wrong() -> None:
    model = MLPClassifier(2, max_iter=1, random_state=0).fit(X, [0, 1] * 4)
    assert model.score(X, [7] * 8) == 0.0


NO_TARGETS: list[Any] = [["a", "b"] * 4, [b"1"] * 8, np.array([1j] * 8), [NAN] * 8, [[1.0], [2.0, 3.0]] * 4]
NO_TARGETS += [np.zeros((8, 2, 2)), None, "1"]


@pytest.mark.parametrize("y", NO_TARGETS, ids=repr)
def test_a_regressor_takes_finite_numbers_only(y: Any) -> None:
    model = MLPRegressor(2, max_iter=1, random_state=0)
    for call in (model.fit, model.partial_fit, MLPRegressor(2, max_iter=1).fit(X, X[:, 0]).score):
        with pytest.raises((InvalidInputError, SizeMismatchError)):
            call(X, y)


def test_a_column_of_numbers_is_not_made_into_classes_by_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,0.5\n2,1.5\n3,0.25\n")
    command = ["train", str(tmp_path / "t.csv"), "--target", "b", "--task", "classify", "--epochs", "1"]
    assert main(command) == 2
    assert "Unknown label type: continuous. b holds 0.5" in capsys.readouterr().err
    (tmp_path / "t.csv").write_text("a,b\n1,0.0\n2,1.0\n3,0.0\n4,1.0\n")
    assert main([*command, "--validation", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["labels"] == [0.0, 1.0]
