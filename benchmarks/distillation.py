"""Distils TREC's questions and the subjectivity sentences, and times the students.

It measures accuracy on TREC's 500 test questions, and on 2,000 held-out subjectivity sentences. One teacher is right
four times in five, another always; there are three seeds each. Processor time of a student's training beside
lattice_fann alone on the same arrays, taking turns; time of a prediction without the encoder's call. The vectors are
those of all-MiniLM-L6-v2. The data sets are read from ``--data``, where they lie; what is not there is left out and
named.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.options import Record, add_record_options, finish, limits, positive_int
from harness.progress import report
from harness.record import describe_run
from harness.tables import markdown_table, provenance

__all__ = ["main", "misses", "render"]

SCRIPT = "distillation"
ENCODER = "all-minilm-l6-v2"

EXAMPLES = """
examples:
  python benchmarks/distillation.py --data ../shared/data/text/classification     two minutes
  python benchmarks/distillation.py --data data --seeds 1 --markdown docs/benchmarks.md
"""

Rows = list[tuple[str, str]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, required=False, default=Path("data"), help="folder with qc/ and subjectivity/"
    )
    parser.add_argument(
        "--sets", nargs="+", choices=list(SETS), default=list(SETS), metavar="SET", help=str(list(SETS))
    )
    parser.add_argument(
        "--seeds", type=positive_int, default=3, metavar="N", help="students of each teacher (default: 3)"
    )
    parser.add_argument(
        "--turns", type=positive_int, default=9, metavar="N", help="turns of the timed calls (default: 9)"
    )
    add_record_options(parser, SCRIPT)
    options = parser.parse_args(arguments)
    return finish(SCRIPT, options, measure=partial(measure, options), render=render, misses=misses)


def measure(options: argparse.Namespace) -> Record:
    """Distil each set with each teacher and return the record."""
    record: Record = {**describe_run(SCRIPT, distributions=()), "samples": [], "absent": []}
    for name in options.sets:
        found = SETS[name](options.data)
        if found is None:
            record["absent"].append(name)
            continue
        for right in (0.8, 1.0):
            report(f"{name}, a teacher right {right:.0%}")
            record["samples"].append(distil(name, *found, right, options.seeds))
    report("training and prediction")
    record["training"] = time_training(options.turns)
    record["prediction_us"] = time_prediction()
    report()
    return record


def read_trec(folder: Path) -> tuple[Rows, Rows] | None:
    """Return training and test questions with their coarse labels."""
    parts = []
    for part in ("train", "test"):
        path = folder / "qc" / f"{part}.txt"
        if not path.is_file():
            return None
        rows = [line.split(" ", 1) for line in path.read_text(encoding="latin-1").splitlines()]
        parts.append([(text, label.partition(":")[0]) for label, text in rows])
    return parts[0], parts[1]


def read_subjectivity(folder: Path) -> tuple[Rows, Rows] | None:
    """Return sentences, of which every fifth is held out."""
    rows: Rows = []
    for file, label in (("plot", "objective"), ("quote", "subjective")):
        path = folder / "subjectivity" / f"{file}.tok.gt9.5000"
        if not path.is_file():
            return None
        rows += [(line.strip(), label) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [row for i, row in enumerate(rows) if i % 5], rows[::5]


SETS = {"TREC questions": read_trec, "subjectivity": read_subjectivity}


def distil(name: str, train: Rows, test: Rows, right: float, seeds: int) -> Record:
    """Return the accuracies of students of a teacher with a share ``right`` of right answers."""
    from lattice_tune import (
        Dataset,
        DistillationConfig,
        DistillationPipeline,
        LabelSet,
        RegularizationConfig,
        TrainingConfig,
    )

    labels = LabelSet(sorted({label for _, label in train}))
    truth = dict(train)
    accuracies, teacher_accuracies, calibration = [], [], []
    work = TemporaryDirectory()
    for seed in range(seeds):
        draws = np.random.RandomState(seed)
        wrong = {text: [other for other in labels if other != label] for text, label in train}
        answers = {
            text: truth[text] if draws.uniform() < right else wrong[text][draws.randint(len(labels) - 1)]
            for text, _ in train
        }
        teacher_accuracies.append(float(np.mean([answers[text] == truth[text] for text, _ in train])))
        training = TrainingConfig(seed=seed, regularization=RegularizationConfig(dropout=0.5))
        pipeline = DistillationPipeline(
            ENCODER,
            labels,
            lambda texts, answers=answers: [answers[text] for text in texts],
            config=DistillationConfig(training=training),
            folder=work.name,  # so that the vectors are computed once
        )
        found = pipeline.run(Dataset([{"text": text} for text, _ in train]), test=Dataset(test)).report
        assert found.test_gold is not None
        accuracies.append(found.test_gold.accuracy)
        calibration.append(found.test_gold.expected_calibration_error)
    work.cleanup()
    return {
        "set": name,
        "train": len(train),
        "test": len(test),
        "teacher": median(teacher_accuracies),
        "right": right,
        "accuracy": accuracies,
        "calibration_error": calibration,
    }


def time_training(turns: int) -> Record:
    """Return processor seconds of a student's training and of lattice_fann's on the same arrays."""
    from lattice_fann import Activation, BackpropTrainer, NetworkBuilder, mixed_targets
    from lattice_tune import StudentTrainer, TrainingConfig

    draws = np.random.RandomState(0)
    x = draws.standard_normal((5000, 384)).astype(np.float32)
    soft = draws.dirichlet(np.ones(6), 5000).astype(np.float32)
    epochs, batches = 20, -(-5000 // 32)
    trainer = StudentTrainer(TrainingConfig(epochs=epochs, val_split=0, early_stopping=None), hidden=(128,))

    def alone() -> None:
        network = NetworkBuilder().input(384).hidden(128, Activation.RELU).output(6, Activation.SOFTMAX).build(seed=42)
        network.fit_input_scaling(x)
        targets = mixed_targets(soft, temperature=2.0, hard_share=0.5)
        BackpropTrainer(network, trainer.fann_config(epochs, batches)).train(x, targets)

    seconds: dict[str, list[float]] = {"student": [], "lattice_fann": []}
    for _ in range(turns):
        for name, run in (("student", lambda: trainer.train(x, soft)), ("lattice_fann", alone)):
            began = time.process_time()
            run()
            seconds[name].append(time.process_time() - began)
    return seconds


def time_prediction() -> list[float]:
    """Return microseconds of a prediction of one text whose vector is there already."""
    from types import SimpleNamespace

    from lattice_fann import Activation, NetworkBuilder
    from lattice_tune import EncoderRecord, LabelSet, StudentModel

    network = NetworkBuilder().input(384).hidden(128, Activation.RELU).output(6, Activation.SOFTMAX).build(seed=0)
    student = StudentModel(
        network, LabelSet("abcdef"[i] for i in range(6)), EncoderRecord(fingerprint="x", source="", dimension=384)
    )
    vectors: npt.NDArray[np.float32] = np.ones((1, 384), np.float32)
    encoded = SimpleNamespace(vectors=vectors)
    student.use_encoder(SimpleNamespace(fingerprint="x", dimension=384, encode=lambda texts, prompt="": encoded))
    times = []
    for _ in range(1000):
        began = time.perf_counter_ns()
        student.predict(["a text"])
        times.append((time.perf_counter_ns() - began) / 1000)
    return times[500:]


def misses(record: Mapping[str, Any]) -> list[str]:
    """Return a line for every figure beyond its limit."""
    limit, found = limits(SCRIPT), []
    for sample in record["samples"]:
        least = limit["accuracy"].get(f"{sample['set']}, {sample['right']:.0%}")
        if least is not None and not median(sample["accuracy"]) >= least:
            found.append(
                f"{sample['set']}, {sample['right']:.0%}: {median(sample['accuracy']):.3f}, {least} is the limit"
            )
    if not training_ratio(record) <= limit["training_ratio"]:
        found.append(f"training: {training_ratio(record):.3f} of lattice_fann, {limit['training_ratio']} is the limit")
    if not median(record["prediction_us"]) <= limit["prediction_us"]:
        found.append(f"prediction: {median(record['prediction_us']):.1f} us, {limit['prediction_us']} is the limit")
    return found


def training_ratio(record: Mapping[str, Any]) -> float:
    """Return the least processor time of a student's training in those of lattice_fann alone."""
    return float(min(record["training"]["student"]) / min(record["training"]["lattice_fann"]))


def render(record: Mapping[str, Any]) -> str:
    """Return the tables of a record in Markdown."""
    rows = [
        [
            f"{sample['set']} ({sample['train']:,} + {sample['test']:,})",
            f"{sample['teacher']:.3f}",
            f"{median(sample['accuracy']):.3f}",
            f"{min(sample['accuracy']):.3f} to {max(sample['accuracy']):.3f}",
            f"{median(sample['calibration_error']):.3f}",
        ]
        for sample in record["samples"]
    ]
    parts = [
        provenance(record),
        markdown_table(["set", "teacher", "student, median", "seeds", "calibration error"], rows),
        f"Training takes {training_ratio(record):.2f} of lattice_fann's processor time on the same arrays; "
        f"a prediction {median(record['prediction_us']):.1f} us in addition to the encoder's call (median).",
    ]
    if record["absent"]:
        parts.append(f"Not here: {', '.join(record['absent'])}.")
    return "\n\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
