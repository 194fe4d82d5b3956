"""Reads a weight from its source: all of its tensors, in floats or in integers.

Its shape is the one that the program says.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lattice_inference.backends.tensor_source import StoredTensorSource, TensorSource
from lattice_inference.checkpoint.dtypes import bfloat16_bits
from lattice_inference.checkpoint.int8_weights import SCALE_SUFFIX, Int8Matrix, quantize_matrix
from lattice_inference.checkpoint.tensor_rows import beside
from lattice_inference.errors import CheckpointError
from lattice_inference.graph.program import WeightRef

__all__ = ["RepackedWeightsWarning", "check_shapes", "narrow", "read_float32", "read_int8"]

Float32Array = npt.NDArray[np.float32]

_INFINITY = {"float16": 0x7C00, "bfloat16": 0x7F80}


class RepackedWeightsWarning(UserWarning):
    """A tensor's block format has no kernel here, so it takes another form once loaded.

    The other form takes more memory.
    """


def read_float32(ref: WeightRef, source: TensorSource) -> Float32Array:
    """Return a weight in float32, whatever the source has.

    Raises:
        CheckpointError: a tensor is missing or of another shape.
    """
    tensors = [_float32(name, source) for name in ref.sources]
    check_shapes(ref, [tensor.shape for tensor in tensors])
    return np.ascontiguousarray(tensors[0] if len(tensors) == 1 else np.concatenate(tensors))


def read_int8(ref: WeightRef, source: TensorSource) -> Int8Matrix:
    """Return a weight in int8 with scales: the source's, or its floats rounded.

    Raises:
        CheckpointError: a tensor is missing, of another shape, or not finite.
    """
    parts = [_int8(name, source) or quantize_matrix(_float32(name, source), name) for name in ref.sources]
    check_shapes(ref, [part.integers.shape for part in parts])
    if len(parts) == 1:
        return parts[0]
    return Int8Matrix(
        np.concatenate([part.integers for part in parts]), np.concatenate([part.scales for part in parts])
    )


def _float32(name: str, source: TensorSource) -> Float32Array:
    stored = _int8(name, source)
    return source.float32(name) if stored is None else stored.float32()


def _int8(name: str, source: TensorSource) -> Int8Matrix | None:
    """Return a matrix that the source has as int8 with scales, else None.

    Raises:
        CheckpointError: it has int8 without scales that fit.
    """
    if not isinstance(source, StoredTensorSource) or source.info(name).dtype != "I8":
        return None
    info = source.info(name)
    beside_it = beside(name, SCALE_SUFFIX, of_rows=True)
    if beside_it not in source:
        raise CheckpointError(f"{name} is int8 and the checkpoint has no scales for it, {beside_it}")
    scales = source.float32(beside_it)
    if len(info.shape) != 2 or scales.size != info.shape[0]:
        raise CheckpointError(f"{name} is int8 of shape {info.shape} and has scales of shape {scales.shape}")
    integers = np.ascontiguousarray(source.array(name), np.int8)
    if integers.size and int(integers.min()) < -127:
        raise CheckpointError(f"{name} holds -128: int8 weights go from -127 to 127")
    return Int8Matrix(integers, scales.reshape(-1))


def check_shapes(ref: WeightRef, shapes: list[tuple[int, ...]]) -> None:
    """Raise CheckpointError unless tensors of these shapes are the weight together."""
    if {shape[1:] for shape in shapes} != {ref.shape[1:]} or sum([shape[0] for shape in shapes]) != ref.shape[0]:
        names = " + ".join(f"{name} {shape}" for name, shape in zip(ref.sources, shapes, strict=True))
        raise CheckpointError(f"the model needs a tensor of shape {ref.shape}, the checkpoint has {names}")


def narrow(weight: Float32Array, precision: str, name: str) -> Float32Array | npt.NDArray[np.uint16]:
    """Return ``weight`` in ``precision``, rounded to nearest even.

    16-bit types are the uint16 of their bits.

    Raises:
        CheckpointError: a finite value would become infinite; ``name`` says of which tensor.
    """
    if precision == "float32":
        return weight
    finite = np.isfinite(weight)
    if precision == "float16":
        with np.errstate(over="ignore"):
            halves = weight.astype(np.float16).view(np.uint16)
    else:
        halves = bfloat16_bits(weight)
    infinite = (halves & 0x7FFF) == _INFINITY[precision]
    if (infinite & finite).any():
        limit = 65504.0 if precision == "float16" else 3.3895e38
        raise CheckpointError(
            f"{name} holds {float(np.abs(weight[finite]).max()):g} and {precision} ends at {limit:g}: load the model with "
            "precision='float32'" + (" or 'bfloat16'" if precision == "float16" else "")
        )
    return np.ascontiguousarray(halves)
