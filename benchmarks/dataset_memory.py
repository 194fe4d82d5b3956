"""Streams synthetic JSONL rows through a split and prints the process's peak memory.

The file is written to ``--folder`` and removed at the end: 10 million rows take about 700 MB of disk.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Stream; returns 1 if more than ``--limit-mb`` were taken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000, metavar="N", help="rows (default: 10,000,000)")
    parser.add_argument("--limit-mb", type=float, default=200, metavar="N", help="most memory, in MB (default: 200)")
    parser.add_argument("--folder", type=Path, default=None, help="where the file is written (default: the system's)")
    options = parser.parse_args(arguments)
    from lattice_tune import Dataset

    with TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "rows.jsonl"
        with path.open("w", encoding="utf-8") as file:
            for number in range(options.rows):
                file.write(f'{{"text": "synthetic row {number} of many", "label": "label {number % 7}"}}\n')
        began = time.perf_counter()
        train = Dataset.open(path).split({"train": 0.9, "test": 0.1})["train"].count()
        seconds = time.perf_counter() - began
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)
    print(
        f"{options.rows:,} rows, {train:,} of them in the part train, {seconds:.0f} s: at most {most:.0f} MB in memory"
    )
    return 0 if most <= options.limit_mb and 0.89 < train / options.rows < 0.91 else 1


if __name__ == "__main__":
    sys.exit(main())
