"""``lattice-tune label``: texts to a file of labelled texts."""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lattice_tune.cli.teacher_options import TEACHERS, add_teacher_options, limits_of, open_teacher, task_of
from lattice_tune.errors import DatasetError, InvalidInputError, LabelStoreError, TeacherApiError, shown

if TYPE_CHECKING:
    from lattice_tune.teachers.report import DryRun, LabelingReport

__all__ = ["add_commands", "read_texts"]

EXAMPLES = f"""\
examples:
  lattice-tune label texts.txt --labels praise,complaint --teacher claude-haiku --store labels.db --dry-run
  lattice-tune label texts.txt --labels praise,complaint --teacher claude-haiku --store labels.db --output labelled.jsonl \\
      --price-input 0.8 --price-output 4 --max-cost 2
  lattice-tune label mail.jsonl --labels urgent,later --describe "urgent=needs an answer today" --soft \\
      --teacher openai-compatible:llama3 --endpoint http://localhost:11434/v1 --store labels.db --output labelled.jsonl
  lattice-tune label texts.txt --labels praise,complaint --teacher local:./model.gguf --output labelled.jsonl

{TEACHERS}
TEXTS is a file with one text a line, a .jsonl file whose objects have a "text", or - for lines of standard input. Lines
without a text are left out. A line of the output is {{"text", "labels": {{label: probability}}, "metadata"}}. The store
keeps every answer as soon as it is there: a run that is killed, interrupted (Ctrl-C) or out of budget goes on where it was.
Texts go to the server that you name, and into the store. The status is 0 when every text was answered, refusals and
unusable answers included; 1 when some were not asked or failed; 2 when the request makes no sense.
"""

MOST_LINE_BYTES = 64 << 20
MOST_LISTED = 100
MOST_SHOWN = 60


def add_commands(commands: Any) -> None:
    """Add the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "label",
        help="label texts by a teacher, and keep every answer",
        description="Label texts by a teacher, and keep every answer.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("texts", metavar="TEXTS", help="one text a line, or a .jsonl file; - for standard input")
    add_teacher_options(parser)
    parser.add_argument("--store", metavar="FILE", help="where answers are kept; needed for a teacher at a server")
    parser.add_argument("--output", metavar="FILE", help="the labelled texts, as .jsonl")
    parser.add_argument(
        "--dry-run", action="store_true", help="ask nothing; tell how much would be asked and its price"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Label the texts and write them."""
    from lattice_inference.cli.progress import progress_bar
    from lattice_tune.teachers.label_store import LabelStore
    from lattice_tune.teachers.labeling import dry_run, label_texts
    from lattice_tune.teachers.rows import write_jsonl
    from lattice_tune.teachers.served_teacher import ServedTeacher

    task, limits = task_of(options), limits_of(options)
    _check_places(options)
    texts = read_texts(options.texts)
    with ExitStack() as stack:
        teacher = stack.enter_context(open_teacher(options))
        if options.store is None and isinstance(teacher, ServedTeacher) and not options.dry_run:
            raise InvalidInputError(
                "a teacher at a server is paid for: name a file that keeps its answers with --store"
            )
        exists = options.store is not None and (not options.dry_run or os.path.exists(options.store))
        store = stack.enter_context(LabelStore(options.store)) if exists else None
        if options.dry_run:
            return _show_plan(dry_run(texts, teacher, task, store=store, votes=options.votes), options)
        try:
            with progress_bar(len(texts) * options.votes, unit="text") as bar:
                done = [0]

                def advance(progress: Any) -> None:
                    bar.update(progress.done - done[0])
                    done[0] = progress.done

                report = label_texts(
                    texts, teacher, task, store=store, limits=limits, votes=options.votes, progress=advance
                )
        except (TeacherApiError, LabelStoreError) as error:
            if store is not None and error.report is not None:
                print(f"lattice-tune: what was answered is in {options.store}: run the command again", file=sys.stderr)
            raise
        except KeyboardInterrupt:
            if store is not None:
                print(f"lattice-tune: what was answered is in {options.store}", file=sys.stderr)
            raise
        written = write_jsonl(Path(options.output), report.rows())
    _show(report, written, options)
    unfinished = {"failed", "not asked"} & {outcome.value for outcome in report.outcomes}
    return 1 if unfinished else 0


def read_texts(source: str) -> list[str]:
    """Return the texts of lines, a .jsonl file, or standard input (``-``), but empty ones.

    Raises:
        InvalidInputError: there are none.
        DatasetError: a line of a .jsonl file is no object with a text.
        OSError: the file cannot be read.
    """
    from lattice_inference.cli.text_input import read_lines

    texts = _jsonl_texts(source) if source.endswith(".jsonl") else read_lines(source)
    texts = [text for text in texts if text.strip()]
    if not texts:
        raise InvalidInputError(f"{source} holds no text")
    return texts


def _jsonl_texts(source: str) -> list[str]:
    texts = []
    with open(source, "rb") as file:
        number = 0
        while line := file.readline(MOST_LINE_BYTES + 1):
            number += 1
            where = f"{source}, line {number}"
            if len(line) > MOST_LINE_BYTES:
                raise DatasetError(f"{where}: it has more than {MOST_LINE_BYTES:,} bytes: cut it into texts")
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except (ValueError, RecursionError) as error:
                raise DatasetError(f"{where}: it is no JSON in UTF-8: {str(error)[:200]}") from None
            text = row.get("text") if isinstance(row, dict) else None
            if not isinstance(text, str):
                raise DatasetError(f'{where}: {shown(row)} is no object with a "text"')
            texts.append(text)
    return texts


def _check_places(options: argparse.Namespace) -> None:
    """Refuse, before anything is asked, places that cannot be written or are one file.

    Raises:
        InvalidInputError: there is such a place.
    """
    if options.output is None and not options.dry_run:
        raise InvalidInputError("name the file for the labelled texts with --output")
    named = {"TEXTS": options.texts, "--store": options.store, "--output": options.output}
    seen: dict[str, str] = {}
    for name, value in named.items():
        if value is None or (name == "TEXTS" and value == "-"):
            continue
        if "\0" in value or not Path(value).name:
            raise InvalidInputError(f"{name} is {shown(value)}, which is no name of a file")
        path = os.path.realpath(value)
        if name != "TEXTS" and (os.path.isdir(path) or not os.path.isdir(os.path.dirname(path))):
            raise InvalidInputError(f"{name} is {value}: it must be a file in a folder that exists")
        if path in seen:
            raise InvalidInputError(f"{seen[path]} and {name} name the same file, {value}")
        seen[path] = name


def _show_plan(plan: DryRun, options: argparse.Namespace) -> int:
    if options.json:
        print(json.dumps({"dry_run": True} | plan.as_dict()))
        return 0
    print(f"{plan.texts:,} texts; {plan.stored:,} answers are stored, {plan.requests:,} would be requested")
    for reason, count in plan.asked_anew.items():
        print(f"{count:,} texts have answers for another {reason}, and would be asked anew")
    if plan.most_input_tokens:
        print(
            f"tokens read: about {plan.likely_input_tokens:,}, at most {plan.most_input_tokens:,}; "
            f"written: at most {plan.most_output_tokens:,}"
        )
        told = "not known without --price-input and --price-output"
        print(f"cost: {told if plan.most_cost is None else f'at most {plan.most_cost:.4f}'}")
    if plan.cut_texts:
        print(f"{plan.cut_texts:,} texts are longer than --max-text-characters, and would be cut")
    for number, prompt in enumerate(plan.prompts, 1):
        print(f"\nprompt {number}:\n{prompt}")
    return 0


def _show(report: LabelingReport, written: int, options: argparse.Namespace) -> None:
    unlabelled = [
        {"index": index, "outcome": result.outcome.value, "detail": result.detail}
        for index, result in enumerate(report.results)
        if result.label is None
    ]
    if options.json:
        print(json.dumps(report.as_dict() | {"output": options.output, "unlabelled": unlabelled[:MOST_LISTED]}))
    else:
        print(f"{written:,} of {len(report.results):,} texts labelled: {options.output}")
        print("  ".join(f"{label}: {count:,}" for label, count in report.label_counts.items()))
        for reason, count in report.asked_anew.items():
            print(f"{count:,} texts had answers for another {reason}, and were asked anew")
        print(f"{report.from_store:,} answers were stored, {report.requests:,} requests were sent")
        if report.requests:
            cost = f"; cost {report.cost:.4f}" if report.cost or report.unknown_cost else ""
            cost += f" and at most {report.unknown_cost:.4f} for requests without a bill" if report.unknown_cost else ""
            print(f"tokens read: {report.input_tokens:,}, written: {report.output_tokens:,}{cost}")
    for outcome, count in report.outcomes.items():
        if outcome.value != "labelled":
            first = next(each for each in unlabelled if each["outcome"] == outcome.value)
            detail = str(first["detail"])
            told = detail if len(detail) <= MOST_SHOWN * 3 else f"{detail[: MOST_SHOWN * 3]}..."
            print(f"lattice-tune: {outcome.value}: {count:,} texts; text {first['index']}: {told}", file=sys.stderr)
    if report.stopped is not None:
        print(f"lattice-tune: stopped by {report.stopped}: raise it and run the command again", file=sys.stderr)
