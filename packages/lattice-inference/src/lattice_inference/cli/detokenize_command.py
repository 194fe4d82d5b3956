"""``lattice detokenize``: token ids to text."""

from __future__ import annotations

import argparse
import json
import re
import sys

from lattice_inference.cli.model_path import model_path
from lattice_inference.cli.options import add_json, add_model
from lattice_inference.errors import InvalidInputError
from lattice_inference.tokenizer import load_tokenizer

__all__ = ["EXAMPLES", "add_arguments", "run"]

EXAMPLES = """\
examples:
  lattice detokenize --model ./model.gguf 504 3575 282 4649 314
  lattice tokenize --model ./model.gguf --json "a text" | jq -c '.texts[0].ids' | lattice detokenize --model ./model.gguf -

Ids on standard input (-) may be separated by anything that is not a digit, so a JSON array will do.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    parser.add_argument("ids", nargs="+", metavar="ID", help="token ids; a single - reads them from standard input")
    add_model(parser, "a GGUF file, a tokenizer's file, a model's directory, or its name")
    parser.add_argument(
        "--special-tokens", action="store_true", help="spell special tokens out instead of leaving them out"
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print the text."""
    ids = _ids(options.ids)
    tokenizer = load_tokenizer(model_path(options.model))
    text = tokenizer.decode(ids, skip_special_tokens=not options.special_tokens)
    print(json.dumps({"model": options.model, "ids": ids, "text": text}) if options.json else text)
    return 0


def _ids(arguments: list[str]) -> list[int]:
    if arguments == ["-"]:
        arguments = re.findall(r"-?[0-9]+", sys.stdin.read())
    for argument in arguments:
        if not re.fullmatch(r"[0-9]{1,10}", argument):
            raise InvalidInputError(f"{argument[:60]!r} is no token id")
    return list(map(int, arguments))
