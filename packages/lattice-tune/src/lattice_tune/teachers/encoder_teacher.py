"""An encoder or a cross-encoder as a teacher: the label that is nearest to the text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from lattice_inference.errors import LatticeError
from lattice_tune.arguments import instance, number, text_of, whole
from lattice_tune.errors import ConfigError, InvalidInputError, shown
from lattice_tune.lora.head import ClassificationHead
from lattice_tune.teachers.answer import Outcome, TeacherAnswer, of_kind, softmax
from lattice_tune.teachers.prompt import clean_text, cut_text
from lattice_tune.teachers.provider import TeacherProvider
from lattice_tune.teachers.task import LabelingTask
from lattice_tune.teachers.texts import check_texts

if TYPE_CHECKING:
    from lattice_inference import CrossEncoder, Encoder

__all__ = ["EncoderTeacher"]

BATCH = 32
DEFAULT_HYPOTHESIS = "This text is about {label}."


class EncoderTeacher:
    """Labels by an encoder's prototypes, or by a cross-encoder's scores.

    Nothing leaves the machine. With an :class:`~lattice_inference.Encoder`, a label's prototype is the mean of the unit
    vectors of its examples, scaled to length 1. A label without examples takes its description, or else its name. A
    text's score for a label is the cosine with the prototype. With a ``head`` that was trained with an adapter of the
    encoder, probabilities are the head's. With a :class:`~lattice_inference.CrossEncoder`, the
    score is the model's logit for the text and ``hypothesis``. Probabilities are the softmax of the scores divided by
    ``temperature``.

    Args:
        model: a loaded encoder or cross-encoder.
        examples: texts by label, for an encoder.
        hypothesis: what is scored with a text, for a cross-encoder; ``{label}`` stands for the label's description, or
            else its name.
        label_column: for a cross-encoder with several outputs, the one that says that the hypothesis fits, such as
            entailment.
        temperature: what scores are divided by; by default 0.05 for cosines and 1 for logits.
        adapter: the name of an adapter that the model has attached.
        head: of that adapter, for an encoder; its labels must be the task's, in any order.

    Raises:
        InvalidInputError: the model is neither.
        ConfigError: an option makes no sense for it.
    """

    provider = TeacherProvider.ENCODER

    def __init__(
        self,
        model: Encoder | CrossEncoder,
        *,
        examples: Mapping[str, Sequence[str]] | None = None,
        hypothesis: str = DEFAULT_HYPOTHESIS,
        label_column: int | None = None,
        temperature: float | None = None,
        adapter: str | None = None,
        head: ClassificationHead | None = None,
    ) -> None:
        from lattice_inference import CrossEncoder, Encoder

        if not isinstance(model, (Encoder, CrossEncoder)):
            raise InvalidInputError(f"model is {shown(model)}; pass an Encoder or a CrossEncoder")
        self._model = model
        self._is_cross = isinstance(model, CrossEncoder)
        if temperature is not None:
            number(temperature, "temperature", least=1e-6, most=1e6, refusal=ConfigError)
        has_logits = self._is_cross or head is not None
        self._temperature = float(temperature) if temperature is not None else 1.0 if has_logits else 0.05
        if adapter is not None and text_of(adapter, "adapter", refusal=ConfigError) not in model.adapters:
            raise ConfigError(f"no adapter {shown(adapter)} is attached to the model: call its load_adapter before")
        self._adapter = adapter
        self._head = None if head is None else instance(head, "head", ClassificationHead, refusal=ConfigError)
        if head is not None and (self._is_cross or examples):
            raise ConfigError("a head labels an encoder's vectors: pass an Encoder, and no examples")
        self._examples = _checked_examples(examples)
        if self._is_cross and self._examples:
            raise ConfigError("examples are given, and a cross-encoder takes none: pass an Encoder, or a hypothesis")
        if not isinstance(hypothesis, str) or "{label}" not in hypothesis:
            raise ConfigError(f"hypothesis is {shown(hypothesis)}; it must be a text with {{label}} in it")
        self._hypothesis = hypothesis
        columns = model.label_count if isinstance(model, CrossEncoder) else 1
        if label_column is not None:
            whole(label_column, "label_column", least=0, most=columns - 1, refusal=ConfigError)
        if columns > 1 and label_column is None:
            raise ConfigError(f"the cross-encoder has {columns} outputs: name the one that says yes with label_column")
        self._column = label_column

    @property
    def model_id(self) -> str:
        """The name of the model's file or folder."""
        return self._model.directory.name

    @property
    def parameters(self) -> Mapping[str, object]:
        """The model's fingerprint, the examples' digest, hypothesis, column and temperature."""
        written = json.dumps(self._examples, sort_keys=True)
        model, head = self._model, self._head
        return {
            "fingerprint": model.fingerprint if self._adapter is None else model.fingerprint_with(self._adapter),
            "head": None if head is None else hashlib.sha256(head.weight.tobytes() + head.bias.tobytes()).hexdigest(),
            "examples": hashlib.sha256(written.encode()).hexdigest(),
            "hypothesis": self._hypothesis if self._is_cross else None,
            "label_column": self._column,
            "temperature": self._temperature,
        }

    def answers(self, texts: Sequence[str], task: LabelingTask) -> Iterator[TeacherAnswer]:
        """Yield the probabilities of the labels for each text.

        Raises:
            ConfigError: there are examples of a label that the task does not have.
        """
        texts = check_texts(texts)
        instance(task, "task", LabelingTask)
        unknown = [label for label in self._examples if label not in task.labels]
        if unknown:
            raise ConfigError(f"there are examples of {shown(unknown[0])}, which is none of the labels")
        if self._head is not None and set(self._head.labels) != set(task.labels):
            raise ConfigError(f"the head has the labels {', '.join(self._head.labels)}, and the task has others")
        prototypes = None if self._is_cross or self._head is not None else self._prototypes(task)
        for start in range(0, len(texts), BATCH):
            yield from self._batch([clean_text(text) for text in texts[start : start + BATCH]], task, prototypes)

    def __repr__(self) -> str:
        return f"EncoderTeacher({self.model_id!r})"

    def _batch(
        self, cleaned: list[str], task: LabelingTask, prototypes: npt.NDArray[np.float64] | None
    ) -> Iterator[TeacherAnswer]:
        kept = [cut_text(text, task.max_text_characters) for text in cleaned]
        try:
            scores = self._scores(kept, task, prototypes)
        except LatticeError as error:
            if len(kept) == 1:
                yield TeacherAnswer(Outcome.FAILED, detail=str(error))
                return
            for text in cleaned:  # one text fails by itself
                yield from self._batch([text], task, prototypes)
            return
        for row, text, part in zip(scores, cleaned, kept, strict=True):
            cut = len(text) - len(part)
            yield of_kind(TeacherAnswer(Outcome.LABELLED, softmax(row / self._temperature), cut_characters=cut), task)

    def _scores(
        self, texts: list[str], task: LabelingTask, prototypes: npt.NDArray[np.float64] | None
    ) -> npt.NDArray[np.float64]:
        if self._head is not None:
            columns = [self._head.labels.index(label) for label in task.labels]
            return self._head.logits(self._vectors(texts).astype(np.float32))[:, columns]
        return self._pair_scores(texts, task) if prototypes is None else _cosines(self._vectors(texts), prototypes)

    def _pair_scores(self, texts: list[str], task: LabelingTask) -> npt.NDArray[np.float64]:
        hypotheses = [
            self._hypothesis.replace("{label}", task.descriptions.get(label) or label) for label in task.labels
        ]
        pairs = [(text, hypothesis) for text in texts for hypothesis in hypotheses]
        scores = self._model.score_pairs(pairs, activation="identity", adapter=self._adapter)  # type: ignore[union-attr]
        column = scores if scores.ndim == 1 else scores[:, self._column]
        return column.astype(np.float64).reshape(len(texts), len(task.labels))

    def _prototypes(self, task: LabelingTask) -> npt.NDArray[np.float64]:
        """Return a unit vector for each label, (labels, dim) float64."""
        rows = []
        for label in task.labels:
            examples = self._examples.get(label) or [task.descriptions.get(label) or label]
            mean = self._vectors(examples).mean(axis=0)
            length = float(np.linalg.norm(mean))
            if not length > 0:
                raise ConfigError(f"the examples of {shown(label)} cancel each other out: pass others")
            rows.append(mean / length)
        return np.stack(rows)

    def _vectors(self, texts: list[str]) -> npt.NDArray[np.float64]:
        vectors: npt.NDArray[np.float32] = self._model.encode(texts, normalize=True, adapter=self._adapter).vectors  # type: ignore[union-attr]
        return vectors.astype(np.float64)


def _cosines(vectors: npt.NDArray[np.float64], prototypes: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    # row by row, so that a text's numbers do not depend on what else is in the batch
    return np.stack([(prototypes * row).sum(axis=1) for row in vectors])


def _checked_examples(examples: object) -> dict[str, list[str]]:
    if examples is None:
        return {}
    if not isinstance(examples, Mapping):
        raise ConfigError(f"examples is {shown(examples)}; pass a mapping of labels to lists of texts")
    checked: dict[str, list[str]] = {}
    for label, texts in examples.items():
        if isinstance(texts, str) or not isinstance(texts, Sequence) or not texts:
            raise ConfigError(f"the examples of {shown(label)} are {shown(texts)}; pass a list of at least one text")
        if not isinstance(label, str) or not all(isinstance(text, str) for text in texts):
            raise ConfigError(f"examples of {shown(label)} are not texts by label")
        checked[label] = [clean_text(text) for text in texts]
    return checked
