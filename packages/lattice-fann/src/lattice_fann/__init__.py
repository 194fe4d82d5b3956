"""Tiny neural networks in microseconds: build, train, run and store small networks.

They are classifiers and regressors.

    from lattice_fann import Activation, BackpropTrainer, NetworkBuilder, TrainingConfig

    network = NetworkBuilder().input(784).hidden(128, Activation.RELU).output(10, Activation.SOFTMAX).build(seed=0)
    BackpropTrainer(network, TrainingConfig(max_epochs=5)).train(images, labels)
    probabilities = network.forward(image)

Names are imported when they are first used.
"""

TYPE_CHECKING = False  # typing's, which type checkers know by its name: the package imports nothing ahead
if TYPE_CHECKING:
    from typing import Any

    from lattice_fann._engine import available_isas, get_num_threads, set_num_threads
    from lattice_fann._version import __version__
    from lattice_fann.activation import DEFAULT_LEAKY_ALPHA, Activation
    from lattice_fann.builder import NetworkBuilder
    from lattice_fann.errors import (
        BusyError,
        FannError,
        FormatError,
        GradientError,
        InvalidInputError,
        InvalidNetworkError,
        NotNumbersError,
        NumericInstability,
        ShapeTooLargeError,
        SizeMismatchError,
        TrainingError,
        UnsupportedError,
    )
    from lattice_fann.estimators.classifier import MLPClassifier
    from lattice_fann.estimators.regressor import MLPRegressor
    from lattice_fann.layer import MAX_ALLOWED_ELEMENTS, Layer
    from lattice_fann.network import InputScaling, Network
    from lattice_fann.online.fisher import DiagonalFisher
    from lattice_fann.online.rloo import RlooConfig, RlooStep, RlooTrainer
    from lattice_fann.online.router import load_balance_aux_loss, router_z_loss
    from lattice_fann.training.config import GradientGuardStrategy, Optimizer, TrainingConfig
    from lattice_fann.training.gradients import GradientCheck, Gradients, backpropagate, check_gradients, gradients
    from lattice_fann.training.loss import Loss
    from lattice_fann.training.mixed_targets import mixed_targets
    from lattice_fann.training.result import EpochRecord, TrainingResult
    from lattice_fann.training.schedules import CosineDecay, ExponentialDecay, LinearDecay, StepDecay, Warmup
    from lattice_fann.training.state import TrainingState
    from lattice_fann.training.trainer import BackpropTrainer, Trainer

__all__ = [
    "Activation",
    "BackpropTrainer",
    "EpochRecord",
    "GradientGuardStrategy",
    "InputScaling",
    "Layer",
    "Loss",
    "Network",
    "NetworkBuilder",
    "Optimizer",
    "Trainer",
    "TrainingConfig",
    "TrainingResult",
    "TrainingState",
    "MLPClassifier",
    "MLPRegressor",
    "CosineDecay",
    "ExponentialDecay",
    "LinearDecay",
    "StepDecay",
    "Warmup",
    "DiagonalFisher",
    "RlooConfig",
    "RlooStep",
    "RlooTrainer",
    "load_balance_aux_loss",
    "router_z_loss",
    "GradientCheck",
    "Gradients",
    "backpropagate",
    "check_gradients",
    "gradients",
    "mixed_targets",
    "DEFAULT_LEAKY_ALPHA",
    "MAX_ALLOWED_ELEMENTS",
    "available_isas",
    "get_num_threads",
    "set_num_threads",
    "FannError",
    "FormatError",
    "GradientError",
    "BusyError",
    "InvalidInputError",
    "InvalidNetworkError",
    "NotNumbersError",
    "NumericInstability",
    "ShapeTooLargeError",
    "SizeMismatchError",
    "TrainingError",
    "UnsupportedError",
    "__version__",
]

_HOMES = {
    "_engine": ("available_isas", "get_num_threads", "set_num_threads"),
    "activation": ("DEFAULT_LEAKY_ALPHA", "Activation"),
    "builder": ("NetworkBuilder",),
    "_version": ("__version__",),
    "errors": (
        "FannError",
        "FormatError",
        "GradientError",
        "BusyError",
        "InvalidInputError",
        "InvalidNetworkError",
        "NotNumbersError",
        "NumericInstability",
        "ShapeTooLargeError",
        "SizeMismatchError",
        "TrainingError",
        "UnsupportedError",
    ),
    "estimators.classifier": ("MLPClassifier",),
    "estimators.regressor": ("MLPRegressor",),
    "online.fisher": ("DiagonalFisher",),
    "online.rloo": ("RlooConfig", "RlooStep", "RlooTrainer"),
    "online.router": ("load_balance_aux_loss", "router_z_loss"),
    "layer": ("MAX_ALLOWED_ELEMENTS", "Layer"),
    "network": ("InputScaling", "Network"),
    "training.config": ("GradientGuardStrategy", "Optimizer", "TrainingConfig"),
    "training.gradients": ("GradientCheck", "Gradients", "backpropagate", "check_gradients", "gradients"),
    "training.loss": ("Loss",),
    "training.mixed_targets": ("mixed_targets",),
    "training.result": ("EpochRecord", "TrainingResult"),
    "training.schedules": ("CosineDecay", "ExponentialDecay", "LinearDecay", "StepDecay", "Warmup"),
    "training.state": ("TrainingState",),
    "training.trainer": ("BackpropTrainer", "Trainer"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> "Any":
    import importlib

    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
