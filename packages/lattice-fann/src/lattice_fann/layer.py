"""One dense layer: an activation over weights @ x + biases."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from lattice_fann.activation import Activation, checked_activation
from lattice_fann.arguments import shown
from lattice_fann.arrays import float32_of, number_array
from lattice_fann.errors import InvalidNetworkError, ShapeTooLargeError, SizeMismatchError

if TYPE_CHECKING:
    from lattice_fann.initialization import Initialization

__all__ = ["MAX_ALLOWED_ELEMENTS", "MAX_LAYERS", "Float32Array", "Layer", "check_layer_shape"]

Float32Array = npt.NDArray[np.float32]

MAX_ALLOWED_ELEMENTS = 100_000_000
"""Most elements that one tensor may hold, counted with the padding of its rows to a multiple of 16."""


MAX_LAYERS = 65_536
"""Most layers of a network: a layer takes some kilobytes of memory, however few bytes it has in a file."""


def check_layer_shape(num_inputs: int, num_outputs: int) -> None:
    """Refuse widths below 1 and weights beyond ``MAX_ALLOWED_ELEMENTS``, before any allocation."""
    for what, width in (("inputs", num_inputs), ("outputs", num_outputs)):
        if not isinstance(width, (int, np.integer)) or isinstance(width, bool):
            raise InvalidNetworkError(f"the number of {what} must be an integer, not {shown(width)}")
        if width < 1:
            raise InvalidNetworkError(
                f"a layer of {shown(num_inputs)} inputs and {shown(num_outputs)} outputs: both must be at least 1"
            )
        if width > MAX_ALLOWED_ELEMENTS:
            raise ShapeTooLargeError(
                f"a layer of {shown(width)} {what}: its elements are more than the most, {MAX_ALLOWED_ELEMENTS}"
            )
    elements = (int(num_inputs) + 1) * (-(-int(num_outputs) // 16) * 16)
    if elements > MAX_ALLOWED_ELEMENTS:
        raise ShapeTooLargeError(
            f"a layer of {num_inputs} inputs and {num_outputs} outputs takes {elements} elements; "
            f"the most is {MAX_ALLOWED_ELEMENTS}"
        )


class Layer:
    """Weights (outputs, inputs), biases (outputs,) and an activation.

    A layer made here owns its arrays; ``network.layers[i]`` shares the network's memory, so that writing into
    ``layer.weights`` or assigning to it changes the network.

    Args:
        weights: (outputs, inputs), copied as float32.
        biases: (outputs,), copied as float32.
        activation: applied to the sums.

    Raises:
        SizeMismatchError: shapes that do not fit.
        InvalidNetworkError: a value that is not finite, or an empty layer.
    """

    __slots__ = ("_activation", "_biases", "_weights")

    _weights: Float32Array
    _biases: Float32Array

    def __init__(
        self, weights: npt.ArrayLike, biases: npt.ArrayLike, activation: Activation = Activation.LINEAR
    ) -> None:
        matrix = number_array(weights, "weights", refusal=InvalidNetworkError)
        if matrix.ndim != 2:
            raise SizeMismatchError(f"weights must have shape (outputs, inputs), not {matrix.shape}")
        check_layer_shape(matrix.shape[1], matrix.shape[0])
        self._weights = np.empty(matrix.shape, dtype=np.float32)
        self._biases = np.empty(matrix.shape[0], dtype=np.float32)
        self._activation = checked_activation(activation)
        self.weights = matrix
        self.biases = biases

    @classmethod
    def create(
        cls,
        num_inputs: int,
        num_outputs: int,
        activation: Activation = Activation.RELU,
        *,
        seed: int | None = None,
        initialization: Initialization = "xavier_normal",
    ) -> Layer:
        """Return a layer with random weights and zero biases."""
        from lattice_fann.initialization import random_generator, random_weights

        check_layer_shape(num_inputs, num_outputs)
        checked_activation(activation)
        weights = random_weights(random_generator(seed), num_inputs, num_outputs, initialization)
        return cls(weights, np.zeros(num_outputs, dtype=np.float32), activation)

    @classmethod
    def _over(cls, weights: Float32Array, biases: Float32Array, activation: Activation) -> Layer:
        """Return a layer that shares the given arrays."""
        layer = cls.__new__(cls)
        layer._weights, layer._biases, layer._activation = weights, biases, activation
        return layer

    @property
    def weights(self) -> Float32Array:
        """(outputs, inputs) float32, writable in place."""
        return self._weights

    @weights.setter
    def weights(self, values: npt.ArrayLike) -> None:
        _assign(self._weights, values, "weights")

    @property
    def biases(self) -> Float32Array:
        """(outputs,) float32, writable in place."""
        return self._biases

    @biases.setter
    def biases(self, values: npt.ArrayLike) -> None:
        _assign(self._biases, values, "biases")

    @property
    def activation(self) -> Activation:
        """The activation of the layer's sums."""
        return self._activation

    @property
    def num_inputs(self) -> int:
        """How many values the layer takes."""
        return int(self._weights.shape[1])

    @property
    def num_outputs(self) -> int:
        """How many values the layer gives."""
        return int(self._weights.shape[0])

    @property
    def num_params(self) -> int:
        """The number of weights and biases."""
        return int(self._weights.size + self._biases.size)

    def forward(self, x: npt.ArrayLike) -> Float32Array:
        """Return this layer's outputs for one sample, (outputs,)."""
        from lattice_fann.network import Network

        return Network([self]).forward(x)

    def __repr__(self) -> str:
        return f"<Layer {self.num_inputs} -> {self._activation.name}({self.num_outputs})>"


def _assign(target: Float32Array, values: npt.ArrayLike, name: str) -> None:
    array = number_array(values, name, refusal=InvalidNetworkError)
    if array.shape != target.shape:
        raise SizeMismatchError(f"{name} have shape {array.shape}, the layer needs {target.shape}")
    converted = float32_of(array)
    if not np.isfinite(converted).all():
        raise InvalidNetworkError(f"{name} hold a value that is not finite in float32")
    target[...] = converted
