"""The configuration of a BERT or RoBERTa encoder, read strictly from ``config.json``.

RoBERTa, XLM-RoBERTa and CamemBERT are BERT with other vocabularies and another classification head. Their positions begin
after the padding token's row. A missing field is an error that names it, because a guessed width or layer count would
give vectors that look right and are wrong. Fields that Hugging Face itself leaves out have the default that it documents.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Literal, Self

import numpy as np
import numpy.typing as npt

from lattice_inference.checkpoint.json_file import load_json_object
from lattice_inference.errors import UnsupportedError
from lattice_inference.models.config_fields import MAX_LAYERS, MAX_POSITIONS, MAX_VOCAB_SIZE, ConfigFields

__all__ = ["Activation", "BertArchitecture", "BertConfig", "BertFamily"]

#: Largest values that a configuration may hold; see docs/models-and-files.md for the whole table.
MAX_HEADS = 8_192
MAX_HEAD_SIZE = 2_048
MAX_WIDTH = 2**20
MAX_TOKEN_TYPES = 2**16
MAX_LABELS = 2**16
MAX_EMBEDDING_BYTES = 32 * 2**30
MAX_FEED_FORWARD_BYTES = 4 * 2**30

_FLOAT32_BYTES = 4

Int32Array = npt.NDArray[np.int32]


class Activation(Enum):
    """The activation of the feed-forward block, by its name in ``config.json``."""

    GELU = "gelu"
    #: The same function as GELU; an old name.
    GELU_PYTHON = "gelu_python"
    #: GELU by its tanh approximation.
    GELU_NEW = "gelu_new"
    #: The same function as GELU_NEW.
    GELU_PYTORCH_TANH = "gelu_pytorch_tanh"
    RELU = "relu"
    SILU = "silu"


class BertFamily(Enum):
    """The kind of encoder, by its ``model_type``."""

    BERT = "bert"
    ROBERTA = "roberta"
    XLM_ROBERTA = "xlm-roberta"
    CAMEMBERT = "camembert"

    @property
    def class_name(self) -> str:
        """The beginning of transformers' class names of the family."""
        return {"bert": "Bert", "roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert"}[self.value]

    @property
    def is_roberta(self) -> bool:
        """Whether the positions and the classification head are those of RoBERTa."""
        return self is not BertFamily.BERT


class BertArchitecture(Enum):
    """The layers on top of the encoder, by the end of the name of the checkpoint's class."""

    ENCODER = "Model"
    MASKED_LM = "ForMaskedLM"
    SEQUENCE_CLASSIFICATION = "ForSequenceClassification"


@dataclass(frozen=True)
class BertConfig:
    """Sizes and choices of a BERT encoder.

    They are checked when they are read from a file; see :meth:`from_directory`.

    Attributes:
        family: the kind of encoder; sets the tensor names, the positions and the head.
        architecture: the layers that the checkpoint has on top of the encoder.
        vocab_size: rows of the word embedding.
        hidden_size: width of the residual stream; a multiple of ``num_attention_heads``.
        num_hidden_layers: number of transformer blocks.
        num_attention_heads: heads of each attention.
        intermediate_size: width between the two feed-forward matrices.
        hidden_act: the feed-forward activation.
        max_position_embeddings: rows of the position embedding; see :attr:`longest_input`.
        type_vocab_size: rows of the token type embedding.
        layer_norm_eps: added to the variance in every LayerNorm.
        position_embedding_type: always ``"absolute"``; the relative kinds are refused.
        pad_token_id: the padding token, or None. Batches have no padding here, but RoBERTa's positions count from it.
        label_count: outputs of the classification head, if there is one.
    """

    family: BertFamily
    architecture: BertArchitecture
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    hidden_act: Activation
    max_position_embeddings: int
    type_vocab_size: int
    layer_norm_eps: float
    position_embedding_type: Literal["absolute"] = "absolute"
    pad_token_id: int | None = 0
    label_count: int = 2

    @cached_property
    def position_padding_id(self) -> int | None:
        """The padding token's id, after which positions begin; None if they begin at 0."""
        return self.pad_token_id if self.family.is_roberta else None

    @property
    def has_token_types(self) -> bool:
        """Whether the tokens of a pair's second text have another type; RoBERTa has one type."""
        return not self.family.is_roberta

    @property
    def classifies(self) -> bool:
        """Whether the checkpoint has a classification head."""
        return self.architecture is BertArchitecture.SEQUENCE_CLASSIFICATION

    @property
    def class_name(self) -> str:
        """transformers' class of the checkpoint."""
        return f"{self.family.class_name}{self.architecture.value}"

    @property
    def longest_input(self) -> int:
        """The longest input in tokens that the position embedding has rows for."""
        first = 0 if self.position_padding_id is None else self.position_padding_id + 1
        return self.max_position_embeddings - first

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    def with_one_layer(self) -> Self:
        """Return the same model with its first block only."""
        return replace(self, num_hidden_layers=1)

    def position_ids(self, token_ids: Int32Array, cu_seqlens: Int32Array) -> Int32Array | None:
        """Return the row of the position embedding for each token of a packed batch.

        None stands for 0, 1, 2, ... in each sequence. RoBERTa's rule, as in transformers: tokens that are not padding
        are numbered from ``pad_token_id + 1``. A padding token (a text may spell one out) has the position
        ``pad_token_id``, and the numbering skips it.
        """
        padding = self.position_padding_id
        if padding is None:
            return None
        counted = token_ids != padding
        numbers = np.cumsum(counted, dtype=np.int32)
        before = np.concatenate([np.zeros(1, np.int32), numbers])[cu_seqlens[:-1]]
        numbers -= np.repeat(before, np.diff(cu_seqlens))
        return np.asarray(numbers * counted + np.int32(padding), np.int32)

    @classmethod
    def from_directory(cls, directory: str | os.PathLike[str]) -> Self:
        """Read ``config.json`` in ``directory``.

        Raises:
            ModelNotFoundError: there is no such file.
            ModelConfigError: it is malformed, or a field is missing, of the wrong type or out of range.
            UnsupportedError: it has a model type or an option that is not built.
        """
        path = Path(directory) / "config.json"
        return cls.from_mapping(load_json_object(path), source=str(path))

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object], *, source: str = "config.json") -> Self:
        """Read the parsed content of a ``config.json``, with the same errors.

        ``source`` is its name in messages.
        """
        fields = ConfigFields(mapping, source)
        family = fields.choice("model_type", BertFamily)
        architecture = _architecture(fields, family)
        for option in ("is_decoder", "add_cross_attention"):
            if fields.flag(option, default=False):
                raise UnsupportedError(f"{source}: {option} is true; only encoders are built")
        if mapping.get("quantization_config") is not None:
            raise UnsupportedError(f"{source}: quantization_config is set; quantized BERT checkpoints are not read")
        position_embedding_type = fields.text("position_embedding_type", default="absolute")
        if position_embedding_type != "absolute":
            raise UnsupportedError(
                f"{source}: position_embedding_type is {position_embedding_type!r:.80}; only 'absolute' is built"
            )

        vocab_size = fields.integer("vocab_size", 1, MAX_VOCAB_SIZE)
        config = cls(
            family=family,
            architecture=architecture,
            vocab_size=vocab_size,
            hidden_size=fields.integer("hidden_size", 1, MAX_WIDTH),
            num_hidden_layers=fields.integer("num_hidden_layers", 1, MAX_LAYERS),
            num_attention_heads=fields.integer("num_attention_heads", 1, MAX_HEADS),
            intermediate_size=fields.integer("intermediate_size", 1, MAX_WIDTH),
            hidden_act=fields.choice("hidden_act", Activation),
            max_position_embeddings=fields.integer("max_position_embeddings", 1, MAX_POSITIONS),
            type_vocab_size=fields.integer("type_vocab_size", 1, MAX_TOKEN_TYPES),
            layer_norm_eps=fields.real("layer_norm_eps", above=0.0, at_most=1.0),
            pad_token_id=_pad_token_id(fields, mapping, family, vocab_size),
            label_count=_label_count(fields, mapping),
        )
        config._check_products(fields)
        return config

    def _check_products(self, fields: ConfigFields) -> None:
        """Check for sizes that are impossible together."""
        if self.hidden_size % self.num_attention_heads != 0:
            raise fields.error(
                "hidden_size", f"{self.hidden_size} is not a multiple of num_attention_heads {self.num_attention_heads}"
            )
        if self.head_size > MAX_HEAD_SIZE:
            raise fields.error(
                "num_attention_heads",
                f"{self.num_attention_heads} heads of hidden_size {self.hidden_size} are {self.head_size} wide each; "
                f"the limit is {MAX_HEAD_SIZE}",
            )
        for name in ("vocab_size", "max_position_embeddings", "type_vocab_size"):
            nbytes = getattr(self, name) * self.hidden_size * _FLOAT32_BYTES
            if nbytes > MAX_EMBEDDING_BYTES:
                raise fields.error(
                    name, f"times hidden_size makes a table of {nbytes:,} bytes; the limit is {MAX_EMBEDDING_BYTES:,}"
                )
        if self.longest_input < 1:
            raise fields.error(
                "max_position_embeddings",
                f"{self.max_position_embeddings} leaves no position after that of pad_token_id {self.pad_token_id}",
            )
        nbytes = self.hidden_size * self.intermediate_size * _FLOAT32_BYTES
        if nbytes > MAX_FEED_FORWARD_BYTES:
            raise fields.error(
                "intermediate_size",
                f"times hidden_size makes a matrix of {nbytes:,} bytes; the limit is {MAX_FEED_FORWARD_BYTES:,}",
            )


def _architecture(fields: ConfigFields, family: BertFamily) -> BertArchitecture:
    name = fields.only_text("architectures")
    ending = name.removeprefix(family.class_name)
    if ending != name and ending in {member.value for member in BertArchitecture}:
        return BertArchitecture(ending)
    known = ", ".join(repr(f"{family.class_name}{member.value}") for member in BertArchitecture)
    raise UnsupportedError(f"{fields.source}: architectures is {name!r:.100}; built are {known}")


def _pad_token_id(
    fields: ConfigFields, mapping: Mapping[str, object], family: BertFamily, vocab_size: int
) -> int | None:
    if mapping.get("pad_token_id", 0) is None:
        if family.is_roberta:
            raise fields.error("pad_token_id", "is null, but the positions of this family are counted from it")
        return None
    # with a vocabulary of one token, RoBERTa's default has no row, and the check refuses it
    return fields.integer("pad_token_id", 0, vocab_size - 1, default=int(family.is_roberta))


def _label_count(fields: ConfigFields, mapping: Mapping[str, object]) -> int:
    """Return the number of outputs of a classification head.

    As in transformers, it is the number of entries of ``id2label``, or 2 without them.
    """
    labels = mapping.get("id2label")
    if labels is None:
        return fields.integer("num_labels", 1, MAX_LABELS, default=2)
    if not isinstance(labels, dict) or not 1 <= len(labels) <= MAX_LABELS:
        raise fields.error("id2label", f"is not an object of 1 to {MAX_LABELS:,} labels")
    return len(labels)
