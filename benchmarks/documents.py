"""Writes the documents' generated sections from committed records; checks quoted figures.

The records lie in ``benchmarks/results/``; ``benchmarks/harness/documents.py`` says which section or sentence has whose
figures. Nothing is measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

from harness.documents import MISSES, QUOTATIONS, SECTIONS, committed, section_text, unquoted_claims
from harness.record import ROOT
from harness.tables import replace_section

__all__ = ["faults", "main"]

EXAMPLES = """
examples:
  python benchmarks/documents.py            write the sections
  python benchmarks/documents.py --check    write nothing; exit with 1 where a figure is not that of its record
"""


def faults() -> Iterator[str]:
    """Yield a line for each figure that differs from its record, and each record below a limit."""
    for section in SECTIONS:
        if section_text(section) != section.render(committed(section.record)).strip():
            yield f"{section.document}: section {section.name} is not that of its record: python benchmarks/documents.py"
    for quotation in QUOTATIONS:
        stated = quotation.stated(committed(quotation.record))
        if stated not in (ROOT / quotation.document).read_text(encoding="utf-8"):
            yield f"{quotation.document}: the record {quotation.record} says: {stated}"
    for document in dict.fromkeys([section.document for section in SECTIONS] + [q.document for q in QUOTATIONS]):
        for claim in unquoted_claims(document):
            yield f"{document}: {claim!r} is of no record: benchmarks/harness/documents.py has the quotations"
    for name, misses in MISSES.items():
        for line in misses(committed(name)):
            yield f"benchmarks/results/{name}.json misses a limit: {line}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or compare; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where a figure is wrong")
    options = parser.parse_args(arguments)
    try:
        if not options.check:
            for section in SECTIONS:
                replace_section(ROOT / section.document, section.name, section.render(committed(section.record)))
        found = list(faults())
    except (OSError, ValueError) as error:
        print(f"documents: {error}", file=sys.stderr)
        return 1
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
