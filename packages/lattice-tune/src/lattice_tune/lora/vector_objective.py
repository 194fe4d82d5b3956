"""Losses of an encoder's vectors, or of a cross-encoder's logits, in batches of any size.

A batch is run twice: forward for all vectors, then, in parts that fit into memory, forward and backward with the gradient
of the loss by them [Gao et al. 2021, GradCache]. So a loss may compare all texts of a batch, and memory holds one part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from lattice_inference.errors import NonFiniteError
from lattice_tune.errors import TrainingError
from lattice_tune.lora.batch_losses import BatchLoss, batch_loss, batch_texts
from lattice_tune.lora.config import LoraTrainingConfig
from lattice_tune.lora.head import HeadMatrices
from lattice_tune.lora.losses import rank_correlation
from lattice_tune.lora.objective import LoraEvaluation, ObjectiveName, SummedLoss
from lattice_tune.lora.packing import parts_of
from lattice_tune.lora.program_link import ProgramLink
from lattice_tune.lora.text_examples import TextExample, TokenizedText

__all__ = ["VectorObjective"]

Float32Array = npt.NDArray[np.float32]
Int32Array = npt.NDArray[np.int32]


class VectorObjective:
    """A loss of texts' vectors.

    Args:
        name: which one.
        link: the program, opened for vectors or scores.
        examples: to train on.
        validation: to measure.
        classes: the number of each label, where examples have labels.
        config: sizes of batches, scale and margin.
    """

    def __init__(
        self,
        name: ObjectiveName,
        link: ProgramLink,
        examples: Sequence[TextExample],
        validation: Sequence[TextExample],
        classes: dict[str, int] | None,
        config: LoraTrainingConfig,
    ) -> None:
        self._name, self._link, self._classes, self._config = name, link, classes, config
        self._examples, self._validation = examples, validation

    @property
    def count(self) -> int:
        """Examples to train on."""
        return len(self._examples)

    @property
    def digest(self) -> str:
        """Tells other examples: ids, scores and labels."""
        digest = blake2b(digest_size=16)
        for group in (self._examples, self._validation):
            digest.update(len(group).to_bytes(8, "little"))
            for example in group:
                digest.update(repr((example.score, example.label, len(example.texts))).encode())
                for text in example.texts:
                    digest.update(len(text.token_ids).to_bytes(8, "little"))
                    digest.update(text.token_ids.tobytes() + text.type_ids.tobytes())
        return digest.hexdigest()

    def accumulate(self, chosen: Sequence[int], step: int) -> SummedLoss:
        """Set the gradients to those of the summed loss of the chosen examples.

        Raises:
            TrainingError: a vector or the loss is not finite.
        """
        program, parameters = self._link.program, self._link.parameters
        batch = [self._examples[index] for index in chosen]
        texts = batch_texts(batch)
        program.zero_gradients()
        try:
            found = self._loss(self._vectors(texts, step), batch)
            if not np.isfinite(found.loss):
                raise TrainingError("the loss is not finite")
            gradient = (found.d_vectors * len(batch)).astype(np.float32)
            for part, rows in self._parts(texts):
                dropout, noise = self._link.draws(step, part)
                ids, bounds, types = _packed(texts, rows)
                program.accumulate_vectors(ids, bounds, gradient[rows], types, dropout=dropout, noise=noise)
        except NonFiniteError as error:
            raise TrainingError(f"the loss is not finite: {error}") from error
        self._link.read_gradients()
        if found.d_head is not None:
            for part_name, part_gradient in zip(("weight", "bias"), found.d_head, strict=True):
                parameters.view(parameters.gradients, "", part_name)[:] = part_gradient * len(batch)
        return SummedLoss(found.loss * len(batch), float(len(batch)))

    def write(self) -> None:
        """Give the program the parameters as they are now."""
        self._link.write()

    def evaluate(self) -> LoraEvaluation | None:
        """Measure the validation examples; None without any."""
        return self.measure(self._validation) if self._validation else None

    def measure(self, examples: Sequence[TextExample]) -> LoraEvaluation:
        """Return mean loss, and accuracy or correlation, of examples in batches of their order.

        Raises:
            TrainingError: the loss is not finite.
        """
        total, right, counted = 0.0, 0.0, False
        predicted: list[npt.NDArray[np.float64]] = []
        for start in range(0, len(examples), self._config.batch_size):
            batch = examples[start : start + self._config.batch_size]
            try:
                found = self._loss(self._vectors(batch_texts(batch), None), batch)
            except NonFiniteError as error:
                raise TrainingError(f"the loss of the validation examples is not finite: {error}") from error
            total += found.loss * len(batch)
            if found.accuracy is not None:
                right, counted = right + found.accuracy * len(batch), True
            if found.predicted is not None:
                predicted.append(found.predicted)
        correlation = None
        if predicted:
            scores = np.array([example.score for example in examples])
            correlation = rank_correlation(np.concatenate(predicted), scores)
        return LoraEvaluation(
            total / len(examples), float(len(examples)), right / len(examples) if counted else None, correlation
        )

    def _loss(self, vectors: Float32Array, batch: Sequence[TextExample]) -> BatchLoss:
        parameters, head, classes = self._link.parameters, None, None
        if parameters.head is not None:
            head = HeadMatrices(*(parameters.view(parameters.values, "", part) for part in ("weight", "bias")))
        if self._classes is not None:
            classes = np.array([self._classes[str(example.label)] for example in batch], np.int64)
        return batch_loss(
            self._name,
            vectors,
            batch,
            classes=classes,
            head=head,
            scale=self._config.scale,
            margin=self._config.margin,
        )

    def _vectors(self, texts: Sequence[TokenizedText], step: int | None) -> Float32Array:
        """Return the vectors of texts, as they are in an update, or, without a step, in use."""
        found = []
        for part, rows in self._parts(texts):
            dropout, noise = (None, None) if step is None else self._link.draws(step, part)
            ids, bounds, types = _packed(texts, rows)
            found.append(self._link.program.vectors(ids, bounds, types, dropout=dropout, noise=noise))
        return np.concatenate(found)

    def _parts(self, texts: Sequence[TokenizedText]) -> Iterator[tuple[int, list[int]]]:
        return enumerate(parts_of([len(text.token_ids) for text in texts], self._config.micro_batch_tokens))


def _packed(texts: Sequence[TokenizedText], rows: Sequence[int]) -> tuple[Int32Array, Int32Array, Int32Array]:
    """Return ids, bounds and types of some texts, laid end to end."""
    chosen = [texts[row] for row in rows]
    bounds = np.cumsum([0, *(len(text.token_ids) for text in chosen)], dtype=np.int32)
    ids, types = ([getattr(text, name) for text in chosen] for name in ("token_ids", "type_ids"))
    return np.concatenate(ids), bounds, np.concatenate(types)
