"""Measures Recall@10 of each precision of stored vectors against exact neighbours.

Takes vectors from a .npy file, or embeds sentences of text files with all-MiniLM-L6-v2. It takes each sentence once,
of .csv files from the first two columns. If there are too few, clauses follow. A query is one of the vectors, and no
neighbour of itself.

With --lengths it measures shorter vectors, too (MRL): the first components of each, scaled to length 1. It ranks all
vectors for each query, and compares the ranking with that of whole vectors. Two figures say how alike they are:
Recall@10, and the cosine of both rows of centred ranks (Spearman's correlation), the mean over the queries. --model names
a model that was trained for this, such as Qwen3-Embedding's directory.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from harness.options import Record, add_record_options, finish, limits, positive_int
from harness.progress import report
from harness.record import describe_run
from harness.spearman import spearman
from harness.tables import markdown_table, provenance

__all__ = ["main", "misses", "read_sentences", "render"]

SCRIPT = "recall"
NEIGHBOURS = 10
MODEL = "all-minilm-l6-v2"
SHORTEST = 20
MARKS = re.compile(r"(?<=[.!?;。；])\s+")
CLAUSES = re.compile(r"\s[;,]\s|(?<=[.!?;。；])\s+")

EXAMPLES = """
examples:
  python benchmarks/recall.py --data texts/                     embeds 20,000 sentences below texts/; minutes
  python benchmarks/recall.py --vectors corpus.npy --check      your own vectors, float32 (n, dim)
  python benchmarks/recall.py --model Qwen3-Embedding-0.6B/ --count 2000 --queries 200 --lengths 32 64 128 256 512
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(os.environ.get("LATTICE_DATA") or beside) / "text",
        metavar="DIR",
        help="folder of texts (default: text below the folder named by LATTICE_DATA, else below ../shared/data)",
    )
    parser.add_argument("--vectors", type=Path, metavar="FILE", help="vectors instead of texts: .npy, float32 (n, dim)")
    parser.add_argument("--model", default=MODEL, metavar="NAME|DIR", help=f"what embeds texts (default: {MODEL})")
    parser.add_argument(
        "--lengths", nargs="+", type=positive_int, default=[], metavar="N", help="also vectors of N components"
    )
    parser.add_argument("--count", type=positive_int, default=20_000, metavar="N", help="sentences (default: 20000)")
    parser.add_argument("--queries", type=positive_int, default=1_000, metavar="N", help="(default: 1000)")
    add_record_options(parser, SCRIPT)
    options = parser.parse_args(arguments)
    return finish(SCRIPT, options, measure=partial(measure, options), render=render, misses=misses)


def read_sentences(folder: Path, count: int) -> list[str]:
    """Return the first ``count`` distinct sentences of the texts below a folder, by file name.

    Raises:
        ValueError: there are not so many.
    """
    lines = [line for path in sorted(folder.rglob("*")) if path.is_file() for line in _lines(path)]
    found: dict[str, None] = {}
    for marks in (MARKS, CLAUSES):
        for line in lines:
            for sentence in marks.split(line):
                if len(sentence.strip()) >= SHORTEST:
                    found.setdefault(sentence.strip())
                    if len(found) == count:
                        return list(found)
    raise ValueError(f"{folder} holds {len(found):,} sentences; {count:,} are wanted (--count)")


def _lines(path: Path) -> Iterable[str]:
    with path.open(encoding="utf-8", newline="") as file:
        if path.suffix == ".csv":
            return [text for row in csv.reader(file) for text in row[:2]]
        return [line for line in file.read().splitlines() if not line.strip().startswith("=")]


def measure(options: argparse.Namespace) -> Record:
    """Return the record of all tiers."""
    from lattice_embed import NativeEmbeddingService

    record: Record = describe_run(SCRIPT)
    if options.vectors is not None:
        vectors = np.load(options.vectors)
        if vectors.ndim != 2 or vectors.dtype != np.float32 or len(vectors) <= NEIGHBOURS:
            raise ValueError(f"{options.vectors} holds {vectors.dtype} of shape {vectors.shape}, not float32 (n, dim)")
        record["source"] = options.vectors.name
    else:
        report("embedding")
        vectors = NativeEmbeddingService(options.model).encode(read_sentences(options.data, options.count))
        record["source"] = Path(options.model).name
    report("searching")
    record |= {"count": len(vectors), "dims": vectors.shape[1], "queries": min(options.queries, len(vectors))}
    record["recall"] = recalls(vectors, record["queries"])
    if options.lengths:
        report("ranking shorter vectors")
        record["lengths"] = rankings(vectors, record["queries"], options.lengths)
    report()
    return record


def rankings(vectors: Any, query_count: int, lengths: Sequence[int]) -> list[dict[str, float]]:
    """Return how near rankings by the first components are to those by whole vectors.

    Raises:
        ValueError: a length is above that of the vectors.
    """
    if max(lengths) > vectors.shape[1]:
        raise ValueError(f"the vectors have {vectors.shape[1]} components, not {max(lengths)} (--lengths)")
    chosen = np.random.default_rng(0).choice(len(vectors), query_count, replace=False)

    def similarities(length: int) -> Any:
        cut = vectors[:, :length].astype(np.float64)
        cut /= np.maximum(np.linalg.norm(cut, axis=1, keepdims=True), np.finfo(np.float64).tiny)
        found = cut[chosen] @ cut.T
        return np.delete(found.ravel(), np.arange(query_count) * len(vectors) + chosen).reshape(query_count, -1)

    def nearest(row: Any) -> set[int]:
        return set(np.argpartition(-row, NEIGHBOURS - 1)[:NEIGHBOURS].tolist())

    whole = similarities(vectors.shape[1])
    found = []
    for length in lengths:
        pairs = list(zip(whole, similarities(length), strict=True))
        hits = sum(len(nearest(exact) & nearest(short)) for exact, short in pairs)
        cosine = sum(spearman(exact, short) for exact, short in pairs) / query_count
        found.append({"length": length, "recall": hits / (NEIGHBOURS * query_count), "ranking_cosine": cosine})
    return found


def recalls(vectors: Any, query_count: int) -> dict[str, float]:
    """Return Recall@10 by tier, the query in float32."""
    from lattice_embed import vectors as ops

    chosen = np.random.default_rng(0).choice(len(vectors), query_count, replace=False)
    queries = vectors[chosen]

    def neighbours(find: Callable[[], Any]) -> list[set[int]]:
        return [
            {int(row) for row in rows[rows != query][:NEIGHBOURS]}
            for query, rows in zip(chosen, find().indices, strict=True)
        ]

    truth = neighbours(lambda: ops.search(queries, vectors, NEIGHBOURS + 1))
    calibration = ops.Int8Calibration.fit(vectors[: max(len(vectors) // 4, 1)], quantile=0.9999)
    stored = {tier: ops.quantize(vectors, tier) for tier in map(ops.QuantizationTier, ("bfloat16", "float16", "int8"))}
    matrices: dict[str, ops.StoredMatrix] = {tier.value: matrix for tier, matrix in stored.items()}
    matrices["int8, calibrated"] = ops.quantize(vectors, "int8", calibration=calibration)
    matrices["int4"] = ops.quantize(vectors, "int4")
    matrices["binary"] = ops.quantize(vectors, "binary")
    found = {}
    for name, matrix in matrices.items():
        for title, rescore in ((name, None), (f"{name}, rescored", vectors)):
            seen = neighbours(partial(ops.search, queries, matrix, NEIGHBOURS + 1, rescore=rescore))
            hits = sum(len(a & b) for a, b in zip(truth, seen, strict=True))
            found[title] = hits / sum(map(len, truth))
    return found


def misses(record: Mapping[str, Any]) -> list[str]:
    """Return the tiers that find too little; the limits are for sentences of the default model."""
    if record["source"] != MODEL:
        return []
    return [
        f"{tier}: Recall@10 is {record['recall'][tier]:.4f}, {least} is the limit"
        for tier, least in limits(SCRIPT).items()
        if not record["recall"][tier] >= least
    ]


def render(record: Mapping[str, Any]) -> str:
    """Return the table of a record in Markdown."""
    recall = record["recall"]
    rows = [
        [tier, f"{value:.4f}", f"{recall[f'{tier}, rescored']:.4f}"]
        for tier, value in recall.items()
        if not tier.endswith(", rescored")
    ]
    about = f"{record['count']:,} vectors of {record['dims']} dimensions ({record['source']}), {record['queries']:,} queries"
    parts = [provenance(record), f"{about}.", markdown_table(["tier", "Recall@10", "rescored"], rows)]
    if "lengths" in record:
        shorter = [
            [f"{each['length']:,}", f"{each['recall']:.4f}", f"{each['ranking_cosine']:.4f}"]
            for each in record["lengths"]
        ]
        parts.append(markdown_table(["components", "Recall@10", "cosine of rankings"], shorter))
    return "\n\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
