"""``lattice perplexity``: how well a model predicts a text."""

from __future__ import annotations

import argparse
import json

from lattice_inference.cli.generation_options import add_loading, load_adapter, open_model
from lattice_inference.cli.progress import progress_bar
from lattice_inference.cli.text_input import read_whole_text
from lattice_inference.generate.perplexity import perplexity

__all__ = ["EXAMPLES", "add_arguments", "add_windows", "read_evaluated_text", "run"]

EXAMPLES = """\
examples:
  lattice perplexity --model ./model.gguf wiki.test.excerpt.raw
  lattice perplexity --model ./model.gguf --window 1024 --stride 512 --max-tokens 20000 --json wiki.test.excerpt.raw

The text is seen through windows; every token but the first counts once, in the first window that holds it. --json prints
  {"model", "perplexity", "nll", "tokens", "window", "stride"}
"""


def add_windows(parser: argparse.ArgumentParser) -> None:
    """Add the text, and how it is seen."""
    parser.add_argument("file", metavar="FILE", help="a UTF-8 text; - for standard input")
    parser.add_argument("--window", type=int, default=512, metavar="N", help="tokens seen at once (512)")
    parser.add_argument("--stride", type=int, default=256, metavar="N", help="from one window to the next (256)")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="use only the first N tokens")
    parser.add_argument("--max-characters", type=int, metavar="N", help="use only the first N characters")


def read_evaluated_text(options: argparse.Namespace) -> str:
    """Return the text that :func:`add_windows` asks for.

    Raises:
        InvalidInputError, OSError: it cannot be read.
    """
    source = options.file
    text = read_whole_text("-", None, "a text") if source == "-" else read_whole_text(None, source, "a text")
    return text[: options.max_characters]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    add_windows(parser)
    add_loading(parser)


def run(options: argparse.Namespace) -> int:
    """Print the perplexity."""
    text = read_evaluated_text(options)
    with open_model(options) as model:
        total = model.tokenizer.count(text)
        total = total if options.max_tokens is None else min(total, options.max_tokens)
        with progress_bar(total, unit="tok") as bar:
            result = perplexity(
                model,
                text,
                window=options.window,
                stride=options.stride,
                max_tokens=options.max_tokens,
                progress=bar.update,
                adapter=load_adapter(model, options),
            )
    if options.json:
        entry = {"perplexity": result.perplexity, "nll": result.nll, "tokens": result.tokens}
        print(json.dumps({"model": options.model, **entry, "window": options.window, "stride": options.stride}))
    else:
        print(f"perplexity {result.perplexity:.4f} ({result.nll:.6f} nats a token) over {result.tokens:,} tokens")
    return 0
