"""Valid calls of the public callables of lattice_fann and lattice_transport."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import lattice_fann
import lattice_transport

from .call_registry import Call, call, calls, matrix

# lattice_fann

_X, _Y = matrix(12, 3), np.arange(12) % 2


def network() -> lattice_fann.Network:
    """Return a small network."""
    builder = lattice_fann.NetworkBuilder().input(3).hidden(4, lattice_fann.Activation.RELU)
    return builder.output(2, lattice_fann.Activation.SOFTMAX).build(seed=0)


def _layer() -> lattice_fann.Layer:
    return lattice_fann.Layer(np.ones((2, 3), np.float32), np.zeros(2, np.float32))


def _trained(kind: str) -> Callable[[], Any]:
    return lambda: getattr(lattice_fann, kind)((4,), max_iter=2, random_state=0).fit(_X, _Y)


_config = {"config": lambda: lattice_fann.TrainingConfig(max_epochs=2, batch_size=4)}
_net = {"network": network}
calls(
    "lattice_fann",
    lambda: lattice_fann,
    {
        "Activation": {"tag": 1},
        "BackpropTrainer": _net | _config,
        "Layer": {"weights": np.ones((2, 3)), "biases": np.zeros(2)},
        "Network": {"layers": lambda: [_layer()]},
        "TrainingConfig": {},
        "MLPClassifier": {},
        "MLPRegressor": {},
        "CosineDecay": {},
        "ExponentialDecay": {},
        "LinearDecay": {},
        "StepDecay": {"every": 2},
        "Warmup": {"epochs": 2.0},
        "DiagonalFisher": {"size": 3},
        "RlooConfig": {},
        "RlooTrainer": {"gate": lambda: lattice_fann.NetworkBuilder().input(3).output(2).build(seed=0)},
        "load_balance_aux_loss": {"probabilities": np.full((2, 2), 0.5)},
        "router_z_loss": {"logits": matrix()},
        "backpropagate": _net | {"inputs": _X, "output_gradients": np.ones((12, 2), np.float32)},
        "check_gradients": _net | {"inputs": _X, "targets": _Y, "samples": 3},
        "gradients": _net | {"inputs": _X, "targets": _Y},
        "mixed_targets": {"soft": np.full((12, 2), 0.5), "hard": _Y, "temperature": 2.0, "hard_share": 0.5},
        "set_num_threads": {"0": 1},
    },
)
calls(
    "lattice_fann.Activation",
    lambda: lattice_fann.Activation,
    {"from_name": {"name": "relu"}, "leaky_relu": {"alpha": 0.1}},
)
calls(
    "lattice_fann.BackpropTrainer",
    lambda: lattice_fann.BackpropTrainer(network(), _config["config"]()),
    {"train": {"inputs": _X, "targets": _Y}},
)
calls("lattice_fann.Layer", _layer, {"forward": {"x": matrix(1)[0]}})
calls("lattice_fann.Layer", lambda: lattice_fann.Layer, {"create": {"num_inputs": 3, "num_outputs": 2}})
calls(
    "lattice_fann.Network",
    network,
    {
        "forward": {"x": matrix(1)[0]},
        "forward_batch": {"x": _X},
        "layer_outputs": {"x": matrix(1)[0]},
        "fit_input_scaling": {"x": _X},
        "save": {"path": "out.fann"},
        "to_bytes": {},
        "set_parameter_vector": {"vector": lambda: network().parameter_vector()},
    },
)
calls(
    "lattice_fann.Network",
    lambda: lattice_fann.Network,
    {"load": {"path": "network.fann"}, "from_bytes": {"content": lambda: network().to_bytes()}},
)
calls(
    "lattice_fann.NetworkBuilder",
    lattice_fann.NetworkBuilder,
    {"input": {"size": 3}},
)
calls(
    "lattice_fann.NetworkBuilder",
    lambda: lattice_fann.NetworkBuilder().input(3),
    {"hidden": {"size": 3}, "output": {"size": 3}, "dense": {"size": 3}},
)
calls("lattice_fann.NetworkBuilder", lambda: lattice_fann.NetworkBuilder().input(3).output(2), {"build": {}})
for _name in ("MLPClassifier", "MLPRegressor"):
    _kind = getattr(lattice_fann, _name)
    calls(f"lattice_fann.{_name}", lambda kind=_kind: kind((4,), max_iter=2), {"fit": {"x": _X, "y": _Y}})
    calls(f"lattice_fann.{_name}", lambda kind=_kind: kind((4,), max_iter=2), {"partial_fit": {"x": _X, "y": _Y}})
    calls(
        f"lattice_fann.{_name}",
        _trained(_name),
        {"predict": {"x": _X}, "score": {"x": _X, "y": _Y}, "get_params": {}},
    )
calls(
    "lattice_fann.MLPClassifier",
    _trained("MLPClassifier"),
    {"predict_proba": {"x": _X}, "predict_log_proba": {"x": _X}},
)
calls(
    "lattice_fann.DiagonalFisher",
    lambda: lattice_fann.DiagonalFisher(3),
    {
        "observe_gradient": {"gradient": np.ones(3)},
        "penalty": {"parameters": np.ones(3), "strength": 1.0},
        "penalty_gradient": {"parameters": np.ones(3), "strength": 1.0},
        "project_delta": {"delta": np.ones(3)},
        "set_anchor": {"parameters": np.ones(3)},
    },
)


def _rloo() -> lattice_fann.RlooTrainer:
    return lattice_fann.RlooTrainer(lattice_fann.NetworkBuilder().input(3).output(2).build(seed=0), seed=0)


calls(
    "lattice_fann.RlooTrainer",
    _rloo,
    {
        "probabilities": {"context": matrix(1)[0]},
        "step": {"context": matrix(1)[0], "action": 0, "reward": 1.0},
        "rloo_step": {"context": matrix(1)[0], "preferred": 0},
    },
)

# lattice_transport

_x, _y = matrix(6, 2).astype(np.float64), matrix(5, 2).astype(np.float64)
_cost = np.abs(_x[:, :1] - _y[:, 0])


def _clouds() -> lattice_transport.PointClouds:
    return lattice_transport.PointClouds(_x, _y)


def _solved() -> lattice_transport.SinkhornResult:
    return lattice_transport.solve(None, None, _clouds(), epsilon=1.0)


_balanced = {"a": np.full(6, 1 / 6), "b": np.full(5, 1 / 5), "cost": _cost, "epsilon": 1.0}
_points = {"x": _x, "y": _y}
_detector = {"window_size": 16, "check_interval": 8}
calls(
    "lattice_transport",
    lambda: lattice_transport,
    {
        "EpsilonSchedule": {"start": 1.0},
        "OnlineDriftDetector": _detector,
        "PointClouds": _points,
        "SinkhornConfig": {},
        "SinkhornWorkspace": {"rows": 3, "columns": 3},
        "VectorSet": {"vectors": _x},
        "barycenter": {"costs": [_cost.T, _cost.T], "epsilon": 1.0},
        "barycentric_projection": {"result": _solved, "y": _y},
        "cost_matrix": _points,
        "detect_drift": {"reference": matrix(30, 2), "current": matrix(20, 2), "permutations": 19},
        "divergence_gradient": {
            "divergence": lambda: lattice_transport.sinkhorn_divergence(None, None, _clouds(), epsilon=1.0),
            "clouds": _clouds,
        },
        "emd": {key: _balanced[key] for key in ("a", "b", "cost")},
        "extract_sparse_plan": {"result": _solved},
        "fit_gaussian": {"points": _x},
        "free_support_barycenter": {"measures": [_x, _y], "initial": _x[:3], "epsilon": 1.0},
        "gaussian_wasserstein": {
            "first": lambda: lattice_transport.fit_gaussian(_x),
            "second": lambda: lattice_transport.fit_gaussian(_y),
        },
        "normalize_weights": {"weights": [1.0, 2.0]},
        "self_term": {"points": _x},
        "sinkhorn_divergence": {"a": None, "b": None, "cost": _clouds, "epsilon": 1.0},
        "sliced_wasserstein": _points,
        "solve": _balanced,
        "solve_batch": {"problems": [(None, None, _cost)]},
        "solve_unbalanced": _balanced,
        "transport_gradient": {"result": _solved, "clouds": _clouds},
        "uniform_weights": {"count": 3},
        "wasserstein_1d": {"x": _x[:, 0], "y": _y[:, 0]},
        "weight_gradients": {"result": _solved},
    },
)
calls("lattice_transport.EpsilonSchedule", lambda: lattice_transport.EpsilonSchedule(1.0), {"stages": {"target": 0.5}})
calls(
    "lattice_transport.OnlineDriftDetector",
    lambda: lattice_transport.OnlineDriftDetector(**_detector),
    {"observe": {"vector": _x[0]}, "save": {"path": "out.npz"}},
)


@call("lattice_transport.OnlineDriftDetector.restore")
def _restored() -> Call:
    lattice_transport.OnlineDriftDetector(**_detector).save("out.npz")
    return lattice_transport.OnlineDriftDetector.restore, {"path": "out.npz"}


calls("lattice_transport.SinkhornResult", _solved, {"plan_blocks": {}})
calls("lattice_transport.VectorSet", lambda: lattice_transport.VectorSet(_x), {"subset": {"kept": np.array([0, 1])}})
