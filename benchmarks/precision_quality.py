"""Measures the quality of each precision of weights: perplexity, agreement, divergence.

The text is seen through windows of 512 tokens, each begun 256 after the one before. Every precision is compared with
float32, position by position: how often both find the same token most probable, and the Kullback-Leibler divergence.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

from harness.options import Record, add_record_options, finish, limits, positive_int
from harness.record import describe_run
from harness.tables import markdown_table, provenance

__all__ = ["default_text", "main", "misses", "render"]

SCRIPT = "precision_quality"
FILE = Path("text", "wikitext2", "wiki.test.raw")
CHARACTERS = 12_000
EXACT = ("stored, float activations", "float32")
"""What other precisions are compared with, the first that was measured."""

EXAMPLES = """
examples:
  python benchmarks/precision_quality.py --model SmolLM2-135M-Instruct.Q4_1.gguf --text wiki.test.raw
  python benchmarks/precision_quality.py --model model.gguf --precision bfloat16 --max-tokens 4096
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="a GGUF file, a directory or a name")
    parser.add_argument("--precision", action="append", help="compare this one only; may be repeated (default: all)")
    parser.add_argument(
        "--text",
        type=Path,
        metavar="PATH",
        help=f"a text (default: {FILE} below the folder named by LATTICE_DATA, else below ../shared/data)",
    )
    parser.add_argument("--max-tokens", type=positive_int, default=2048, help="tokens of the text (default: 2048)")
    add_record_options(parser, SCRIPT)
    options = parser.parse_args(arguments)
    return finish(SCRIPT, options, measure=partial(measure, options), render=render, misses=misses)


def default_text() -> Path:
    """Return where the text is when ``--text`` is not given."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    return Path(os.environ.get("LATTICE_DATA") or beside) / FILE


def measure(options: argparse.Namespace) -> Record:
    """Compare every precision with float32 and return the record."""
    from lattice_inference import compare_logits, load_model
    from lattice_inference.precision import Activations, Precision

    if options.model is None:
        raise ValueError("name a language model with --model")
    path = options.text or default_text()
    text = path.read_text(encoding="utf-8")[: CHARACTERS * max(1, options.max_tokens // 2048)]
    precisions = options.precision or get_args(Precision)
    runs: list[tuple[Precision, Activations]] = [(precision, "int8") for precision in precisions]
    runs += [("stored", "float32")] if "stored" in precisions else []
    record = describe_run(SCRIPT)
    samples = []
    with load_model(options.model, precision="float32") as reference:
        for precision, activations in runs:
            with load_model(options.model, precision=precision, activations=activations) as model:
                compared = compare_logits(reference, model, text, max_tokens=options.max_tokens)
                weights_bytes = sum(weight.nbytes for weight in model.weight_sizes)
            samples.append(
                {
                    "precision": precision,
                    "activations": activations,
                    "tokens": compared.tokens,
                    "perplexity": compared.perplexity,
                    "agreement": compared.agreement,
                    "mean_kl": compared.mean_kl,
                    "max_kl": compared.max_kl,
                    "weights_bytes": weights_bytes,
                }
            )
    return record | {"model": Path(options.model).name, "data": path.name, "samples": samples}


def misses(record: Mapping[str, Any]) -> list[str]:
    """Return a line for each precision whose perplexity of the known model and text is off.

    Floats must reach what is known of the model; what rounds more may be so much above what floats reached in the same run.
    """
    bound = limits(SCRIPT)["smollm2_wikitext2"]
    if (record["model"], record["data"]) != (bound["model"], bound["data"]):
        return []
    samples = {_name(sample): sample for sample in record["samples"] if sample["tokens"] == bound["tokens"]}
    exact = next((samples[name]["perplexity"] for name in EXACT if name in samples), bound["perplexity"])
    found = []
    for name, sample in samples.items():
        perplexity = sample["perplexity"]
        if name in bound["above"]:
            if not perplexity <= exact + bound["above"][name]:
                found.append(f"{name}: perplexity {perplexity:.4f}, {exact:.4f} + {bound['above'][name]} is the limit")
        elif not abs(perplexity - bound["perplexity"]) <= bound["tolerance"]:
            found.append(f"{name}: perplexity {perplexity:.4f}, {bound['perplexity']} +- {bound['tolerance']} is asked")
    return found


def _name(sample: Mapping[str, Any]) -> str:
    """Return a sample's kind.

    int8 activations go with weights that are kept quantized, and are not named.
    """
    precision = str(sample["precision"])
    return f"{precision}, float activations" if sample.get("activations") == "float32" else precision


def render(record: Mapping[str, Any]) -> str:
    """Return the table of a record in Markdown."""
    titles = ["weights", "MB", "perplexity", "same token", "mean KL", "largest KL"]
    rows = [
        [
            _name(sample),
            f"{sample['weights_bytes'] / 1e6:,.1f}",
            f"{sample['perplexity']:.4f}",
            f"{100 * sample['agreement']:.2f} %",
            f"{sample['mean_kl']:.2e}",
            f"{sample['max_kl']:.2e}",
        ]
        for sample in record["samples"]
    ]
    what = f"{record['model']}, {record['samples'][0]['tokens']:,} tokens of {record['data']}"
    return f"{provenance(record)}\n\n{what}\n\n{markdown_table(titles, rows)}"


if __name__ == "__main__":
    sys.exit(main())
