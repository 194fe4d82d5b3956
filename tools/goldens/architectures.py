"""Makes sentence-transformers' results for every supported architecture, drawn weights.

Each case has the exact architecture of a catalogue model in a small width: class, layers, activation, positions,
pooling. Others are cross-encoders, or have modules on top of the pooling. The weights are drawn, not stored; see
packages/lattice-inference/tests/models/drawn_checkpoints.py. Writes tests/data/architectures; ``--check`` makes it
again and compares it with the committed files, and our vectors with both. Needs torch, transformers and
sentence-transformers.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "packages" / "lattice-inference" / "tests"
TARGET = TESTS / "data" / "architectures"
LIMIT = 1e-6
ORACLE_LIMIT = 4e-6  # between two runs of PyTorch, which adds in another order on another CPU

sys.path.insert(0, str(TESTS / "models"))
from drawn_checkpoints import write_directory  # noqa: E402

TEXTS = [
    "the cat sat on the mat",
    "a",
    "",
    "dogs and cats are not the same animal , are they ?",
    "unknownword the zebra",
    " ".join(["the same words again and again"] * 9),
]
# A text may spell out special tokens; the padding token takes no position.
XLMR_TEXTS = [*TEXTS, "the cat <pad> <pad> sat on </s> the mat <unk> ☃"]
PAIRS = [
    ["the cat", "the cat sat on the mat"],
    ["what is a zebra ?", "a"],
    ["", ""],
    ["dogs", " ".join(["dogs and cats are not the same animal"] * 9)],
    [" ".join(["what is it that they said"] * 9), "one"],
    [" ".join(["you and we"] * 9), " ".join(["he or she was there"] * 9)],
]
VOCAB = 128

MODULES = "sentence_transformers.models."


def config(kind: str, layers: int, head_size: int, **changes: Any) -> dict[str, Any]:
    """A config.json: BERT's or RoBERTa's, two heads wide."""
    roberta = not kind.startswith("Bert")
    family = next(name for name in ("Bert", "XLMRoberta", "Roberta", "Camembert") if kind.startswith(name))
    return {
        "architectures": [kind],
        "model_type": {"XLMRoberta": "xlm-roberta"}.get(family, family.lower()),
        "vocab_size": VOCAB,
        "hidden_size": 2 * head_size,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "intermediate_size": 8 * head_size,
        "hidden_act": "gelu",
        "max_position_embeddings": 514 if roberta else 512,
        "type_vocab_size": 1 if roberta else 2,
        "layer_norm_eps": 1e-5 if roberta else 1e-12,
        "pad_token_id": 1 if roberta else 0,
        **({"bos_token_id": 0, "eos_token_id": 2} if roberta else {}),
        **changes,
    }


def tokenizer_config(family: str) -> dict[str, Any]:
    if family == "bert":
        special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
        return {"tokenizer_class": "BertTokenizer", "model_max_length": 512, **special}
    special = {"pad_token": "<pad>", "unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>"}
    inputs = ["input_ids", "attention_mask"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": inputs,
        "model_max_length": 512,
        **special,
    }


def encoder(
    model: dict[str, Any],
    family: str,
    pooling: str,
    max_tokens: int,
    *modules: tuple[str, dict[str, Any] | None],
    tensors: dict[str, dict[str, list[int]]] | None = None,
    texts: list[str] | None = None,
) -> dict[str, Any]:
    """Write a sentence-transformers directory.

    ``modules`` are the kinds and configs of the modules after the pooling.
    """
    listed = [("Transformer", ""), ("Pooling", "1_Pooling")]
    listed += [(kind, f"{index}_{kind}") for index, (kind, _) in enumerate(modules, 2)]
    width = model["hidden_size"]
    files: dict[str, Any] = {
        "config.json": model,
        "tokenizer_config.json": tokenizer_config(family),
        "modules.json": [
            {"idx": index, "name": str(index), "path": path, "type": MODULES + kind}
            for index, (kind, path) in enumerate(listed)
        ],
        "1_Pooling/config.json": {"word_embedding_dimension": width, f"pooling_mode_{pooling}": True}
        | ({"pooling_mode_mean_tokens": False} if pooling != "mean_tokens" else {}),
        "sentence_bert_config.json": {"max_seq_length": max_tokens, "do_lower_case": False},
    }
    for index, (kind, content) in enumerate(modules, 2):
        if content is not None:
            files[f"{index}_{kind}/config.json"] = content
    return {
        "tokenizer": family,
        "files": files,
        "tensors": {"model.safetensors": tensors_of(model), **(tensors or {})},
        "texts": texts or (TEXTS if family == "bert" else XLMR_TEXTS),
    }


def cross_encoder(model: dict[str, Any], family: str, max_tokens: int, **config_changes: Any) -> dict[str, Any]:
    files = {
        "config.json": model | config_changes,
        "tokenizer_config.json": tokenizer_config(family) | {"model_max_length": max_tokens},
    }
    return {
        "tokenizer": family,
        "files": files,
        "tensors": {"model.safetensors": tensors_of(model)},
        "pairs": PAIRS,
    }


def tensors_of(model: dict[str, Any]) -> dict[str, list[int]]:
    """The tensors that transformers saves for a config, by name and shape."""
    import transformers

    kind = model["architectures"][0]
    settings = {name: value for name, value in model.items() if name not in ("architectures", "model_type")}
    if "id2label" in settings:
        settings["num_labels"] = len(settings.pop("id2label"))
    made = getattr(transformers, kind)
    config_class = made.config_class
    return {name: list(tensor.shape) for name, tensor in made(config_class(**settings)).state_dict().items()}


def cases() -> dict[str, dict[str, Any]]:
    one = {"id2label": {"0": "LABEL_0"}}
    three = {"id2label": {"0": "contradiction", "1": "entailment", "2": "neutral"}}
    unit: tuple[str, None] = ("Normalize", None)
    dense = {"in_features": 64, "out_features": 48, "bias": True}
    square = {"in_features": 48, "out_features": 48, "bias": False}
    tanh, gelu = "torch.nn.modules.activation.Tanh", "torch.nn.modules.activation.GELU"
    identity = "torch.nn.modules.linear.Identity"
    small = config("BertModel", 2, 32)
    identity_config = {"sentence_transformers": {"activation_fn": identity, "version": "4.1.0"}}
    return {
        "bge-small-en-v1.5": encoder(config("BertModel", 12, 32), "bert", "cls_token", 512, unit),
        "bge-base-en-v1.5": encoder(config("BertModel", 12, 64), "bert", "cls_token", 512, unit),
        "bge-large-en-v1.5": encoder(config("BertModel", 24, 64), "bert", "cls_token", 512, unit),
        "multilingual-e5-small": encoder(config("BertModel", 12, 32), "xlmr", "mean_tokens", 512, unit),
        "multilingual-e5-base": encoder(config("XLMRobertaModel", 12, 64), "xlmr", "mean_tokens", 512, unit),
        "all-minilm-l6-v2": encoder(config("BertModel", 6, 32), "bert", "mean_tokens", 32, unit),
        "paraphrase-multilingual-minilm-l12-v2": encoder(config("BertModel", 12, 32), "xlmr", "mean_tokens", 40),
        "roberta": encoder(config("RobertaModel", 2, 32), "xlmr", "mean_tokens", 512, unit),
        "camembert": encoder(config("CamembertForMaskedLM", 2, 32), "xlmr", "cls_token", 512),
        "xlm-roberta-padding-7": encoder(
            config("XLMRobertaModel", 2, 32, pad_token_id=7, max_position_embeddings=40), "xlmr", "mean_tokens", 32
        ),
        "dense-tanh": encoder(
            small,
            "bert",
            "cls_token",
            512,
            ("Dense", dense | {"activation_function": tanh}),
            unit,
            tensors={"2_Dense/model.safetensors": {"linear.weight": [48, 64], "linear.bias": [48]}},
        ),
        "dense-chain": encoder(
            small,
            "bert",
            "mean_tokens",
            512,
            ("Dense", dense | {"activation_function": gelu, "use_residual": True}),
            ("Dropout", {"dropout": 0.2}),
            unit,
            ("Dense", square | {"activation_function": identity, "use_residual": True}),
            ("LayerNorm", {"dimension": 48}),
            tensors={
                "2_Dense/model.safetensors": {
                    "linear.weight": [48, 64],
                    "linear.bias": [48],
                    "residual.weight": [48, 64],
                },
                "5_Dense/model.safetensors": {"linear.weight": [48, 48]},
                "6_LayerNorm/model.safetensors": {"norm.weight": [48], "norm.bias": [48]},
            },
        ),
        "cross-encoder-bert": cross_encoder(config("BertForSequenceClassification", 6, 32, **one), "bert", 40),
        "cross-encoder-bert-logits": cross_encoder(
            config("BertForSequenceClassification", 2, 32, **one), "bert", 512, **identity_config
        ),
        "cross-encoder-bert-three-labels": cross_encoder(
            config("BertForSequenceClassification", 2, 32, **three), "bert", 40
        ),
        "cross-encoder-xlm-roberta": cross_encoder(
            config("XLMRobertaForSequenceClassification", 12, 64, **one), "xlmr", 40
        ),
        "cross-encoder-xlm-roberta-old-identity": cross_encoder(
            config("XLMRobertaForSequenceClassification", 2, 32, **one),
            "xlmr",
            40,
            sbert_ce_default_activation_function=identity,
        ),
    }


def by_sentence_transformers(directory: Path, case: dict[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """Return the model's results of the case's texts or pairs, one at a time, and the token ids."""
    from sentence_transformers import CrossEncoder, SentenceTransformer

    made: dict[str, npt.NDArray[Any]] = {}
    if "pairs" in case:
        scorer: Any = CrossEncoder(str(directory), device="cpu")
        made["output"] = np.asarray(scorer.predict(case["pairs"], batch_size=1, show_progress_bar=False))
        inputs = [scorer.preprocess([pair]) for pair in case["pairs"]]
    else:
        model: Any = SentenceTransformer(str(directory), device="cpu")
        made["output"] = model.encode(case["texts"], batch_size=1, show_progress_bar=False)
        inputs = [model.preprocess([text]) for text in case["texts"]]
    made["output"] = made["output"].astype(np.float32)
    made["ids"] = np.concatenate([entry["input_ids"][0].numpy() for entry in inputs]).astype(np.int32)
    made["lengths"] = np.array([entry["input_ids"].shape[1] for entry in inputs], np.int32)
    return made


def by_lattice(directory: Path, case: dict[str, Any]) -> npt.NDArray[np.float32]:
    import lattice_inference

    if "pairs" in case:
        with lattice_inference.load_cross_encoder(directory) as scorer:
            return scorer.score_pairs([(pair[0], pair[1]) for pair in case["pairs"]])
    with lattice_inference.load_encoder(directory) as encoder:
        return encoder.encode(case["texts"]).vectors


def relative_difference(ours: npt.NDArray[np.float32], theirs: npt.NDArray[np.float32]) -> float:
    """The largest difference of a number, in units of the vector's length where that is over 1."""
    rows = theirs.reshape(len(theirs), -1)
    lengths = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1)
    return float((np.abs(ours.reshape(rows.shape).astype(np.float64) - rows) / lengths).max())


def main() -> int:
    import sentence_transformers
    import torch
    import transformers

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the committed files instead of writing them")
    check = parser.parse_args().check

    made = cases()
    arrays: dict[str, npt.NDArray[Any]] = {}
    worst = 0.0
    for name, case in made.items():
        with tempfile.TemporaryDirectory() as folder:
            directory = write_directory(Path(folder), case)
            for key, array in by_sentence_transformers(directory, case).items():
                arrays[f"{name}/{key}"] = array
            if check:
                difference = relative_difference(by_lattice(directory, case), arrays[f"{name}/output"])
                worst = max(worst, difference)
                print(f"{name}: {difference:.2e} from sentence-transformers")
    content = {
        "made_with": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "sentence_transformers": sentence_transformers.__version__,
        },
        "cases": made,
    }
    if not check:
        TARGET.mkdir(parents=True, exist_ok=True)
        (TARGET / "cases.json").write_text(json.dumps(content, separators=(",", ":")) + "\n", encoding="utf-8")
        np.savez_compressed(TARGET / "outputs.npz", **arrays)  # type: ignore[arg-type]
        return 0
    committed = json.loads((TARGET / "cases.json").read_text(encoding="utf-8"))["cases"]
    stored = dict(np.load(TARGET / "outputs.npz"))
    same = committed == json.loads(json.dumps(made)) and stored.keys() == arrays.keys()
    drift = max(float(np.abs(stored[key].astype(np.float64) - arrays[key]).max()) for key in stored) if same else np.inf
    print(f"committed files: {drift:.2e} apart (limit {ORACLE_LIMIT:.0e}); ours: {worst:.2e} (limit {LIMIT:.0e})")
    return 0 if drift <= ORACLE_LIMIT and worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
