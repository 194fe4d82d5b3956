"""A BERT encoder's directory as one GGUF file, as llama.cpp's converter lays it out."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from lattice_inference.checkpoint.blocks import BLOCK_FORMATS
from lattice_inference.checkpoint.checkpoint import Checkpoint
from lattice_inference.checkpoint.ggml_types import FILE_TYPES, QUANTIZATION_VERSION
from lattice_inference.checkpoint.gguf_writer import TensorToWrite, write_gguf
from lattice_inference.checkpoint.model_file import content_of
from lattice_inference.checkpoint.read_once import reading_once
from lattice_inference.checkpoint.rounding import QuantizedType, quantize_rows
from lattice_inference.errors import CheckpointError, InvalidInputError, UnsupportedError
from lattice_inference.models.family import GgufExport, vectors
from lattice_inference.models.opened_model import open_model
from lattice_inference.models.sentence_layers import UnitLayer
from lattice_inference.models.sentence_modules import SentenceModules
from lattice_inference.quantize.destination import check_destination, check_type
from lattice_inference.quantize.report import QuantizeReport
from lattice_inference.tokenizer import load_tokenizer
from lattice_inference.tokenizer.gguf_export import wordpiece_metadata

__all__ = ["export_bert_gguf"]


@reading_once()
def export_bert_gguf(
    directory: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    dtype: QuantizedType = "F16",
    *,
    overwrite: bool = False,
    on_tensor: Callable[[str], object] = lambda name: None,
) -> QuantizeReport:
    """Write the BERT encoder in ``directory`` to a GGUF file.

    The matrices of its layers and its words are in ``dtype``. Norms, biases, and the tables of positions and token
    types are F32. A GGUF file has no place for a token limit below the number of positions (``max_seq_length``), for
    prompts, nor for whether vectors are scaled to length 1.

    Args:
        directory: safetensors weights, ``config.json``, a WordPiece tokenizer, and ``modules.json`` if there is one.
        destination: the file to be written. It appears when it is complete.
        dtype: the type.
        overwrite: replace ``destination`` if it exists.
        on_tensor: told of each tensor that was written, by its name.

    Raises:
        InvalidInputError: no such type, or ``destination`` exists.
        UnsupportedError: it is not a BERT encoder with GELU and a WordPiece tokenizer, or something stands on top of it.
        CheckpointError, ModelConfigError, TokenizerError, ModelNotFoundError: a file is malformed or missing.
        WriteError: ``destination`` cannot be written.
    """
    check_type(dtype)
    directory, destination = Path(directory), Path(destination)
    check_destination(destination, (), overwrite=overwrite)
    if os.path.isfile(directory):
        raise UnsupportedError(
            f"{directory}: a model's directory is written as GGUF, and this is {content_of(directory)}"
        )
    with open_model(directory, causal=False) as model:
        export_gguf, modules, checkpoint = model.family.export_gguf, model.modules, model.checkpoint
        if export_gguf is None:
            raise UnsupportedError(f"{directory}: models of the family {model.family.name!r} are not written as GGUF")
        written = export_gguf(checkpoint, model.config, None if modules is None else modules.pooling, str(directory))
        metadata = _metadata(directory, written, modules, dtype)
        model.check(vectors())
        stored = written.names
        types = {name: _target(checkpoint, name, stored[name], dtype, written.floats) for name in stored}
        tensors = [
            TensorToWrite(
                name,
                checkpoint.info(stored[name]).shape,
                types[name],
                partial(_chunks, checkpoint, stored[name], types[name]),
            )
            for name in stored
        ]
        write_gguf(destination, metadata, tensors, on_tensor=on_tensor)
        source_bytes = sum(checkpoint.info(name).nbytes for name in stored.values())
    return QuantizeReport.of(destination, tensors, source_bytes)


def _metadata(
    directory: Path, written: GgufExport, modules: SentenceModules | None, dtype: QuantizedType
) -> dict[str, object]:
    metadata: dict[str, object] = {
        "general.architecture": written.architecture,
        "general.type": "model",
        "general.name": directory.name,
        **written.network,
        "general.file_type": FILE_TYPES[dtype],
    }
    if modules is not None and (
        modules.do_lower_case or not all(isinstance(layer, UnitLayer) for layer in modules.layers)
    ):
        raise UnsupportedError(f"{directory}: a GGUF file has no place for what modules.json adds to the encoder")
    metadata |= written.pooling
    if dtype in BLOCK_FORMATS:
        metadata["general.quantization_version"] = QUANTIZATION_VERSION
    return metadata | wordpiece_metadata(load_tokenizer(directory), written.token_types)


def _target(checkpoint: Checkpoint, name: str, stored: str, dtype: str, floats: Collection[str]) -> str:
    shape = checkpoint.info(stored).shape
    if len(shape) < 2 or name in floats:
        return "F32"
    if dtype in BLOCK_FORMATS and shape[-1] % BLOCK_FORMATS[dtype].elements:
        return "F16"
    return dtype


def _chunks(checkpoint: Checkpoint, name: str, dtype: str) -> Iterator[bytes]:
    for values in checkpoint.float32_chunks(name):
        try:
            yield np.ascontiguousarray(quantize_rows(values, dtype)).tobytes()
        except InvalidInputError as cause:
            raise CheckpointError(f"{checkpoint.directory}: tensor {name!r}: {cause}") from cause
    checkpoint.drop_pages(name)
