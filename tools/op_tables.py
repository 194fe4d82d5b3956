"""Writes the tables of docs/ops.md: ops from graph/, kernels from kernel_list.h.

python tools/op_tables.py            write them
python tools/op_tables.py --check    write nothing; exit with 1 where a table is out of date
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from lattice_inference.graph.ops import OPS
from lattice_inference.graph.reverse_ops import REVERSE_OPS

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "ops.md"
KERNELS = ROOT / "packages" / "lattice-inference" / "src" / "lattice_inference" / "backends" / "cpu" / "kernels"

__all__ = ["kernel_table", "main", "op_table", "page_with_tables", "training_table"]


def op_table() -> str:
    """Return the table of ops: inputs and meaning, down to the order of additions."""
    rows = ["| op | inputs | weights | attributes | meaning |", "|---|---|---|---|---|"]
    for name, op in OPS.items():
        weights = ", ".join(f"`{weight}`" for weight in op.weights) or "-"
        attributes = ", ".join(f"`{attribute}`" for attribute in op.attributes) or "-"
        rows.append(f"| `{name}` | {op.inputs} | {weights} | {attributes} | {op.meaning.replace('|', chr(92) + '|')} |")
    return "\n".join(rows)


def training_table() -> str:
    """Return the table of the ops of training: what they read."""
    rows = ["| op | inputs | weights | attributes |", "|---|---|---|---|"]
    for name, op in REVERSE_OPS.items():
        weights, attributes = (", ".join(f"`{each}`" for each in given) or "-" for given in (op.weights, op.attributes))
        rows.append(f"| `{name}` | {op.inputs} | {weights} | {attributes} |")
    return "\n".join(rows)


def kernel_table() -> str:
    """Return the table of the CPU backend's kernels.

    The record in an op, and the file that defines what runs a task.
    """
    listed = re.findall(
        r'KERNEL\((\w+),\s*"(\w+)",\s*(\w+),\s*(\w+),\s*(\w+)\)',
        (KERNELS / "kernel_list.h").read_text(encoding="utf-8"),
    )
    sources = {path: path.read_text(encoding="utf-8") for path in sorted(KERNELS.rglob("*.[ch]"))}
    rows = ["| kernel | record | a task is run by | in |", "|---|---|---|---|"]
    for _, name, record, _, run in listed:
        places = [
            path for path, text in sources.items() if re.search(rf"^void LATTICE_FN\({run}\)", text, re.MULTILINE)
        ]
        if len(places) != 1:
            raise ValueError(f"{run} is defined in {len(places)} files")
        rows.append(f"| `{name}` | `{record}` | `{run}` | `kernels/{places[0].relative_to(KERNELS).as_posix()}` |")
    return "\n".join(rows)


def page_with_tables(page: str) -> str:
    """Return the page with its tables as they are now.

    Raises:
        ValueError: a table has not exactly one place in it.
    """
    for name, table in (("ops", op_table()), ("training", training_table()), ("kernels", kernel_table())):
        pattern = rf"(<!-- begin: {name} -->\n).*?(\n<!-- end: {name} -->)"
        page, count = re.subn(
            pattern, lambda match, table=table: f"{match[1]}\n{table}\n{match[2]}", page, flags=re.DOTALL
        )
        if count != 1:
            raise ValueError(f"the page has {count} places for the table {name}")
    return page


def main() -> int:
    """Write or compare; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where a table is out of date")
    options = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    if not options.check:
        PAGE.write_text(page_with_tables(page), encoding="utf-8")
        return 0
    if page_with_tables(page) != page:
        print(f"{PAGE}: out of date: python tools/op_tables.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
