"""``lattice-embed similarity``: compare texts."""

from __future__ import annotations

import argparse
import json

from lattice_embed.catalogue import Role
from lattice_embed.cli.embed_command import embed_all
from lattice_embed.cli.service_options import open_service
from lattice_embed.errors import InvalidInputError
from lattice_embed.vectors import top_k
from lattice_inference.cli.text_input import read_lines

__all__ = ["run"]


def run(options: argparse.Namespace) -> int:
    """Print the cosine similarity of two texts, or of one to many, nearest first."""
    if options.top is not None and options.top < 1:
        raise InvalidInputError(f"--top is {options.top}; it must be at least 1")
    query, others = _query_and_others(options.texts, options.input)
    with open_service(options) as service:
        query_role, other_role = (Role.QUERY, Role.PASSAGE) if options.retrieval else (Role.GENERIC, Role.GENERIC)
        query_vector = service.embed_one(query, role=query_role)
        result = embed_all(service, others, other_role)
    nearest = top_k(query_vector, result.vectors, options.top or len(others))
    ranked = list(zip(nearest.indices.tolist(), nearest.scores.tolist(), strict=True))
    if options.json:
        scores = [{"index": index, "score": score, "text": others[index]} for index, score in ranked]
        print(json.dumps({"model": result.model, "metric": "cosine", "query": query, "scores": scores}))
    elif len(others) == 1:
        print(f"{ranked[0][1]:.6f}")
    else:
        for index, score in ranked:
            print(f"{score:9.6f}  {index + 1:>6}  {others[index]}")
    return 0


def _query_and_others(arguments: list[str], input_file: str | None) -> tuple[str, list[str]]:
    if not arguments:
        raise InvalidInputError("no text to compare: give two texts, or one and --input FILE")
    query, *others = arguments
    if input_file is not None or others == ["-"]:
        if others and input_file is not None:
            raise InvalidInputError("texts to compare with and --input are both given: use one of them")
        return query, read_lines(input_file or "-")
    if not others:
        raise InvalidInputError("one text alone has nothing to be compared with: add another, or --input FILE")
    return query, others
