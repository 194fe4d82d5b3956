"""Gradients without training: for inspection and other trainers.

They are checked against finite differences.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lattice_fann._engine import StepEngine
from lattice_fann.arguments import instance, real, whole
from lattice_fann.errors import GradientError, NumericInstability
from lattice_fann.layer import Float32Array
from lattice_fann.network import Network
from lattice_fann.training.data import prepare
from lattice_fann.training.loss import Loss, check_loss, default_loss
from lattice_fann.training.reference import Float64Array, ReferenceNetwork

__all__ = ["GradientCheck", "Gradients", "backpropagate", "check_gradients", "gradients"]


@dataclass(frozen=True)
class Gradients:
    """A loss and its derivatives.

    Attributes:
        loss: the weighted mean over the samples.
        weights: for each layer, (outputs, inputs).
        biases: for each layer, (outputs,).
    """

    loss: float
    weights: list[Float32Array]
    biases: list[Float32Array]

    def vector(self) -> Float32Array:
        """Return all derivatives in one, laid out as :meth:`Network.parameter_vector`."""
        parts = [part for pair in zip(self.weights, self.biases, strict=True) for part in pair]
        return np.concatenate([part.ravel() for part in parts])


@dataclass(frozen=True)
class GradientCheck:
    """How far gradients are apart.

    Attributes:
        finite_difference_error: of the float64 gradient against central differences of the float64 loss: the largest
            difference divided by the gradient's largest entry.
        float32_error: of the kernels' gradient against the float64 one: L2 norm of the difference divided by that of
            the gradient.
    """

    finite_difference_error: float
    float32_error: float


def gradients(
    network: Network,
    inputs: npt.ArrayLike,
    targets: npt.ArrayLike,
    *,
    loss: Loss | None = None,
    sample_weight: npt.ArrayLike | None = None,
    huber_delta: float = 1.0,
    temperature: float = 1.0,
    hard_share: float = 0.5,
) -> Gradients:
    """Return the mean loss over the samples and its gradient, from the training kernels.

    Raises:
        InvalidInputError: data or loss that do not fit.
        NumericInstability: a forward value is not finite.
        GradientError: a gradient is not finite.
    """
    chosen, parameter = _loss(network, loss, huber_delta, temperature)
    share = _share(hard_share)
    total = chosen.target_sum(parameter, share)
    data = prepare(network, inputs, targets, chosen, sample_weight=sample_weight, target_sum=total)
    shares = np.ones(len(data)) if data.weights is None else data.weights.astype(np.float64)
    return _run(network, data.inputs, data.targets, shares / shares.sum(), chosen.value, parameter, share)


def backpropagate(network: Network, inputs: npt.ArrayLike, output_gradients: npt.ArrayLike) -> Gradients:
    """Return the gradient of a custom loss from its derivatives by the network's outputs.

    Args:
        network: not changed.
        inputs: (samples, inputs).
        output_gradients: (samples, outputs), dL/dy; the samples' gradients are added up.

    Returns:
        Gradients whose ``loss`` is 0: it is not known here.

    Raises:
        SizeMismatchError: shapes that do not fit.
        NumericInstability, GradientError: as for :func:`gradients`.
    """
    instance(network, "network", Network)
    data = prepare(network, inputs, output_gradients, Loss.MSE)
    return _run(network, data.inputs, data.targets, np.ones(len(data)), _GIVEN_GRADIENT, 1.0)


_GIVEN_GRADIENT = 5


def _run(
    network: Network,
    inputs: Float32Array,
    targets: Float32Array,
    shares: Float64Array,
    loss: int,
    parameter: float,
    hard_share: float = 0.0,
) -> Gradients:
    engine = StepEngine(network, len(inputs), loss, parameter, hard_share)
    order = np.arange(len(inputs), dtype=np.int64)
    status, value, _, fault = engine.gradient(inputs, targets, order, shares.astype(np.float32), False)
    if status == 0:
        assert fault is not None
        layer, row, index = fault
        raise NumericInstability(layer, index, row)
    if status == 2:
        raise GradientError("a gradient is not finite")
    views = [network._views(engine.gradients, i) for i in range(len(network.layers))]
    return Gradients(value, [np.ascontiguousarray(w) for w, _ in views], [b.copy() for _, b in views])


def check_gradients(
    network: Network,
    inputs: npt.ArrayLike,
    targets: npt.ArrayLike,
    *,
    loss: Loss | None = None,
    sample_weight: npt.ArrayLike | None = None,
    huber_delta: float = 1.0,
    temperature: float = 1.0,
    hard_share: float = 0.5,
    step: float = 1e-5,
    samples: int = 200,
    seed: int = 0,
) -> GradientCheck:
    """Compare the float64 gradient with finite differences, and the kernels' with that.

    Args:
        network, inputs, targets, loss, sample_weight, huber_delta, temperature, hard_share: as for :func:`gradients`.
        step: of the central differences.
        samples: how many parameters are varied, drawn by ``seed``; all if there are no more.
        seed: of that draw.
    """
    chosen, parameter = _loss(network, loss, huber_delta, temperature)
    step = real(step, "step", "above 0", above=0)
    samples, seed = whole(samples, "samples", least=1), whole(seed, "seed", most=2**32 - 1)
    share = _share(hard_share)
    total = chosen.target_sum(parameter, share)
    data = prepare(network, inputs, targets, chosen, sample_weight=sample_weight, target_sum=total)
    x, t = data.inputs.astype(np.float64), data.targets.astype(np.float64)
    shares = np.ones(len(data)) if data.weights is None else data.weights.astype(np.float64)
    twin = ReferenceNetwork.of(network)
    by_weights, by_biases = twin.gradient(x, t, chosen, parameter, shares, share)
    arrays: list[Float64Array] = [*twin.weights, *twin.biases]
    exact = [*by_weights, *by_biases]
    places = [(a, i) for a, array in enumerate(arrays) for i in range(array.size)]
    if samples < len(places):
        chosen_places = np.random.RandomState(seed).choice(len(places), samples, replace=False)
        places = [places[i] for i in chosen_places]
    largest = max(float(np.abs(array).max()) for array in exact)
    worst = 0.0
    for a, i in places:
        array = arrays[a].reshape(-1)
        kept = array[i]
        array[i] = kept + step
        above = twin.loss(x, t, chosen, parameter, shares, share)
        array[i] = kept - step
        below = twin.loss(x, t, chosen, parameter, shares, share)
        array[i] = kept
        worst = max(worst, abs((above - below) / (2 * step) - float(exact[a].reshape(-1)[i])))
    own = gradients(
        network,
        data.inputs,
        data.targets,
        loss=chosen,
        sample_weight=sample_weight,
        huber_delta=huber_delta,
        temperature=temperature,
        hard_share=share,
    )
    difference = np.concatenate([(m - e).ravel() for m, e in zip([*own.weights, *own.biases], exact, strict=True)])
    norm = float(np.linalg.norm(np.concatenate([e.ravel() for e in exact])))
    return GradientCheck(
        worst / largest if largest > 0 else worst, float(np.linalg.norm(difference)) / norm if norm > 0 else 0.0
    )


def _share(hard_share: float) -> float:
    return real(hard_share, "hard_share", "from 0 to 1", least=0, most=1)


def _loss(network: Network, loss: Loss | None, huber_delta: float, temperature: float) -> tuple[Loss, float]:
    instance(network, "network", Network)
    chosen = default_loss(network) if loss is None else loss
    check_loss(network, chosen)
    delta = real(huber_delta, "huber_delta", "above 0", above=0)
    heat = real(temperature, "temperature", "above 0", above=0)
    return chosen, delta if chosen is Loss.HUBER else heat
