"""A network: dense layers one after the other, in one block of memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from lattice_fann._engine import Engine
from lattice_fann.arguments import instance, listed, shown, whole
from lattice_fann.arrays import float32_of, number_array
from lattice_fann.errors import InvalidInputError, InvalidNetworkError, SizeMismatchError
from lattice_fann.layer import MAX_LAYERS, Float32Array, Layer, check_layer_shape

if TYPE_CHECKING:
    from lattice_fann.formats.binary_v2 import WeightType

__all__ = ["InputScaling", "Network"]


class InputScaling(NamedTuple):
    """What a network does to its inputs first: (x - mean) * scale."""

    mean: Float32Array
    scale: Float32Array


class Network(Engine):
    """Dense layers, run forward.

    Several threads may run one network at once; none may do so while another trains it or writes its weights.
    Networks can be copied, pickled and stored (:meth:`to_bytes`, :meth:`save`).

    Args:
        layers: at least one, each taking as many values as the one before gives; softmax only last. Their weights are
            copied.
        input_scaling: (mean, scale), each (inputs,): the network then computes on (x - mean) * scale.
        metadata: texts to be stored with the network in format 2.
        isa: the instruction set to use, for tests; None takes ``LATTICE_ISA`` or the best one.

    Raises:
        InvalidNetworkError: no layers, widths that do not fit, a softmax that is not last.

    >>> from lattice_fann import Activation, Layer, Network
    >>> network = Network([Layer([[1.0, 2.0]], [0.5], Activation.RELU)])
    >>> network.forward([3.0, 4.0]).tolist()
    [11.5]
    >>> Network.from_bytes(network.to_bytes()).architecture()
    '2 -> ReLU(1)'
    """

    def __init__(
        self,
        layers: Iterable[Layer],
        *,
        input_scaling: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
        metadata: Mapping[str, str] | None = None,
        isa: str | None = None,
    ) -> None:
        given: list[Layer] = listed(layers, "layers", "Layer")
        for i, layer in enumerate(given):
            instance(layer, f"layers[{i}]", Layer)
        if not given:
            raise InvalidNetworkError("a network needs at least one layer")
        if len(given) > MAX_LAYERS:
            raise InvalidNetworkError(f"{len(given)} layers; the most is {MAX_LAYERS}")
        for i, layer in enumerate(given):
            check_layer_shape(layer.num_inputs, layer.num_outputs)
            if i and layer.num_inputs != given[i - 1].num_outputs:
                raise InvalidNetworkError(
                    f"layer {i} takes {layer.num_inputs} values, layer {i - 1} gives {given[i - 1].num_outputs}"
                )
            if layer.activation.is_softmax and i + 1 < len(given):
                raise InvalidNetworkError(f"layer {i} is a softmax; only the last layer may be one")
        widths = [given[0].num_inputs, *(layer.num_outputs for layer in given)]
        self._allocate(widths, [(layer.activation.tag, layer.activation.alpha) for layer in given], isa)
        self._layers = tuple(
            Layer._over(*self._views(self.parameters, i), layer.activation) for i, layer in enumerate(given)
        )
        for mine, theirs in zip(self._layers, given, strict=True):
            mine.weights, mine.biases = theirs.weights, theirs.biases
        if input_scaling is not None:
            self.input_scaling = input_scaling
        self.metadata = {} if metadata is None else metadata

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers; their weights and biases are views of the network's memory."""
        return self._layers

    @property
    def num_inputs(self) -> int:
        """How many values a sample has."""
        return self._layers[0].num_inputs

    @property
    def num_outputs(self) -> int:
        """How many values come out."""
        return self._layers[-1].num_outputs

    @property
    def total_params(self) -> int:
        """The number of weights and biases of all layers."""
        return sum(layer.num_params for layer in self._layers)

    def architecture(self) -> str:
        """Return the widths and activations in one line: ``784 -> ReLU(128) -> Softmax(10)``."""
        return " -> ".join(
            [str(self.num_inputs), *(f"{layer.activation.name}({layer.num_outputs})" for layer in self._layers)]
        )

    @property
    def input_scaling(self) -> InputScaling | None:
        """(mean, scale) applied to every input as (x - mean) * scale, or None.

        Assigning copies and checks.
        """
        scaling = self._input_scaling()
        return None if scaling is None else InputScaling(*scaling)

    @input_scaling.setter
    def input_scaling(self, scaling: tuple[npt.ArrayLike, npt.ArrayLike] | None) -> None:
        if scaling is None:
            self._set_input_scaling(None, None)
            return
        if not isinstance(scaling, (tuple, list)) or len(scaling) != 2:
            raise InvalidInputError(f"the input scaling is {shown(scaling)}; it must be a pair (mean, scale), or None")
        mean, scale = (
            float32_of(number_array(values, name)) for values, name in zip(scaling, ("mean", "scale"), strict=True)
        )
        if mean.shape != (self.num_inputs,) or scale.shape != (self.num_inputs,):
            raise SizeMismatchError(
                f"mean and scale must have shape ({self.num_inputs},), not {mean.shape} and {scale.shape}"
            )
        if not (np.isfinite(mean).all() and np.isfinite(scale).all()):
            raise InvalidNetworkError("the input scaling holds a value that is not finite")
        self._set_input_scaling(mean, scale)

    def fit_input_scaling(self, x: npt.ArrayLike) -> None:
        """Set the input scaling so that each column of ``x`` gets mean 0 and standard deviation 1.

        A column that does not vary is only centred.
        """
        rows = float32_of(number_array(x, "x")).astype(np.float64)  # what the network computes with
        if rows.ndim != 2 or rows.shape[1] != self.num_inputs or not rows.shape[0]:
            raise SizeMismatchError(f"x must have shape (rows, {self.num_inputs}), at least one row, not {rows.shape}")
        if not np.isfinite(rows).all():
            row, column = np.argwhere(~np.isfinite(rows))[0]
            raise InvalidInputError(f"x has a value that is not finite in float32 at row {row}, column {column}")
        deviation = rows.std(axis=0)
        # in any unit; 1 / 1e-38 is finite in float32
        varies = deviation > np.maximum(1e-12 * np.abs(rows).max(axis=0), 1e-38)
        self.input_scaling = (rows.mean(axis=0), 1.0 / np.where(varies, deviation, 1.0))

    @property
    def metadata(self) -> dict[str, str]:
        """Texts that format 2 stores with the network."""
        return self._metadata

    @metadata.setter
    def metadata(self, metadata: Mapping[str, str]) -> None:
        if not isinstance(metadata, Mapping):
            raise InvalidInputError(f"metadata is {shown(metadata)}; it must map texts to texts")
        for text in (text for item in metadata.items() for text in item):
            if not isinstance(text, str):
                raise InvalidInputError(f"metadata holds {shown(text)}; it must map texts to texts")
            try:
                text.encode()
            except UnicodeEncodeError:
                raise InvalidInputError(
                    f"metadata holds {shown(text)}: half a surrogate pair cannot be stored"
                ) from None
        self._metadata = dict(metadata)

    def parameter_vector(self) -> Float32Array:
        """Return a copy of all parameters, (total_params,).

        Layer by layer, weights by output, then biases.
        """
        return np.concatenate([part.ravel() for layer in self._layers for part in (layer.weights, layer.biases)])

    def set_parameter_vector(self, vector: npt.ArrayLike) -> None:
        """Set all parameters from a vector laid out as :meth:`parameter_vector`.

        Raises:
            SizeMismatchError: it has another size. The network is then as it was.
            InvalidNetworkError: a value is not finite. The network is then as it was.
        """
        values = number_array(vector, "the vector")
        if values.shape != (self.total_params,):
            raise SizeMismatchError(f"the vector has shape {values.shape}, the network ({self.total_params},)")
        if not np.isfinite(float32_of(values)).all():
            raise InvalidNetworkError("the vector holds a value that is not finite in float32")
        offset = 0
        for layer in self._layers:
            for part in (layer.weights, layer.biases):
                part[...] = values[offset : offset + part.size].reshape(part.shape)
                offset += part.size

    def layer_outputs(self, x: npt.ArrayLike) -> list[Float32Array]:
        """Return what each layer gives for one sample, (outputs of the layer,) each."""
        results = []
        for count in range(1, len(self._layers) + 1):
            part = Network(self._layers[:count], input_scaling=self.input_scaling, isa=self.isa)
            results.append(part.forward(x))
        return results

    def to_bytes(self, version: Literal[1, 2] | None = None, *, weights: WeightType = "float32") -> bytes:
        """Return the network in a binary format.

        Args:
            version: 1, the plain FANN format; 2, which also holds checksum, metadata, input scaling, GELU and SiLU;
                None takes 1 where it can say everything.
            weights: ``float32``, or in version 2 also ``float16`` or ``int8`` (a scale for each output).

        Raises:
            UnsupportedError: the version cannot express this network.
            InvalidNetworkError: a weight is not finite.
        """
        from lattice_fann.formats import binary_v1, binary_v2
        from lattice_fann.formats.binary_v2 import check_weight_type

        if version is not None:
            whole(version, "version", least=1, most=2)
        check_weight_type(weights)
        if version is None:
            version = 1 if weights == "float32" and binary_v1.obstacle(self) is None else 2
        if version == 1:
            if weights != "float32":
                raise InvalidInputError(f"version 1 holds float32 weights only, not {weights}: use version=2")
            return binary_v1.to_bytes(self)
        return binary_v2.to_bytes(self, weights)

    @classmethod
    def from_bytes(cls, content: bytes | bytearray | memoryview) -> Network:
        """Return the network that :meth:`to_bytes` stored, of either version.

        Raises:
            FormatError: these bytes are no network: every count and value is checked before memory is allocated.
        """
        from lattice_fann.formats.binary import from_bytes

        return from_bytes(content)

    def save(self, path: str | os.PathLike[str], *, weights: WeightType = "float32") -> None:
        """Write the network to a file, whole or not at all. The suffix names the format.

        ``.safetensors``, ``.net`` (the C library FANN's text format), anything else: :meth:`to_bytes`.
        """
        from lattice_fann.formats.files import save

        save(self, path, weights=weights)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Network:
        """Read a network from a file.

        The file is from :meth:`save`, the reference system or the C library FANN.

        Raises:
            FormatError: it is none.
            OSError: it cannot be read.
        """
        from lattice_fann.formats.files import load

        return load(path)

    def copy(self) -> Network:
        """Return an independent network with the same weights."""
        return Network(self._layers, input_scaling=self.input_scaling, metadata=self._metadata, isa=self.isa)

    def __copy__(self) -> Network:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Network:
        return self.copy()

    def __reduce__(self) -> tuple[Any, ...]:
        return Network.from_bytes, (self.to_bytes(2),)

    def __repr__(self) -> str:
        return f"<Network {self.architecture()}, {self.total_params} parameters>"
