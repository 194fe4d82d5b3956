"""Measures Spearman's rank correlation of a model's similarities on the STS benchmark.

The data is a CSV without a header: sentence, sentence, score from 0 to 5 (the English test set has 1,379 pairs). The
figure is the rank correlation of the scores with the cosine similarities of our vectors. It cannot be better than the
model is: it shows that our numbers are the model's.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from harness.options import Record, add_record_options, finish, limits
from harness.record import describe_run
from harness.spearman import spearman
from harness.tables import markdown_table, provenance

__all__ = ["Pair", "default_data", "main", "misses", "read_pairs", "render"]

SCRIPT = "quality"
FILE = Path("text", "stsb", "stsb-en-test.csv")
DEFAULT_MODEL = "all-minilm-l6-v2"

EXAMPLES = """
examples:
  python benchmarks/quality.py --data stsb-en-test.csv                       all-MiniLM-L6-v2; 0.8203 is expected
  python benchmarks/quality.py --data stsb-en-test.csv --model path/to/model
  LATTICE_DATA=data python benchmarks/quality.py --check                     reads data/text/stsb/stsb-en-test.csv
"""

Pair = tuple[str, str, float]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="PATH",
        help=f"the CSV (default: {FILE} below the folder named by LATTICE_DATA, else below ../shared/data)",
    )
    parser.add_argument(
        "--model", default=DEFAULT_MODEL, help=f"a slug, hub id or directory (default: {DEFAULT_MODEL})"
    )
    add_record_options(parser, SCRIPT)
    options = parser.parse_args(arguments)
    return finish(SCRIPT, options, measure=partial(measure, options), render=render, misses=misses)


def default_data() -> Path:
    """Return where the CSV is when ``--data`` is not given."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    return Path(os.environ.get("LATTICE_DATA") or beside) / FILE


def read_pairs(path: Path) -> list[Pair]:
    """Return the pairs of a CSV with their scores.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a row is no pair with a score.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: name the STS benchmark's CSV with --data")
    pairs = []
    with open(path, encoding="utf-8", newline="") as file:
        for number, row in enumerate(csv.reader(file), 1):
            try:
                first, second, score = row
                value = float(score)
            except ValueError:
                raise ValueError(f"{path}, row {number}: {row} is not two sentences and a score") from None
            if not math.isfinite(value):
                raise ValueError(f"{path}, row {number}: the score {score} is not finite")
            pairs.append((first, second, value))
    return pairs


def measure(options: argparse.Namespace) -> Record:
    """Embed every sentence and return the record."""
    from lattice_embed import NativeEmbeddingService
    from lattice_embed.vectors import batch_cosine_similarity

    path = options.data or default_data()
    pairs = read_pairs(path)
    record = describe_run(SCRIPT)
    with NativeEmbeddingService(options.model) as service:
        first = service.encode([pair[0] for pair in pairs])
        second = service.encode([pair[1] for pair in pairs])
        model = service.name.removeprefix("native:")
    cosines = np.asarray(batch_cosine_similarity(first, second))
    scores = [pair[2] for pair in pairs]
    record |= {"model": model, "data": path.name, "pairs": len(pairs), "spearman": spearman(cosines, scores)}
    record |= {"samples": {"cosines": [round(float(cosine), 7) for cosine in cosines], "scores": scores}}
    return record


def misses(record: Mapping[str, Any]) -> list[str]:
    """Return a line if the figure of MiniLM on the English test set is off."""
    if record["model"] != DEFAULT_MODEL or record["data"] != FILE.name:
        return []
    bound = limits(SCRIPT)["sts_b_english"]
    if abs(record["spearman"] - bound["spearman"]) <= bound["tolerance"]:
        return []
    return [f"Spearman {record['spearman']:.5f}, {bound['spearman']} +- {bound['tolerance']} is expected"]


def render(record: Mapping[str, Any]) -> str:
    """Return the table of a record in Markdown."""
    row = [record["model"], record["data"], str(record["pairs"]), f"{record['spearman']:.4f}"]
    return f"{provenance(record)}\n\n{markdown_table(['model', 'data', 'pairs', 'Spearman'], [row])}"


if __name__ == "__main__":
    sys.exit(main())
