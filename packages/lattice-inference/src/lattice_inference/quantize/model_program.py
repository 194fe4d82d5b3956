"""Any model that has int8 linears as a program over its tensors, and texts as batches of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import cast

import numpy as np

from lattice_inference.backends.tensor_source import StoredTensorSource
from lattice_inference.checkpoint.checkpoint import Checkpoint
from lattice_inference.encode.text_program import batch_of_texts, reads_token_types, steps_of_texts
from lattice_inference.errors import UnsupportedError
from lattice_inference.graph.batch import Batch
from lattice_inference.graph.program import Program
from lattice_inference.models.family import CausalConfig, Head, TextConfig, vectors
from lattice_inference.models.opened_model import OpenedModel, open_model
from lattice_inference.tokenizer import Tokenizer, load_tokenizer

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
        is_causal: whether the program gives the next token's logits.
    """

    path: Path
    program: Program
    checkpoint: Checkpoint
    tensors: StoredTensorSource
    config: CausalConfig | TextConfig
    is_causal: bool

    def batches(self, texts: Sequence[str]) -> Iterator[Batch]:
        """Yield batches that make the model see ``texts``, each within one step.

        A decoder sees each text in windows. A model of pairs sees each text with the one after it.

        Raises:
            TokenizerError, UnsupportedError: the tokenizer's files are malformed or of a kind that is not built.
            InvalidInputError: a text holds a lone surrogate.
        """
        if self.is_causal:
            window = min(WINDOW, cast(CausalConfig, self.config).context_length)
            return _decoder_batches(self._tokenizer, texts, window, keeps_slots=bool(self.program.recurrent_specs))
        return _encoder_batches(self._tokenizer, texts, cast(TextConfig, self.config), self.path)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return load_tokenizer(self.path)


def open_model_program(path: Path, stack: ExitStack) -> ModelProgram:
    """Open the model in the directory or GGUF file ``path``; ``stack`` closes it.

    Raises:
        ModelNotFoundError, CheckpointError, ModelConfigError: a file is missing or malformed.
        UnsupportedError: it is of a kind that is not built.
    """
    model = stack.enter_context(open_model(path))
    whole = _head_of(model)
    model.check(whole)  # with what stands on top of it, as the loaders do
    head = replace(whole, layers=())
    program = model.program(head)
    if not any(op.kind == "linear" for op in program.ops):
        raise UnsupportedError(f"{path}: the model has no linear layers, which are what int8 and calibration are for")
    return ModelProgram(path, program, model.checkpoint, model.tensors(head), model.config, head.kind == "logits")


def _head_of(model: OpenedModel) -> Head:
    """Return the head of the model.

    A language model with the files of sentence-transformers gives vectors.
    """
    whole = model.whole_head()
    if whole.kind != "logits" or not model.family.encodes or model.modules is None:
        return whole
    return vectors(model.modules.pooling.value, model.modules.layers)


def _decoder_batches(tokenizer: Tokenizer, texts: Sequence[str], window: int, *, keeps_slots: bool) -> Iterator[Batch]:
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
                read_slots=np.array([0], np.int32) if keeps_slots else None,
                write_slots=np.array([1], np.int32) if keeps_slots else None,
            )


def _encoder_batches(tokenizer: Tokenizer, texts: Sequence[str], config: TextConfig, path: Path) -> Iterator[Batch]:
    given: Sequence[str] | Sequence[tuple[str, str]] = texts
    if config.classifies:
        given = list(zip(texts, [*texts[1:], *texts[:1]], strict=True))
    reads_types = reads_token_types(config, path)
    for start in range(0, len(given), _TEXTS):
        packed = tokenizer.encode_packed(given[start : start + _TEXTS], max_tokens=config.longest_input)
        for rows in steps_of_texts(packed.cu_seqlens, _TOKENS):
            yield batch_of_texts(packed, rows, config, reads_types=reads_types)
