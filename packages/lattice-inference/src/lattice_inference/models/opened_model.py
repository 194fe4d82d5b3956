"""Opens a model's files once, for every use of them.

The uses are a loaded model, a calibration or a quantized copy.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from lattice_inference.checkpoint.checkpoint import Checkpoint
from lattice_inference.checkpoint.checkpoint_group import CheckpointGroup
from lattice_inference.checkpoint.computed_tensors import ComputedTensors
from lattice_inference.checkpoint.formats import is_gguf, open_weights
from lattice_inference.checkpoint.gguf import open_gguf
from lattice_inference.checkpoint.json_file import load_json_object
from lattice_inference.checkpoint.renamed_tensors import RenamedTensors
from lattice_inference.checkpoint.safetensors import open_checkpoint
from lattice_inference.errors import LatticeError
from lattice_inference.graph.program import KvSpec, Program, RecurrentSpec
from lattice_inference.models.adapter_sites import AdapterBase
from lattice_inference.models.families import family_of_config, family_of_gguf
from lattice_inference.models.family import LOGITS, SCORES, AnyFamily, Head, StoredWeights, vectors
from lattice_inference.models.sentence_layers import weight_folders
from lattice_inference.models.sentence_modules import Pooling, SentenceModules, read_sentence_modules
from lattice_inference.models.weight_check import check_weights, refuse_adapters

if TYPE_CHECKING:
    from lattice_inference.backends.tensor_source import StoredTensorSource
    from lattice_inference.tokenizer import Tokenizer
    from lattice_inference.tokenizer.chat_template import ChatTemplate

__all__ = ["Kept", "OpenedModel", "idle_tensors", "kept_in_directory", "kept_in_gguf", "open_model"]

_Tensors = Checkpoint | CheckpointGroup

_NO_TOKENIZER = ("none", "no_vocab")
"""What tokenizer.ggml.model says of a file without a tokenizer: llama.cpp's converter writes the first."""


class OpenedModel:
    """The files of one model. Made by :func:`open_model`; a context manager that closes them.

    Attributes:
        path: the directory, or the GGUF file.
        is_gguf: whether ``path`` is a GGUF file.
        family: the model's family.
        config: sizes and choices of the network: a :class:`~lattice_inference.models.family.CausalConfig` if the family
            is causal, else a :class:`~lattice_inference.models.family.TextConfig`.
        metadata: the content of ``config.json``, or of the GGUF file's header.
        pooling: how to combine vectors of tokens into one, if a GGUF file states it.
    """

    def __init__(self, path: Path, *, causal: bool | None) -> None:
        self.path = path
        self.is_gguf: bool = is_gguf(path)
        self.pooling: Pooling | None = None
        self.config: Any
        self._files = ExitStack()
        self._checkpoint: Checkpoint | None = None
        self._modules: dict[str, Checkpoint] = {}
        self._stored: dict[Head, StoredWeights[Any]] = {}
        with ExitStack() as opening:
            opening.push(self._files)
            if self.is_gguf:
                self._open_file(causal)
            else:
                self._read_directory(causal)
            opening.pop_all()

    def _open_file(self, causal: bool | None) -> None:
        checkpoint = self._checkpoint = self._files.enter_context(open_gguf(self.path))
        self.metadata: Mapping[str, object] = checkpoint.metadata
        self.family: AnyFamily = family_of_gguf(self.metadata, str(self.path), causal=causal)
        assert self.family.read_gguf is not None  # the search for the family checks it
        model = self.family.read_gguf(checkpoint)
        self.config, self.pooling = model.config, model.pooling
        self._weights_for: Callable[[Head], StoredWeights[Any]] = model.weights

    def _read_directory(self, causal: bool | None) -> None:
        if not os.path.isdir(self.path):
            self._files.enter_context(open_checkpoint(self.path))  # raises an error that says what the file is
        config = self.path / "config.json"
        self.metadata = load_json_object(config)
        self.family = family_of_config(self.metadata, str(config), causal=causal)
        self.config = self.family.read_config(self.metadata, str(config))
        if self.family.read_sizes is not None:
            self.config = self.family.read_sizes(self.checkpoint, self.config)
        self._weights_for = lambda head: self.family.read_weights(self.checkpoint, self.config, head)

    @property
    def checkpoint(self) -> Checkpoint:
        """The weights, without those of modules on top of an encoder. Opened on first use."""
        if self._checkpoint is None:
            self._checkpoint = self._files.enter_context(open_checkpoint(self.path))
        return self._checkpoint

    @cached_property
    def modules(self) -> SentenceModules | None:
        """The modules in sentence-transformers' files or in the family's configuration; or None."""
        if self.family.sentence is not None:
            return self.family.sentence(self.config)
        return None if self.is_gguf else read_sentence_modules(self.path)

    @property
    def adapter_base(self) -> AdapterBase:
        """The facts of the model that adapters need."""
        tied = self.family.is_causal and bool(getattr(self.config, "tied", False))
        return AdapterBase(self.path, self.is_gguf, self.family.name, self.family.adapter_sites, self.config, tied)

    def whole_head(self) -> Head:
        """Return the head of the model in the files.

        For vectors, it has the modules on top and an arbitrary pooling.
        """
        if self.family.encodes and self.config.classifies:
            return SCORES
        if self.family.is_causal:
            return LOGITS
        return vectors(layers=() if self.modules is None else self.modules.layers)

    def check(self, head: Head) -> None:
        """Check that the files hold the tensors of the model with ``head``, and no others.

        Raises:
            ModelNotFoundError: there are no weights.
            CheckpointError: a file is malformed, or a tensor is missing, has another shape, or is read by nothing.
        """
        tensors = self._tensors(head)
        check_weights(tensors, self.checkpoint, self.config, self._weights(head))

    def program(self, head: Head) -> Program:
        """Return the program of the model with ``head``; call :meth:`check` before it."""
        program: Program = self._weights(head).build(self.config)
        return program

    def predicting(self, head: Head) -> tuple[Program, tuple[Program, ...]] | None:
        """Return the program that also gives hidden rows, and those that read them.

        They are those of the layers that predict further tokens. Return None if the files hold no such layers.
        """
        found = self._weights(head).predicting
        if found is None:
            return None
        return found.build(self.config), tuple([build(self.config) for build in found.layers])

    def recurrent_only(self, head: Head) -> Program | None:
        """Return the program of the recurrent layers alone; None without them or others."""
        build = self._weights(head).recurrent_only
        return None if build is None else build(self.config)

    def tensors(self, head: Head) -> StoredTensorSource:
        """Return the tensors of that program, by the program's names."""
        weights = self._weights(head)
        if weights.computed:
            return ComputedTensors(self.checkpoint, weights.computed)
        return RenamedTensors(self.checkpoint, weights.renamed) if weights.renamed else self._tensors(head)

    @property
    def has_tokenizer(self) -> bool:
        """Whether there is a tokenizer; a directory without one is incomplete."""
        return not self.is_gguf or self.metadata.get("tokenizer.ggml.model", "none") not in _NO_TOKENIZER

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, read on first use.

        Raises:
            ModelNotFoundError, TokenizerError, UnsupportedError: it is missing, malformed or of an unsupported kind.
        """
        from lattice_inference.tokenizer.loading import gguf_tokenizer, load_tokenizer

        return gguf_tokenizer(self.metadata, self.path) if self.is_gguf else load_tokenizer(self.path)

    @cached_property
    def special_tokens(self) -> dict[str, str]:
        """The texts of special tokens by their roles."""
        from lattice_inference.tokenizer.chat_template_file import gguf_special_tokens, read_special_tokens

        return gguf_special_tokens(self.metadata) if self.is_gguf else read_special_tokens(self.path)

    @property
    def template(self) -> Callable[[], ChatTemplate | None]:
        """A function that reads the chat template; it returns None without one.

        It works after the files were closed.
        """
        from lattice_inference.tokenizer.chat_template_file import (
            gguf_templates,
            load_chat_template,
            make_chat_template,
        )

        if not self.is_gguf:
            return partial(load_chat_template, self.path)
        return partial(make_chat_template, gguf_templates(self.metadata), self.special_tokens, self.path)

    def _weights(self, head: Head) -> StoredWeights[Any]:
        if head not in self._stored:
            self._stored[head] = self._weights_for(head)
        return self._stored[head]

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _tensors(self, head: Head) -> _Tensors:
        """Return the model's own tensors, and those of the modules of ``head``."""
        folders = weight_folders(head.layers)
        if not folders:
            return self.checkpoint
        others = {folder: self._module(folder) for folder in folders}
        return CheckpointGroup(self.checkpoint, others)

    def _module(self, folder: str) -> Checkpoint:
        if folder not in self._modules:
            self._modules[folder] = self._files.enter_context(open_weights(self.path / folder))
        return self._modules[folder]


def idle_tensors(path: Path) -> tuple[str, ...]:
    """Return the tensors in a model's files that the model may leave unread, and does.

    None are known of files that hold no model that is built, or a part of one.
    """
    try:
        with open_model(path) as model:
            weights = model._weights(model.whole_head())
            return tuple([name for name in model.checkpoint.names() if weights.idle.fullmatch(name)])
    except LatticeError:
        return ()


@dataclass(frozen=True)
class Kept:
    """The cache of a language model.

    It has the most tokens, the keys and values of each, and the state of recurrent layers.
    """

    context_length: int
    specs: tuple[KvSpec, ...]
    recurrent: tuple[RecurrentSpec, ...] = ()


def kept_in_directory(config: Path, checkpoint: Checkpoint) -> Kept:
    """Return the cache of the language model of a ``config.json`` and its open checkpoint.

    Raises:
        CheckpointError, ModelConfigError: a file is malformed.
        UnsupportedError: it is no language model, or of a family that is not built.
    """
    metadata = load_json_object(config)
    family = family_of_config(metadata, str(config), causal=True)
    read = family.read_config(metadata, str(config))
    weights = family.read_weights(checkpoint, read, LOGITS)
    check_weights(checkpoint, checkpoint, read, weights)
    return _kept(read, weights)


def kept_in_gguf(checkpoint: Checkpoint, source: str) -> Kept:
    """Return the cache of the language model in an open GGUF file.

    Raises:
        CheckpointError, ModelConfigError: the file is malformed.
        UnsupportedError: it is no language model, or of a family that is not built.
    """
    family = family_of_gguf(checkpoint.metadata, source, causal=True)
    assert family.read_gguf is not None  # the search for the family checks it
    model = family.read_gguf(checkpoint)
    return _kept(model.config, model.weights(LOGITS))


def _kept(config: Any, weights: StoredWeights[Any]) -> Kept:
    program = weights.build(config)
    return Kept(config.context_length, tuple(program.kv_specs), tuple(program.recurrent_specs))


def open_model(path: Path, *, causal: bool | None = None) -> OpenedModel:
    """Open the model in a directory or GGUF file, and read its family and configuration.

    Args:
        path: the directory or the file.
        causal: accept language models (True) or models of whole texts (False); by default every family that is built.

    Raises:
        ModelNotFoundError: a file is missing.
        CheckpointError, ModelConfigError: a file is malformed.
        UnsupportedError: it is of a family that is not built, or holds an adapter.
    """
    refuse_adapters(path)
    return OpenedModel(path, causal=causal)
