"""The description of a model family.

Code outside of ``models/`` uses it and names no family. A family has one or more files in this folder and a row in
:mod:`~lattice_inference.models.families`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from lattice_inference.checkpoint.checkpoint import Checkpoint
from lattice_inference.graph.program import Program
from lattice_inference.models.adapter_sites import AdapterSites
from lattice_inference.models.pair_template import PairTemplate
from lattice_inference.models.sentence_layers import SentenceLayer
from lattice_inference.models.sentence_modules import Pooling, SentenceModules

__all__ = [
    "LOGITS",
    "SCORES",
    "CausalConfig",
    "Family",
    "GgufExport",
    "GgufModel",
    "Head",
    "ModelConfig",
    "Predicting",
    "StoredWeights",
    "TextConfig",
    "vectors",
]

Int32Array = npt.NDArray[np.int32]


class ModelConfig(Protocol):
    """The properties of every configuration."""

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""
        ...

    @property
    def num_hidden_layers(self) -> int:
        """Number of blocks, each with tensors under a number."""
        ...

    def with_one_layer(self) -> Self:
        """Return the same model with its first block only."""
        ...


class TextConfig(ModelConfig, Protocol):
    """The properties of the configuration of an encoder, or of a classifier on top of one."""

    @property
    def hidden_size(self) -> int:
        """Width of a token's vector."""
        ...

    @property
    def longest_input(self) -> int:
        """The longest input in tokens that the positions allow."""
        ...

    @property
    def has_token_types(self) -> bool:
        """Whether the tokens of a pair's second text may have another type than the first's."""
        ...

    @property
    def classifies(self) -> bool:
        """Whether there is a classification head on top."""
        ...

    @property
    def label_count(self) -> int:
        """Outputs of that head."""
        ...

    @property
    def class_name(self) -> str:
        """The class that wrote the checkpoint, for messages."""
        ...

    def position_ids(self, token_ids: Int32Array, cu_seqlens: Int32Array) -> Int32Array | None:
        """Return each token's position in a packed batch; None for 0, 1, 2, ... of each sequence."""
        ...


class CausalConfig(ModelConfig, Protocol):
    """The properties of the configuration of a language model."""

    @property
    def context_length(self) -> int:
        """The number of positions that the model was made for."""
        ...

    @property
    def bos_token_id(self) -> int | None:
        """The id that begins a text."""
        ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The ids that end a text."""
        ...


Config = TypeVar("Config", bound=ModelConfig)


@dataclass(frozen=True)
class Head:
    """The output of a program.

    Attributes:
        kind: one vector a text, the logits of a classification head, or the logits of the next token.
        pooling: for vectors, how to combine those of tokens into one.
        layers: for vectors, the layers after the pooling.
        answers: for scores of a language model, the ids of the tokens whose logits it gives; it gives no others.
    """

    kind: Literal["vectors", "scores", "logits"]
    pooling: Literal["cls", "mean", "last"] = "mean"
    layers: tuple[SentenceLayer, ...] = ()
    answers: tuple[int, ...] = ()


SCORES = Head("scores")
LOGITS = Head("logits")


def vectors(pooling: Literal["cls", "mean", "last"] = "mean", layers: tuple[SentenceLayer, ...] = ()) -> Head:
    """Return the head that gives one vector a text."""
    return Head("vectors", pooling, layers)


@dataclass(frozen=True)
class Predicting(Generic[Config]):
    """The programs of a model with layers that predict further tokens.

    Attributes:
        build: makes the model's program, which also gives ``hidden`` for every token and has pages for the layers.
        layers: make the program of each layer; it takes ``hidden`` and gives ``logits`` and its own ``hidden``.
    """

    build: Callable[[Config], Program]
    layers: tuple[Callable[[Config], Program], ...]


@dataclass(frozen=True)
class StoredWeights(Generic[Config]):
    """How an open checkpoint holds the weights of a model with some head.

    Attributes:
        build: makes the program of a configuration, also of one with fewer layers than the checkpoint.
        first_layer: the beginning of the checkpoint's names of the first layer's tensors, up to ``0.``.
        layers_told_by: the field that states the number of layers, for messages.
        idle: matches the names of tensors that a file may hold although nothing reads them.
        renamed: the checkpoint's names of tensors that have another name in the program.
        computed: tensors of the program that no file holds.
        also_read: tensors that are read if the file holds them.
        same: two tensors that the configuration ties. A file may hold both if their bytes are the same.
        kinds_of_layers: if layers differ, one entry for each kind: the configuration of a model with one such layer, and
            the numbers of these layers. Else it is empty, and :meth:`ModelConfig.with_one_layer` represents all.
        predicting: the programs with the layers that predict further tokens, if the checkpoint holds them.
        recurrent_only: makes a program that skips the layers that attend, for drafts; None if no layer is recurrent.
    """

    build: Callable[[Config], Program]
    first_layer: str
    layers_told_by: str
    idle: re.Pattern[str]
    renamed: Mapping[str, str] = field(default_factory=dict)
    computed: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    also_read: frozenset[str] = frozenset()
    same: tuple[str, str] | None = None
    kinds_of_layers: tuple[tuple[Config, tuple[int, ...]], ...] = ()
    predicting: Predicting[Config] | None = None
    recurrent_only: Callable[[Config], Program] | None = None


@dataclass(frozen=True)
class GgufModel(Generic[Config]):
    """The description of a model in an open GGUF file.

    Attributes:
        config: sizes and choices.
        weights: returns, for a head, how the file holds the weights.
        pooling: how to combine vectors of tokens into one, if the file states it.
    """

    config: Config
    weights: Callable[[Head], StoredWeights[Config]]
    pooling: Pooling | None = None


@dataclass(frozen=True)
class GgufExport:
    """How to write a model as a GGUF file.

    Attributes:
        architecture: ``general.architecture``.
        network: the keys that describe the network.
        pooling: the keys that name the pooling.
        names: maps the file's name of each tensor to the checkpoint's name.
        floats: the file's names of matrices that stay F32 for any requested type.
        token_types: rows of the token type embedding, which the tokenizer's keys repeat.
    """

    architecture: str
    network: Mapping[str, object]
    pooling: Mapping[str, object]
    names: Mapping[str, str]
    floats: frozenset[str]
    token_types: int


@dataclass(frozen=True)
class Family(Generic[Config]):
    """One row of the table of families.

    Attributes:
        name: the name of the family's module in ``models/``; its other modules begin with the name and an underscore.
        model_types: values of ``model_type`` in ``config.json``.
        read_config: reads the parsed ``config.json``; the second argument is its name in messages.
        read_weights: returns, for a head, how an open safetensors checkpoint holds the weights.
        is_causal: whether it is a language model, whose configuration is a :class:`CausalConfig`.
        reads_texts: whether it can read whole texts, as an encoder or a classifier. Its configuration is then a
            :class:`TextConfig`. By default, this holds if it is not causal.
        ends_texts: whether a text ends with the first of ``eos_token_ids`` if its last token is pooled. The token is
            added if the tokenizer does not add it.
        pair_template: the prompt of a language model for the score of a pair; None if the tokenizer joins pairs.
        text_model_types: values of ``model_type`` in the object ``text_config`` of a ``config.json``.
        gguf_architectures: values of ``general.architecture``.
        read_gguf: reads an open GGUF file of one of them.
        export_gguf: returns, for an open checkpoint, its configuration and a pooling, how to write it as GGUF. The last
            argument is its name in messages. None if the export is not built.
        adapter_sites: the linears that adapters may change; None if adapters are not built.
        read_sizes: adds the sizes that only the open checkpoint states to the configuration; None if there are none.
        sentence: reads from the configuration what ``modules.json`` states for other families; None if the family has
            that file.
        reads_words_only: whether a text is read without special tokens around it, and without unknown tokens. The vector
            of a text without tokens is then zero.
    """

    name: str
    model_types: tuple[str, ...]
    read_config: Callable[[Mapping[str, object], str], Config]
    read_weights: Callable[[Checkpoint, Config, Head], StoredWeights[Config]]
    is_causal: bool = False
    reads_texts: bool | None = None
    ends_texts: bool = False
    pair_template: PairTemplate | None = None
    text_model_types: tuple[str, ...] = ()
    gguf_architectures: tuple[str, ...] = ()
    read_gguf: Callable[[Checkpoint], GgufModel[Config]] | None = None
    export_gguf: Callable[[Checkpoint, Config, Pooling | None, str], GgufExport] | None = None
    adapter_sites: AdapterSites | None = None
    read_sizes: Callable[[Checkpoint, Config], Config] | None = None
    sentence: Callable[[Config], SentenceModules] | None = None
    reads_words_only: bool = False

    @property
    def encodes(self) -> bool:
        """Whether the family can read whole texts."""
        return not self.is_causal if self.reads_texts is None else self.reads_texts


AnyFamily = Family[Any]
