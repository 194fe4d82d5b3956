"""Examples for encoders: texts as tokens, in their roles, with a score or a class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lattice_inference import load_cross_encoder, load_encoder
from lattice_inference.errors import InvalidInputError as InferenceInputError
from lattice_inference.tokenizer import PackedEncoding
from lattice_tune.errors import DatasetError
from lattice_tune.lora.objective import ObjectiveName
from lattice_tune.lora.rows import PlacedRow, number_of, text_in

__all__ = ["TextExample", "TextReader", "TokenizedText", "roles_of"]

Int32Array = npt.NDArray[np.int32]

_ROLES: dict[str, tuple[str, ...]] = {
    "ranking": ("anchor", "positive"),
    "triplet": ("anchor", "positive", "negative"),
    "cosent": ("sentence1", "sentence2"),
    "cosine": ("sentence1", "sentence2"),
    "classification": ("text",),
    "bce": ("sentence1", "sentence2"),
    "ce": ("sentence1", "sentence2"),
}
_CROSS = ("bce", "ce")
_SCORES = {"cosent": (-1e9, 1e9), "cosine": (-1.0, 1.0), "bce": (0.0, 1.0)}
_CLASSES = ("classification", "ce")


def roles_of(objective: ObjectiveName) -> tuple[str, ...]:
    """Return the fields that an example of an objective has as texts."""
    return _ROLES[objective]


@dataclass(frozen=True, eq=False)
class TokenizedText:
    """The tokens of a text, or of a pair, with special tokens: ids and types, (n,) int32."""

    token_ids: Int32Array
    type_ids: Int32Array


@dataclass(frozen=True, eq=False)
class TextExample:
    """One example.

    Attributes:
        place: where it came from, for messages.
        texts: one for each role; a cross-encoder's pair is one. A ranking may have a negative after its two.
        score: what it should have; 0 for other objectives.
        label: the class; None for other objectives.
    """

    place: str
    texts: tuple[TokenizedText, ...]
    score: float = 0.0
    label: str | None = None


class TextReader:
    """Makes examples of rows with a model's tokenizer, for which the model is loaded.

    Args:
        path: the model's directory or GGUF file.
        objective: what is learned.
        max_tokens: the longest text or pair.
        prompt: put before every text of an encoder.
        pooling: of an encoder whose files state none.
    """

    def __init__(
        self,
        path: Path,
        objective: ObjectiveName,
        max_tokens: int,
        *,
        prompt: str = "",
        pooling: Literal["cls", "mean", "last"] | None = None,
    ) -> None:
        self._path, self._objective, self._max_tokens = path, objective, max_tokens
        self._prompt, self._pooling = prompt, pooling

    def read(self, rows: Sequence[PlacedRow]) -> list[TextExample]:
        """Return the examples of rows.

        Raises:
            DatasetError: a row is none; the message has its place.
        """
        if not rows:
            raise DatasetError("there is no example to train on")
        roles = [self._roles(row) for row in rows]
        texts = [text_in(row, role) for row, named in zip(rows, roles, strict=True) for role in named]
        try:
            packed = self._pairs(texts) if self._objective in _CROSS else self._texts(texts)
        except InferenceInputError as error:
            raise DatasetError(f"the texts cannot be read: {error}") from error
        tokens = iter(_texts_of(packed))
        made = []
        for row, named in zip(rows, roles, strict=True):
            count = 1 if self._objective in _CROSS else len(named)
            taken = tuple(next(tokens) for _ in range(count))
            if not all(len(text.token_ids) for text in taken):
                raise DatasetError(f"{row.place}: a text has no token that the model knows")
            made.append(TextExample(row.place, taken, *self._target(row)))
        return made

    def _roles(self, row: PlacedRow) -> tuple[str, ...]:
        roles = _ROLES[self._objective]
        if self._objective == "ranking" and row.fields.get("negative") is not None:
            return (*roles, "negative")
        return roles

    def _target(self, row: PlacedRow) -> tuple[float, str | None]:
        if self._objective in _SCORES:
            least, most = _SCORES[self._objective]
            return number_of(row, "score", least=least, most=most), None
        if self._objective not in _CLASSES:
            return 0.0, None
        label: Any = row.fields.get("label")
        if isinstance(label, bool) or not isinstance(label, (str, int)) or label == "":
            raise DatasetError(f"{row.place}: the example has no label, which must be a text or a whole number")
        return 0.0, str(label)

    def _texts(self, texts: list[str]) -> PackedEncoding:
        with load_encoder(self._path, pooling=self._pooling) as encoder:
            return encoder.packed_tokens(
                texts, prompt=self._prompt, max_tokens=min(self._max_tokens, encoder.max_tokens)
            )

    def _pairs(self, texts: list[str]) -> PackedEncoding:
        with load_cross_encoder(self._path) as model:
            return model.packed_tokens(
                list(zip(texts[::2], texts[1::2], strict=True)), max_tokens=min(self._max_tokens, model.max_tokens)
            )


def _texts_of(packed: PackedEncoding) -> list[TokenizedText]:
    bounds = packed.cu_seqlens.tolist()
    return [
        TokenizedText(packed.token_ids[start:stop], packed.type_ids[start:stop]) for start, stop in pairwise(bounds)
    ]
