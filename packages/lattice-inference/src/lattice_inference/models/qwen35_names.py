"""The names of a Qwen3.5's tensors in checkpoints of transformers and in GGUF files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from lattice_inference.models.experts import ExpertNames
from lattice_inference.models.llama import GGUF_NAMES, DecoderNames, hugging_face_names

__all__ = [
    "GGUF_QWEN35_NAMES",
    "DeltaNames",
    "MtpNames",
    "Qwen35Names",
    "SharedNames",
    "gguf_mtp_names",
    "mtp_names",
    "qwen35_names",
]


@dataclass(frozen=True)
class DeltaNames:
    """The tensors of a layer with a gated delta rule, with ``{layer}``.

    ``decay`` is -exp(A_log): a tensor of GGUF files, and worked out from ``A_log`` otherwise. ``dt_bias`` is the whole
    name, the others are without ``.weight``. Tensors of convolutions have ``conv_axes`` between channels and kernel.
    Files of Qwen3-Next have one matrix ``qkvz`` in place of ``qkv`` and ``z``, or ``ba`` in place of ``b`` and ``a``. Its
    rows are those of each part for one key head, then for the next.
    """

    qkv: str
    z: str
    a: str
    b: str
    conv: str
    norm: str
    output: str
    dt_bias: str
    decay: str
    conv_axes: tuple[int, ...] = ()
    qkvz: str | None = None
    ba: str | None = None


@dataclass(frozen=True)
class SharedNames:
    """The router and the matrices of the expert that every token goes through."""

    router: str
    gate: str
    up: str
    down: str


@dataclass(frozen=True, kw_only=True)
class Qwen35Names(DecoderNames):
    """The names in a source of weights.

    Rows of ``query`` are a head's queries and then its gates, for each head. ``offset`` is what norms add to their stored
    weights: GGUF files hold the sum.
    """

    delta: DeltaNames
    shared: SharedNames
    offset: Literal[0, 1]


@dataclass(frozen=True)
class MtpNames:
    """The tensors of an extra layer that predicts a further token.

    ``layer`` has those of its block.
    """

    layer: Qwen35Names
    embedding_norm: str
    hidden_norm: str
    joint: str
    norm: str


def qwen35_names(names: DecoderNames) -> Qwen35Names:
    """Return the names of a checkpoint of transformers whose other tensors have ``names``."""
    at = names.attention_norm.removesuffix("input_layernorm")
    attention = names.query.removesuffix("q_proj")
    common = {name: getattr(names, name) for name in DecoderNames.__dataclass_fields__}
    return Qwen35Names(
        **common | {"query_norm": f"{attention}q_norm", "key_norm": f"{attention}k_norm"},
        delta=DeltaNames(
            qkv=f"{at}linear_attn.in_proj_qkv",
            z=f"{at}linear_attn.in_proj_z",
            a=f"{at}linear_attn.in_proj_a",
            b=f"{at}linear_attn.in_proj_b",
            conv=f"{at}linear_attn.conv1d",
            norm=f"{at}linear_attn.norm",
            output=f"{at}linear_attn.out_proj",
            dt_bias=f"{at}linear_attn.dt_bias",
            decay=f"{at}linear_attn.decay",
            conv_axes=(1,),
        ),
        shared=SharedNames(
            router=f"{at}mlp.shared_expert_gate",
            gate=f"{at}mlp.shared_expert.gate_proj",
            up=f"{at}mlp.shared_expert.up_proj",
            down=f"{at}mlp.shared_expert.down_proj",
        ),
        offset=1,
    )


GGUF_QWEN35_NAMES = Qwen35Names(
    **{name: getattr(GGUF_NAMES, name) for name in DecoderNames.__dataclass_fields__}
    | {
        "pairing": "half",
        "feed_forward_norm": "blk.{layer}.post_attention_norm",
        "query_norm": "blk.{layer}.attn_q_norm",
        "key_norm": "blk.{layer}.attn_k_norm",
    },
    delta=DeltaNames(
        qkv="blk.{layer}.attn_qkv",
        z="blk.{layer}.attn_gate",
        a="blk.{layer}.ssm_alpha",
        b="blk.{layer}.ssm_beta",
        conv="blk.{layer}.ssm_conv1d",
        norm="blk.{layer}.ssm_norm",
        output="blk.{layer}.ssm_out",
        dt_bias="blk.{layer}.ssm_dt.bias",
        decay="blk.{layer}.ssm_a",
    ),
    shared=SharedNames(
        router="blk.{layer}.ffn_gate_inp_shexp",
        gate="blk.{layer}.ffn_gate_shexp",
        up="blk.{layer}.ffn_up_shexp",
        down="blk.{layer}.ffn_down_shexp",
    ),
    offset=0,
)


def mtp_names(names: Qwen35Names, number: int, experts: ExpertNames | None) -> MtpNames:
    """Return the names of extra layer ``number`` of a checkpoint of transformers.

    The layers share all but their blocks.

    ``names`` are those of the model's tensors, ``experts`` those of the layers' mixtures.
    """
    layer = replace(qwen35_names(hugging_face_names("mtp.")), embedding=names.embedding, output=names.output)
    return MtpNames(
        layer=_in_block(replace(layer, experts=experts), str(number)),
        embedding_norm="mtp.pre_fc_norm_embedding",
        hidden_norm="mtp.pre_fc_norm_hidden",
        joint="mtp.fc",
        norm="mtp.norm",
    )


def gguf_mtp_names(names: Qwen35Names, block: int) -> MtpNames:
    """Return the names of the extra layer in block ``block`` of a GGUF file."""
    at = f"blk.{block}.nextn."
    return MtpNames(
        layer=_in_block(names, str(block)),
        embedding_norm=f"{at}enorm",
        hidden_norm=f"{at}hnorm",
        joint=f"{at}eh_proj",
        norm=f"{at}shared_head_norm",
    )


def _in_block(names: Qwen35Names, block: str) -> Qwen35Names:
    """Return the names of one block, without ``{layer}``."""
    fixed: dict[str, Any] = {
        name: value.replace("{layer}", block)
        for name in DecoderNames.__dataclass_fields__
        if isinstance(value := getattr(names, name), str) and name != "pairing"
    }
    shared = {name: value.replace("{layer}", block) for name, value in vars(names.shared).items()}
    experts = None if names.experts is None else names.experts.of_layer(block)
    return replace(names, **fixed, shared=SharedNames(**shared), experts=experts)
