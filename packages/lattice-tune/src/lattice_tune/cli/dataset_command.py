"""``lattice-tune dataset``: what is in a dataset, its parts, its duplicates."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from lattice_tune.datasets.dataset import Dataset

__all__ = ["add_commands"]

_DESCRIPTION = """\
Look at datasets, split them, and take duplicates out.

Files are .jsonl, .csv, .tsv, .npz, .txt (a text a line) or a folder with a subfolder for each label. Several files are
shards of one dataset. Rows are streamed: a file may be larger than memory.
"""
_EXAMPLES = """\
examples:
  lattice-tune dataset stats questions.jsonl
  lattice-tune dataset split questions.jsonl --parts train=0.9,test=0.1 --output-folder parts
  lattice-tune dataset dedup questions.jsonl --near 0.9 --output unique.jsonl
  lattice-tune dataset dedup train.jsonl --against test.jsonl --output clean.jsonl
"""


def add_commands(commands: Any) -> None:
    """Add the command to the parser's commands."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = commands.add_parser(
        "dataset",
        help="statistics, splits and duplicates",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=raw,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    stats = actions.add_parser(
        "stats",
        help="count labels, lengths, duplicates and conflicts",
        description="Count examples, labels, lengths, duplicates and texts with conflicting labels.",
        epilog="example:\n  lattice-tune dataset stats train.jsonl --json\n",
        formatter_class=raw,
    )
    _add_common(stats)
    stats.set_defaults(run=_stats)
    split = actions.add_parser(
        "split",
        help="split into parts by a hash",
        description="Write each part as PART.jsonl. An example's part depends on its text (or its group) and the seed\n"
        "alone: the order of rows and the number of shards change nothing, and new rows move no old ones.",
        epilog="example:\n  lattice-tune dataset split all.csv --parts train=0.8,validation=0.1,test=0.1 "
        "--output-folder parts --stratify\n",
        formatter_class=raw,
    )
    _add_common(split)
    split.add_argument("--parts", required=True, metavar="NAME=SHARE,...", help="such as train=0.9,test=0.1")
    split.add_argument("--output-folder", required=True, metavar="FOLDER", help="where the parts are written")
    split.add_argument("--seed", type=int, default=0, metavar="N", help="another seed gives another split (default: 0)")
    split.add_argument(
        "--group", metavar="FIELD", help="keep examples with the same value of this metadata field together"
    )
    split.add_argument("--stratify", action="store_true", help="deal out each label exactly")
    _add_dry_run(split)
    split.set_defaults(run=_split)
    dedup = actions.add_parser(
        "dedup",
        help="take duplicates out",
        description="Write the examples that repeat no earlier one, exactly or nearly.",
        epilog="example:\n  lattice-tune dataset dedup train.jsonl --against test.jsonl --near 0.8 --output clean.jsonl\n",
        formatter_class=raw,
    )
    _add_common(dedup)
    dedup.add_argument("--output", required=True, metavar="FILE", help="a .jsonl file")
    dedup.add_argument("--near", type=float, metavar="X", help="least similarity of near duplicates, from 0.6 to 1")
    dedup.add_argument(
        "--against", action="append", metavar="FILE", help="leave out what is in this file, too: a test set"
    )
    _add_dry_run(dedup)
    dedup.set_defaults(run=_dedup)


def _add_common(parser: argparse.ArgumentParser) -> None:
    from lattice_tune.cli.options import add_dataset, add_json

    parser.add_argument("paths", nargs="+", metavar="FILE", help="a file, its shards, or a folder a class")
    add_dataset(parser)
    add_json(parser)


def _add_dry_run(parser: argparse.ArgumentParser) -> None:
    from lattice_tune.cli.options import add_dry_run

    add_dry_run(parser, "say what would be written, and write nothing")


def _tell_skipped(data: Dataset) -> None:
    for error in data.skipped.errors:
        print(f"lattice-tune: skipped: {error}", file=sys.stderr)
    if data.skipped.count:
        print(f"lattice-tune: {data.skipped.count:,} rows skipped", file=sys.stderr)


def _stats(options: argparse.Namespace) -> int:
    from lattice_tune.cli.options import open_dataset, print_json

    data = open_dataset(options.paths, options)
    found = data.stats()
    _tell_skipped(data)
    if options.json:
        print_json(found.to_dict())
        return 0
    print(f"examples     {found.count:,} ({found.with_text:,} with a text, {found.with_vector:,} with a vector)")
    for label, count in found.labels.items():
        print(f"  {count:>9,}  {label}")
    if found.unlabelled:
        print(f"  {found.unlabelled:>9,}  (no label)")
    if found.characters is not None:
        print("characters   " + ", ".join(f"{name} {value:,.6g}" for name, value in found.characters.items()))
    if found.dimension is not None:
        print(f"dimension    {found.dimension:,}")
    print(f"duplicates   {found.duplicates:,}")
    print(f"conflicts    {found.conflicts:,} texts with several labels")
    return 0


def _split(options: argparse.Namespace) -> int:
    from lattice_tune.cli.options import open_dataset, print_json, split_names
    from lattice_tune.datasets.split import SplitRule
    from lattice_tune.errors import DatasetError, InvalidInputError

    shares: dict[str, float] = {}
    for part in split_names(options.parts, "--parts"):
        name, _, share = part.partition("=")
        try:
            shares[name] = float(share)
        except ValueError:
            raise InvalidInputError(f"--parts has {part!r:.80}; write NAME=SHARE, such as train=0.9") from None
        if name in ("", ".", "..") or os.sep in name or name in list(shares)[:-1]:
            raise InvalidInputError(f"{name!r:.80} cannot be the name of a part's file")
    data = open_dataset(options.paths, options)
    rule = SplitRule(shares, options.seed, options.group)
    if options.stratify:
        rule = rule.stratified(data)
    folder = Path(options.output_folder)
    if not options.dry_run:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DatasetError(f"{folder}: {error.strerror or error}") from error
    counts = _write_parts(data, rule, None if options.dry_run else folder)
    _tell_skipped(data)
    if options.json:
        print_json({"parts": counts, "written": not options.dry_run, "skipped": data.skipped.count})
        return 0
    for name, labels in counts.items():
        total = sum(labels.values())
        print(f"{name:<12} {total:>9,}  " + ", ".join(f"{label} {count:,}" for label, count in labels.items()))
    return 0


def _write_parts(data: Dataset, rule: Any, folder: Path | None) -> dict[str, dict[str, int]]:
    from lattice_inference.checkpoint.atomic_file import atomic_file
    from lattice_inference.errors import WriteError
    from lattice_tune.datasets.jsonl import json_line
    from lattice_tune.errors import DatasetError

    counts: dict[str, dict[str, int]] = {name: {} for name in rule.parts}
    files: dict[str, BinaryIO] = {}
    try:
        with ExitStack() as stack:
            if folder is not None:
                files = {name: stack.enter_context(atomic_file(folder / f"{name}.jsonl")) for name in rule.parts}
            for example in data:
                part = rule.part_of(example)
                label = example.hard_label or "(no label)"
                counts[part][label] = counts[part].get(label, 0) + 1
                if folder is not None:
                    files[part].write(json_line(example))
    except WriteError as error:
        raise DatasetError(str(error)) from error
    return {name: dict(sorted(labels.items())) for name, labels in counts.items()}


def _dedup(options: argparse.Namespace) -> int:
    from lattice_tune.cli.options import check_output, open_dataset, print_json
    from lattice_tune.datasets.dataset import Dataset
    from lattice_tune.datasets.duplicates import DuplicateFinder

    target = check_output(options.output, ".jsonl")
    finder = DuplicateFinder(options.near)
    others = 0
    for path in options.against or ():
        for example in open_dataset([path], options):
            finder.find(others, example)
            others += 1
    data = open_dataset(options.paths, options)
    kept, exact, near, conflicts = [], 0, 0, 0
    for index, example in enumerate(data, others):
        found = finder.find(index, example)
        if found is None:
            kept.append(example)
            continue
        exact, near = exact + (found.similarity == 1.0), near + (found.similarity < 1.0)
        conflicts += found.conflicting
    if not options.dry_run:
        Dataset(kept).write_jsonl(target)
    _tell_skipped(data)
    result = {"kept": len(kept), "same": exact, "near": near, "conflicting": conflicts, "written": not options.dry_run}
    if options.json:
        print_json(result)
    else:
        print(f"kept {len(kept):,}; left out {exact:,} that are the same and {near:,} that are nearly so")
        if conflicts:
            print(f"{conflicts:,} of those left out had another label than the one that was kept")
    return 0
