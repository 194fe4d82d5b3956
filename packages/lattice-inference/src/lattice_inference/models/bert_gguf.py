"""BERT encoders in GGUF files, with llama.cpp's names.

:mod:`lattice_inference.models.bert` builds their programs. Such files store RoBERTa models as BERT, without the rows of
the position embedding that their positions never reach. No key states the activation: it is BERT's GELU (by erf), with
which these models were trained.
"""

from __future__ import annotations

from lattice_inference.checkpoint.checkpoint import Checkpoint
from lattice_inference.errors import CheckpointError, UnsupportedError
from lattice_inference.models.bert import TensorNames, find_names
from lattice_inference.models.bert_config import MAX_HEADS, MAX_WIDTH, Activation, BertConfig, BertFamily
from lattice_inference.models.config_fields import MAX_LAYERS, MAX_POSITIONS, ConfigFields
from lattice_inference.models.family import GgufExport
from lattice_inference.models.gguf_pooling import POOLING_TYPES, read_pooling
from lattice_inference.models.sentence_modules import Pooling
from lattice_inference.models.weight_check import refuse_adapter_file

__all__ = ["ARCHITECTURE", "gguf_export", "gguf_names", "read_bert_gguf"]

#: The value of ``general.architecture``.
ARCHITECTURE = "bert"

_TABLES = {
    "embeddings.word_embeddings.weight": "token_embd.weight",
    "embeddings.token_type_embeddings.weight": "token_types.weight",
    "embeddings.position_embeddings.weight": "position_embd.weight",
}
_EMBEDDING_NORM = ("embeddings.LayerNorm", "token_embd_norm")
_LAYER_PARTS = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}


def gguf_names(layer_count: int) -> dict[str, str]:
    """Return the GGUF name of each tensor of an encoder, by its name in transformers."""
    names = dict(_TABLES)
    pairs = [
        _EMBEDDING_NORM,
        *(
            (f"encoder.layer.{layer}.{part}", f"blk.{layer}.{name}")
            for layer in range(layer_count)
            for part, name in _LAYER_PARTS.items()
        ),
    ]
    for ours, theirs in pairs:
        for part in ("weight", "bias"):
            names[f"{ours}.{part}"] = f"{theirs}.{part}"
    return names


def read_bert_gguf(checkpoint: Checkpoint) -> tuple[BertConfig, Pooling | None]:
    """Return the configuration of the encoder in an open GGUF file, and its pooling if stated.

    Raises:
        UnsupportedError: it is another architecture, or a reranker.
        ModelConfigError: a key is missing, of the wrong type or out of range.
        CheckpointError: a table that gives the sizes is missing.
    """
    source = str(checkpoint.directory)
    fields = ConfigFields(checkpoint.metadata, source)
    refuse_adapter_file(fields)
    architecture = fields.text("general.architecture")
    if architecture != ARCHITECTURE:
        raise UnsupportedError(
            f"{source}: general.architecture is {architecture!r:.60}; of encoders in GGUF files, {ARCHITECTURE!r} is built"
        )
    if fields.flag("bert.attention.causal", default=False):
        raise UnsupportedError(f"{source}: bert.attention.causal is true; only encoders are built")
    positions = _rows(checkpoint, "position_embd.weight")
    context = fields.integer("bert.context_length", 1, MAX_POSITIONS, default=positions)
    if context > positions:
        raise fields.error("bert.context_length", f"is {context:,}, and the position embedding has {positions:,} rows")
    config = BertConfig.from_mapping(
        {
            "model_type": "bert",
            "architectures": ["BertModel"],
            "vocab_size": _rows(checkpoint, "token_embd.weight"),
            "hidden_size": fields.integer("bert.embedding_length", 1, MAX_WIDTH),
            "num_hidden_layers": fields.integer("bert.block_count", 1, MAX_LAYERS),
            "num_attention_heads": fields.integer("bert.attention.head_count", 1, MAX_HEADS),
            "intermediate_size": fields.integer("bert.feed_forward_length", 1, MAX_WIDTH),
            "hidden_act": "gelu",
            "max_position_embeddings": positions,
            "type_vocab_size": _rows(checkpoint, "token_types.weight"),
            "layer_norm_eps": fields.real("bert.attention.layer_norm_epsilon", above=0.0, at_most=1.0),
            "pad_token_id": None,
        },
        source=source,
    )
    return config, read_pooling(fields, ARCHITECTURE)


def gguf_export(checkpoint: Checkpoint, config: BertConfig, pooling: Pooling | None, source: str) -> GgufExport:
    """Describe how to write the encoder in an open safetensors checkpoint as a GGUF file.

    ``source`` is its name in messages.

    Raises:
        UnsupportedError: it is not a BERT encoder with GELU.
        CheckpointError: no known name of the word embeddings is there.
    """
    if config.family is not BertFamily.BERT or config.hidden_act not in (Activation.GELU, Activation.GELU_PYTHON):
        raise UnsupportedError(
            f"{source}: a {config.family.value} encoder with {config.hidden_act.value}; only BERT with GELU is written "
            "as GGUF, which has no key for the activation"
        )
    network: dict[str, object] = {
        "bert.block_count": config.num_hidden_layers,
        "bert.context_length": config.max_position_embeddings,
        "bert.embedding_length": config.hidden_size,
        "bert.feed_forward_length": config.intermediate_size,
        "bert.attention.head_count": config.num_attention_heads,
        "bert.attention.layer_norm_epsilon": config.layer_norm_eps,
        "bert.attention.causal": False,
    }
    keys = {value: key for key, value in POOLING_TYPES.items()}
    names = find_names(checkpoint)
    return GgufExport(
        ARCHITECTURE,
        network,
        {} if pooling is None else {"bert.pooling_type": keys[pooling]},
        {theirs: _stored_name(ours, names) for ours, theirs in gguf_names(config.num_hidden_layers).items()},
        frozenset({"position_embd.weight", "token_types.weight"}),
        config.type_vocab_size,
    )


def _stored_name(name: str, names: TensorNames) -> str:
    if "LayerNorm." in name:
        stem, _, part = name.rpartition(".")
        name = f"{stem}.{names.layer_norm[part == 'bias']}"
    return names.prefix + name


def _rows(checkpoint: Checkpoint, name: str) -> int:
    shape = checkpoint.info(name).shape
    if len(shape) != 2:
        raise CheckpointError(f"{checkpoint.directory}: tensor {name!r} has the shape {shape}; expected two dimensions")
    return shape[0]
