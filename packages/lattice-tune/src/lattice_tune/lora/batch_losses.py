"""The loss of a batch of texts from their vectors, by objective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lattice_tune.lora.head import HeadMatrices, head_logits, through_head
from lattice_tune.lora.losses import (
    Float64Array,
    binary_cross_entropy,
    cosent_loss,
    cosine_loss,
    cross_entropy,
    ranking_loss,
    triplet_loss,
)
from lattice_tune.lora.objective import ObjectiveName
from lattice_tune.lora.text_examples import TextExample, TokenizedText

__all__ = ["BatchLoss", "batch_loss", "batch_texts"]


@dataclass(frozen=True, eq=False)
class BatchLoss:
    """What a batch gives.

    Attributes:
        loss: the mean loss of its examples.
        d_vectors: the gradient of the mean by each vector, in the order of :func:`batch_texts`.
        accuracy: the share of examples that are right, or None.
        predicted: what is compared with the scores, or None.
        d_head: the gradients of a head's weight and bias, or None.
    """

    loss: float
    d_vectors: Float64Array
    accuracy: float | None = None
    predicted: Float64Array | None = None
    d_head: HeadMatrices | None = None


def batch_texts(batch: Sequence[TextExample]) -> list[TokenizedText]:
    """Return the texts of a batch by role.

    All first ones, then all second ones, then the third ones that there are.
    """
    most = max(len(example.texts) for example in batch)
    return [example.texts[role] for role in range(most) for example in batch if role < len(example.texts)]


def batch_loss(
    objective: ObjectiveName,
    vectors: npt.NDArray[np.float32],
    batch: Sequence[TextExample],
    *,
    classes: npt.NDArray[np.int64] | None,
    head: HeadMatrices | None,
    scale: float,
    margin: float,
) -> BatchLoss:
    """Return loss and gradients of a batch whose texts have these vectors.

    A cross-encoder's logits stand in the place of vectors.
    """
    count = len(batch)
    scores = np.array([example.score for example in batch], np.float64)
    match objective:
        case "ranking":
            loss, d_first, d_rest, right = ranking_loss(vectors[:count], vectors[count:], scale, _ignored(batch))
            return BatchLoss(loss, np.concatenate([d_first, d_rest]), right)
        case "cosent" | "cosine":
            first, second = vectors[:count], vectors[count:]
            if objective == "cosent":
                loss, d_first, d_second, cosines = cosent_loss(first, second, scores, scale)
            else:
                loss, d_first, d_second, cosines = cosine_loss(first, second, scores)
            return BatchLoss(loss, np.concatenate([d_first, d_second]), predicted=cosines)
        case "triplet":
            loss, *gradients, right = triplet_loss(
                vectors[:count], vectors[count : 2 * count], vectors[2 * count :], margin
            )
            return BatchLoss(loss, np.concatenate(gradients), right)
        case "bce":
            loss, d_logits, shares = binary_cross_entropy(vectors[:, 0].astype(np.float64), scores)
            return BatchLoss(loss, d_logits[:, None], predicted=shares)
    assert classes is not None
    if head is None:
        loss, d_logits, right = cross_entropy(vectors.astype(np.float64), classes)
        return BatchLoss(loss, d_logits, right)
    loss, d_logits, right = cross_entropy(head_logits(head, vectors, scale), classes)
    d_vectors, d_head = through_head(head, vectors, scale, d_logits)
    return BatchLoss(loss, d_vectors, right, d_head=d_head)


def _ignored(batch: Sequence[TextExample]) -> npt.NDArray[np.bool_] | None:
    """Return which candidates have the text of an anchor's own, so are no negatives of it."""
    count = len(batch)
    keys = [text.token_ids.tobytes() for text in batch_texts(batch)[count:]]
    if len(set(keys)) == len(keys):
        return None
    same = np.array([[key == own for key in keys] for own in keys[:count]], np.bool_)
    same[np.arange(count), np.arange(count)] = False
    return same
