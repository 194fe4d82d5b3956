"""Every public callable answers arguments of wrong types and values with an error of the package, and no warning."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lattice_fann
from lattice_fann import (
    Activation,
    BackpropTrainer,
    CosineDecay,
    DiagonalFisher,
    ExponentialDecay,
    FannError,
    GradientGuardStrategy,
    InvalidInputError,
    InvalidNetworkError,
    Layer,
    LinearDecay,
    Loss,
    MLPClassifier,
    MLPRegressor,
    Network,
    NetworkBuilder,
    Optimizer,
    RlooConfig,
    RlooTrainer,
    StepDecay,
    TrainingConfig,
    TrainingState,
    Warmup,
    backpropagate,
    check_gradients,
    gradients,
    load_balance_aux_loss,
    mixed_targets,
    router_z_loss,
)
from lattice_fann.cli import main

NAN = float("nan")
WRONG: list[Any] = [
    None, True, -1, 10**400, -(10**400), 10**5000, 2**63, -0.5, 1.5, NAN, float("inf"), "x", b"x", 1j, [], [1], {"a": 1},
    object(), np.float32(2.5), np.array(3.0), np.array([1, 2]), Activation.RELU, Loss.MSE, "\ud800",
]  # fmt: skip
X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2)
Y = np.ones(4, dtype=np.float32)
TWO = [0, 1, 0, 1]
ONE_EPOCH = TrainingConfig(max_epochs=1, seed=0)
UNBOUNDED = ("max_epochs", "patience", "max_iter", "n_iter_no_change")  # a large one is right, and takes for ever


def net() -> Network:
    return NetworkBuilder().input(2).output(1).build(seed=0)


def soft() -> Network:
    return NetworkBuilder().input(2).output(2, Activation.SOFTMAX).build(seed=0)


def gate() -> Network:
    return NetworkBuilder().input(2).output(3).build(seed=0)


def train(config: TrainingConfig = ONE_EPOCH, **options: Any) -> Any:
    return BackpropTrainer(net(), config).train(options.pop("inputs", X), options.pop("targets", Y), **options)


def build(i: Any, h: Any, a: Any, d: Any, o: Any, oa: Any, seed: Any, initialization: Any, isa: Any) -> Network:
    builder = NetworkBuilder().input(i).hidden(h, a).dense(d).output(o, oa)
    return builder.build(seed, initialization=initialization, isa=isa)


def scheduled(kind: Callable[..., Any]) -> Callable[..., Any]:
    return lambda **options: train(TrainingConfig(max_epochs=2, seed=0, schedule=kind(**options)))


def scaled(mean: Any, scale: Any) -> None:
    net().input_scaling = (mean, scale)


STATE = train().state
FIELDS = {field.name: getattr(STATE, field.name) for field in dataclasses.fields(STATE)}
ESTIMATOR = {
    "hidden_layer_sizes": (2,), "activation": "relu", "solver": "adam", "alpha": 1e-4, "batch_size": "auto",
    "learning_rate_init": 1e-3, "schedule": None, "max_iter": 1, "tol": 1e-4, "n_iter_no_change": 10,
    "early_stopping": True, "validation_fraction": 0.5, "scale_inputs": False, "momentum": 0.9,
    "max_gradient_norm": None, "random_state": 0, "verbose": False,
}  # fmt: skip
CONFIG = {field.name: field.default for field in dataclasses.fields(TrainingConfig)} | {"max_epochs": 1}
SCHEDULES = [StepDecay(2), ExponentialDecay(), LinearDecay(), CosineDecay(), Warmup(2)]

# a callable, and arguments that it takes; each argument is replaced in turn by each wrong value
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "NetworkBuilder": (build, {
        "i": 2, "h": 3, "a": Activation.RELU, "d": 2, "o": 1, "oa": Activation.LINEAR, "seed": 0,
        "initialization": "he_normal", "isa": None,
    }),
    "Activation": (Activation, {"tag": 4, "alpha": 0.1}),
    "Activation.leaky_relu": (Activation.leaky_relu, {"alpha": 0.1}),
    "Activation.from_name": (Activation.from_name, {"name": "leakyrelu", "alpha": 0.1}),
    "Layer": (Layer, {"weights": [[1.0]], "biases": [1.0], "activation": Activation.RELU}),
    "Layer.create": (Layer.create, {
        "num_inputs": 1, "num_outputs": 1, "activation": Activation.RELU, "seed": 0, "initialization": "he_normal",
    }),
    "Network": (Network, {"layers": [Layer([[1.0]], [0.0])], "input_scaling": None, "metadata": None, "isa": None}),
    "Network.input_scaling": (scaled, {"mean": [1, 1], "scale": [1, 1]}),
    "Network.forward": (lambda **o: net().forward(**o), {"x": X[0], "out": None}),
    "Network.forward_batch": (lambda **o: net().forward_batch(**o), {"x": X, "out": None}),
    "Network.layer_outputs": (lambda **o: net().layer_outputs(**o), {"x": X[0]}),
    "Network.fit_input_scaling": (lambda **o: net().fit_input_scaling(**o), {"x": X}),
    "Network.set_parameter_vector": (lambda **o: net().set_parameter_vector(**o), {"vector": [1, 1, 1]}),
    "Network.to_bytes": (lambda **o: net().to_bytes(**o), {"version": 2, "weights": "float32"}),
    "Network.from_bytes": (Network.from_bytes, {"content": net().to_bytes()}),
    "TrainingConfig": (lambda **o: train(TrainingConfig(**o)), CONFIG),
    "BackpropTrainer": (BackpropTrainer, {"network": net(), "config": None}),
    "BackpropTrainer.train": (train, {
        "inputs": X, "targets": Y, "sample_weight": None, "class_weight": None, "validation": None, "callbacks": (),
        "resume_from": None,
    }),
    "class weights": (lambda w: BackpropTrainer(soft(), ONE_EPOCH).train(X, TWO, class_weight={0: w}), {"w": 1.0}),
    "class weighted": (lambda w: BackpropTrainer(soft(), ONE_EPOCH).train(X, TWO, class_weight=w), {"w": None}),
    "resumed": (lambda **o: train(TrainingConfig(max_epochs=3), resume_from=dataclasses.replace(STATE, **o)), FIELDS),
    "StepDecay": (scheduled(StepDecay), {"every": 2, "factor": 0.5}),
    "ExponentialDecay": (scheduled(ExponentialDecay), {"factor": 0.5}),
    "LinearDecay": (scheduled(LinearDecay), {"end": 0.1}),
    "CosineDecay": (scheduled(CosineDecay), {"end": 0.1}),
    "Warmup": (scheduled(Warmup), {"epochs": 2, "then": None, "start": 0.1}),
    "schedules": (lambda **o: [schedule(**o) for schedule in SCHEDULES], {"epoch": 0.5, "max_epochs": 10}),
    "gradients": (gradients, {
        "network": net(), "inputs": X, "targets": Y, "loss": Loss.HUBER, "sample_weight": None, "huber_delta": 1.0,
        "temperature": 1.0,
    }),
    "backpropagate": (backpropagate, {"network": net(), "inputs": X, "output_gradients": Y}),
    "check_gradients": (check_gradients, {
        "network": net(), "inputs": X, "targets": Y, "loss": None, "sample_weight": None, "huber_delta": 1.0,
        "temperature": 1.0, "step": 1e-5, "samples": 2, "seed": 0,
    }),
    "DiagonalFisher": (DiagonalFisher, {"size": 2, "decay": 0.9}),
    "DiagonalFisher.penalty": (lambda **o: DiagonalFisher(2).penalty(**o), {"parameters": [1.0, 2.0], "strength": 1.0}),
    "DiagonalFisher.penalty_gradient": (
        lambda **o: DiagonalFisher(2).penalty_gradient(**o), {"parameters": [1.0, 2.0], "strength": 1.0},
    ),
    "DiagonalFisher.observe_gradient": (lambda **o: DiagonalFisher(2).observe_gradient(**o), {"gradient": [1.0, 2.0]}),
    "DiagonalFisher.project_delta": (lambda **o: DiagonalFisher(2).project_delta(**o), {"delta": [1.0, 2.0]}),
    "RlooConfig": (lambda **o: RlooTrainer(gate(), RlooConfig(**o), seed=0).step(X[0], 0, 1.0), {
        "learning_rate": 0.1, "aux_weight": 0.1, "z_weight": 0.1, "entropy_weight": 0.1,
    }),
    "RlooTrainer": (RlooTrainer, {"gate": gate(), "config": None, "seed": 0}),
    "RlooTrainer.step": (lambda **o: RlooTrainer(gate()).step(**o), {"context": X[0], "action": 0, "reward": 1.0}),
    "RlooTrainer.rloo_step": (
        lambda **o: RlooTrainer(gate(), seed=0).rloo_step(**o), {"context": X[0], "preferred": 0, "k": 1, "samples": 4},
    ),
    "load_balance_aux_loss": (load_balance_aux_loss, {"probabilities": [0.5, 0.5]}),
    "router_z_loss": (router_z_loss, {"logits": [0.5, 0.5]}),
    "mixed_targets": (
        mixed_targets, {"soft": [[0.5, 0.5]], "hard": [0], "temperature": 2.0, "hard_share": 0.5},
    ),
    "MLPClassifier": (lambda **o: MLPClassifier(**o).fit(X, TWO), ESTIMATOR),
    "MLPRegressor": (lambda **o: MLPRegressor(**o).fit(X, Y), ESTIMATOR),
    "MLPClassifier.fit": (
        lambda **o: MLPClassifier(2, max_iter=1, random_state=0).fit(**o), {"x": X, "y": TWO, "sample_weight": None},
    ),
    "MLPClassifier.partial_fit": (
        lambda **o: MLPClassifier(2, max_iter=1, random_state=0).partial_fit(**o),
        {"x": X, "y": TWO, "classes": [0, 1], "sample_weight": None},
    ),
    "MLPRegressor.fit": (
        lambda **o: MLPRegressor(2, max_iter=1, random_state=0).fit(**o), {"x": X, "y": Y, "sample_weight": None},
    ),
}  # fmt: skip


def refused(call: Callable[..., Any], arguments: dict[str, Any]) -> str:
    """Return the message of the package's error, empty if the arguments are taken after all."""
    try:
        call(**arguments)
    except FannError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", CALLS)
def test_wrong_arguments_give_errors_of_the_package(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # "x" is a good name for a file to write
    call, good = CALLS[name]
    call(**good)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for argument in good:
            for value in WRONG:
                if argument in UNBOUNDED and isinstance(value, int) and not isinstance(value, bool) and value > 5:
                    continue
                message = refused(call, {**good, argument: value})
                assert len(message) < 400, (argument, message)


def test_every_public_callable_is_tried() -> None:
    tried = {name.partition(".")[0] for name in CALLS}
    results = {
        "EpochRecord",
        "TrainingResult",
        "TrainingState",
        "GradientCheck",
        "Gradients",
        "RlooStep",
        "InputScaling",
    }
    elsewhere = {"set_num_threads", "get_num_threads", "available_isas", "Trainer"}
    elsewhere |= {"GradientGuardStrategy", "Loss", "Optimizer"}
    for name in set(lattice_fann.__all__) - tried - results - elsewhere:
        value = getattr(lattice_fann, name)
        assert not callable(value) or (isinstance(value, type) and issubclass(value, Exception)), name


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: NetworkBuilder().input(2).hidden(3, "relu"), r"Activation\.from_name\('relu'\)"),  # type: ignore[arg-type]
        (lambda: Layer([[1.0]], [0.0], "relu"), r"Activation\.from_name"),  # type: ignore[arg-type]
        (lambda: NetworkBuilder().input(True), "must be an integer, not True"),
        (lambda: NetworkBuilder().input(10**400), "more than the most, 100000000"),
        (lambda: Layer.create(2, True), "must be an integer, not True"),
        (lambda: Activation.from_name(5), "the name of an activation is 5"),  # type: ignore[arg-type]
        (lambda: Activation(0, 0.5), "only LeakyReLU has"),
        (lambda: net().forward([10**400, 1]), "more than 64 bits"),
        (lambda: TrainingConfig(learning_rate=10**400), "learning_rate is 1000"),
        (lambda: TrainingConfig(shuffle="no"), "True or False"),  # type: ignore[arg-type]
        (lambda: TrainingConfig(optimizer="adam"), "member of Optimizer"),  # type: ignore[arg-type]
        (lambda: TrainingConfig(gradient_guard="error"), "member of GradientGuardStrategy"),  # type: ignore[arg-type]
        (lambda: MLPClassifier(alpha="x").fit(X, TWO), "^alpha is 'x'"),  # type: ignore[arg-type]
        (lambda: MLPClassifier(2.5).fit(X, TWO), "hidden_layer_sizes"),  # type: ignore[arg-type]
        (lambda: MLPClassifier([2.5]).fit(X, TWO), "hidden_layer_sizes is 2.5"),  # type: ignore[list-item]
        (lambda: MLPClassifier("5").fit(X, TWO), "hidden_layer_sizes is '5'"),  # type: ignore[arg-type]
        (lambda: Network([Layer([[1.0]], [0.0])], metadata={"a": "\ud800"}), "surrogate"),
        (lambda: Network([Layer([[1.0]], [0.0])], isa=5), "isa is 5"),  # type: ignore[arg-type]
    ],
)
def test_messages_show_the_value_and_what_to_do(call: Callable[[], Any], message: str) -> None:
    with pytest.raises((InvalidInputError, InvalidNetworkError), match=message):
        call()


def test_numbers_of_numpy_are_taken() -> None:
    config = TrainingConfig(max_epochs=np.int64(1), learning_rate=np.float32(0.5), seed=np.uint8(3))  # type: ignore[arg-type]
    assert train(config).epochs_trained == 1
    assert NetworkBuilder().input(np.int32(2)).output(np.int64(3)).build(np.int16(1)).total_params == 9  # type: ignore[arg-type]


def test_a_slope_is_kept_as_float32_keeps_it() -> None:
    assert Activation(4, 0.1) == Activation.leaky_relu(0.1)
    network = Network([Layer([[1.0]], [0.0], Activation(4, 0.1))])
    assert Network.from_bytes(network.to_bytes(1)).layers[0].activation == network.layers[0].activation


def test_guards_stay_as_they_are() -> None:
    assert train(TrainingConfig(max_epochs=1, gradient_guard=GradientGuardStrategy.SANITIZE)).epochs_trained == 1
    assert train(TrainingConfig(max_epochs=1, optimizer=Optimizer.RPROP)).epochs_trained == 1


@pytest.mark.parametrize(
    "command",
    [
        ["train", "{t}", "--target", "b", "--hidden", "9" * 5000],
        ["train", "{t}", "--target", "b", "--hidden", "1" + "0" * 400],
        ["train", "{t}", "--target", "b", "--activation", ""],
        ["train", "{t}", "--target", "b", "--learning-rate", "nan"],
        ["train", "{t}", "--target", "b", "--learning-rate", "inf"],
        ["train", "{t}", "--target", "b", "--validation", "1"],
        ["train", "{t}", "--target", "b", "--validation", "nan"],
        ["train", "{t}", "--target", "b", "--batch-size", "0"],
        ["train", "{t}", "--target", "b", "--patience", "-3"],
        ["train", "{t}", "--target", "b", "--seed", "-1"],
        ["train", "{t}", "--target", "b", "--seed", "1" + "0" * 400],
        ["train", "{t}", "--target", ""],
        ["train", "{large}", "--target", "b"],
        ["predict", "{m}", "{large}"],
        ["predict", "{m}", "{t}", "--inputs", "x", "--output", "{m}"],
        ["bench", "--batch", "1" + "0" * 30],
        ["bench", "--seconds", "nan"],
        ["bench", "--batch", "-1"],
    ],
)
def test_wrong_options_and_data_end_with_status_2(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t").with_suffix(".csv").write_text("a,b\n1,2\n2,3\n3,4\n4,5\n")
    (tmp_path / "large.csv").write_text("a,b\n1e39,2\n2,3\n")
    Network([Layer([[1.0]], [0.0])]).save(tmp_path / "m.fann")
    names = {"t": tmp_path / "t.csv", "large": tmp_path / "large.csv", "m": tmp_path / "m.fann"}
    assert main([word.format(**names) for word in command]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("lattice-fann: error: ")
    assert captured.err.count("\n") == 1


def test_a_state_with_wrong_fields_is_not_written(tmp_path: Path) -> None:
    for name, value in {"seed": "x", "epoch": -1, "best_loss": NAN, "parameters": [1.0], "architecture": None}.items():
        with pytest.raises(InvalidInputError):
            dataclasses.replace(STATE, **{name: value}).save(tmp_path / "s.npz")
    assert not list(tmp_path.iterdir())
    dataclasses.replace(STATE, seed=10**399).save(tmp_path / "s.npz")
    assert TrainingState.load(tmp_path / "s.npz").seed == 10**399
