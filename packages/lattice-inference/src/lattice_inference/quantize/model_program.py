"""Any model that has int8 linears as a program over its tensors, and texts as batches of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lattice_inference.backends.cpu.tensor_source import StoredTensorSource
from lattice_inference.checkpoint.checkpoint import Checkpoint
from lattice_inference.checkpoint.checkpoint_group import open_checkpoint_group
from lattice_inference.checkpoint.computed_tensors import ComputedTensors
from lattice_inference.checkpoint.formats import is_gguf
from lattice_inference.checkpoint.gguf import open_gguf
from lattice_inference.checkpoint.json_file import load_json_object
from lattice_inference.checkpoint.renamed_tensors import RenamedTensors
from lattice_inference.checkpoint.safetensors import open_checkpoint
from lattice_inference.graph.batch import Batch
from lattice_inference.graph.program import Program
from lattice_inference.models.bert import TensorNames, build_bert_classifier, build_bert_encoder, find_names
from lattice_inference.models.bert_config import BertArchitecture, BertConfig
from lattice_inference.models.bert_gguf import ARCHITECTURE, gguf_names, read_bert_gguf
from lattice_inference.models.llama import ROPE_FREQUENCIES, build_llama, find_decoder_names
from lattice_inference.models.llama_config import LlamaConfig, LlamaFamily
from lattice_inference.models.llama_gguf import read_llama_gguf
from lattice_inference.models.sentence_layers import weight_folders
from lattice_inference.models.sentence_modules import read_sentence_modules
from lattice_inference.text_program import batch_of_texts, reads_token_types, steps_of_texts
from lattice_inference.tokenizer import Tokenizer, load_tokenizer
from lattice_inference.weight_check import (
    check_bert_gguf,
    check_classifier,
    check_decoder,
    check_encoder,
    refuse_adapters,
)

__all__ = ["PAGE_TOKENS", "WINDOW", "ModelProgram", "open_model_program"]

WINDOW = 256
"""Tokens of a text that a decoder sees together."""

PAGE_TOKENS = 32

_TEXTS = 64  # of an encoder, sorted by length together
_TOKENS = 1024  # of them that go through the model at once


@dataclass(frozen=True)
class ModelProgram:
    """A model as a program.

    Attributes:
        path: the directory or the GGUF file.
        program: what it computes: of a sentence encoder without what stands on top of it.
        checkpoint: the open checkpoint.
        tensors: its tensors by the program's names.
        config: the model's configuration.
    """

    path: Path
    program: Program
    checkpoint: Checkpoint
    tensors: StoredTensorSource
    config: BertConfig | LlamaConfig

    def batches(self, texts: Sequence[str]) -> Iterator[Batch]:
        """Yield batches that make the model see ``texts``, each within one step.

        A decoder sees each text in windows. A model of pairs sees each text with the one after it.

        Raises:
            TokenizerError, UnsupportedError: the tokenizer's files are malformed or of a kind that is not built.
            InvalidInputError: a text holds a lone surrogate.
        """
        tokenizer = load_tokenizer(self.path)
        if isinstance(self.config, LlamaConfig):
            return _decoder_batches(tokenizer, texts, min(WINDOW, self.config.context_length))
        return _encoder_batches(tokenizer, texts, self.config, self.path)


def open_model_program(path: Path, stack: ExitStack) -> ModelProgram:
    """Open the model in the directory or GGUF file ``path``; ``stack`` closes it.

    Raises:
        ModelNotFoundError, CheckpointError, ModelConfigError: a file is missing or malformed.
        UnsupportedError: it is of a kind that is not built.
    """
    refuse_adapters(path)
    if is_gguf(path):
        checkpoint = stack.enter_context(open_gguf(path))
        if checkpoint.metadata.get("general.architecture") == ARCHITECTURE:
            bert, _ = read_bert_gguf(checkpoint)
            check_bert_gguf(checkpoint, bert)
            program = build_bert_encoder(bert, pooling="mean", names=TensorNames())
            return ModelProgram(
                path, program, checkpoint, RenamedTensors(checkpoint, gguf_names(bert.num_hidden_layers)), bert
            )
        stored = read_llama_gguf(checkpoint)
        check_decoder(checkpoint, stored.config, stored.names)
        tensors = ComputedTensors(checkpoint, {ROPE_FREQUENCIES: stored.frequencies})
        return ModelProgram(path, build_llama(stored.config, stored.names), checkpoint, tensors, stored.config)
    checkpoint = stack.enter_context(open_checkpoint(path))  # says what a file is
    if load_json_object(path / "config.json").get("model_type") in {family.value for family in LlamaFamily}:
        llama = LlamaConfig.from_directory(path)
        frequencies = llama.rope.frequencies(llama.rotary_dim)
        decoder = find_decoder_names(checkpoint, tied=llama.tied)
        check_decoder(checkpoint, llama, decoder)
        program = build_llama(llama, decoder)
        tensors = ComputedTensors(checkpoint, {ROPE_FREQUENCIES: frequencies})
        return ModelProgram(path, program, checkpoint, tensors, llama)
    config, names = BertConfig.from_directory(path), find_names(checkpoint)
    if config.architecture is BertArchitecture.SEQUENCE_CLASSIFICATION:
        check_classifier(checkpoint, config, names)
        program = build_bert_classifier(config, names=names)
    else:
        _check_encoder(path, config, names)
        program = build_bert_encoder(config, pooling="mean", names=names)  # pooling has no weights
    return ModelProgram(path, program, checkpoint, checkpoint, config)


def _check_encoder(path: Path, config: BertConfig, names: TensorNames) -> None:
    """Check the encoder with what stands on top of it, as :func:`lattice_inference.load_encoder` does."""
    modules = read_sentence_modules(path)
    layers = () if modules is None else modules.layers
    with open_checkpoint_group(path, weight_folders(layers)) as group:
        check_encoder(group, config, names, layers)


def _decoder_batches(tokenizer: Tokenizer, texts: Sequence[str], window: int) -> Iterator[Batch]:
    for text in texts:
        ids = np.ascontiguousarray(tokenizer.encode(text).ids, np.int32)
        for start in range(0, len(ids), window):
            part = ids[start : start + window]
            yield Batch(
                part,
                np.array([0, len(part)], np.int32),
                context_lengths=np.zeros(1, np.int32),
                block_table=(np.arange(-(-len(part) // PAGE_TOKENS), dtype=np.int32),),
                logit_rows=np.arange(len(part), dtype=np.int32),
            )


def _encoder_batches(tokenizer: Tokenizer, texts: Sequence[str], config: BertConfig, path: Path) -> Iterator[Batch]:
    given: Sequence[str] | Sequence[tuple[str, str]] = texts
    if config.architecture is BertArchitecture.SEQUENCE_CLASSIFICATION:
        given = list(zip(texts, [*texts[1:], *texts[:1]], strict=True))
    reads_types = reads_token_types(config, path)
    for start in range(0, len(given), _TEXTS):
        packed = tokenizer.encode_packed(given[start : start + _TEXTS], max_tokens=config.longest_input)
        for rows in steps_of_texts(packed.cu_seqlens, _TOKENS):
            yield batch_of_texts(packed, rows, config, reads_types=reads_types)
