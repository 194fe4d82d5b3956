"""Writes ``unicode_tables.h``, our Unicode data, from what ``tokenizers`` does.

    python tools/unicode/generate_tables.py            # write the header
    python tools/unicode/generate_tables.py --check    # exit 1 if the header would change

``probe_tokenizers`` asks it; here its answers become two-stage tables: ``stage1[code_point >> shift]`` names a block,
``stage2[block << shift | low bits]`` holds the entry, and blocks that are equal are stored once. Characters map to

* a *property* record: class flags, canonical combining class, and what to add to lowercase the character, and
* a *decomposition*: an offset into one pool of UTF-16 units, at which a header (canonical length, compatibility length)
  stands before the two texts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import tokenizers
from probe_tokenizers import CODE_POINTS, CodePointFacts, Facts, probe

OUTPUT = (
    Path(__file__).resolve().parents[2]
    / "packages/lattice-inference/src/lattice_inference/tokenizer/native/unicode_tables.h"
)

FLAG_NAMES = tuple(CodePointFacts.__dataclass_fields__)
COMPOSES_BACK = 1 << len(FLAG_NAMES)
LOWERS_TO_TWO = COMPOSES_BACK << 1
NFC_CHANGES = LOWERS_TO_TWO << 1


def two_stages(entries: Sequence[int]) -> tuple[int, list[int], list[int]]:
    """Return (shift, stage1, stage2) with the shift that makes the two smallest together."""
    best: tuple[int, int, list[int], list[int]] | None = None
    for shift in range(5, 9):
        size = 1 << shift
        blocks: dict[tuple[int, ...], int] = {}
        stage1 = []
        for start in range(0, len(entries), size):
            stage1.append(blocks.setdefault(tuple(entries[start : start + size]), len(blocks)))
        stage2 = [entry for block in blocks for entry in block]
        bytes_used = len(stage1) * width(stage1) + len(stage2) * width(stage2)
        if best is None or bytes_used < best[0]:
            best = (bytes_used, shift, stage1, stage2)
    assert best is not None
    return best[1:]


def width(values: Sequence[int]) -> int:
    """Return how many bytes the smallest unsigned type for ``values`` takes."""
    return 1 if max(values) < 1 << 8 else 2 if max(values) < 1 << 16 else 4


def array(name: str, values: Sequence[int]) -> str:
    """Return a C array of the smallest unsigned type, wrapped at 120 columns."""
    lines: list[str] = []
    line = ""
    for value in values:
        item = f"{value},"
        if len(line) + len(item) > 119:
            lines.append(line)
            line = ""
        line += item
    lines.append(line)
    body = "\n".join(lines).removesuffix(",")
    return f"const uint{8 * width(values)}_t {name}[{len(values)}] = {{\n{body}\n}};\n"


def utf16(text: str) -> list[int]:
    data = text.encode("utf-16-le")
    return [data[i] | data[i + 1] << 8 for i in range(0, len(data), 2)]


def property_entries(facts: Facts) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Return each code point's record index, and the records.

    A record is (flags, combining class, lowercase delta).
    """
    seconds = {second for _, second in facts.compositions}
    records: dict[tuple[int, int, int], int] = {(0, 0, 0): 0}
    entries = [0] * 0x110000
    for c in CODE_POINTS:
        flags = sum(getattr(facts.flags[c], name) << bit for bit, name in enumerate(FLAG_NAMES))
        lower = facts.lowercase.get(c, chr(c))
        delta = ord(lower[0]) - c
        if c in seconds:
            flags |= COMPOSES_BACK
        if c in facts.nfc_changes:
            flags |= NFC_CHANGES
        if len(lower) == 2:
            flags |= LOWERS_TO_TWO
            if (c, lower) != (0x130, "i\u0307"):
                raise SystemExit(f"U+{c:04X} lowercases to {lower!r}: only U+0130 is expected to grow")
        elif len(lower) != 1:
            raise SystemExit(f"U+{c:04X} lowercases to {len(lower)} characters")
        entries[c] = records.setdefault((flags, facts.combining_class.get(c, 0), delta), len(records))
    return entries, list(records)


def decomposition_entries(facts: Facts) -> tuple[list[int], list[int]]:
    """Return each code point's pool offset (0: decomposes to itself), and the UTF-16 pool."""
    pool = [0]
    entries = [0] * 0x110000
    for c in sorted(facts.nfd.keys() | facts.nfkd.keys()):
        canonical = utf16(facts.nfd.get(c, ""))
        compatible = utf16(facts.nfkd[c]) if facts.nfkd.get(c) != facts.nfd.get(c) else []
        entries[c] = len(pool)
        pool += [len(canonical) | len(compatible) << 8, *canonical, *compatible]
    return entries, pool


def header(facts: Facts) -> str:
    """Return the text of ``unicode_tables.h``."""
    entries, records = property_entries(facts)
    property_shift, property_stage1, property_stage2 = two_stages(entries)
    decompositions, pool = decomposition_entries(facts)
    decomposition_shift, decomposition_stage1, decomposition_stage2 = two_stages(decompositions)
    pairs = sorted((first, second, composite) for (first, second), composite in facts.compositions.items())
    expected = [(f"LT_UNICODE_{name.upper()}", 1 << bit) for bit, name in enumerate(FLAG_NAMES)]
    expected += [
        ("LT_UNICODE_COMPOSES_BACK", COMPOSES_BACK),
        ("LT_UNICODE_LOWERS_TO_TWO", LOWERS_TO_TWO),
        ("LT_UNICODE_NFC_CHANGES", NFC_CHANGES),
        ("LT_PROPERTY_RECORDS", len(records)),
        ("LT_PROPERTY_SHIFT", property_shift),
        ("LT_DECOMPOSITION_SHIFT", decomposition_shift),
        ("LT_COMPOSITION_COUNT", len(pairs)),
    ]
    checks = "\n".join(
        f'_Static_assert({name} == {value}, "unicode.h and the generated tables differ");' for name, value in expected
    )
    rows = "\n".join(f"    {{{f}, {ccc}, {delta}}}," for f, ccc, delta in records)
    pair_rows = "\n".join(f"    {{{first}, {second}, {composite}}}," for first, second, composite in pairs)
    return f"""\
/* Unicode data as tokenizers {tokenizers.__version__} uses it.
 * Generated by tools/unicode/generate_tables.py, which describes the layout: do not edit. unicode.h holds the functions
 * that read these tables. */
#ifndef LT_UNICODE_TABLES_H
#define LT_UNICODE_TABLES_H

#include "unicode.h"

const char lt_unicode_tables_source[] = "tokenizers {tokenizers.__version__}";

{checks}

const lt_unicode_properties lt_property_records[{len(records)}] = {{
{rows}
}};

/* (first, second, composite), sorted; Hangul syllables follow a formula and are not listed */
const uint32_t lt_compositions[{len(pairs)}][3] = {{
{pair_rows}
}};

{array("lt_property_stage1", property_stage1)}
{array("lt_property_stage2", property_stage2)}
{array("lt_ascii_flags", [records[index][0] for index in entries[:128]])}
{array("lt_decomposition_stage1", decomposition_stage1)}
{array("lt_decomposition_stage2", decomposition_stage2)}
{array("lt_decomposition_pool", pool)}
#endif
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the header is not up to date")
    arguments = parser.parse_args()
    text = header(probe())
    if arguments.check:
        if OUTPUT.read_text(encoding="ascii") != text:
            print(f"{OUTPUT} differs from what tokenizers {tokenizers.__version__} does", file=sys.stderr)
            return 1
        return 0
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(text, encoding="ascii")
    print(f"wrote {OUTPUT} ({len(text):,} bytes)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
