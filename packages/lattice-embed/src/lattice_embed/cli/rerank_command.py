"""``lattice-embed rerank``: rank documents as answers to a query."""

from __future__ import annotations

import argparse
import json

from lattice_embed.cross_encoder import CrossEncoder
from lattice_embed.errors import InvalidInputError
from lattice_inference.cli.text_input import read_lines

__all__ = ["run"]


def run(options: argparse.Namespace) -> int:
    """Print the score of each document, best first."""
    if options.top is not None and options.top < 1:
        raise InvalidInputError(f"--top is {options.top}; it must be at least 1")
    if options.model is None:
        raise InvalidInputError("no model is named: pass --model, such as Qwen/Qwen3-Reranker-0.6B")
    documents = _documents(options.documents, options.input)
    with CrossEncoder(
        options.model,
        precision=options.precision,
        threads=options.threads,
        device=options.device,
        truncate=options.truncate,
        special_tokens_in_text=not options.plain,
    ) as model:
        ranked = model.rank(options.query, documents, top_k=options.top, instruction=options.instruction)
        name = model.name.removeprefix("native:")
    if options.json:
        scores = [{"index": found.index, "score": found.score, "text": documents[found.index]} for found in ranked]
        print(json.dumps({"model": name, "query": options.query, "scores": scores}))
        return 0
    for found in ranked:
        print(f"{found.score:9.6f}  {found.index + 1:>6}  {documents[found.index]}")
    return 0


def _documents(arguments: list[str], input_file: str | None) -> list[str]:
    if input_file is not None and arguments:
        raise InvalidInputError("documents and --input are both given: use one of them")
    documents = read_lines(input_file or "-") if input_file is not None or arguments == ["-"] else arguments
    if not documents:
        raise InvalidInputError("no document to rank: give some after the query, or --input FILE")
    return documents
