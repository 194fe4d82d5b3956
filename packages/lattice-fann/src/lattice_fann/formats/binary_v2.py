"""Binary format, version 2: checksum, metadata, input scaling, all activations.

Its weights are smaller.

Little-endian, no padding, exact length:

    magic "FANN" | version u32 = 2 | header length u32 | payload length u64
    header: JSON, UTF-8
    payload
    CRC-32 u32 of everything before it (the polynomial of zlib)

The header is ``{"weights": "float32" | "float16" | "int8", "layers": [{"inputs", "outputs", "activation", "alpha"?},
...], "input_scaling": bool, "metadata": {text: text}}``. The payload holds, if there is a scaling, means and scales
(float32 each), then for each layer its weights by output and its biases (float32). Weights of type int8 are preceded
by one float32 scale for each output: w = q * scale with q from -127 to 127. So the error is at most half a scale, max
|w| / 254 of that output.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from lattice_fann.activation import Activation
from lattice_fann.arguments import shown
from lattice_fann.errors import FannError, FormatError, InvalidInputError, InvalidNetworkError, UnsupportedError
from lattice_fann.layer import Float32Array, Layer, check_layer_shape

if TYPE_CHECKING:
    from lattice_fann.network import Network

__all__ = ["MAX_HEADER_BYTES", "WeightType", "check_weight_type", "encoded_header", "from_view", "to_bytes"]

WeightType = Literal["float32", "float16", "int8"]

MAX_HEADER_BYTES = 1 << 20
_PREFIX = struct.Struct("<4sIIQ")
_BYTES_OF = {"float32": 4, "float16": 2, "int8": 1}


def to_bytes(network: Network, weights: WeightType = "float32") -> bytes:
    """Return ``network`` in version 2.

    Raises:
        UnsupportedError: a weight is too large for float16, or the metadata is too long.
        InvalidNetworkError: a weight is not finite.
    """
    encoded = encoded_header(network, weights)
    scaling = network.input_scaling
    parts = [] if scaling is None else [np.asarray(values, dtype="<f4").tobytes() for values in scaling]
    for i, layer in enumerate(network.layers):
        if not (np.isfinite(layer.weights).all() and np.isfinite(layer.biases).all()):
            raise InvalidNetworkError(f"a weight or bias of layer {i} is not finite: such a network is not stored")
        parts.append(_encode_weights(np.ascontiguousarray(layer.weights), weights, i))
        parts.append(np.asarray(layer.biases, dtype="<f4").tobytes())
    payload = b"".join(parts)
    whole = _PREFIX.pack(b"FANN", 2, len(encoded), len(payload)) + encoded + payload
    return whole + struct.pack("<I", zlib.crc32(whole))


def check_weight_type(weights: object) -> None:
    """Refuse what is no name of a type that weights are stored as.

    Raises:
        InvalidInputError: it is none.
    """
    if not isinstance(weights, str) or weights not in get_args(WeightType):
        raise InvalidInputError(f"weights is {shown(weights)}; take one of {', '.join(get_args(WeightType))}")


def encoded_header(network: Network, weights: WeightType) -> bytes:
    """Return the JSON header of ``network``.

    Raises:
        UnsupportedError: the metadata is too long.
    """
    check_weight_type(weights)
    header = {
        "weights": weights,
        "layers": [_describe(layer) for layer in network.layers],
        "input_scaling": network.input_scaling is not None,
        "metadata": network.metadata,
    }
    encoded = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    if len(encoded) > MAX_HEADER_BYTES:
        raise UnsupportedError(f"layers and metadata take {len(encoded)} bytes, the most is {MAX_HEADER_BYTES}")
    return encoded


def _describe(layer: Layer) -> dict[str, Any]:
    described: dict[str, Any] = {
        "inputs": layer.num_inputs,
        "outputs": layer.num_outputs,
        "activation": layer.activation.name,
    }
    if layer.activation.alpha or math.copysign(1.0, layer.activation.alpha) < 0:  # -0.0 is a slope too
        described["alpha"] = layer.activation.alpha
    return described


def _encode_weights(values: Float32Array, kind: WeightType, layer: int) -> bytes:
    if kind == "float32":
        return values.astype("<f4").tobytes()
    if kind == "float16":
        with np.errstate(over="ignore"):
            half = values.astype("<f2")
        if not np.isfinite(half).all():
            raise UnsupportedError(f"layer {layer} has a weight beyond float16's 65504: store float32 or int8")
        return half.tobytes()
    largest = np.abs(values).max(axis=1)
    scale = np.where(largest > 0, largest / np.float32(127), np.float32(1)).astype("<f4")
    scale = np.maximum(scale, np.float32(1e-38))  # a subnormal scale would make the quotient overflow
    quantized = np.clip(np.rint(values / scale[:, None]), -127, 127).astype(np.int8)
    return bytes(scale.tobytes() + quantized.tobytes())


def from_view(view: memoryview) -> Network:
    """Return the network in ``view``, whose magic and version have been checked.

    Raises:
        FormatError: truncated, too long, corrupted, or holding impossible counts or values.
    """
    if len(view) < _PREFIX.size + 4:
        raise FormatError(f"{len(view)} bytes are too few for a network of version 2")
    _, _, header_bytes, payload_bytes = _PREFIX.unpack_from(view)
    if header_bytes > MAX_HEADER_BYTES:
        raise FormatError(f"the header claims {header_bytes} bytes, the most is {MAX_HEADER_BYTES}")
    expected = _PREFIX.size + header_bytes + payload_bytes + 4
    if len(view) != expected:
        raise FormatError(f"the file has {len(view)} bytes, its header and payload ask for {expected}")
    (checksum,) = struct.unpack_from("<I", view, len(view) - 4)
    actual = zlib.crc32(view[:-4])
    if checksum != actual:
        raise FormatError(f"the checksum is {actual:08x}, the file says {checksum:08x}: it is damaged")
    try:
        header = json.loads(bytes(view[_PREFIX.size : _PREFIX.size + header_bytes]))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"the header is no JSON: {error}") from None
    payload = view[_PREFIX.size + header_bytes : -4]
    try:
        return _decode(header, payload)
    except FormatError:
        raise
    except (FannError, TypeError, KeyError, AttributeError) as error:
        raise FormatError(f"the file holds no valid network: {type(error).__name__}: {error}") from error


class _Reader:
    """Takes arrays off the front of the payload, never more than it has."""

    def __init__(self, payload: memoryview) -> None:
        self.payload = payload
        self.offset = 0

    def take(self, dtype: str, count: int) -> npt.NDArray[Any]:
        nbytes = np.dtype(dtype).itemsize * count
        if nbytes > len(self.payload) - self.offset:
            raise FormatError(
                f"the payload ends early: {nbytes} bytes are needed, {len(self.payload) - self.offset} left"
            )
        array = np.frombuffer(self.payload, dtype=dtype, count=count, offset=self.offset)
        self.offset += nbytes
        return array


def _decode(header: Any, payload: memoryview) -> Network:
    from lattice_fann.network import Network

    unknown = set(header) - {"weights", "layers", "input_scaling", "metadata"}
    if unknown:
        raise FormatError(f"the header has unknown fields: {', '.join(sorted(unknown))}")
    kind = header["weights"]
    if kind not in _BYTES_OF:
        raise FormatError(f"weights of type {kind!r} are unknown; there are {', '.join(_BYTES_OF)}")
    described = header["layers"]
    if not isinstance(described, list) or not described:
        raise FormatError("the header names no layers")
    for entry in described:
        check_layer_shape(entry["inputs"], entry["outputs"])
    reader = _Reader(payload)
    scaling = None
    if header["input_scaling"] is True:
        size = described[0]["inputs"]
        scaling = (reader.take("<f4", size), reader.take("<f4", size))
    layers = []
    for entry in described:
        num_inputs, num_outputs = entry["inputs"], entry["outputs"]
        alpha = entry.get("alpha")
        if alpha is not None and not isinstance(alpha, float):
            raise FormatError(f"alpha is {alpha!r}; it must be a number with a point")
        activation = Activation.from_name(entry["activation"], 0.0 if alpha is None else alpha)
        if kind == "int8":
            scale = reader.take("<f4", num_outputs)
            quantized = reader.take("i1", num_inputs * num_outputs).reshape(num_outputs, num_inputs)
            with np.errstate(over="ignore", invalid="ignore"):
                weights = quantized.astype(np.float32) * scale[:, None]
        else:
            stored = reader.take("<f4" if kind == "float32" else "<f2", num_inputs * num_outputs)
            weights = stored.reshape(num_outputs, num_inputs)
        layers.append(Layer(weights, reader.take("<f4", num_outputs), activation))
    if reader.offset != len(payload):
        raise FormatError(f"{len(payload) - reader.offset} bytes follow the last layer")
    return Network(layers, input_scaling=scaling, metadata=header["metadata"])
