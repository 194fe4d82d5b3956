"""FANN binary format, version 1: the reference system's, byte for byte.

Little-endian, no padding, no checksum, exact length. (Not the text format of the C library FANN, despite the magic.)

    magic "FANN" | version u32 = 1 | layer count u32
    for each layer:  inputs u32 | outputs u32 | activation u8 | alpha f32, only of a leaky ReLU
                     weights f32 x outputs x inputs, by output | biases f32 x outputs
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from lattice_fann.activation import Activation
from lattice_fann.errors import FannError, FormatError, InvalidNetworkError, UnsupportedError
from lattice_fann.layer import MAX_LAYERS, Layer, check_layer_shape

if TYPE_CHECKING:
    from lattice_fann.network import Network

__all__ = ["from_view", "obstacle", "to_bytes"]

_SMALLEST_LAYER = 9 + 8  # header, one weight, one bias
_LAST_TAG = 5
_LEAKY_RELU = 4


def obstacle(network: Network) -> str | None:
    """Return why version 1 cannot hold ``network``, or None if it can."""
    for i, layer in enumerate(network.layers):
        if layer.activation.tag > _LAST_TAG:
            return f"layer {i} is a {layer.activation.name}, which it has no tag for"
    if network.input_scaling is not None:
        return "it has no place for an input scaling"
    if network.metadata:
        return "it has no place for metadata"
    return None


def to_bytes(network: Network) -> bytes:
    """Return ``network`` in version 1.

    Raises:
        UnsupportedError: the network says more than version 1 can.
        InvalidNetworkError: a weight is not finite.
    """
    reason = obstacle(network)
    if reason is not None:
        raise UnsupportedError(f"version 1 cannot hold this network: {reason}. Use version=2")
    parts = [b"FANN", struct.pack("<II", 1, len(network.layers))]
    for i, layer in enumerate(network.layers):
        parts.append(struct.pack("<IIB", layer.num_inputs, layer.num_outputs, layer.activation.tag))
        if layer.activation.tag == _LEAKY_RELU:
            parts.append(struct.pack("<f", layer.activation.alpha))
        for name, values in (("weight", layer.weights), ("bias", layer.biases)):
            if not np.isfinite(values).all():
                raise InvalidNetworkError(f"a {name} of layer {i} is not finite: such a network is not stored")
            parts.append(np.ascontiguousarray(values, dtype="<f4").tobytes())
    return b"".join(parts)


def from_view(view: memoryview) -> Network:
    """Return the network in ``view``, whose magic and version have been checked.

    Raises:
        FormatError: truncated, too long, or holding impossible counts or values.
    """
    from lattice_fann.network import Network

    (count,) = _unpack("<I", view, 8, "the layer count")
    offset = 12
    if count == 0:
        raise FormatError("the file holds no layers")
    if count > MAX_LAYERS:
        raise FormatError(f"the file claims {count} layers; the most is {MAX_LAYERS}")
    if count > (len(view) - offset) // _SMALLEST_LAYER:
        raise FormatError(f"the file claims {count} layers, its {len(view)} bytes cannot hold so many")
    layers = []
    try:
        for i in range(count):
            num_inputs, num_outputs, tag = _unpack("<IIB", view, offset, f"the header of layer {i}")
            offset += 9
            if tag > _LAST_TAG:
                raise FormatError(f"layer {i} has the activation tag {tag}; version 1 knows 0 to {_LAST_TAG}")
            alpha = 0.0
            if tag == _LEAKY_RELU:
                (alpha,) = _unpack("<f", view, offset, f"the slope of layer {i}")
                offset += 4
            check_layer_shape(num_inputs, num_outputs)
            needed = 4 * (num_inputs * num_outputs + num_outputs)
            if needed > len(view) - offset:
                raise FormatError(
                    f"layer {i} needs {needed} bytes for {num_outputs} x {num_inputs} weights, "
                    f"{len(view) - offset} are left"
                )
            values = np.frombuffer(view, dtype="<f4", count=needed // 4, offset=offset)
            offset += needed
            weights = values[: num_inputs * num_outputs].reshape(num_outputs, num_inputs)
            layers.append(Layer(weights, values[num_inputs * num_outputs :], Activation(tag, alpha)))
        if offset != len(view):
            raise FormatError(f"{len(view) - offset} bytes follow the last layer")
        return Network(layers)
    except FormatError:
        raise
    except FannError as error:
        raise FormatError(f"the file holds no valid network: {error}") from error


def _unpack(form: str, view: memoryview, offset: int, what: str) -> tuple[int, ...]:
    if struct.calcsize(form) > len(view) - offset:
        raise FormatError(f"the file ends within {what}, after {len(view)} bytes")
    return struct.unpack_from(form, view, offset)
