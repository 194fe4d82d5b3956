"""Arrays of kinds that would lose something are refused wherever arrays come in; all others give the same bits."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lattice_fann import (
    Activation,
    BackpropTrainer,
    DiagonalFisher,
    FannError,
    Layer,
    MLPClassifier,
    MLPRegressor,
    Network,
    NetworkBuilder,
    RlooTrainer,
    TrainingConfig,
    backpropagate,
    check_gradients,
    gradients,
    load_balance_aux_loss,
    router_z_loss,
)

ROWS = np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2)
CLASSES = np.array([0, 1, 0, 1])
GOALS = np.linspace(0, 1, 4, dtype=np.float32)
WEIGHTS = np.array([1.0, 2.0, 1.0, 2.0])


def small() -> Network:
    return NetworkBuilder().input(2).output(1).build(seed=0)


def trainer() -> BackpropTrainer:
    return BackpropTrainer(small(), TrainingConfig(max_epochs=1, seed=0))


def classifier() -> MLPClassifier:
    return MLPClassifier(2, max_iter=1, random_state=0)


def regressor() -> MLPRegressor:
    return MLPRegressor(2, max_iter=1, random_state=0)


def fisher(anchored: bool = True) -> DiagonalFisher:
    fisher = DiagonalFisher(2)
    if anchored:
        fisher.set_anchor([0.5, 0.5])
    return fisher


def assign(name: str, values: Any) -> None:
    network = small()
    if name == "scaling":
        network.input_scaling = (values, values)
    else:
        setattr(network.layers[0], name, values)


# every place where an array comes in: a good array, and a call that takes it
PLACES: dict[str, tuple[np.ndarray, Callable[[Any], Any]]] = {
    "forward": (ROWS[0], lambda a: small().forward(a)),
    "forward_batch": (ROWS, lambda a: small().forward_batch(a)),
    "layer_outputs": (ROWS[0], lambda a: small().layer_outputs(a)),
    "layer forward": (ROWS[0], lambda a: small().layers[0].forward(a)),
    "layer weights": (ROWS[:1], lambda a: Layer(a, [0.0])),
    "layer biases": (GOALS[:1], lambda a: Layer(ROWS[:1], a)),
    "assigned weights": (ROWS[:1], lambda a: assign("weights", a)),
    "assigned biases": (GOALS[:1], lambda a: assign("biases", a)),
    "input scaling": (ROWS[0], lambda a: assign("scaling", a)),
    "fit_input_scaling": (ROWS, lambda a: small().fit_input_scaling(a)),
    "parameter vector": (GOALS[:3], lambda a: small().set_parameter_vector(a)),
    "train inputs": (ROWS, lambda a: trainer().train(a, GOALS)),
    "train targets": (GOALS, lambda a: trainer().train(ROWS, a)),
    "train weights": (WEIGHTS, lambda a: trainer().train(ROWS, GOALS, sample_weight=a)),
    "validation inputs": (ROWS, lambda a: trainer().train(ROWS, GOALS, validation=(a, GOALS))),
    "validation targets": (GOALS, lambda a: trainer().train(ROWS, GOALS, validation=(ROWS, a))),
    "gradients inputs": (ROWS, lambda a: gradients(small(), a, GOALS)),
    "gradients targets": (GOALS, lambda a: gradients(small(), ROWS, a)),
    "gradients weights": (WEIGHTS, lambda a: gradients(small(), ROWS, GOALS, sample_weight=a)),
    "check_gradients": (ROWS, lambda a: check_gradients(small(), a, GOALS)),
    "backpropagate inputs": (ROWS, lambda a: backpropagate(small(), a, GOALS)),
    "backpropagate gradients": (GOALS, lambda a: backpropagate(small(), ROWS, a)),
    "classifier X": (ROWS, lambda a: classifier().fit(a, CLASSES)),
    "classifier y": (CLASSES, lambda a: classifier().fit(ROWS, a)),
    "classifier weights": (WEIGHTS, lambda a: classifier().fit(ROWS, CLASSES, a)),
    "classifier partial X": (ROWS, lambda a: classifier().partial_fit(a, CLASSES, [0, 1])),
    "classifier partial y": (CLASSES, lambda a: classifier().partial_fit(ROWS, a, [0, 1])),
    "classifier classes": (CLASSES, lambda a: classifier().partial_fit(ROWS, CLASSES, a)),
    "classifier predict": (ROWS, lambda a: classifier().fit(ROWS, CLASSES).predict(a)),
    "classifier probabilities": (ROWS, lambda a: classifier().fit(ROWS, CLASSES).predict_proba(a)),
    "classifier score X": (ROWS, lambda a: classifier().fit(ROWS, CLASSES).score(a, CLASSES)),
    "classifier score y": (CLASSES, lambda a: classifier().fit(ROWS, CLASSES).score(ROWS, a)),
    "classifier score weights": (WEIGHTS, lambda a: classifier().fit(ROWS, CLASSES).score(ROWS, CLASSES, a)),
    "regressor X": (ROWS, lambda a: regressor().fit(a, GOALS)),
    "regressor y": (GOALS, lambda a: regressor().fit(ROWS, a)),
    "regressor weights": (WEIGHTS, lambda a: regressor().fit(ROWS, GOALS, a)),
    "regressor partial X": (ROWS, lambda a: regressor().partial_fit(a, GOALS)),
    "regressor partial y": (GOALS, lambda a: regressor().partial_fit(ROWS, a)),
    "regressor predict": (ROWS, lambda a: regressor().fit(ROWS, GOALS).predict(a)),
    "regressor score X": (ROWS, lambda a: regressor().fit(ROWS, GOALS).score(a, GOALS)),
    "regressor score y": (GOALS, lambda a: regressor().fit(ROWS, GOALS).score(ROWS, a)),
    "regressor score weights": (WEIGHTS, lambda a: regressor().fit(ROWS, GOALS).score(ROWS, GOALS, a)),
    "fisher gradient": (ROWS[0], lambda a: fisher().observe_gradient(a)),
    "fisher anchor": (ROWS[0], lambda a: fisher().set_anchor(a)),
    "fisher penalty": (ROWS[0], lambda a: fisher().penalty(a, 1.0)),
    "fisher penalty, no anchor": (ROWS[0], lambda a: fisher(anchored=False).penalty(a, 1.0)),
    "fisher penalty_gradient": (ROWS[0], lambda a: fisher().penalty_gradient(a, 1.0)),
    "fisher project_delta": (ROWS[0], lambda a: fisher().project_delta(a)),
    "gate probabilities": (ROWS[0], lambda a: RlooTrainer(gate()).probabilities(a)),
    "gate step": (ROWS[0], lambda a: RlooTrainer(gate()).step(a, 0, 1.0)),
    "gate rloo_step": (ROWS[0], lambda a: RlooTrainer(gate(), seed=0).rloo_step(a, 0)),
    "load balance": (GOALS, load_balance_aux_loss),
    "router z": (GOALS, router_z_loss),
}


def gate() -> Network:
    return NetworkBuilder().input(2).output(3).build(seed=0)


MAY_BE_NONE = ("weights", "classes")
LABELS = ("classifier y", "classifier partial y", "classifier score y", "classifier classes")


@pytest.mark.parametrize("place", PLACES)
def test_masked_arrays_are_refused_with_what_to_do(place: str) -> None:
    good, call = PLACES[place]
    some = np.ma.array(good, mask=False)
    some[0] = np.ma.masked
    for masked in (some, np.ma.array(good), [*some]):
        with pytest.raises(FannError, match=r"masked array.*\.filled\(value\)"):
            call(masked)


@pytest.mark.parametrize("place", PLACES)
def test_what_is_no_array_of_numbers_is_refused(place: str) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    good, call = PLACES[place]
    wrong: list[Any] = [
        5.0,
        "text",
        object(),
        (value for value in (1.0, 2.0)),
        {"a": 1},
        sparse.csr_matrix(np.atleast_2d(good)),
    ]
    wrong += [[[1.0, 2.0], [1.0]], np.zeros(good.shape, dtype="V4"), np.full(good.shape, np.nan)]
    if not (place.startswith("classifier") and place.endswith(MAY_BE_NONE)) and not place.endswith("weights"):
        wrong.append(None)
    if place not in LABELS:
        wrong += [good.astype(complex), good.astype(str), good.astype("S"), good.astype("M8[s]"), good.astype("m8[s]")]
        takes_objects = place.startswith("regressor") and place.endswith(" y")
        if "X" not in place and "predict" not in place and "probabilities" not in place and not takes_objects:
            wrong += [good.astype(object)]
        wrong += [np.full(good.shape, "1.5", dtype=object), np.full(good.shape, None), np.full(good.shape, 10**400)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for values in wrong:
            with pytest.raises(FannError):
                call(values)


@pytest.mark.parametrize("place", [place for place in PLACES if place not in LABELS])
def test_float64_and_lists_are_read_as_numbers(place: str) -> None:
    good, call = PLACES[place]
    expected = call(good)
    for same in (good.astype(np.float64), good.tolist(), good.astype(">f4"), good.view(np.recarray)):
        result = call(same)
        if isinstance(expected, np.ndarray):
            assert np.asarray(result).tobytes() == expected.tobytes()
        elif isinstance(expected, float):
            assert result == expected


def test_masked_results_are_not_written_to() -> None:
    with pytest.raises(FannError, match="out must be"):
        small().forward(ROWS[0], np.ma.zeros(1, dtype=np.float32))
    with pytest.raises(FannError, match="out must be"):
        small().forward_batch(ROWS, np.ma.zeros((4, 1), dtype=np.float32))


def test_memory_maps_are_read_and_written_in_place(tmp_path: Path) -> None:
    x = np.memmap(tmp_path / "x", dtype=np.float32, mode="w+", shape=ROWS.shape)
    x[:] = ROWS
    out = np.memmap(tmp_path / "y", dtype=np.float32, mode="w+", shape=(4, 1))
    assert small().forward_batch(x, out) is out
    assert (out == small().forward_batch(ROWS)).all()


def test_a_column_of_python_numbers_is_read_as_pandas_gives_it() -> None:
    model = classifier().fit(ROWS, CLASSES)
    assert (model.predict_proba(ROWS.astype(object)) == model.predict_proba(ROWS)).all()


def test_scaling_is_fitted_to_finite_values_only() -> None:
    for value in (np.nan, np.inf, 1e39):
        x = ROWS.astype(np.float64)
        x[2, 1] = value
        with pytest.raises(FannError, match="row 2, column 1"):
            small().fit_input_scaling(x)


def test_an_output_of_softmax_takes_class_numbers() -> None:
    network = NetworkBuilder().input(2).output(2, Activation.SOFTMAX).build(seed=0)
    with pytest.raises(FannError, match="masked"):
        BackpropTrainer(network, TrainingConfig(max_epochs=1)).train(ROWS, np.ma.array(CLASSES, mask=[0, 0, 0, 1]))
