"""Trains a low-rank adapter of a model on the program that runs it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

import numpy as np
import numpy.typing as npt

from lattice_inference import LoraAdapter, find_model
from lattice_inference.checkpoint.atomic_file import atomic_directory
from lattice_inference.checkpoint.formats import only_gguf
from lattice_inference.errors import InvalidInputError as InferenceInputError
from lattice_inference.files.fingerprint import ModelSnapshot
from lattice_inference.lora import LoraSite, save_gguf, save_peft_safetensors
from lattice_inference.lora.destination import check_new_directory
from lattice_inference.lora.peft_files import CONFIG_FILE
from lattice_inference.models.adapter_sites import module_stem
from lattice_inference.quantize.destination import check_destination
from lattice_tune.arguments import callable_of, choice, flag, instance, path_of, text_of
from lattice_tune.errors import ConfigError, DatasetError, InvalidInputError, TrainingError, shown
from lattice_tune.lora.checkpoint import CheckpointIdentity
from lattice_tune.lora.config import LoraConfig, LoraTrainingConfig
from lattice_tune.lora.head import HEAD_FILE, ClassificationHead
from lattice_tune.lora.loop import LoraStep, TrainingLoop
from lattice_tune.lora.objective import LoraEvaluation, ObjectiveName, SummedLoss
from lattice_tune.lora.output_labels import output_labels
from lattice_tune.lora.parameters import TrainedParameters
from lattice_tune.lora.program_link import ProgramLink
from lattice_tune.lora.rows import RowSource, rows_of
from lattice_tune.lora.target_sites import chosen_sites, linears_of
from lattice_tune.lora.text_examples import TextReader
from lattice_tune.lora.token_examples import TokenReader
from lattice_tune.lora.token_objective import TokenObjective
from lattice_tune.lora.vector_objective import VectorObjective
from lattice_tune.training.metrics import TrainingMetrics

if TYPE_CHECKING:
    from lattice_inference.training import TrainingProgram

__all__ = ["LoraResult", "LoraTrainer"]

Keep = Literal["all", "products", "layers"]
Activations = Literal["float32", "bfloat16"]
Backend = Literal["cpu", "reference"]
Pooling = Literal["cls", "mean", "last"]


@dataclass(frozen=True)
class LoraResult:
    """What a training made.

    Attributes:
        adapter: with the best round's matrices under early stopping, else the last ones.
        metrics: of each round: an epoch, or ``eval_interval`` updates. ``val_accuracy`` is the accuracy of classes,
            rankings or triplets, and the rank correlation of scores.
        losses: of each update, before it, (updates,) float64.
        truncated: examples that were cut to ``max_tokens``.
        head: for the objective ``"classification"``; else None.
    """

    adapter: LoraAdapter
    metrics: TrainingMetrics
    losses: npt.NDArray[np.float64]
    truncated: int
    head: ClassificationHead | None = None


class LoraTrainer:
    """Trains an adapter; the model's weights stay as they are, in the format of their files.

    A context manager that gives the model back. It is a :class:`~lattice_inference.lora.LoraHook`: a loaded model can attach
    it while it is trained.

    Args:
        model: a directory, a GGUF file or a name.
        config: the adapter.
        training: how it is trained.
        objective: ``"tokens"`` for a language model. For an encoder ``"ranking"`` (rows with ``anchor``, ``positive`` and
            perhaps ``negative``), ``"cosent"`` or ``"cosine"`` (``sentence1``, ``sentence2``, ``score``), ``"triplet"``
            (``anchor``, ``positive``, ``negative``), ``"classification"`` (``text``, ``label``). For a cross-encoder
            ``"bce"`` (a ``score`` from 0 to 1) or ``"ce"`` (a ``label``) of ``sentence1`` and ``sentence2``.
        prompt: put before every text of an encoder.
        pooling: how an encoder's tokens become one vector, ``"cls"``, ``"mean"`` or ``"last"``; by default what its files
            state.
        keep: what the forward pass keeps: ``"all"``, ``"products"``, or ``"layers"`` (least memory). It changes no bit.
        activations: multiply float32 rows, or rows rounded to bfloat16.
        backend: ``"cpu"``, or ``"reference"``: NumPy, to compare with.
        threads: the most threads; by default all.

    Raises:
        InvalidInputError: an option makes no sense, or no linear is chosen.
        LatticeError: the model cannot be read, or cannot be trained.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        config: LoraConfig | None = None,
        training: LoraTrainingConfig | None = None,
        *,
        objective: ObjectiveName = "tokens",
        prompt: str = "",
        pooling: Pooling | None = None,
        keep: Keep = "products",
        activations: Activations = "float32",
        backend: Backend = "cpu",
        threads: int | None = None,
    ) -> None:
        from lattice_inference.training import open_training_program

        self.config: LoraConfig = LoraConfig() if config is None else instance(config, "config", LoraConfig)
        self.training: LoraTrainingConfig = (
            LoraTrainingConfig() if training is None else instance(training, "training", LoraTrainingConfig)
        )
        choice(objective, "objective", get_args(ObjectiveName))
        self.objective: ObjectiveName = objective
        self._prompt = text_of(prompt, "prompt")
        self._pooling = pooling
        self._activations = activations
        files = find_model(model)
        has_config = not files.directory.is_dir() or (files.directory / "config.json").exists()
        self.path: Path = files.directory if has_config else only_gguf(files.directory) or files.directory
        self._base_name = files.repo_id or str(model)
        self._snapshot = ModelSnapshot.take(self.path)
        causal = objective == "tokens"
        sites = chosen_sites(self.path, self.config, linears_of(self.path, causal=causal))
        self._program: TrainingProgram = open_training_program(
            self.path,
            sites=sites,
            rank=self.config.rank,
            scaling=self.config.scale,
            loss="tokens" if causal else "scores" if objective in ("bce", "ce") else "vectors",
            pooling=pooling,
            keep=keep,
            activations=activations,
            backend=backend,
            threads=threads,
        )
        self._labels: tuple[str, ...] | None = None
        self._start: tuple[LoraAdapter, ClassificationHead | None] | None = None
        self._is_closed = False
        self._begin(None)

    def train(
        self,
        examples: RowSource,
        *,
        validation: RowSource | None = None,
        folder: str | os.PathLike[str] | None = None,
        progress: Callable[[LoraStep], object] | None = None,
    ) -> LoraResult:
        """Train on rows.

        It begins with the checkpoint in ``folder``, else with what :meth:`load` took, else with new matrices.

        Args:
            examples: a JSONL file or an iterable of mappings, with the fields that the objective asks for.
            validation: rows that are only measured.
            folder: where checkpoints and ``metrics.jsonl`` are kept. A training that was interrupted goes on there, and ends
                with the bits of one that was not.
            progress: told of each update; returning True ends the training.

        Raises:
            DatasetError: a row is no example, or has no trained token; the message has its line.
            TrainingError: a loss is not finite; the message names the update. The last checkpoint stays.
            CheckpointError: the folder's checkpoint is of another training, or one cannot be written.
        """
        self._check_open()
        if progress is not None:
            callable_of(progress, "progress")
        stopping = self.training.early_stopping
        if stopping is not None and stopping.monitor != "train_loss" and validation is None:
            raise ConfigError(
                f"{stopping.monitor} is monitored and there is no validation: give one, or monitor train_loss"
            )
        place = None if folder is None else path_of(folder, "folder")
        if place is not None:
            _make_folder(place)
        chosen, truncated = self._read(examples, "examples")
        measured = [] if validation is None else self._read(validation, "validation")[0]
        self._begin(self._label_names(chosen))
        objective = self._objective(chosen, measured)
        loop = TrainingLoop(
            self.training,
            objective,
            self._parameters,
            self._identity(objective.digest),
            place,
            self._labels,
            progress,
        )
        result = loop.run()
        return LoraResult(self.adapter, result.metrics, result.losses, truncated, self.head)

    def plan(self, examples: RowSource) -> dict[str, int]:
        """Return how many examples, tokens and updates a training on rows would have.

        Raises:
            DatasetError: a row is no example.
        """
        chosen, truncated = self._read(examples, "examples")
        if self.objective == "tokens":
            tokens = sum(len(example.token_ids) for example in chosen)
            trained = sum(example.trained_count for example in chosen)
        else:
            tokens = sum(len(text.token_ids) for example in chosen for text in example.texts)
            trained = len(chosen)
        updates = -(-len(chosen) // self.training.batch_size) * self.training.epochs
        most = self.training.max_steps
        return {
            "examples": len(chosen),
            "truncated": truncated,
            "tokens": tokens,
            "trained": trained,
            "updates": updates if most is None else min(updates, most),
        }

    def evaluate(self, examples: RowSource) -> LoraEvaluation:
        """Measure the adapter as it is now on rows.

        Raises:
            DatasetError: a row is no example.
            TrainingError: the loss is not finite.
        """
        self._check_open()
        chosen, _ = self._read(examples, "examples")
        self._check_head()
        return self._objective(chosen, []).measure(chosen)

    def load(self, adapter: LoraAdapter, head: ClassificationHead | None = None) -> None:
        """Take the matrices of an adapter with these sites and this rank.

        Later trainings begin with them. With a head, they begin with it, and have its labels. Moments, rate and draws begin
        anew: the same ``folder`` goes on with them.

        Raises:
            InvalidInputError: it has other sites, another rank or scale, more than matrices, or the order of rows of a GGUF
                file (:func:`~lattice_inference.lora.in_row_order` turns it); or a head does not fit.
        """
        self._check_open()
        given = instance(adapter, "adapter", LoraAdapter)
        if head is not None:
            instance(head, "head", ClassificationHead)
        if not given.is_plain or given.row_order != "half":
            raise InvalidInputError(f"{given.source}: has more than matrices, or the order of rows of a GGUF file")
        sites = {module_stem(name): site for name, site in given.sites.items()}
        shapes = {module_stem(name): shape for name, shape in self._parameters.shapes.items()}
        wrong = sorted(set(sites) ^ set(shapes))
        if wrong:
            raise InvalidInputError(f"the adapter and this trainer differ in {len(wrong)} linears, such as {wrong[0]}")
        for name, site in sites.items():
            if site.shape != shapes[name]:
                raise InvalidInputError(f"{name}: the adapter is for {site.shape}, the model has {shapes[name]}")
            # a file has alpha, and alpha / rank may be a bit off the scale that it was made of
            is_scaled = math.isclose(site.scale, self.config.scale, rel_tol=1e-12)
            if site.rank != self.config.rank or not is_scaled:
                raise InvalidInputError(
                    f"{name}: the adapter has rank {site.rank} and scale {site.scale:g}, this training "
                    f"{self.config.rank} and {self.config.scale:g}: give the adapter's rank and alpha"
                )
        if head is not None and self.objective != "classification":
            raise InvalidInputError(f"the objective {self.objective} has no head")
        if head is not None and head.weight.shape[1] != self._vector_width():
            raise InvalidInputError(
                f"the head is for vectors of {head.weight.shape[1]}, here they have {self._vector_width()}"
            )
        self._start = given, head
        self._begin(None if head is None else head.labels.names)

    @property
    def sites(self) -> tuple[str, ...]:
        """The paths of the linears that are changed."""
        return tuple(self._parameters.shapes)

    def factors(self, site: str) -> LoraSite:
        """Return A, B and scale of a site as they are now.

        Raises:
            InvalidInputError: there is no such site.
        """
        if not isinstance(site, str) or site not in self._parameters.shapes:
            raise InvalidInputError(f"site is {shown(site)}; it must be one of sites")
        values = self._parameters.values
        a, b = (self._parameters.view(values, site, part).copy() for part in ("a", "b"))
        return LoraSite(a, b, self.config.scale)

    def validate_against(self, linears: Mapping[str, tuple[int, int]]) -> None:
        """Raise InvalidInputError if the adapter is not for a model with these linears."""
        self.adapter.validate_against(linears)

    @property
    def adapter(self) -> LoraAdapter:
        """The adapter as it is now."""
        return LoraAdapter(
            {site: self.factors(site) for site in self.sites}, base_model=self._base_name, source="the trained adapter"
        )

    @property
    def head(self) -> ClassificationHead | None:
        """The classifier as it is now; None for other objectives, and before a training."""
        if self._labels is None or self._parameters.head is None:
            return None
        weight, bias = (self._parameters.view(self._parameters.values, "", part).copy() for part in ("weight", "bias"))
        return ClassificationHead(self._labels, weight * np.float32(self.training.scale), bias)

    @property
    def parameter_count(self) -> int:
        """How many numbers are trained."""
        return self._parameters.count

    @property
    def peak_bytes(self) -> int:
        """The most memory that weights, matrices and one run have taken together so far."""
        return self._program.peak_bytes

    def save(
        self,
        directory: str | os.PathLike[str],
        *,
        gguf: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
    ) -> Path:
        """Write the adapter as PEFT does, with a head beside it; with ``gguf`` for llama.cpp, too.

        Raises:
            InvalidInputError: ``directory`` or ``gguf`` exists or has no folder; nothing was written.
            WriteError: it cannot be written; what was there stays.
        """
        target = path_of(directory, "directory")
        flag(overwrite, "overwrite")
        file = None if gguf is None else path_of(gguf, "gguf")
        try:
            check_new_directory(target, CONFIG_FILE, overwrite=overwrite)
            if file is not None:
                check_destination(file, [self.path] if self.path.is_file() else [], overwrite=overwrite)
        except InferenceInputError as error:
            raise InvalidInputError(str(error)) from error
        adapter, head = self.adapter, self.head
        with atomic_directory(target) as work:
            save_peft_safetensors(adapter, work / "adapter")
            for name in os.listdir(work / "adapter"):
                os.rename(work / "adapter" / name, work / name)
            os.rmdir(work / "adapter")
            if head is not None:
                head.save(work / HEAD_FILE)
        if file is not None:
            save_gguf(adapter, file, base=self.path, overwrite=overwrite)
        return target

    def close(self) -> None:
        """Give the model back; a second call does nothing.

        The adapter stays readable; what needs the model is refused.
        """
        self._is_closed = True
        self._program.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise InvalidInputError("the trainer is closed: make another one")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<LoraTrainer {self.path} {self.objective} sites={len(self.sites)} rank={self.config.rank}>"

    def _gradients(self, examples: RowSource) -> SummedLoss:
        """Set the gradients to those of the summed loss of rows, without dropout and noise."""
        self._check_open()
        chosen, _ = self._read(examples, "examples")
        self._check_head()
        link = ProgramLink(self._program, self._parameters, 0.0, replace(self.training, noise=0.0))
        return self._objective(chosen, [], link).accumulate(range(len(chosen)), 0)

    def _begin(self, labels: Iterable[str] | None) -> None:
        """Set the matrices that a training begins with, and a head for labels."""
        self._labels = None if labels is None else tuple(labels)
        shapes = {site.name: (site.outputs, site.inputs) for site in self._program.sites}
        head = None
        if self._labels is not None and self.objective == "classification":
            head = len(self._labels), self._vector_width()
        parameters = self._parameters = TrainedParameters(shapes, self.config.rank, head)
        parameters.draw(self.config.seed)
        if self._start is not None:
            adapter, given = self._start
            sites = {module_stem(name): site for name, site in adapter.sites.items()}
            for name in shapes:
                parameters.view(parameters.values, name, "a")[:] = sites[module_stem(name)].a
                parameters.view(parameters.values, name, "b")[:] = sites[module_stem(name)].b
            if given is not None:
                parameters.view(parameters.values, "", "weight")[:] = given.weight / np.float32(self.training.scale)
                parameters.view(parameters.values, "", "bias")[:] = given.bias
        self._link = ProgramLink(self._program, self._parameters, self.config.dropout, self.training)
        self._link.write()

    def _check_head(self) -> None:
        if self.objective == "classification" and self._labels is None:
            raise InvalidInputError("there is no head yet: train one before, or load one with load")

    def _vector_width(self) -> int:
        ids = np.zeros(1, np.int32)
        return int(self._program.vectors(ids, np.array([0, 1], np.int32), ids).shape[1])

    def _read(self, source: RowSource, name: str) -> tuple[list[Any], int]:
        """Return the examples of rows, and how many were cut."""
        if self.objective == "tokens":
            reader = TokenReader.of_model(self.path, self.training.max_tokens)
            found = reader.read(rows_of(source, name))
            return found.examples, found.truncated
        texts = TextReader(
            self.path, self.objective, self.training.max_tokens, prompt=self._prompt, pooling=self._pooling
        )
        return texts.read(list(rows_of(source, name))), 0

    def _label_names(self, examples: list[Any]) -> tuple[str, ...] | None:
        """Return the labels of a head, or of a cross-encoder's outputs, in their order."""
        if self.objective not in ("classification", "ce"):
            return None
        if self._start is not None and self._start[1] is not None:
            return tuple(self._start[1].labels.names)
        names = sorted({str(example.label) for example in examples})
        if self.objective == "ce":
            return output_labels(self.path, names, self._vector_width())
        if len(names) < 2:
            raise DatasetError(f"all examples have the label {names[0]!r:.100}; at least two labels are needed")
        return tuple(names)

    def _objective(
        self, examples: list[Any], validation: list[Any], link: ProgramLink | None = None
    ) -> TokenObjective | VectorObjective:
        link = self._link if link is None else link
        if self.objective == "tokens":
            return TokenObjective(link, examples, validation, self.training.micro_batch_tokens)
        labels = self._label_names(examples) if self._labels is None else self._labels
        classes = None if labels is None else {name: place for place, name in enumerate(labels)}
        for example in [*examples, *validation]:
            if classes is not None and example.label not in classes:
                raise DatasetError(f"{example.place}: the label {shown(example.label)} is none of the training's")
        return VectorObjective(self.objective, link, examples, validation, classes, self.training)

    def _identity(self, examples: str) -> CheckpointIdentity:
        training = replace(self.training, checkpoint_interval=None).to_dict()
        told = [self.config.to_dict(), training, self.objective, self._prompt, self._activations, self._labels]
        if self._pooling is not None:
            told.append(self._pooling)
        if self._start is not None:
            told += [self._start[0].sha256, _head_digest(self._start[1])]
        settings = blake2b(json.dumps(told, sort_keys=True).encode(), digest_size=16).hexdigest()
        return CheckpointIdentity(self._snapshot.digest(), examples, settings)


def _head_digest(head: ClassificationHead | None) -> str | None:
    return None if head is None else blake2b(head.weight.tobytes() + head.bias.tobytes(), digest_size=16).hexdigest()


def _make_folder(place: Path) -> None:
    try:
        place.mkdir(exist_ok=True)
    except OSError as error:
        raise TrainingError(f"{place}: {error.strerror or error}") from error
