"""What ``lattice-embed serve`` takes."""

from __future__ import annotations

import argparse

from lattice_inference.cli.serve_options import add_server_options

__all__ = ["EXAMPLES", "add_serve_options"]

EXAMPLES = """\
examples:
  lattice-embed serve --model all-minilm-l6-v2
  lattice-embed serve --model small=./my-model --reranker ranker=cross-encoder/ms-marco-MiniLM-L6-v2 --cache
  lattice-embed serve --model bge-small-en-v1.5 --host 0.0.0.0 --port 8000 --api-key-file keys.txt
  lattice-embed serve --model all-minilm-l6-v2 --check

Clients of OpenAI's API use http://127.0.0.1:8080/v1. A request's `model` is the NAME, or the model's name in the catalogue.
Its `input_type` (query, passage, document, generic) decides the prompt. The answer has the fingerprint of the vectors.
Without keys the server is for this machine only.
"""


def add_serve_options(command: argparse.ArgumentParser) -> None:
    """Add what the command takes besides the options of models."""
    command.add_argument(
        "--model",
        action="append",
        metavar="[NAME=]MODEL",
        help="a name of the catalogue, a hub id or a directory; may be repeated",
    )
    command.add_argument(
        "--reranker", action="append", metavar="[NAME=]MODEL", help="a hub id or a directory; may be repeated"
    )
    add_server_options(command)
    command.add_argument(
        "--memory-cache", type=int, default=4000, metavar="N", help="vectors of a model kept in memory (default: 4000)"
    )
