"""``lattice-tune eval`` and ``lattice-tune predict``: a stored student at work."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lattice_tune.distillation.student import StudentModel

__all__ = ["add_commands"]

_BATCH = 512


def add_commands(commands: Any) -> None:
    """Add the commands to the parser's commands."""
    from lattice_tune.cli.options import add_dataset, add_json

    raw = argparse.RawDescriptionHelpFormatter
    evaluation = commands.add_parser(
        "eval",
        help="measure a student on a labelled dataset",
        description="Measure a student: accuracy, macro F1, log loss, calibration error, confusion table, worst examples.",
        epilog="examples:\n  lattice-tune eval student.safetensors test.jsonl\n"
        "  lattice-tune eval student.safetensors test.csv --label-field kind --json\n",
        formatter_class=raw,
    )
    _add_student(evaluation)
    evaluation.add_argument("data", metavar="DATA", help="a labelled dataset")
    evaluation.add_argument("--worst", type=int, metavar="N", default=5, help="worst examples to show (default: 5)")
    add_dataset(evaluation)
    add_json(evaluation)
    evaluation.set_defaults(run=_evaluate)
    predict = commands.add_parser(
        "predict",
        help="label texts with a student",
        description="Label texts: a line each with label, confidence and text; '?' marks those to pass back to the teacher.",
        epilog="examples:\n  lattice-tune predict student.safetensors 'Where is Lake Como?'\n"
        "  lattice-tune predict student.safetensors --input texts.txt --json\n",
        formatter_class=raw,
    )
    _add_student(predict)
    predict.add_argument("texts", nargs="*", metavar="TEXT", help="texts to label")
    predict.add_argument("--input", metavar="FILE", help="a .txt file with a text a line, or a dataset")
    add_dataset(predict)
    add_json(predict)
    predict.set_defaults(run=_predict)


def _add_student(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("student", metavar="STUDENT", help="a file that distill or train wrote")
    parser.add_argument(
        "--model", metavar="PATH|NAME", help="the encoder (default: where it was when the student was trained)"
    )


def _load(options: argparse.Namespace) -> StudentModel:
    from lattice_tune.distillation.student import load_student

    student = load_student(options.student)
    student.use_encoder(options.model)
    return student


def _evaluate(options: argparse.Namespace) -> int:
    import numpy as np

    from lattice_tune.cli.options import open_dataset, print_json
    from lattice_tune.distillation.evaluation import evaluate
    from lattice_tune.errors import DatasetError

    student = _load(options)
    data = open_dataset([options.data], options).load()
    expected = data.targets(student.labels)
    known = np.asarray(np.isfinite(expected).all(axis=1))
    texts = [text for text, is_known in zip(data.texts(), known, strict=True) if is_known]
    if not texts:
        raise DatasetError(f"{options.data}: no example has a label")
    probabilities = np.concatenate(
        [student.predict(texts[start : start + _BATCH]).probabilities for start in range(0, len(texts), _BATCH)]
    )
    found = evaluate(probabilities, expected[known], student.labels, texts=texts, worst=options.worst)
    if options.json:
        print_json(found.to_dict())
        return 0
    print(f"examples           {found.count:,}")
    print(f"accuracy           {found.accuracy:.4f}")
    print(f"macro F1           {found.macro_f1:.4f}")
    print(f"log loss           {found.log_loss:.4f}")
    print(f"calibration error  {found.expected_calibration_error:.4f}")
    width = max(len(name) for name in found.labels)
    print("\nconfusion (expected by row, predicted by column)")
    for number, (name, row) in enumerate(zip(found.labels, found.confusion, strict=True)):
        print(f"{number:>3} {name:<{width}}  " + " ".join(f"{count:>5}" for count in row))
    for worst in found.worst:
        print(f"\nexpected {worst.expected} ({worst.probability:.3f}), predicted {worst.predicted}: {worst.text}")
    return 0


def _predict(options: argparse.Namespace) -> int:
    from lattice_tune.cli.options import open_dataset, print_json
    from lattice_tune.errors import InvalidInputError

    if bool(options.texts) == (options.input is not None):
        raise InvalidInputError("give texts, or --input FILE, and not both")
    texts = list(options.texts) if options.input is None else open_dataset([str(Path(options.input))], options).texts()
    student = _load(options)
    names = student.labels.names
    for start in range(0, len(texts), _BATCH):
        part = texts[start : start + _BATCH]
        found = student.predict(part)
        for row, text in enumerate(part):
            if options.json:
                scores = dict(zip(names, found.probabilities[row].astype(float).round(6).tolist(), strict=True))
                passed_back = bool(found.passed_back[row])
                print_json({"text": text, "label": found.labels[row], "labels": scores, "pass_back": passed_back})
            else:
                mark = "?" if found.passed_back[row] else " "
                shown_text = " ".join(text.split())
                print(f"{found.labels[row]}\t{found.confidence[row]:.3f}{mark}\t{shown_text}")
    return 0
