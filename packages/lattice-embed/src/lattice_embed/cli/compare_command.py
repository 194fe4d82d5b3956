"""``lattice-embed compare``: how far two models agree on your texts, and their cost."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_embed.catalogue import Role
from lattice_embed.cli.embed_command import embed_all
from lattice_embed.cli.service_options import open_service
from lattice_embed.cli.table_input import read_column
from lattice_embed.errors import InvalidInputError
from lattice_embed.result import Float32Array
from lattice_embed.vectors import many_vs_many

__all__ = ["neighbour_agreement", "rank_correlation", "run"]

MOST_TEXTS = 2_000
"""Texts that are compared; of more, so many are drawn: similarities take their square in memory."""


def run(options: argparse.Namespace) -> int:
    """Embed the texts with both models and print where they agree."""
    if options.top < 1:
        raise InvalidInputError(f"--top is {options.top}; it must be at least 1")
    texts = _texts(options)
    if len(texts) <= options.top:
        raise InvalidInputError(
            f"{len(texts)} texts have no {options.top} neighbours each: give more, or a smaller --top"
        )
    reports, similarities = [], []
    for model in (options.first, options.second):
        options.model = model
        report, vectors = _measure(texts, options)
        reports.append(report)
        similarities.append(many_vs_many(vectors, vectors, metric="cosine"))
    agreement = {
        "texts": len(texts),
        "top": options.top,
        "neighbours": round(neighbour_agreement(similarities[0], similarities[1], options.top), 4),
        "rank_correlation": round(rank_correlation(similarities[0], similarities[1]), 4),
    }
    if options.json:
        print(json.dumps({"models": reports, **agreement}))
        return 0
    print(f"{'model':<32} {'dim':>5} {'tokens':>8} {'cut':>5} {'seconds':>8} {'texts/s':>8} {'bytes a vector':>15}")
    for report in reports:
        tokens = "-" if report["tokens"] is None else report["tokens"]
        print(
            f"{report['model']:<32} {report['dim']:>5} {tokens:>8} {report['truncated']:>5} {report['seconds']:>8.2f} "
            f"{len(texts) / report['seconds']:>8.1f} {report['vector_bytes']:>15}"
        )
    print(
        f"neighbours in common     {agreement['neighbours']:.1%} of the {options.top} nearest, over {len(texts)} texts"
    )
    print(f"rank correlation         {agreement['rank_correlation']:.4f} of all similarities (Spearman)")
    return 0


def neighbour_agreement(first: Float32Array, second: Float32Array, top: int) -> float:
    """Return the mean overlap of each text's ``top`` nearest in two similarity matrices (n, n)."""
    shared = 0
    for a, b, own in zip(first, second, range(len(first)), strict=True):
        shared += len(_nearest(a, own, top) & _nearest(b, own, top))
    return shared / (len(first) * top)


def rank_correlation(first: Float32Array, second: Float32Array) -> float:
    """Return Spearman's correlation of the similarities of all pairs.

    Ties have their mean rank. 1.0 for constants.
    """
    pairs = np.triu_indices(len(first), 1)
    ranks = [_ranks(matrix[pairs]) for matrix in (first, second)]
    a, b = (rank - rank.mean() for rank in ranks)
    size = float(np.sqrt(np.dot(a, a) * np.dot(b, b)))
    return float(np.dot(a, b)) / size if size else 1.0


def _ranks(values: Float32Array) -> npt.NDArray[np.float64]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2)[inverse], np.float64)


def _nearest(similarities: Float32Array, own: int, top: int) -> set[int]:
    """Return the nearest of a row but the text itself; of equal ones the first."""
    order = np.argsort(-similarities, kind="stable")
    return set(order[order != own][:top].tolist())


def _measure(texts: list[str], options: argparse.Namespace) -> tuple[dict[str, Any], Float32Array]:
    with open_service(options) as service:
        service.embed_one(texts[0])  # loads the model
        start = time.perf_counter()
        result = embed_all(service, texts, Role.GENERIC)
        seconds = time.perf_counter() - start
    report = {
        "model": result.model,
        "dim": result.dimensions,
        "tokens": result.total_tokens,
        "truncated": int(result.truncated.sum()),
        "seconds": round(max(seconds, 1e-6), 6),
        "vector_bytes": result.dimensions * 4,
    }
    return report, result.vectors


def _texts(options: argparse.Namespace) -> list[str]:
    """Return the distinct texts to compare on.

    Of many texts it is a sample, which is the same each time.
    """
    texts = [text for text in dict.fromkeys(read_column(options.input, options.column)) if text.strip()]
    if len(texts) > MOST_TEXTS:
        drawn = np.random.default_rng(0).choice(len(texts), MOST_TEXTS, replace=False)
        texts = [texts[index] for index in sorted(drawn)]
    return texts
