"""Builds networks step by step."""

from __future__ import annotations

from itertools import pairwise

from lattice_fann.activation import Activation, checked_activation
from lattice_fann.errors import InvalidNetworkError
from lattice_fann.initialization import Initialization, random_generator, random_weights
from lattice_fann.layer import Layer, check_layer_shape
from lattice_fann.network import Network

__all__ = ["NetworkBuilder"]


def _width(size: int) -> int:
    check_layer_shape(1, size)
    return int(size)


class NetworkBuilder:
    """Collects widths and activations, then makes a network with random weights and zero biases.

    >>> from lattice_fann import Activation, NetworkBuilder
    >>> network = NetworkBuilder().input(4).hidden(8, Activation.RELU).output(3, Activation.SOFTMAX).build(seed=0)
    >>> network.architecture()
    '4 -> ReLU(8) -> Softmax(3)'
    """

    def __init__(self) -> None:
        self._inputs: int | None = None
        self._layers: list[tuple[int, Activation]] = []

    def input(self, size: int) -> NetworkBuilder:
        """Set the number of inputs; the last call counts."""
        self._inputs = _width(size)
        return self

    def hidden(self, size: int, activation: Activation = Activation.RELU) -> NetworkBuilder:
        """Add a layer of ``size`` outputs."""
        self._layers.append((_width(size), checked_activation(activation)))
        return self

    def dense(self, size: int) -> NetworkBuilder:
        """Add a layer of ``size`` outputs with the ReLU."""
        return self.hidden(size)

    def output(self, size: int, activation: Activation = Activation.LINEAR) -> NetworkBuilder:
        """Add the last layer."""
        return self.hidden(size, activation)

    def build(
        self, seed: int | None = None, *, initialization: Initialization = "xavier_normal", isa: str | None = None
    ) -> Network:
        """Return the network.

        One seed gives bit-identical weights; None takes entropy from the system.

        Raises:
            InvalidNetworkError: no input or no layers were named, or they make no network.
        """
        if self._inputs is None:
            raise InvalidNetworkError("the builder was not told the number of inputs: call .input(n)")
        if not self._layers:
            raise InvalidNetworkError("the builder was given no layers: call .output(n, activation)")
        widths = [self._inputs, *(size for size, _ in self._layers)]
        for num_inputs, num_outputs in pairwise(widths):
            check_layer_shape(num_inputs, num_outputs)
        generator = random_generator(seed)
        layers = [
            Layer(random_weights(generator, num_inputs, num_outputs, initialization), [0.0] * num_outputs, activation)
            for num_inputs, (num_outputs, activation) in zip(widths, self._layers, strict=False)
        ]
        return Network(layers, isa=isa)
