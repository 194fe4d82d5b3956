"""Makes a tiny BERT in sentence-transformers' layout, and transformers' vectors of it.

Writes packages/lattice-inference/tests/data/tiny_bert: a model directory of 0.3 MB with drawn weights (every vector is
perturbed, so that biases and norms matter) and ``expected.json`` with vectors for each activation and pooling. Needs torch,
transformers and tokenizers; the versions are written into the file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

TARGET = Path(__file__).resolve().parents[2] / "packages" / "lattice-inference" / "tests" / "data" / "tiny_bert"
TEXTS = [
    "the cat sat on the mat",
    "a",
    "",
    "dogs and cats are not the same animal , are they ?",
    "unknownword the zebra",
    " ".join(["the same words again and again"] * 9),
]
WORDS = [
    "the",
    "a",
    "cat",
    "cats",
    "dog",
    "dogs",
    "and",
    "are",
    "not",
    "same",
    "animal",
    "they",
    "sat",
    "on",
    "mat",
    ",",
    "?",
    ".",
    "zebra",
    "words",
    "again",
    "is",
    "was",
    "it",
    "to",
    "of",
    "in",
    "that",
    "he",
    "she",
    "we",
    "you",
    "for",
    "with",
    "as",
    "at",
    "by",
    "from",
    "this",
    "have",
    "or",
    "one",
    "had",
    "but",
    "what",
    "all",
    "were",
    "when",
    "your",
    "can",
    "said",
    "there",
]
CONFIG: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}


def vocabulary() -> list[str]:
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters), *WORDS]
    tokens = list(dict.fromkeys(tokens))
    return tokens + [f"[unused{i}]" for i in range(CONFIG["vocab_size"] - len(tokens))]


def make_model() -> Any:
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    model: Any = BertModel(BertConfig(**CONFIG))
    model.eval()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            parameter.copy_(parameter + 0.1 * noise if parameter.dim() == 1 else 0.08 * noise)
    return model


def write_directory(model: Any) -> None:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    model.save_pretrained(TARGET, safe_serialization=True)
    tokens = vocabulary()
    tokenizer = Tokenizer(models.WordPiece({t: i for i, t in enumerate(tokens)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.save(str(TARGET / "tokenizer.json"))
    (TARGET / "vocab.txt").write_text("\n".join(tokens) + "\n")
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ]
    (TARGET / "1_Pooling").mkdir(exist_ok=True)
    write = {
        "modules.json": modules,
        "1_Pooling/config.json": {
            "word_embedding_dimension": CONFIG["hidden_size"],
            "pooling_mode_cls_token": False,
            "pooling_mode_mean_tokens": True,
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
        },
        "sentence_bert_config.json": {"max_seq_length": 32, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": {"query": "find : "}, "default_prompt_name": None},
    }
    for name, content in write.items():
        (TARGET / name).write_text(json.dumps(content, indent=1) + "\n")


def expected(model: Any) -> dict[str, Any]:
    import torch
    from tokenizers import Tokenizer
    from transformers.activations import ACT2FN

    tokenizer = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    tokenizer.enable_truncation(32)
    results: dict[str, Any] = {"texts": TEXTS, "ids": [tokenizer.encode(text).ids for text in TEXTS], "vectors": {}}
    for activation in ("gelu", "gelu_new", "relu", "silu"):
        for layer in model.encoder.layer:
            layer.intermediate.intermediate_act_fn = ACT2FN[activation]
        pooled: dict[str, list[list[float]]] = {"cls": [], "mean": [], "last": []}
        for ids in results["ids"]:
            with torch.inference_mode():
                hidden = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
            for name, vector in (("cls", hidden[0]), ("mean", hidden.mean(dim=0)), ("last", hidden[-1])):
                pooled[name].append(np.asarray(vector, np.float32).tolist())
        results["vectors"][activation] = pooled
    return results


def main() -> None:
    import tokenizers
    import torch
    import transformers

    TARGET.mkdir(parents=True, exist_ok=True)
    model = make_model()
    write_directory(model)
    content = expected(model)
    content["made_with"] = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
    }
    (TARGET / "expected.json").write_text(json.dumps(content) + "\n")


if __name__ == "__main__":
    main()
