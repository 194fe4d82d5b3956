"""Base of classifier and regressor: parameters, training, scikit-learn's conventions."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from lattice_fann.activation import Activation, checked_activation
from lattice_fann.arguments import flag, instance, listed, shown, whole
from lattice_fann.arrays import float32_of, lost_in_float32, number_array
from lattice_fann.builder import NetworkBuilder
from lattice_fann.errors import InvalidInputError, SizeMismatchError
from lattice_fann.estimators.conventions import feature_names, names_differ, not_fitted_error
from lattice_fann.layer import MAX_ALLOWED_ELEMENTS, Float32Array
from lattice_fann.network import Network
from lattice_fann.training.config import Optimizer, TrainingConfig
from lattice_fann.training.loss import Loss
from lattice_fann.training.result import EpochRecord, TrainingResult
from lattice_fann.training.schedules import Schedule
from lattice_fann.training.state import TrainingState
from lattice_fann.training.trainer import BackpropTrainer, Callback

__all__ = ["BaseMLP", "Solver"]

Solver = Literal["adam", "adamw", "sgd", "nesterov", "rmsprop", "rprop"]

# the fields of the training's configuration that have another name here
_PARAMETERS = {
    "learning_rate": "learning_rate_init",
    "weight_decay": "alpha",
    "max_epochs": "max_iter",
    "patience": "n_iter_no_change",
    "min_delta": "tol",
    "seed": "random_state",
}


class BaseMLP:
    """A network of dense layers that is made and trained by ``fit``.

    Args:
        hidden_layer_sizes: outputs of the hidden layers.
        activation: of the hidden layers: a name such as ``"relu"``, ``"tanh"``, ``"gelu"``, or an Activation.
        solver: the optimizer.
        alpha: weight decay (L2, decoupled for adamw), whatever the batch size.
        batch_size: samples in a mini-batch; ``"auto"`` is 64, or all if there are fewer.
        learning_rate_init: step size before the schedule.
        schedule: a learning-rate schedule, None for a constant rate.
        max_iter: most passes over the data.
        tol, n_iter_no_change: stop after so many epochs in which the monitored loss fell by no more than ``tol``.
        early_stopping: monitor the loss on a part kept out of training, and end with the best epoch's weights.
        validation_fraction: that part.
        scale_inputs: learn mean and standard deviation of each column in ``fit`` and store the scaling in the network.
        momentum: of sgd and nesterov.
        max_gradient_norm: clip longer gradients; None does not.
        random_state: seed of weights, shuffles and split; None takes entropy from the system.
        verbose: print each epoch's loss.
    """

    network_: Network
    loss_curve_: list[float]
    loss_: float
    n_iter_: int
    _loss: Loss | None = None  # the last layer's own

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] = (100,),
        activation: str | Activation = "relu",
        *,
        solver: Solver = "adam",
        alpha: float = 1e-4,
        batch_size: int | Literal["auto"] = "auto",
        learning_rate_init: float = 1e-3,
        schedule: Schedule | None = None,
        max_iter: int = 200,
        tol: float = 1e-4,
        n_iter_no_change: int = 10,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        scale_inputs: bool = False,
        momentum: float = 0.9,
        max_gradient_norm: float | None = None,
        random_state: int | None = None,
        verbose: bool = False,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.solver = solver
        self.alpha = alpha
        self.batch_size = batch_size
        self.learning_rate_init = learning_rate_init
        self.schedule = schedule
        self.max_iter = max_iter
        self.tol = tol
        self.n_iter_no_change = n_iter_no_change
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.scale_inputs = scale_inputs
        self.momentum = momentum
        self.max_gradient_norm = max_gradient_norm
        self.random_state = random_state
        self.verbose = verbose

    @classmethod
    def _parameter_names(cls) -> list[str]:
        return sorted(name for name in inspect.signature(cls.__init__).parameters if name != "self")

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments by name.

        ``deep`` is there for scikit-learn; nothing is nested.
        """
        return {name: getattr(self, name) for name in self._parameter_names()}

    def set_params(self, **parameters: Any) -> Self:
        """Set constructor arguments by name.

        Raises:
            InvalidInputError: there is none of that name.
        """
        known = self._parameter_names()
        for name, value in parameters.items():
            if name not in known:
                raise InvalidInputError(
                    f"{type(self).__name__} has no parameter {name!r}; there are {', '.join(known)}"
                )
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self).__init__).parameters
        changed = [
            f"{name}={value!r}"
            for name, value in self.get_params().items()
            if not (value is defaults[name].default or value == defaults[name].default)
        ]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "network_")

    def _solver(self) -> Optimizer:
        try:
            return Optimizer[instance(self.solver, "solver", str).upper()]
        except KeyError:
            raise InvalidInputError(
                f"solver is {shown(self.solver)}; take one of {', '.join(kind.name.lower() for kind in Optimizer)}"
            ) from None

    def _config(self, samples: int) -> TrainingConfig:
        for name in ("early_stopping", "scale_inputs"):
            flag(getattr(self, name), name)
        if not isinstance(self.verbose, (bool, int)):
            raise InvalidInputError(f"verbose is {shown(self.verbose)}; it must be True or False")
        automatic = isinstance(self.batch_size, str) and self.batch_size == "auto"
        try:
            return TrainingConfig(
                optimizer=self._solver(),
                learning_rate=self.learning_rate_init,
                momentum=self.momentum,
                weight_decay=self.alpha,
                batch_size=min(64, samples) if automatic else self.batch_size,  # type: ignore[arg-type]
                max_epochs=self.max_iter,
                target_error=None,
                loss=self._loss,
                schedule=self.schedule,
                patience=self.n_iter_no_change,
                min_delta=self.tol,
                restore_best=self.early_stopping,
                validation_fraction=self.validation_fraction if self.early_stopping else 0.0,
                max_gradient_norm=self.max_gradient_norm,
                seed=self.random_state,
            )
        except InvalidInputError as error:  # it names the configuration's field
            name, _, rest = str(error).partition(" ")
            raise InvalidInputError(f"{_PARAMETERS.get(name, name)} {rest}") from None

    def _build(self, inputs: int, outputs: int, last: Activation) -> Network:
        given = self.activation
        hidden = Activation.from_name(given) if isinstance(given, str) else checked_activation(given)
        if hidden.is_softmax:
            raise InvalidInputError("softmax cannot be the activation of hidden layers")
        sizes = self.hidden_layer_sizes
        if not isinstance(sizes, (int, np.integer)):
            sizes = listed(sizes, "hidden_layer_sizes", "integers, or one integer")
        builder = NetworkBuilder().input(inputs)
        for size in [sizes] if isinstance(sizes, (int, np.integer)) else sizes:
            builder.hidden(whole(size, "hidden_layer_sizes", least=1, most=MAX_ALLOWED_ELEMENTS), hidden)
        gated = hidden.name in ("ReLU", "LeakyReLU", "GELU", "SiLU")
        initialization: Literal["he_uniform", "xavier_uniform"] = "he_uniform" if gated else "xavier_uniform"
        return builder.output(outputs, last).build(seed=self.random_state, initialization=initialization)

    def _train(
        self,
        x: Float32Array,
        targets: npt.NDArray[Any],
        last: Activation,
        outputs: int,
        sample_weight: npt.ArrayLike | None,
    ) -> None:
        config = self._config(len(x))
        network = self._build(x.shape[1], outputs, last)
        if self.scale_inputs:
            network.fit_input_scaling(x)
        result = BackpropTrainer(network, config).train(
            x, targets, sample_weight=sample_weight, callbacks=self._callbacks()
        )
        self._state: TrainingState = result.state
        self._take(network, result)

    def _train_on(self, x: Float32Array, targets: npt.NDArray[Any], sample_weight: npt.ArrayLike | None) -> None:
        """One more epoch on other data, the optimizer's memory kept."""
        config = dataclasses.replace(
            self._config(len(x)), max_epochs=self._state.epoch + 1, patience=None, validation_fraction=0.0
        )
        state = dataclasses.replace(self._state, parameters=self.network_.parameters.copy())
        result = BackpropTrainer(self.network_, config).train(
            x, targets, sample_weight=sample_weight, resume_from=state, callbacks=self._callbacks()
        )
        self._state = result.state
        self.loss_curve_ = [*self.loss_curve_, *result.error_history]
        self.loss_ = self.loss_curve_[-1]
        self.n_iter_ += result.epochs_trained

    def _begin_partial(self, x: Float32Array, outputs: int, last: Activation) -> None:
        """An untrained network for the first call of partial_fit."""
        network = self._build(x.shape[1], outputs, last)
        if self.scale_inputs:
            network.fit_input_scaling(x)
        nothing = np.zeros((1, outputs)) if not last.is_softmax else np.zeros(1, dtype=np.int64)
        config = dataclasses.replace(self._config(1), max_epochs=0, validation_fraction=0.0)
        result = BackpropTrainer(network, config).train(np.zeros((1, x.shape[1])), nothing)
        self._state = result.state
        self._take(network, result)

    def _take(self, network: Network, result: TrainingResult) -> None:
        self.network_ = network
        self.n_features_in_: int = network.num_inputs
        self.n_outputs_: int = network.num_outputs
        self.n_layers_: int = len(network.layers) + 1
        self.out_activation_: str = network.layers[-1].activation.name.lower()
        self.history_: list[EpochRecord] = result.history
        self.loss_curve_ = result.error_history
        self.n_iter_ = result.epochs_trained
        self.loss_ = result.final_error
        self.best_loss_: float = min(result.error_history, default=result.final_error)
        validation = [record.validation_loss for record in result.history if record.validation_loss is not None]
        self.validation_losses_: list[float] | None = validation or None

    def _callbacks(self) -> list[Callback]:
        if not self.verbose:
            return []
        return [lambda record: print(f"epoch {record.epoch + 1}: loss {record.loss:.6f}")]

    def _fitted(self) -> Network:
        if not hasattr(self, "network_"):
            raise not_fitted_error(f"this {type(self).__name__} is not fitted yet: call fit first")
        return self.network_

    @property
    def coefs_(self) -> list[Float32Array]:
        """Weights of each layer in scikit-learn's layout, (inputs, outputs).

        Views of the network's memory.
        """
        return [layer.weights.T for layer in self._fitted().layers]

    @property
    def intercepts_(self) -> list[Float32Array]:
        """Biases of each layer."""
        return [layer.biases for layer in self._fitted().layers]

    def _inputs(self, x: npt.ArrayLike, *, known: bool) -> Float32Array:
        """Return samples as a finite float32 matrix of the right width.

        A frame's columns must be those of ``fit``.
        """
        array = number_array(x, "X", objects=True)
        if array.ndim != 2:
            advice = "Reshape your data: X.reshape(1, -1) is one sample, X.reshape(-1, 1) one feature"
            raise SizeMismatchError(f"X must be a matrix (samples, features); its shape is {array.shape}. {advice}")
        for axis, what in enumerate(("sample", "feature")):
            if not array.shape[axis]:
                raise SizeMismatchError(f"X has 0 {what}(s) (shape={array.shape}) while a minimum of 1 is required.")
        if known and array.shape[1] != self._fitted().num_inputs:
            raise SizeMismatchError(
                f"X has {array.shape[1]} features, but {type(self).__name__} is expecting {self.network_.num_inputs} "
                "features as input: as many as it was fitted with"
            )
        converted = float32_of(array)
        if not np.isfinite(converted).all():
            row, column = np.argwhere(~np.isfinite(converted))[0]
            raise InvalidInputError(f"X holds NaN or infinity: at sample {row}, feature {column}")
        self._check_names(feature_names(x), known=known)
        if not known:
            for column, reason in lost_in_float32(array, converted).items():
                warnings.warn(f"X, feature {column}: {reason}", stacklevel=3)
        return converted

    def _check_given(self, y: object) -> None:
        if y is None:
            raise InvalidInputError(f"{type(self).__name__} requires y to be passed, but the target y is None")

    def _check_names(self, names: npt.NDArray[np.object_] | None, *, known: bool) -> None:
        """Keep the names of a frame's columns in ``fit``, and compare them with those later."""
        if not known:
            if names is not None:
                self.feature_names_in_ = names
            elif hasattr(self, "feature_names_in_"):
                del self.feature_names_in_
            return
        fitted = getattr(self, "feature_names_in_", None)
        if fitted is None and names is not None:
            warnings.warn(
                f"X has feature names, but {type(self).__name__} was fitted without feature names", stacklevel=4
            )
        elif fitted is not None and names is None:
            warnings.warn(
                f"X does not have valid feature names, but {type(self).__name__} was fitted with feature names",
                stacklevel=4,
            )
        elif fitted is not None and names is not None and list(fitted) != list(names):
            raise InvalidInputError(names_differ(list(fitted), list(names)))
