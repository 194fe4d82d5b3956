"""A BERT encoder's directory as one GGUF file, as llama.cpp's converter lays it out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from lattice_inference.checkpoint.blocks import BLOCK_FORMATS
from lattice_inference.checkpoint.checkpoint import Checkpoint
from lattice_inference.checkpoint.gguf_writer import TensorToWrite, write_gguf
from lattice_inference.checkpoint.model_file import content_of
from lattice_inference.checkpoint.safetensors import open_checkpoint
from lattice_inference.errors import CheckpointError, InvalidInputError, UnsupportedError
from lattice_inference.models.bert import TensorNames, find_names
from lattice_inference.models.bert_config import Activation, BertConfig, BertFamily
from lattice_inference.models.bert_gguf import ARCHITECTURE, POOLING_TYPES, gguf_names
from lattice_inference.models.sentence_layers import UnitLayer
from lattice_inference.models.sentence_modules import read_sentence_modules
from lattice_inference.quantize.destination import check_destination, check_type
from lattice_inference.quantize.file_types import FILE_TYPES, QUANTIZATION_VERSION
from lattice_inference.quantize.report import QuantizeReport
from lattice_inference.quantize.rounding import QuantizedType, quantize_rows
from lattice_inference.tokenizer import load_tokenizer
from lattice_inference.tokenizer.gguf_export import wordpiece_metadata
from lattice_inference.weight_check import check_encoder, refuse_adapters

__all__ = ["export_bert_gguf"]


def export_bert_gguf(
    directory: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    dtype: QuantizedType = "F16",
    *,
    overwrite: bool = False,
    on_tensor: Callable[[str], object] = lambda name: None,
) -> QuantizeReport:
    """Write the BERT encoder in ``directory`` to a GGUF file, with the matrices of its layers and its words in ``dtype``.

    Norms, biases, and the tables of positions and token types are F32. A GGUF file has no place for a token limit below
    the number of positions (``max_seq_length``), for prompts, nor for whether vectors are scaled to length 1.

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
    refuse_adapters(directory)
    config = BertConfig.from_directory(directory)
    if config.family is not BertFamily.BERT or config.hidden_act not in (Activation.GELU, Activation.GELU_PYTHON):
        raise UnsupportedError(
            f"{directory}: a {config.family.value} encoder with {config.hidden_act.value}; only BERT with GELU is written "
            "as GGUF, which has no key for the activation"
        )
    metadata = _metadata(directory, config, dtype)
    with open_checkpoint(directory) as checkpoint:
        names = find_names(checkpoint)
        check_encoder(checkpoint, config, names)
        stored = {theirs: _stored_name(ours, names) for ours, theirs in gguf_names(config.num_hidden_layers).items()}
        types = {name: _target(checkpoint, name, stored[name], dtype) for name in stored}
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


def _metadata(directory: Path, config: BertConfig, dtype: QuantizedType) -> dict[str, object]:
    metadata: dict[str, object] = {
        "general.architecture": ARCHITECTURE,
        "general.type": "model",
        "general.name": directory.name,
        "bert.block_count": config.num_hidden_layers,
        "bert.context_length": config.max_position_embeddings,
        "bert.embedding_length": config.hidden_size,
        "bert.feed_forward_length": config.intermediate_size,
        "bert.attention.head_count": config.num_attention_heads,
        "bert.attention.layer_norm_epsilon": config.layer_norm_eps,
        "bert.attention.causal": False,
        "general.file_type": FILE_TYPES[dtype],
    }
    modules = read_sentence_modules(directory)
    if modules is not None:
        if modules.do_lower_case or not all(isinstance(layer, UnitLayer) for layer in modules.layers):
            raise UnsupportedError(f"{directory}: a GGUF file has no place for what modules.json adds to the encoder")
        metadata["bert.pooling_type"] = next(key for key, value in POOLING_TYPES.items() if value is modules.pooling)
    if dtype in BLOCK_FORMATS:
        metadata["general.quantization_version"] = QUANTIZATION_VERSION
    return metadata | wordpiece_metadata(load_tokenizer(directory), config.type_vocab_size)


def _stored_name(name: str, names: TensorNames) -> str:
    if "LayerNorm." in name:
        stem, _, part = name.rpartition(".")
        name = f"{stem}.{names.layer_norm[part == 'bias']}"
    return names.prefix + name


def _target(checkpoint: Checkpoint, name: str, stored: str, dtype: str) -> str:
    shape = checkpoint.info(stored).shape
    if len(shape) < 2 or name in ("position_embd.weight", "token_types.weight"):
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
