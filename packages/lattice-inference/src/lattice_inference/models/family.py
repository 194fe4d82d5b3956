"""What a model family says of itself. Everything outside of ``models/`` asks this, and knows no family by name.

A family is a file (or several) in this folder and a row in :mod:`~lattice_inference.models.families`.
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
    "StoredWeights",
    "TextConfig",
    "vectors",
]

Int32Array = npt.NDArray[np.int32]


class ModelConfig(Protocol):
    """What every configuration can be asked."""

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
    """What the configuration of a model of whole texts can be asked: an encoder, or a classifier on top of one."""

    @property
    def hidden_size(self) -> int:
        """Width of a token's vector."""
        ...

    @property
    def longest_input(self) -> int:
        """The longest input in tokens that there are positions for."""
        ...

    @property
    def has_token_types(self) -> bool:
        """Whether the tokens of a pair's second text may have another type than those of its first."""
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
    """What the configuration of a language model can be asked."""

    @property
    def context_length(self) -> int:
        """Positions that the model was made for."""
        ...

    @property
    def bos_token_id(self) -> int | None:
        """The id that begins a text."""
        ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Ids that end one."""
        ...


Config = TypeVar("Config", bound=ModelConfig)


@dataclass(frozen=True)
class Head:
    """What a program gives in the end.

    Attributes:
        kind: one vector a text, the logits of a classification head, or those of the next token.
        pooling: for vectors, how those of tokens become one.
        layers: for vectors, what happens to the pooled one.
        answers: for scores of a language model, the ids of the tokens whose logits it gives instead of all.
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
class StoredWeights(Generic[Config]):
    """How an open checkpoint holds the weights of a model with some head.

    Attributes:
        build: makes the program of a configuration; may be asked for fewer layers than there are.
        first_layer: what the checkpoint's names of the first layer's tensors begin with, up to ``0.``.
        layers_told_by: where the number of layers stands, for messages.
        idle: matches the names of tensors that may be there although nothing reads them.
        renamed: the checkpoint's names of tensors that the program calls otherwise.
        computed: tensors of the program that no file holds.
        also_read: tensors that are read if they are there.
        same: a tensor, and another one that it is said to be; both may be there if they are the same bytes.
        kinds_of_layers: where layers differ, for each kind the configuration of a model of one such layer, and the numbers
            of the layers that are like it; else empty, and :meth:`ModelConfig.with_one_layer` stands for all.
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


@dataclass(frozen=True)
class GgufModel(Generic[Config]):
    """What an open GGUF file says of a model.

    Attributes:
        config: sizes and choices.
        weights: says how the file holds the weights of the model with a head.
        pooling: how vectors of tokens become one, where the file says it.
    """

    config: Config
    weights: Callable[[Head], StoredWeights[Config]]
    pooling: Pooling | None = None


@dataclass(frozen=True)
class GgufExport:
    """How a model is written as a GGUF file.

    Attributes:
        architecture: ``general.architecture``.
        network: the keys that describe the network.
        pooling: the keys that name the pooling.
        names: the file's name of each tensor, with the checkpoint's.
        floats: the file's names of matrices that stay F32 whatever type is asked for.
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
        name: the modules of the family in ``models/`` are called so, or begin with it and an underscore.
        model_types: values of ``model_type`` in ``config.json``.
        read_config: reads the parsed ``config.json``; the second argument names it in messages.
        read_weights: says how an open safetensors checkpoint holds the weights of the model with a head.
        is_causal: whether it is a language model, whose configuration is a :class:`CausalConfig`.
        reads_texts: whether whole texts can be read with it, as an encoder or a classifier; its configuration is then a
            :class:`TextConfig`. By default where it is not causal.
        ends_texts: whether a text whose last token counts ends with the first of ``eos_token_ids``, which is added where
            the tokenizer does not.
        pair_template: how a language model is asked for the score of a pair; None where pairs are the tokenizer's.
        text_model_types: values of ``model_type`` in the object ``text_config`` of a ``config.json``.
        gguf_architectures: values of ``general.architecture``.
        read_gguf: reads an open GGUF file of one of them.
        export_gguf: says how an open checkpoint, of a configuration and with a pooling, is written as GGUF. The last
            argument names it in messages. None where it is not built.
        adapter_sites: the linears that adapters may change; None where adapters are not built.
        read_sizes: adds to the configuration the sizes that only the open checkpoint states; None where it lacks none.
        sentence: what the configuration says that ``modules.json`` says of others; None where that file is read.
        reads_words_only: whether a text is read without special tokens around it, and without those that stand for what
            the vocabulary lacks. The vector of a text without tokens is zero then.
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
        """Whether whole texts can be read with it."""
        return not self.is_causal if self.reads_texts is None else self.reads_texts


AnyFamily = Family[Any]
