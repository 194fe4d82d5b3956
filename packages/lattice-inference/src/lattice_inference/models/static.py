"""Static models: a vector for each token, and their mean, as model2vec writes them.

``config.json`` says how vectors are scaled and how long a text may be; the sizes stand in ``model.safetensors`` alone:

- ``embeddings`` (rows, width): the vectors, in floats or int8 (without a scale: vectors keep its size);
- ``weights`` (tokens,), optional: what the vector of each token is multiplied by;
- ``mapping`` (tokens,), optional: the row of each token, where tokens share rows.

A text is read without special tokens around it. Tokens that stand for what the vocabulary lacks have no part in the mean.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import numpy as np
import numpy.typing as npt

from lattice_inference.checkpoint.checkpoint import Checkpoint
from lattice_inference.errors import CheckpointError, UnsupportedError
from lattice_inference.graph.builder import GraphBuilder
from lattice_inference.graph.program import Program
from lattice_inference.models.config_fields import MAX_VOCAB_SIZE, ConfigFields
from lattice_inference.models.family import Family, Head, StoredWeights
from lattice_inference.models.sentence_modules import Pooling, SentenceModules

__all__ = ["STATIC", "StaticConfig", "build_static"]

#: The tokens of a text that are read where ``config.json`` does not say how many: model2vec's default.
DEFAULT_MAX_LENGTH = 512

#: The most that are read where it says that there is no limit: their vectors are laid out before the mean is taken.
MOST_TOKENS = 2**16

MAX_WIDTH = 2**16

_TABLE = "embeddings"
_WEIGHTS = "weights"
_MAPPING = "mapping"
_WHOLE_TABLE = "embeddings of all tokens"  # of tokens that share rows or have weights; no file has such a name

Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True)
class StaticConfig:
    """What ``config.json`` says of a static model, and the sizes that :func:`_sized` adds.

    Attributes:
        normalize: whether vectors are scaled to length 1.
        longest_input: tokens of a text that are read.
        vocab_size: tokens that have a vector; 0 until the weights were opened.
        hidden_size: width of a vector; 0 until the weights were opened.
    """

    normalize: bool
    longest_input: int
    vocab_size: int = 0
    hidden_size: int = 0
    num_hidden_layers: int = 1
    has_token_types: bool = False
    classifies: bool = False
    label_count: int = 1
    class_name: str = "StaticModel"

    def with_one_layer(self) -> Self:
        """Return the same model: it has no layers."""
        return self

    def position_ids(self, token_ids: Int32Array, cu_seqlens: Int32Array) -> Int32Array | None:
        """Return None: positions do not count."""
        return None


def build_static(config: StaticConfig, *, table: str = _TABLE) -> Program:
    """Return the program: look up, mean.

    Args:
        config: the sizes.
        table: the name of the tensor (vocab_size, hidden_size).

    Returns:
        A program with the outputs ``pooled`` (B, hidden_size) and ``normalized``, the same scaled to length 1.
    """
    g = GraphBuilder()
    vectors = g.embed_rows(g.weight(table, (config.vocab_size, config.hidden_size), use="rows"), ids="token_ids")
    pooled = g.pool(vectors, mode="mean")
    return g.build({"pooled": pooled, "normalized": g.l2_normalize(pooled)})


def _read_config(mapping: Mapping[str, object], source: str) -> StaticConfig:
    fields = ConfigFields(mapping, source)
    if "max_length" not in mapping:
        longest = DEFAULT_MAX_LENGTH
    elif mapping["max_length"] is None:
        longest = MOST_TOKENS
    else:
        longest = fields.integer("max_length", 1, MOST_TOKENS)
    return StaticConfig(fields.flag("normalize", default=False), longest)


def _sized(checkpoint: Checkpoint, config: StaticConfig) -> StaticConfig:
    """Return the configuration with the sizes that the tensors have.

    Raises:
        CheckpointError: there are no vectors, or the tensors do not fit together.
    """
    rows, width = _shape(checkpoint, _TABLE, 2)
    if not (1 <= width <= MAX_WIDTH and 1 <= rows <= MAX_VOCAB_SIZE):
        raise CheckpointError(
            f"{checkpoint.directory}: {_TABLE} is {rows:,} x {width:,}; it may have {MAX_VOCAB_SIZE:,} rows of {MAX_WIDTH:,}"
        )
    tokens = {name: _shape(checkpoint, name, 1)[0] for name in (_MAPPING, _WEIGHTS) if name in checkpoint}
    if _MAPPING not in tokens:
        tokens[_TABLE] = rows
    if len(set(tokens.values())) != 1:
        told = ", ".join(f"{name} has {count:,}" for name, count in tokens.items())
        raise CheckpointError(f"{checkpoint.directory}: the tensors disagree about the number of tokens: {told}")
    (count,) = set(tokens.values())
    if not 1 <= count <= MAX_VOCAB_SIZE:
        raise CheckpointError(f"{checkpoint.directory}: {count:,} tokens are outside of 1 to {MAX_VOCAB_SIZE:,}")
    return replace(config, vocab_size=count, hidden_size=width)


def _shape(checkpoint: Checkpoint, name: str, dimensions: int) -> tuple[int, ...]:
    shape = checkpoint.info(name).shape
    if len(shape) != dimensions:
        raise CheckpointError(f"{checkpoint.directory}: {name} has the shape {shape}, not {dimensions} dimensions")
    return shape


def _read_weights(checkpoint: Checkpoint, config: StaticConfig, head: Head) -> StoredWeights[StaticConfig]:
    if head.kind != "vectors" or head.pooling != "mean":
        raise UnsupportedError(
            f"{checkpoint.directory}: a static model gives the mean of its tokens' vectors, nothing else"
        )
    is_plain = _MAPPING not in checkpoint and _WEIGHTS not in checkpoint and checkpoint.info(_TABLE).dtype != "I8"
    return StoredWeights(
        partial(build_static, table=_TABLE if is_plain else _WHOLE_TABLE),
        first_layer="layers.0.",
        layers_told_by="config.json",
        idle=re.compile(r"(?!)"),
        computed={} if is_plain else {_WHOLE_TABLE: _whole_table(checkpoint)},
        also_read=frozenset((_TABLE, _MAPPING, _WEIGHTS)),
    )


def _whole_table(checkpoint: Checkpoint) -> npt.NDArray[np.float32]:
    """Return the vector of each token, (tokens, width): its row, times its weight.

    Raises:
        CheckpointError: a row that there is not, or a number that is not finite.
    """
    stored = checkpoint.array(_TABLE)
    table = stored.astype(np.float32) if stored.dtype == np.int8 else checkpoint.float32(_TABLE)
    if _MAPPING in checkpoint:
        rows = checkpoint.array(_MAPPING)
        if not np.issubdtype(rows.dtype, np.integer):
            raise CheckpointError(f"{checkpoint.directory}: {_MAPPING} is of type {checkpoint.info(_MAPPING).dtype}")
        if not (int(rows.min()) >= 0 and int(rows.max()) < len(table)):
            raise CheckpointError(
                f"{checkpoint.directory}: {_MAPPING} names the rows {rows.min()} to {rows.max()} of {len(table):,}"
            )
        table = table[rows]
    if _WEIGHTS in checkpoint:
        with np.errstate(over="ignore"):  # what is not finite is refused below
            table = table * checkpoint.float32(_WEIGHTS)[:, None]
        if not np.isfinite(table).all():
            raise CheckpointError(f"{checkpoint.directory}: {_TABLE} times {_WEIGHTS} is not finite")
    return np.ascontiguousarray(table)


def _sentence(config: StaticConfig) -> SentenceModules:
    return SentenceModules(
        pooling=Pooling.MEAN,
        layers=(),
        normalize=config.normalize,
        embedding_dimension=None,
        max_seq_length=None,
        do_lower_case=False,
        prompts={},
        default_prompt_name=None,
        similarity=None,
    )


STATIC = Family(
    "static",
    ("model2vec",),
    read_config=_read_config,
    read_weights=_read_weights,
    read_sizes=_sized,
    sentence=_sentence,
    reads_words_only=True,
)
