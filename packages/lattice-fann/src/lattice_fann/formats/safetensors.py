"""safetensors files for other tools.

Tensors are ``layers.<i>.weight`` (outputs, inputs) and ``layers.<i>.bias``. Layout: header length u64 little-endian,
JSON header, data. The header's ``__metadata__`` holds texts: ours are ``lattice_fann``, a JSON list of the
activations (name, alpha), and the network's own metadata under ``metadata.<key>``.
"""

from __future__ import annotations

import json
import math
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from lattice_fann.activation import Activation
from lattice_fann.errors import FannError, FormatError, InvalidNetworkError, UnsupportedError
from lattice_fann.layer import Float32Array, Layer

if TYPE_CHECKING:
    from lattice_fann.network import Network

__all__ = ["MAX_HEADER_BYTES", "check_header", "from_safetensors", "to_safetensors"]

MAX_HEADER_BYTES = 1 << 20
_OURS = "lattice_fann"


def to_safetensors(network: Network) -> bytes:
    """Return ``network`` as the content of a safetensors file, float32.

    Raises:
        InvalidNetworkError: a weight is not finite.
        UnsupportedError: the metadata is too long.
    """
    arrays = _arrays_of(network)
    data = []
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise InvalidNetworkError(f"{name} holds a value that is not finite: such a network is not stored")
        data.append(np.ascontiguousarray(array, dtype="<f4").tobytes())
    encoded = _encoded_header(network, arrays)
    return struct.pack("<Q", len(encoded)) + encoded + b"".join(data)


def check_header(network: Network) -> None:
    """Refuse a network whose header would be longer than what is read.

    Raises:
        UnsupportedError: it would.
    """
    _encoded_header(network, _arrays_of(network))


def _arrays_of(network: Network) -> dict[str, Float32Array]:
    arrays: dict[str, Float32Array] = {}
    for i, layer in enumerate(network.layers):
        arrays[f"layers.{i}.weight"] = layer.weights
        arrays[f"layers.{i}.bias"] = layer.biases
    if network.input_scaling is not None:
        arrays["input.mean"], arrays["input.scale"] = network.input_scaling
    return arrays


def _encoded_header(network: Network, arrays: dict[str, Float32Array]) -> bytes:
    activations = [[layer.activation.name, layer.activation.alpha] for layer in network.layers]
    metadata = {_OURS: json.dumps(activations)}
    metadata |= {f"metadata.{key}": value for key, value in network.metadata.items()}
    header: dict[str, Any] = {"__metadata__": metadata}
    offset = 0
    for name, array in arrays.items():
        end = offset + 4 * array.size
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)  # data aligned to 8 bytes
    if len(encoded) > MAX_HEADER_BYTES:
        raise UnsupportedError(f"layers and metadata take {len(encoded)} bytes, the most is {MAX_HEADER_BYTES}")
    return encoded


def from_safetensors(content: bytes) -> Network:
    """Return the network in a safetensors file that :func:`to_safetensors` made.

    Raises:
        FormatError: it is no such file.
    """
    from lattice_fann.network import Network

    if len(content) < 8:
        raise FormatError(f"{len(content)} bytes are no safetensors file")
    (length,) = struct.unpack_from("<Q", content)
    if length > min(MAX_HEADER_BYTES, len(content) - 8):
        raise FormatError(
            f"the header claims {length} bytes; the file has {len(content)}, the most is {MAX_HEADER_BYTES}"
        )
    try:
        header = json.loads(content[8 : 8 + length])
        data = memoryview(content)[8 + length :]
        metadata = header.pop("__metadata__")
        described = json.loads(metadata[_OURS])
        arrays = {name: _array(name, entry, data) for name, entry in header.items()}
        end = 0
        for begin, after in sorted(tuple(entry["data_offsets"]) for entry in header.values()):
            if begin != end:
                raise FormatError(f"a tensor begins at byte {begin}, the one before it ends at {end}")
            end = after
        if end != len(data):
            raise FormatError("the tensors do not fill the file")
        layers = [
            Layer(arrays.pop(f"layers.{i}.weight"), arrays.pop(f"layers.{i}.bias"), Activation.from_name(name, alpha))
            for i, (name, alpha) in enumerate(described)
        ]
        scaling = (arrays.pop("input.mean"), arrays.pop("input.scale")) if "input.mean" in arrays else None
        if arrays:
            raise FormatError(f"the file holds tensors of no layer: {', '.join(sorted(arrays))}")
        texts = {key.removeprefix("metadata."): value for key, value in metadata.items() if key != _OURS}
        return Network(layers, input_scaling=scaling, metadata=texts)
    except FormatError:
        raise
    except (FannError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise FormatError(f"the file holds no network of lattice-fann: {type(error).__name__}: {error}") from error


def _array(name: str, entry: Any, data: memoryview) -> Float32Array:
    if entry["dtype"] != "F32":
        raise FormatError(f"{name} has dtype {entry['dtype']}; networks are stored as F32")
    shape, (begin, end) = entry["shape"], entry["data_offsets"]
    if not all(isinstance(number, int) and number >= 0 for number in [*shape, begin, end]) or len(shape) > 2:
        raise FormatError(f"{name} has an impossible shape or offset")
    if not begin <= end <= len(data) or end - begin != 4 * math.prod(shape):
        raise FormatError(f"{name} of shape {shape} does not lie at bytes {begin} to {end} of {len(data)}")
    return np.frombuffer(data[begin:end], dtype="<f4").reshape(shape)
