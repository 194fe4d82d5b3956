"""``lattice-tune train`` and ``lattice-tune distill``: from texts to a stored student."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lattice_tune.cli.teacher_options import TEACHERS, add_teacher_options

if TYPE_CHECKING:
    from lattice_tune.datasets.labels import LabelSet
    from lattice_tune.distillation.config import DistillationConfig
    from lattice_tune.distillation.evaluation import Evaluation
    from lattice_tune.distillation.pipeline import DistillationResult
    from lattice_tune.distillation.report import DistillationReport
    from lattice_tune.registry.model_registry import ModelRegistry

__all__ = ["add_commands"]

_DATASETS = (".jsonl", ".ndjson", ".csv", ".tsv", ".npz")

_DISTILL = """\
Label texts with a teacher, train a small network on the labels, calibrate it, measure it, and store it as one file.

TEXTS is a .txt file with a text a line, or a dataset (.jsonl, .csv, .tsv, .npz, a folder a class); gold labels that it
has are learned and measured, too. With --folder, a stage whose inputs are known is not done again. With
--register, the student becomes a version in a registry, with its measures and what it was made of.
"""
_DISTILL_EXAMPLES = f"""\
examples:
  lattice-tune distill questions.txt --labels number,person,place --teacher labels.jsonl \\
      --model all-minilm-l6-v2 --output student.safetensors
  lattice-tune distill questions.jsonl --labels number,person,place --teacher labels.jsonl --test test.jsonl \\
      --model ./encoder --folder work --confidence 0.8 --output student.safetensors
  lattice-tune distill questions.txt --labels number,person,place --teacher claude-haiku --store labels.db --soft \\
      --model all-minilm-l6-v2 --output student.safetensors --register questions

{TEACHERS}  FILE                                             a dataset whose labels the texts get, by text
"""
_TRAIN = """\
Train a student on labels that are there already, calibrate it, measure it, and store it as one file.
"""
_TRAIN_EXAMPLES = """\
examples:
  lattice-tune train questions.jsonl --model all-minilm-l6-v2 --output student.safetensors
  lattice-tune train train.csv --test test.csv --label-field kind --model ./encoder --output student.safetensors
"""


def add_commands(commands: Any) -> None:
    """Add the commands to the parser's commands."""
    raw = argparse.RawDescriptionHelpFormatter
    distill = commands.add_parser(
        "distill",
        help="label texts with a teacher and train a student on the labels",
        description=_DISTILL,
        epilog=_DISTILL_EXAMPLES,
        formatter_class=raw,
    )
    distill.add_argument("texts", metavar="TEXTS", help="a file of texts, or a dataset")
    add_teacher_options(distill)
    distill.add_argument("--store", metavar="FILE", help="where answers are kept; needed for a teacher at a server")
    _add_common(distill)
    distill.set_defaults(run=_distill)
    train = commands.add_parser(
        "train",
        help="train a student on a labelled dataset",
        description=_TRAIN,
        epilog=_TRAIN_EXAMPLES,
        formatter_class=raw,
    )
    train.add_argument("data", metavar="DATA", help="a dataset with labels")
    train.add_argument("--labels", metavar="A,B,C", help="the label set (default: all labels of DATA, by name)")
    _add_common(train)
    train.set_defaults(run=_train)


def _add_common(parser: argparse.ArgumentParser) -> None:
    from lattice_tune.cli.options import add_dataset, add_dry_run, add_json, add_training

    parser.add_argument(
        "--model", required=True, metavar="PATH|NAME", help="the encoder: a directory, a GGUF file or a name"
    )
    parser.add_argument("--output", required=True, metavar="FILE", help="the student: a .safetensors file")
    parser.add_argument("--test", metavar="FILE", help="a labelled dataset to measure the student on")
    parser.add_argument("--folder", metavar="FOLDER", help="keep the results of stages here, and use them again")
    parser.add_argument(
        "--plot", metavar="FILE", help="draw losses and confusions: a .png, .svg or .pdf file (extra: plot)"
    )
    parser.add_argument("--register", metavar="NAME", help="register the student under this name")
    parser.add_argument(
        "--version", metavar="V", help="of the registered student (default: 1.0.0, or the next minor one)"
    )
    parser.add_argument("--registry", metavar="FOLDER", default="lattice-registry", help="(default: lattice-registry)")
    add_training(parser)
    add_dataset(parser)
    add_json(parser)
    add_dry_run(parser, "read the files, say what would be done, and do nothing")


def _config(options: argparse.Namespace) -> DistillationConfig:
    from lattice_tune.cli.options import split_names
    from lattice_tune.distillation.config import DistillationConfig
    from lattice_tune.errors import InvalidInputError, shown
    from lattice_tune.training.config import TrainingConfig
    from lattice_tune.training.early_stopping import EarlyStopping
    from lattice_tune.training.optimizer import OptimizerConfig
    from lattice_tune.training.regularization import RegularizationConfig

    try:
        hidden = tuple(int(n) for n in split_names(options.hidden, "--hidden")) if options.hidden != "none" else ()
    except ValueError:
        raise InvalidInputError(
            f"--hidden is {shown(options.hidden)}; write widths such as 128 or 128,64, or none"
        ) from None
    return DistillationConfig(
        hidden=hidden,
        temperature=options.soft_temperature,
        hard_share=options.hard_share,
        confidence=options.confidence,
        balance=options.balance,
        prompt=options.prompt,
        training=TrainingConfig(
            epochs=options.epochs,
            batch_size=options.batch_size,
            val_split=options.val_split,
            seed=options.seed,
            optimizer=OptimizerConfig(learning_rate=options.learning_rate),
            regularization=RegularizationConfig(dropout=options.dropout, label_smoothing=options.label_smoothing),
            early_stopping=EarlyStopping(
                monitor="val_loss" if options.val_split else "train_loss", patience=options.patience
            ),
        ),
    )


def _distill(options: argparse.Namespace) -> int:
    from lattice_tune.cli.options import check_output, open_dataset, print_json, split_names
    from lattice_tune.cli.teacher_options import limits_of, open_teacher, task_of
    from lattice_tune.datasets.labels import LabelSet
    from lattice_tune.distillation.teacher import RecordedTeacher
    from lattice_tune.errors import InvalidInputError

    labels = LabelSet(split_names(options.labels, "--labels"))
    if Path(options.teacher).suffix.lower() in _DATASETS or Path(options.teacher).exists():
        return _run(options, options.texts, labels, RecordedTeacher(open_dataset([options.teacher], options)))
    task, limits = task_of(options), limits_of(options)
    check_output(options.output, ".safetensors")
    _config(options)
    with ExitStack() as stack:
        from lattice_tune.teachers.label_store import LabelStore
        from lattice_tune.teachers.labeling import dry_run
        from lattice_tune.teachers.served_teacher import ServedTeacher
        from lattice_tune.teachers.teacher_function import TeacherFunction

        teacher = stack.enter_context(open_teacher(options))
        if options.store is None and isinstance(teacher, ServedTeacher) and not options.dry_run:
            raise InvalidInputError(
                "a teacher at a server is paid for: name a file that keeps its answers with --store"
            )
        exists = options.store is not None and (not options.dry_run or Path(options.store).exists())
        store = stack.enter_context(LabelStore(options.store)) if exists else None
        if options.dry_run:
            texts = open_dataset([options.texts], options).texts()
            plan = dry_run(texts, teacher, task, store=store, votes=options.votes).as_dict()
            if options.json:
                print_json({"dry_run": True} | plan)
            else:
                _print_plan(plan)
            return 0
        function = TeacherFunction(teacher, task, store=store, limits=limits, votes=options.votes)
        return _run(options, options.texts, labels, function)


def _print_plan(plan: dict[str, object]) -> None:
    print(f"{plan['texts']:,} texts; {plan['stored']:,} answers are stored, {plan['requests']:,} would be requested")
    if plan["most_cost"] is not None:
        print(f"cost: at most {plan['most_cost']:.4f}")


def _train(options: argparse.Namespace) -> int:
    from lattice_tune.cli.options import open_dataset, split_names
    from lattice_tune.datasets.labels import LabelSet

    if options.labels is None:
        labels = open_dataset([options.data], options).label_set()
    else:
        labels = LabelSet(split_names(options.labels, "--labels"))
    return _run(options, options.data, labels, None)


def _run(options: argparse.Namespace, path: str, labels: LabelSet, teacher: Any) -> int:
    from lattice_tune.cli.options import check_output, open_dataset, print_json
    from lattice_tune.cli.stage_progress import StageProgress
    from lattice_tune.distillation.pipeline import DistillationPipeline

    target, config = check_output(options.output, ".safetensors"), _config(options)
    picture = None if options.plot is None else _check_plot(options.plot)
    data = open_dataset([path], options).load()
    test = None if options.test is None else open_dataset([options.test], options).load()
    for error in data.skipped.errors:
        print(f"lattice-tune: skipped: {error}", file=sys.stderr)
    if options.dry_run:
        texts = data.texts()
        known = len(texts) if teacher is None else sum(answer is not None for answer in teacher(texts))
        told = {
            "texts": len(texts),
            "labelled": known,
            "labels": list(labels),
            "test": 0 if test is None else test.count(),
        }
        if options.json:
            print_json(told | {"config": config.to_dict()})
        else:
            print(f"{len(texts):,} texts, {known:,} of them with a label; {told['test']:,} test texts")
            print(f"labels {', '.join(labels)}")
            print(f"the student would be written to {target}")
        return 0
    with ExitStack() as stack:
        registry = version = None
        if options.register is not None:
            from lattice_tune.registry.model_registry import ModelRegistry

            registry = stack.enter_context(ModelRegistry(options.registry))
            version = _next_version(registry, options.register) if options.version is None else options.version
        progress = stack.enter_context(StageProgress())
        pipeline = DistillationPipeline(
            options.model,
            labels,
            teacher,
            config=config,
            folder=options.folder,
            registry=registry,
            progress=progress,
        )
        result = pipeline.run(data, test=test, output=target, name=options.register, version=version)
    if picture is not None:
        result.report.plot(picture)
    if options.json:
        registered = None if result.registered is None else f"{result.registered.name}@{result.registered.version}"
        print_json({"output": str(target), "registered": registered, "report": result.report.to_dict()})
    else:
        _print(result)
    return 0


def _check_plot(name: str) -> Path:
    """Return the path of a picture, before any work is done for it."""
    from lattice_tune.cli.options import check_output
    from lattice_tune.distillation.plots import check_picture

    return check_output(name, f".{check_picture(name)}", "--plot")


def _next_version(registry: ModelRegistry, name: str) -> str:
    """1.0.0, or the minor version after the latest one."""
    from lattice_tune.errors import ModelNotFoundError

    try:
        latest = registry.get_latest(name, prereleases=True).version
    except ModelNotFoundError:
        return "1.0.0"
    return f"{latest.major}.{latest.minor + 1}.0"


def _print(result: DistillationResult) -> None:
    report = result.report
    print(f"student      {result.path}: {result.student.network.architecture()}")
    if result.registered is not None:
        print(f"registered   {result.registered.name} {result.registered.version}, {result.registered.status.value}")
    left_out = f"{report.unanswered:,} without an answer, {report.left_out:,} unsure"
    print(
        f"trained on   {report.trained:,} of {report.examples:,} texts ({left_out}), {len(report.training.history)} epochs"
    )
    if report.teacher_accuracy is not None:
        print(f"teacher      {report.teacher_accuracy:.3f} accurate on the texts that have a gold label")
    print(
        f"calibration  temperature {report.temperature:.3f}: log loss {report.uncalibrated_log_loss:.4f} "
        f"-> {report.calibrated_log_loss:.4f}"
    )
    for name, found in _evaluations(report):
        print(
            f"{name:<12} accuracy {found.accuracy:.3f}, macro F1 {found.macro_f1:.3f}, log loss {found.log_loss:.3f}, "
            f"calibration error {found.expected_calibration_error:.3f} ({found.count:,} texts)"
        )
    if report.overlap:
        print(f"warning      {report.overlap:,} test texts are training texts, too")
    where, against = report.pass_back.measured_on
    print(f"pass back    below a confidence of (measured on {where.replace('_', ' ')}, against {against} labels)")
    for row in report.pass_back.table:
        kept = "-" if row.accuracy_kept is None else f"{row.accuracy_kept:.3f}"
        print(f"  {row.threshold:<10g} {row.passed_back:6.1%} of the texts; accuracy on the others {kept}")
    skipped = [stage.name for stage in report.stages if stage.skipped]
    if skipped:
        print(f"not again    {', '.join(skipped)}")


def _evaluations(report: DistillationReport) -> list[tuple[str, Evaluation]]:
    named = (
        ("on teacher", report.held_out_teacher),
        ("on gold", report.held_out_gold),
        ("test teacher", report.test_teacher),
        ("test gold", report.test_gold),
    )
    return [(name, found) for name, found in named if found is not None]
