"""A GGUF file's tensors in a smaller type."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from lattice_inference.checkpoint.blocks import BLOCK_FORMATS
from lattice_inference.checkpoint.checkpoint import Checkpoint
from lattice_inference.checkpoint.dtypes import DTYPES
from lattice_inference.checkpoint.formats import only_gguf
from lattice_inference.checkpoint.ggml_types import FILE_TYPES, QUANTIZATION_VERSION
from lattice_inference.checkpoint.gguf import GgufFile, open_gguf
from lattice_inference.checkpoint.gguf_writer import EncodedEntry, TensorToWrite, write_gguf
from lattice_inference.checkpoint.rounding import QuantizedType, quantize_rows
from lattice_inference.errors import CheckpointError, InvalidInputError, UnsupportedError
from lattice_inference.quantize.destination import check_destination, check_type
from lattice_inference.quantize.report import QuantizeReport

__all__ = ["kept_metadata", "quantize_gguf"]

# Of the tensors with two dimensions, those that are small or looked up by position; ggml's readers want them as floats.
_KEPT = ("position_embd.weight", "token_types.weight")

# Of mixtures of experts: other experts would be chosen by rounded logits.
_ROUTER = "ffn_gate_inp"

# Of recurrent layers: a kernel has a few numbers for each column, which readers want as floats.
_CONVOLUTION = "ssm_conv1d"

# How much of a tensor that is copied is in memory at a time.
_PIECE_BYTES = 1 << 22


def quantize_gguf(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    dtype: QuantizedType,
    *,
    pure: bool = False,
    overwrite: bool = False,
    on_tensor: Callable[[str], object] = lambda name: None,
) -> QuantizeReport:
    """Write the model in the GGUF file ``source`` to ``destination``, matrices in ``dtype``.

    Matrices are the tensors of two or more dimensions whose name ends in ``weight``, but for position and token type
    embeddings, routers of experts and kernels of convolutions; all others are written as they are. One whose rows are no
    multiple of 32 becomes F16.
    For the types of four and five bits, the output matrix (the token embedding, where the two are one) becomes Q8_0, for it
    decides most about quality. Parts of a split model are joined. Metadata are kept.

    Args:
        source: the file, or one part of a split model; best in F32, F16 or BF16, though every type that is read will do.
        destination: the file to be written. It appears when it is complete.
        dtype: the type.
        pure: make no exception for the output matrix.
        overwrite: replace ``destination`` if it exists.
        on_tensor: told of each tensor that was written, by its name.

    Raises:
        InvalidInputError: no such type, ``destination`` exists, or is the source itself.
        CheckpointError, ModelNotFoundError: ``source`` is not a well-formed GGUF file, or a number in it does not fit.
        UnsupportedError: a matrix is of a type that is not read.
        WriteError: ``destination`` cannot be written.
    """
    check_type(dtype)
    destination = Path(destination)
    source = Path(source)
    if os.path.isdir(source):
        source = only_gguf(source) or source
    with open_gguf(source) as checkpoint:
        check_destination(destination, [file.path for file in checkpoint.files], overwrite=overwrite)
        types = {name: _target(checkpoint, name, dtype, pure) for name in checkpoint.names()}
        tensors = [
            TensorToWrite(
                name, checkpoint.info(name).shape, types[name], partial(_chunks, checkpoint, name, types[name])
            )
            for name in types
        ]
        write_gguf(destination, _metadata(checkpoint, dtype), tensors, on_tensor=on_tensor)
        source_bytes = sum(checkpoint.info(name).nbytes for name in types)
    return QuantizeReport.of(destination, tensors, source_bytes)


def kept_metadata(checkpoint: Checkpoint) -> dict[str, object]:
    """Return an open GGUF file's metadata, without the entries of a split model's part."""
    first = checkpoint.files[0]
    assert isinstance(first, GgufFile)
    # alignment is the writer's own, and the parts become one
    left_out = ("general.alignment", "split.no", "split.count", "split.tensors.count")
    return {key: EncodedEntry(first.encoded_entry(key)) for key in checkpoint.metadata if key not in left_out}


def _metadata(checkpoint: Checkpoint, dtype: QuantizedType) -> dict[str, object]:
    entries = kept_metadata(checkpoint)
    entries["general.file_type"] = FILE_TYPES[dtype]
    if dtype in BLOCK_FORMATS:
        entries["general.quantization_version"] = QUANTIZATION_VERSION
    return entries


def _target(checkpoint: Checkpoint, name: str, dtype: QuantizedType, pure: bool) -> str:
    """Return the type that a tensor is written in."""
    info = checkpoint.info(name)
    is_kept = name in _KEPT or "_norm" in name or _ROUTER in name or _CONVOLUTION in name
    is_matrix = len(info.shape) >= 2 and name.endswith("weight") and not is_kept
    if not is_matrix:
        if info.dtype not in DTYPES and info.dtype not in BLOCK_FORMATS:
            raise UnsupportedError(f"{info.file}: tensor {name!r} is {info.dtype}, which is not read")
        return info.dtype
    if dtype in BLOCK_FORMATS and info.shape[-1] % BLOCK_FORMATS[dtype].elements:
        return "F16"
    is_output = name == ("output.weight" if "output.weight" in checkpoint else "token_embd.weight")
    if is_output and not pure and dtype.startswith(("Q4", "Q5")):
        return "Q8_0"
    return dtype


def _chunks(checkpoint: Checkpoint, name: str, dtype: str) -> Iterator[bytes]:
    """Yield a tensor's bytes in ``dtype``."""
    if checkpoint.info(name).dtype == dtype:
        for rows in np.array_split(
            checkpoint.array(name).reshape(-1), 1 + checkpoint.info(name).nbytes // _PIECE_BYTES
        ):
            yield rows.tobytes()
    else:
        for values in checkpoint.float32_chunks(name):
            try:
                yield quantize_rows(values, dtype).tobytes()
            except InvalidInputError as cause:
                raise CheckpointError(f"{checkpoint.directory}: tensor {name!r}: {cause}") from cause
    checkpoint.drop_pages(name)
