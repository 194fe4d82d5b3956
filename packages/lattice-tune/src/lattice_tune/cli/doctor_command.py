"""``lattice-tune doctor``: is everything there, and can a student be used?"""

from __future__ import annotations

import argparse
import importlib.util
from importlib import metadata
from typing import Any

__all__ = ["add_commands"]

_PACKAGES = ("lattice-tune", "lattice-fann", "lattice-inference", "numpy", "safetensors")
_OPTIONAL = {"teachers": "lattice_embed", "plot": "matplotlib"}


def add_commands(commands: Any) -> None:
    """Add the command to the parser's commands."""
    from lattice_tune.cli.options import add_json

    parser = commands.add_parser(
        "doctor",
        help="check the installation, and a student",
        description="Check that the packages work together, and that a student and its encoder can be loaded.",
        epilog="examples:\n  lattice-tune doctor\n  lattice-tune doctor student.safetensors --model ./encoder\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("student", nargs="?", metavar="STUDENT", help="a file that distill or train wrote")
    parser.add_argument("--model", metavar="PATH|NAME", help="the student's encoder (default: where it was)")
    add_json(parser)
    parser.set_defaults(run=_doctor)


def _doctor(options: argparse.Namespace) -> int:
    from lattice_tune.cli.options import print_json

    found: dict[str, Any] = {"packages": {name: _version(name) for name in _PACKAGES}}
    found["extras"] = {name: importlib.util.find_spec(module) is not None for name, module in _OPTIONAL.items()}
    found["training"] = _can_train()
    if options.student is not None:
        found["student"] = _student(options.student, options.model)
    if options.json:
        print_json(found)
    else:
        for name, version in found["packages"].items():
            print(f"{name:<18} {version or 'not installed as a package'}")
        for name, is_there in found["extras"].items():
            print(f"extra {name:<12} {'there' if is_there else 'not installed'}")
        print(f"training           {'works' if found['training'] else 'does not learn'}")
        for name, value in found.get("student", {}).items():
            print(f"student {name:<10} {value}")
    return 0 if found["training"] else 1


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _can_train() -> bool:
    """Whether a student learns two clouds of points that lie apart."""
    import numpy as np

    from lattice_tune.distillation.student_trainer import StudentTrainer
    from lattice_tune.training.config import TrainingConfig
    from lattice_tune.training.optimizer import OptimizerConfig

    draws = np.random.RandomState(0)
    classes = np.arange(64) % 2
    vectors = draws.standard_normal((64, 8)).astype(np.float32) + 4.0 * classes[:, None].astype(np.float32)
    optimizer = OptimizerConfig(learning_rate=0.05)
    config = TrainingConfig(epochs=20, val_split=0.0, early_stopping=None, optimizer=optimizer)
    made = StudentTrainer(config, hidden=()).train(vectors, np.eye(2, dtype=np.float32)[classes])
    return bool((made.network.forward_batch(vectors).argmax(axis=1) == classes).mean() > 0.9)


def _student(path: str, model: str | None) -> dict[str, Any]:
    from lattice_tune.distillation.student import load_student

    student = load_student(path)
    student.use_encoder(model)
    label = student.predict(["a text"]).labels[0]
    return {
        "labels": ", ".join(student.labels),
        "network": student.network.architecture(),
        "encoder": student.encoder_record.source or "not known",
        "predicts": label,
    }
