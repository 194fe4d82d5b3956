"""From texts to a student: labels, vectors, training, calibration, evaluation, registry."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lattice_inference import load_encoder
from lattice_tune._version import __version__
from lattice_tune.arguments import callable_of, instance, path_of, text_of
from lattice_tune.datasets.dataset import Dataset
from lattice_tune.datasets.labels import LabelSet
from lattice_tune.distillation.config import DistillationConfig
from lattice_tune.distillation.evaluation import Evaluation, deferral_table, evaluate
from lattice_tune.distillation.report import DistillationReport, PassBack
from lattice_tune.distillation.stages import StageFolder, StageRecord, digest_of
from lattice_tune.distillation.student import EncoderRecord, StudentModel, VectorEncoder, load_student
from lattice_tune.distillation.student_trainer import StudentTrainer, TrainedNetwork, held_out
from lattice_tune.distillation.teacher import Teacher, ask_teacher
from lattice_tune.distillation.temperature_scaling import calibrated_network, fit_temperature
from lattice_tune.errors import InvalidInputError, StudentFileError, TrainingError, shown
from lattice_tune.training.callback import TrainingCallback
from lattice_tune.training.json_object import part_of
from lattice_tune.training.metrics import EpochMetrics, TrainingMetrics

if TYPE_CHECKING:
    from lattice_tune.registry.model_registry import ModelRegistry
    from lattice_tune.registry.records import RegisteredModel

__all__ = ["DistillationPipeline", "DistillationResult"]

Float32Array = npt.NDArray[np.float32]

_ENOUGH_GOLD = 30
"""Gold labels among the examples kept out of training, from which the calibration takes these alone."""
Progress = Callable[[str, int, int], object]
"""Told of a stage's name, of how much is done, and of how much there is."""


@dataclass(frozen=True)
class DistillationResult:
    """What a distillation made.

    Attributes:
        student: the student.
        report: what was measured; it lies in the student, too.
        path: the student's file; None if none was requested.
        registered: the version in the registry, which is pending; None without one.
    """

    student: StudentModel
    report: DistillationReport
    path: Path | None
    registered: RegisteredModel | None = None


class DistillationPipeline:
    """Distils a teacher into a student.

    The stages are texts -> labels -> vectors -> training -> calibration -> evaluation -> registry. A stage whose
    inputs are what they were in an earlier run with the same ``folder`` is skipped. A teacher is skipped only if it
    has a ``fingerprint``; see :class:`Teacher`.

    Args:
        encoder: turns texts into vectors: an encoder, or what :func:`lattice_inference.load_encoder` loads, with its cache.
        labels: the label set.
        teacher: labels the texts; None takes the labels that the dataset has.
        config: how it goes.
        folder: keeps the stages' results; None keeps none.
        registry: stores the student when ``run`` is given a name and a version.
        progress: told of each stage as it goes on.
    """

    def __init__(
        self,
        encoder: VectorEncoder | str | os.PathLike[str],
        labels: LabelSet,
        teacher: Teacher | None = None,
        *,
        config: DistillationConfig | None = None,
        folder: str | os.PathLike[str] | None = None,
        registry: ModelRegistry | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.config: DistillationConfig
        self.config = DistillationConfig() if config is None else instance(config, "config", DistillationConfig)
        self.labels: LabelSet = instance(labels, "labels", LabelSet)
        if len(labels) < 2:
            raise InvalidInputError("there is one label; at least two are needed")
        self.teacher: Callable[..., Any] | None = None if teacher is None else callable_of(teacher, "teacher")
        self._progress = None if progress is None else callable_of(progress, "progress")
        if registry is not None and not callable(getattr(registry, "register", None)):
            raise InvalidInputError(f"registry is {shown(registry)}; it must have a function register")
        self.registry = registry
        self._stages = StageFolder(None if folder is None else path_of(folder, "folder"))
        self._source = os.fspath(encoder) if isinstance(encoder, (str, os.PathLike)) else ""
        if self._source:
            encoder = load_encoder(self._source, cache=True)
        missing = [name for name in ("fingerprint", "dimension", "encode") if not hasattr(encoder, name)]
        if missing or isinstance(encoder, type):
            raise InvalidInputError(f"encoder is {shown(encoder)}; it must be an encoder, a path or a model's name")
        self.encoder: VectorEncoder = encoder  # type: ignore[assignment]
        if not self._source:
            self._source = str(getattr(encoder, "directory", ""))

    def run(
        self,
        dataset: Dataset,
        *,
        test: Dataset | None = None,
        output: str | os.PathLike[str] | None = None,
        name: str | None = None,
        version: str | None = None,
    ) -> DistillationResult:
        """Distil.

        Args:
            dataset: texts, with gold labels where they are known; without a teacher, with labels.
            test: texts with gold labels, or a teacher's, which the student is measured on.
            output: the student's file.
            name, version: what the student is registered as.

        Raises:
            DatasetError, InvalidInputError: an example without a text, a label that is none of the set, too few examples.
            TeacherAnswerError: the teacher returned no distributions. What it raises itself goes through.
            TrainingError: a value was not finite.
            StudentFileError: the student cannot be written.
        """
        if (name is None) != (version is None) or (name is not None and self.registry is None):
            raise InvalidInputError("to register a student, give a registry, a name and a version")
        if name is not None:
            text_of(name, "name")
        target = None if output is None else path_of(output, "output")
        measured = None if test is None else instance(test, "test", Dataset).load()
        run = _Run(self, instance(dataset, "dataset", Dataset).load(), measured)
        student, report = run.distil()
        registered = None
        if target is not None:
            student.save(target)
        if self.registry is not None and name is not None and version is not None:
            registered = self._register(self.registry, student, report, name, version, dataset)
        return DistillationResult(student, report, target, registered)

    def _register(
        self,
        registry: ModelRegistry,
        student: StudentModel,
        report: DistillationReport,
        name: str,
        version: str,
        dataset: Dataset,
    ) -> RegisteredModel:
        from lattice_tune.registry.records import Lineage, ModelMetadata

        tested, held = report.test_gold or report.test_teacher, report.held_out_gold or report.held_out_teacher
        measured = tested or held
        metadata = ModelMetadata(
            architecture=student.network.architecture(),
            input_dim=student.network.num_inputs,
            output_dim=student.network.num_outputs,
            num_parameters=student.network.total_params,
            config_hash=digest_of(json.dumps(self.config.to_dict(), sort_keys=True)),
            num_training_examples=report.trained,
            validation_accuracy=held.accuracy,
            test_accuracy=None if tested is None else tested.accuracy,
            metrics={
                "macro_f1": measured.macro_f1,
                "log_loss": measured.log_loss,
                "expected_calibration_error": measured.expected_calibration_error,
            },
        )
        fingerprint = getattr(self.teacher, "fingerprint", None)
        lineage = Lineage(
            dataset_digest=dataset.digest(),
            teacher=fingerprint if isinstance(fingerprint, str) else None,
            base_model=student.encoder_record.fingerprint,
            code_versions={"lattice-tune": __version__},
        )
        with TemporaryDirectory(prefix="lattice-tune-") as folder:
            path = Path(folder) / "student.safetensors"
            student.save(path)
            return registry.register(name, version, path, kind="student", metadata=metadata, lineage=lineage)


class _Bar(TrainingCallback):
    def __init__(self, tell: Callable[[str, int, int], object], epochs: int) -> None:
        self.tell, self.epochs = tell, epochs

    def on_epoch_end(self, metrics: EpochMetrics) -> None:
        self.tell("student", metrics.epoch + 1, self.epochs)


class _Run:
    """One call of run."""

    def __init__(self, pipeline: DistillationPipeline, data: Dataset, test: Dataset | None) -> None:
        self.pipeline, self.config, self.labels = pipeline, pipeline.config, pipeline.labels
        self.data, self.test = data, test
        self.texts = data.texts()
        if not self.texts:
            raise InvalidInputError("the dataset has no examples")
        self.gold = data.gold(self.labels)
        self.stages: list[StageRecord] = []

    def tell(self, stage: str, done: int, total: int) -> None:
        if self.pipeline._progress is not None:
            self.pipeline._progress(stage, done, total)

    def distil(self) -> tuple[StudentModel, DistillationReport]:
        soft = self.label()
        sure = np.nan_to_num(soft.max(axis=1), nan=-1.0)
        answered = sure >= 0
        kept = answered & (sure >= (self.config.min_confidence or 0.0))
        if kept.sum() < 2:
            raise InvalidInputError(
                f"of {len(kept)} texts, {int(answered.sum())} have labels and {int(kept.sum())} are sure enough: give more, "
                "or a lower min_confidence"
            )
        texts = [text for text, keep in zip(self.texts, kept, strict=True) if keep]
        soft, gold = soft[kept], self.gold[kept]
        has_gold = np.isfinite(gold[:, 0])
        vectors = self.encode("vectors", texts)
        weights = np.array([example.weight for example in self.data])[kept]
        student, metrics, temperature = self.train(texts, vectors, soft, gold, has_gold, weights)
        began = time.perf_counter()
        out = held_out([text.encode() for text in texts], self.config.training.val_split, self.config.training.seed)
        with_gold = out & has_gold
        calibrated = calibrated_network(student, temperature)
        after = calibrated.forward_batch(vectors)
        held_teacher = self.measure(after[out], soft[out], [t for t, o in zip(texts, out, strict=True) if o])
        before = evaluate(student.forward_batch(vectors[out]), soft[out], self.labels, worst=0)
        held_gold = None
        if with_gold.any():
            held_gold = self.measure(
                after[with_gold], gold[with_gold], [t for t, o in zip(texts, with_gold, strict=True) if o]
            )
        test_teacher, test_gold, table_of = self.measure_test(calibrated)
        if table_of is None:
            mask, where = (with_gold, "gold") if with_gold.any() else (out, "teacher")
            table_of = ("held_out", where), after[mask], (gold if where == "gold" else soft)[mask]
        measured_on, probabilities, expected = table_of
        threshold = self.config.confidence or 0.0
        thresholds = sorted({0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99} | ({threshold} if threshold else set()))
        least = np.argsort(after.max(axis=1), kind="stable")[: self.config.worst]
        self.note("evaluation", digest_of(self.stages[-1].digest, len(texts)), False, began)
        teacher_accuracy = None
        if self.pipeline.teacher is not None and has_gold.any():
            teacher_accuracy = float((soft[has_gold].argmax(axis=1) == gold[has_gold].argmax(axis=1)).mean())
        report = DistillationReport(
            examples=len(self.texts),
            unanswered=int((~answered).sum()),
            left_out=int((answered & ~kept).sum()),
            trained=int((~out).sum()),
            teacher_accuracy=teacher_accuracy,
            temperature=temperature,
            calibrated_log_loss=held_teacher.log_loss,
            uncalibrated_log_loss=before.log_loss,
            held_out_teacher=held_teacher,
            held_out_gold=held_gold,
            test_teacher=test_teacher,
            test_gold=test_gold,
            overlap=0 if self.test is None else len(self.data.overlap(self.test)),
            pass_back=PassBack(
                measured_on,
                threshold,
                deferral_table(probabilities, expected, self.labels, thresholds=thresholds),
                tuple(texts[index] for index in least),
            ),
            training=metrics,
            stages=tuple(self.stages),
        )
        told = json.loads(json.dumps(report.to_dict()))
        told["lattice_tune_version"] = __version__
        model = StudentModel(
            student,
            self.labels,
            self.encoder_record(),
            temperature=temperature,
            threshold=threshold,
            report=told,
        )
        return model, report

    def note(self, name: str, digest: str, skipped: bool, began: float) -> None:
        self.stages.append(StageRecord(name, digest, skipped, time.perf_counter() - began))

    def encoder_record(self) -> EncoderRecord:
        encoder = self.pipeline.encoder
        return EncoderRecord(
            fingerprint=encoder.fingerprint,
            source=self.pipeline._source,
            dimension=encoder.dimension,
            prompt=self.config.prompt,
        )

    def label(self) -> Float32Array:
        """The teacher's probabilities, or the dataset's own."""
        teacher, began = self.pipeline.teacher, time.perf_counter()
        if teacher is None:
            rows = self.data.targets(self.labels)
            self.note("labels", digest_of(rows), False, began)
            return rows
        fingerprint = getattr(teacher, "fingerprint", None)
        known = isinstance(fingerprint, str) and bool(fingerprint)
        folder = self.pipeline._stages if known else StageFolder(None)
        digest = digest_of("labels", str(fingerprint), list(self.labels), self.texts)

        def ask() -> Float32Array:
            return ask_teacher(
                teacher,
                self.texts,
                self.labels,
                batch=self.config.batch_size,
                progress=lambda done, total: self.tell("labels", done, total),
            )

        rows, skipped = folder.array("labels", digest, (len(self.texts), len(self.labels)), ask)
        self.note("labels", digest, skipped, began)
        return rows

    def encode(self, stage: str, texts: Sequence[str]) -> Float32Array:
        encoder, began = self.pipeline.encoder, time.perf_counter()
        digest = digest_of("vectors", encoder.fingerprint, self.config.prompt, list(texts))

        def work() -> Float32Array:
            parts = []
            size = self.config.batch_size
            for start in range(0, len(texts), size):
                batch = list(texts[start : start + size])
                parts.append(np.asarray(encoder.encode(batch, prompt=self.config.prompt).vectors, np.float32))
                self.tell(stage, start + len(batch), len(texts))
            return np.concatenate(parts)

        vectors, skipped = self.pipeline._stages.array("vectors", digest, (len(texts), encoder.dimension), work)
        if vectors.shape != (len(texts), encoder.dimension) or not np.isfinite(vectors).all():
            raise InvalidInputError(f"the encoder gave vectors of shape {vectors.shape}, or values that are not finite")
        self.note(stage, digest, skipped, began)
        return vectors

    def train(
        self,
        texts: list[str],
        vectors: Float32Array,
        soft: Float32Array,
        gold: Float32Array,
        has_gold: npt.NDArray[np.bool_],
        weights: npt.NDArray[np.float64],
    ) -> tuple[Any, TrainingMetrics, float]:
        """The network before calibration, how training went, and the calibration's temperature."""
        config, began = self.config, time.perf_counter()
        hard = np.eye(len(self.labels), dtype=np.float32)[soft.argmax(axis=1)]
        hard[has_gold] = gold[has_gold]
        if config.balance:
            classes = hard.argmax(axis=1)
            counts = np.bincount(classes, minlength=len(self.labels))
            weights = weights * (len(classes) / (np.count_nonzero(counts) * np.maximum(counts, 1)))[classes]
        told = config.to_dict() | {"confidence": None, "worst": 0, "batch_size": 0}
        digest = digest_of(
            "student", json.dumps(told, sort_keys=True), __version__, texts, vectors, soft, hard, weights
        )
        path = self.pipeline._stages.path("student", digest, ".safetensors")
        if path is not None and path.is_file():
            try:
                found = load_student(path)
                self.note("student", digest, True, began)
                return found.network, _metrics_of(found.report["training"]), found.temperature
            except (StudentFileError, KeyError, TypeError, ValueError):
                pass  # damaged: it is made anew
        trainer = StudentTrainer(
            config.training, hidden=config.hidden, temperature=config.temperature, hard_share=config.hard_share
        )
        made: TrainedNetwork = trainer.train(
            vectors,
            soft,
            hard=hard,
            sample_weight=weights,
            keys=[text.encode() for text in texts],
            callbacks=[_Bar(self.tell, config.training.epochs)],
        )
        gold_out = made.held_out & has_gold
        enough = int(gold_out.sum()) >= _ENOUGH_GOLD
        fitted, expected = (gold_out, gold) if enough else (made.held_out, soft)
        temperature = fit_temperature(made.network.forward_batch(vectors[fitted]), expected[fitted])
        if not np.isfinite(temperature):
            raise TrainingError("the calibration has no temperature")
        if path is not None:
            record = {"training": made.metrics.to_dict()}
            StudentModel(made.network, self.labels, self.encoder_record(), temperature=temperature, report=record).save(
                path
            )
        self.note("student", digest, False, began)
        return made.network, made.metrics, temperature

    def measure(self, probabilities: Float32Array, expected: Float32Array, texts: list[str]) -> Evaluation:
        return evaluate(probabilities, expected, self.labels, texts=texts, worst=self.config.worst)

    def measure_test(
        self, network: Any
    ) -> tuple[Evaluation | None, Evaluation | None, tuple[tuple[str, str], Float32Array, Float32Array] | None]:
        """Evaluate the student on the test set's teacher labels and gold labels.

        Deferral is measured on them too.
        """
        if self.test is None:
            return None, None, None
        texts = self.test.texts()
        gold = self.test.gold(self.labels)
        soft = np.array(
            [
                self.labels.row(example.labels) if example.labels is not None else np.full(len(self.labels), np.nan)
                for example in self.test
            ],
            np.float32,
        ).reshape(len(texts), len(self.labels))
        found: list[Evaluation | None] = []
        table = None
        if not (np.isfinite(gold).any() or np.isfinite(soft).any()):
            raise InvalidInputError("no example of the test set has a label")
        probabilities = network.forward_batch(self.encode("test vectors", texts))
        for expected, where in ((soft, "teacher"), (gold, "gold")):
            known = np.asarray(np.isfinite(expected).all(axis=1))
            if not known.any():
                found.append(None)
                continue
            named = [text for text, is_known in zip(texts, known, strict=True) if is_known]
            found.append(self.measure(probabilities[known], expected[known], named))
            table = ("test", where), probabilities[known], expected[known]
        return found[0], found[1], table


def _metrics_of(record: dict[str, Any]) -> TrainingMetrics:
    history = tuple(part_of(EpochMetrics, entry) for entry in record["history"])
    return replace(
        TrainingMetrics(history), stopped_early=record["stopped_early"], restored_epoch=record["restored_epoch"]
    )
