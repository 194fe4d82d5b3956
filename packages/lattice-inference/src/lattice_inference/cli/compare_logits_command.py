"""``lattice compare-logits``: how far a model's predictions are from another's."""

from __future__ import annotations

import argparse
import json
from typing import get_args

from lattice_inference.cli.generation_options import add_loading, load_adapter, open_model
from lattice_inference.cli.perplexity_command import add_windows, read_evaluated_text
from lattice_inference.cli.progress import progress_bar
from lattice_inference.errors import InvalidInputError
from lattice_inference.generate.compare_logits import compare_logits
from lattice_inference.precision import Precision

__all__ = ["EXAMPLES", "add_arguments", "run"]

EXAMPLES = """\
examples:
  lattice compare-logits --model ./model.q8_0.gguf --other ./model.q4_0.gguf wiki.test.excerpt.raw
  lattice compare-logits --model ./directory --other-precision bfloat16 --max-tokens 2048 --json wiki.test.excerpt.raw
  lattice compare-logits --model ./model.gguf --adapter ./my-adapter wiki.test.excerpt.raw

--model is taken for right, with --precision; --other (default: the same model) with --other-precision and --adapter is
compared with it at every position. --json prints
  {"model", "other", "tokens", "reference_perplexity", "perplexity", "agreement", "mean_kl", "max_kl"}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    add_windows(parser)
    add_loading(parser)
    parser.add_argument("--other", metavar="PATH|NAME", help="the model to compare (default: that of --model)")
    parser.add_argument("--other-precision", choices=get_args(Precision), help="what its weights are kept in")


def run(options: argparse.Namespace) -> int:
    """Print the comparison."""
    if options.other is None and options.other_precision is None and options.adapter is None:
        raise InvalidInputError("nothing to compare with: give --other, --other-precision or --adapter")
    text = read_evaluated_text(options)
    other_name = options.other or options.model
    with open_model(options) as reference, open_model(options, other_name, options.other_precision) as model:
        total = reference.tokenizer.count(text)
        total = total if options.max_tokens is None else min(total, options.max_tokens)
        with progress_bar(total, unit="tok") as bar:
            result = compare_logits(
                reference,
                model,
                text,
                window=options.window,
                stride=options.stride,
                max_tokens=options.max_tokens,
                progress=bar.update,
                adapter=load_adapter(model, options),
            )
    if options.json:
        names = {"model": options.model, "other": other_name}
        figures = ("tokens", "reference_perplexity", "perplexity", "agreement", "mean_kl", "max_kl")
        print(json.dumps(names | {figure: getattr(result, figure) for figure in figures}))
        return 0
    print(f"tokens      {result.tokens:,}")
    print(f"perplexity  {result.reference_perplexity:.4f} of --model, {result.perplexity:.4f} of the other")
    print(f"agreement   {100 * result.agreement:.2f} % of positions have the same most probable token")
    print(f"KL          {result.mean_kl:.3e} nats a position, at most {result.max_kl:.3e}")
    return 0
