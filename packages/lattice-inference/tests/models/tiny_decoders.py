"""Small Llama checkpoints for tests of generation, with a byte-level tokenizer: each byte is a token.

One is drawn at random. The other says what it is told to: its layers add nothing, its embedding of a token is a direction of
its own, and its head turns that direction into the logits of a table's row.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

SPECIALS = ["<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>", "<think>", "<｜end▁of▁sentence｜>", "cð"]
SHOWN = {"<think>", "<｜end▁of▁sentence｜>", "cð"}  # not marked as special; the second of no byte's characters
BYTES = 256
VOCAB = 272  # some rows of the logits belong to no token
BOS, EOS, USER, ASSISTANT, END, THINK, SENTENCE, CUT = range(BYTES, BYTES + len(SPECIALS))
# CUT is the bytes b"c\xf0": a letter, and the first byte of a character

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% else %}"
    "<|{{ m.role }}|>{{ m.content }}<|end|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def byte_alphabet() -> list[str]:
    """The characters that stand for bytes in a byte-level vocabulary."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    characters, extra = [], 0
    for byte in range(BYTES):
        if byte in printable:
            characters.append(chr(byte))
        else:
            characters.append(chr(256 + extra))
            extra += 1
    return characters


def write_tokenizer(directory: Path, *, adds_bos: bool = False, template: str | None = TEMPLATE) -> None:
    added = [
        {"id": BYTES + index, "content": text, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False, "special": text not in SHOWN}
        for index, text in enumerate(SPECIALS)
    ]
    single = [{"Sequence": {"id": "A", "type_id": 0}}]
    post_processor = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, *single],
        "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [BOS], "tokens": ["<s>"]}},
    }
    content: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "post_processor": post_processor if adds_bos else None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {character: byte for byte, character in enumerate(byte_alphabet())},
            "merges": [],
        },
    }
    (directory / "tokenizer.json").write_text(json.dumps(content))
    config = {"bos_token": "<s>", "eos_token": "</s>"} | ({"chat_template": template} if template else {})
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


def write_model(
    directory: Path,
    tensors: dict[str, np.ndarray],
    *,
    hidden: int,
    layers: int,
    context: int = 256,
    adds_bos: bool = False,
    template: str | None = TEMPLATE,
    generation_config: dict[str, object] | None = None,
) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": 32,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-12,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": VOCAB,
        "bos_token_id": BOS,
    }
    (directory / "config.json").write_text(json.dumps(config))
    if generation_config is not None:
        (directory / "generation_config.json").write_text(json.dumps(generation_config))
    save_file(tensors, directory / "model.safetensors")
    write_tokenizer(directory, adds_bos=adds_bos, template=template)
    return directory


def _layers(rng: np.random.Generator, hidden: int, layers: int, scale: float) -> dict[str, np.ndarray]:
    def drawn(*shape: int) -> np.ndarray:
        return (scale * rng.normal(size=shape)).astype(np.float32)

    tensors: dict[str, np.ndarray] = {}
    for index in range(layers):
        name = f"model.layers.{index}."
        tensors |= {
            f"{name}input_layernorm.weight": 1 + drawn(hidden),
            f"{name}post_attention_layernorm.weight": 1 + drawn(hidden),
            f"{name}self_attn.q_proj.weight": drawn(32, hidden),
            f"{name}self_attn.k_proj.weight": drawn(16, hidden),
            f"{name}self_attn.v_proj.weight": drawn(16, hidden),
            f"{name}self_attn.o_proj.weight": drawn(hidden, 32),
            f"{name}mlp.gate_proj.weight": drawn(32, hidden),
            f"{name}mlp.up_proj.weight": drawn(32, hidden),
            f"{name}mlp.down_proj.weight": drawn(hidden, 32),
        }
    return tensors


def write_drawn_model(directory: Path, seed: int = 0, **settings: Any) -> Path:
    """A model of two layers whose every token depends on all before."""
    rng = np.random.default_rng(seed)
    tensors = _layers(rng, 32, 2, 0.5)
    tensors["model.embed_tokens.weight"] = rng.normal(size=(VOCAB, 32)).astype(np.float32)
    tensors["model.norm.weight"] = np.ones(32, np.float32)
    tensors["lm_head.weight"] = rng.normal(size=(VOCAB, 32)).astype(np.float32)
    return write_model(directory, tensors, hidden=32, layers=2, **settings)


def write_told_model(directory: Path, table: dict[int, int] | np.ndarray, **settings: Any) -> Path:
    """A model whose logits after a token are the token's row of ``table``, or whose next token is told by a dict."""
    if isinstance(table, dict):
        rows = np.zeros((VOCAB, VOCAB), np.float32)
        for token, successor in table.items():
            rows[token, successor] = 20
    else:
        rows = table
    tensors = _layers(np.random.default_rng(0), VOCAB, 1, 0.0)
    tensors["model.embed_tokens.weight"] = np.eye(VOCAB, dtype=np.float32)
    tensors["model.norm.weight"] = np.ones(VOCAB, np.float32)
    # the norm scales a direction of length 1 by the square root of the width
    tensors["lm_head.weight"] = np.ascontiguousarray(rows.T / np.sqrt(VOCAB)).astype(np.float32)
    return write_model(directory, tensors, hidden=VOCAB, layers=1, **settings)


def chain(text: str | bytes, *ends: int) -> dict[int, int]:
    """The table that makes the bytes of ``text`` follow each other, then the tokens ``ends``; no byte may come twice."""
    ids = [*(text.encode() if isinstance(text, str) else text), *ends]
    assert len(set(ids)) == len(ids), "a token has one successor"
    return dict(itertools.pairwise(ids))
