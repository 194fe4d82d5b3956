"""``lattice tokenize``: texts to token ids."""

from __future__ import annotations

import argparse
import json

from lattice_inference.cli.model_path import model_path
from lattice_inference.cli.options import add_json, add_model, add_texts
from lattice_inference.cli.text_input import read_texts
from lattice_inference.tokenizer import Encoding, Tokenizer, load_tokenizer

__all__ = ["EXAMPLES", "add_arguments", "run"]

EXAMPLES = """\
examples:
  lattice tokenize --model ./model.gguf "The capital of France is"
  lattice tokenize --model all-minilm-l6-v2 --json "one text" "another"
  lattice tokenize --model ./model-directory --count --input corpus.txt

Prints one line a token: its id, the characters of the text that it stands for, and the token. --json prints
  {"model": ..., "texts": [{"index", "count", "ids": [...], "tokens": [...], "offsets": [[start, end], ...]}, ...]}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    add_texts(parser, "texts to cut into tokens; a single - reads them from standard input, one a line")
    add_model(parser, "a GGUF file, a tokenizer's file, a model's directory, or its name")
    parser.add_argument("--count", action="store_true", help="print only how many tokens each text has")
    parser.add_argument(
        "--no-special-tokens", action="store_true", help="leave out the special tokens that stand around every text"
    )
    parser.add_argument(
        "--plain", action="store_true", help="take special tokens that are spelled out in a text for plain text"
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print the tokens of the texts."""
    texts = read_texts(options.texts, options.input)
    tokenizer = load_tokenizer(model_path(options.model))
    encodings = tokenizer.encode_batch(
        texts, add_special_tokens=not options.no_special_tokens, special_tokens_in_text=not options.plain
    )
    if options.json:
        entries = [_as_json(index, tokenizer, encoding, options.count) for index, encoding in enumerate(encodings)]
        print(json.dumps({"model": options.model, "texts": entries}))
    elif options.count:
        for encoding in encodings:
            print(len(encoding.ids))
    else:
        for index, (text, encoding) in enumerate(zip(texts, encodings, strict=True)):
            if index:
                print()
            _print_tokens(tokenizer, text, encoding)
    return 0


def _as_json(index: int, tokenizer: Tokenizer, encoding: Encoding, only_count: bool) -> dict[str, object]:
    ids = list(map(int, encoding.ids))
    entry: dict[str, object] = {"index": index, "count": len(ids)}
    if not only_count:
        entry |= {
            "ids": ids,
            "tokens": [tokenizer.id_to_token(token_id) for token_id in ids],
            "offsets": [[int(start), int(end)] for start, end in encoding.offsets],
        }
    return entry


def _print_tokens(tokenizer: Tokenizer, text: str, encoding: Encoding) -> None:
    for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
        token = tokenizer.id_to_token(int(token_id))
        print(f"{int(token_id):>7}  {text[int(start) : int(end)]!r:<24} {token!r}")
    print(f"{len(encoding.ids)} tokens")
