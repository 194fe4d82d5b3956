"""The vocabulary in GGUF metadata: the arrays and ids under ``tokenizer.ggml.``, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from lattice_inference.checkpoint.gguf_header import NO_TOKEN, GgufArray
from lattice_inference.errors import TokenizerError
from lattice_inference.tokenizer.added_tokens import AddedToken
from lattice_inference.tokenizer.definition import RepeatedToken
from lattice_inference.tokenizer.sentencepiece_file import CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED
from lattice_inference.tokenizer.wordpiece import MAX_VOCABULARY_BYTES

__all__ = ["GgufVocabulary"]

_PREFIX = "tokenizer.ggml."

# Keys of the ids of tokens that are special whatever type the file gives them. One is misspelt in the format.
_SPECIAL_IDS = (
    "bos_token_id",
    "eos_token_id",
    "eot_token_id",
    "eom_token_id",
    "seperator_token_id",
    "padding_token_id",
    "cls_token_id",
    "mask_token_id",
)


@dataclass(frozen=True)
class GgufVocabulary:
    """What a file says of its tokenizer.

    Attributes:
        path: the file, for messages.
        tokens: the tokens; a token's id is its place.
        types: (n,) uint8, the types of SentencePiece's pieces: NORMAL, UNKNOWN, CONTROL, ...
        metadata: the file's metadata.
    """

    path: Path
    tokens: list[str]
    types: npt.NDArray[np.uint8]
    metadata: Mapping[str, object]

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object], path: Path) -> Self:
        """Read the tokens and their types.

        Raises :class:`TokenizerError` if they are missing or malformed.
        """
        tokens = _array(metadata, "tokens", path)
        if tokens is None:
            raise TokenizerError(f"{path} has no {_PREFIX}tokens: it holds no tokenizer")
        if tokens.kind != "STRING":
            raise _wrong_kind(path, "tokens", tokens.kind, "STRING")
        count = len(tokens)
        if not count or tokens.text_bytes > MAX_VOCABULARY_BYTES:
            raise TokenizerError(
                f"{path}: {_PREFIX}tokens has {tokens.text_bytes:,} bytes in {count:,} tokens; there must be at least one "
                f"token and at most {MAX_VOCABULARY_BYTES:,} bytes"
            )
        types = _array(metadata, "token_type", path)
        if types is None:
            values: npt.NDArray[np.generic] = np.full(count, NORMAL, np.uint8)
        else:
            if types.kind not in ("INT32", "UINT32"):
                raise _wrong_kind(path, "token_type", types.kind, "INT32")
            values = _of_length(types, count, path)
            if not np.isin(values, range(7)).all():
                raise TokenizerError(f"{path}: {_PREFIX}token_type holds {values.max()}; types are 0 to 6")
        return cls(path, tokens.strings(), values.astype(np.uint8), metadata)

    def scores(self) -> npt.NDArray[np.float32]:
        """Return the tokens' scores, (n,) float32, finite."""
        scores = _array(self.metadata, "scores", self.path)
        if scores is None:
            raise TokenizerError(f"{self.path} has no {_PREFIX}scores, which its kind of tokenizer needs")
        if scores.kind != "FLOAT32":
            raise _wrong_kind(self.path, "scores", scores.kind, "FLOAT32")
        values = _of_length(scores, len(self.tokens), self.path).astype(np.float32)
        if not np.isfinite(values).all():
            raise TokenizerError(f"{self.path}: {_PREFIX}scores[{int(np.argmin(np.isfinite(values)))}] is not finite")
        return values

    def merges(self) -> list[str]:
        """Return the merges of a BPE model, each two tokens with a space between."""
        merges = _array(self.metadata, "merges", self.path)
        if merges is None:
            raise TokenizerError(f"{self.path} has no {_PREFIX}merges, which its kind of tokenizer needs")
        if merges.kind != "STRING":
            raise _wrong_kind(self.path, "merges", merges.kind, "STRING")
        return merges.strings()

    def numbers(self, key: str, kind: str) -> npt.NDArray[np.generic] | None:
        """Return another array of numbers of type ``kind``, or None."""
        array = _array(self.metadata, key, self.path)
        if array is None:
            return None
        if array.kind != kind:
            raise _wrong_kind(self.path, key, array.kind, kind)
        return array.numbers()

    def text(self, key: str) -> str | None:
        """Return a string, or None if it is missing."""
        value = self.metadata.get(_PREFIX + key)
        if not isinstance(value, str | None):
            raise TokenizerError(f"{self.path}: {_PREFIX}{key} is {value!r:.60}; expected a string")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false."""
        value = self.metadata.get(_PREFIX + key, default)
        if not isinstance(value, bool):
            raise TokenizerError(f"{self.path}: {_PREFIX}{key} is {value!r:.60}; expected true or false")
        return value

    def token_id(self, *keys: str) -> int | None:
        """Return the id under the first of ``keys`` that the file has, or None."""
        for key in keys:
            value = self.metadata.get(_PREFIX + key)
            if value is None or value == NO_TOKEN:
                continue
            if type(value) is not int or not 0 <= value < len(self.tokens):
                raise TokenizerError(
                    f"{self.path}: {_PREFIX}{key} is {value!r:.60}; expected an id from 0 to {len(self.tokens) - 1}"
                )
            return value
        return None

    def ids(self, texts: Sequence[str] | None = None) -> dict[str, int]:
        """Return the id of each text.

        ``texts`` are the tokens' if they are spelled otherwise. Of several ids with one text it is the last, as in
        llama.cpp and in what transformers makes of a file. If some of them are special it is one of these: one that a
        key such as ``eos_token_id`` names, else the last.
        """
        texts = self.tokens if texts is None else texts
        ids = dict(zip(texts, range(len(texts)), strict=True))
        if len(ids) < len(texts):
            named = self._named_ids()
            for token_id in sorted(self._special_ids(), key=lambda special: (special in named, special)):
                ids[texts[token_id]] = token_id
        return ids

    def repeated_tokens(self, ids: Mapping[str, int], texts: Sequence[str] | None = None) -> tuple[RepeatedToken, ...]:
        """Return the tokens whose texts are encoded to other ids, which ``ids`` says."""
        texts = self.tokens if texts is None else texts
        if len(ids) == len(texts):
            return ()
        special = self._special_ids()
        return tuple(
            RepeatedToken(token_id, text, token_id in special)
            for token_id, text in enumerate(texts)
            if ids[text] != token_id
        )

    def added_tokens(self) -> tuple[AddedToken, ...]:
        """Return the tokens that are found in a text before it is split, by id.

        They are the control and user-defined ones. A text that stands twice is one of them, and special if one of its
        ids is. An empty one is found nowhere.
        """
        special = self._special_ids()
        found = sorted(special.union(np.flatnonzero(self.types == USER_DEFINED).tolist()))
        is_special: dict[str, bool] = {}
        for token_id in found:
            text = self.tokens[token_id]
            if text and self.types[token_id] != UNUSED:
                is_special[text] = is_special.get(text, False) or token_id in special
        return tuple(AddedToken(text, normalized=False, special=flag) for text, flag in is_special.items())

    def _named_ids(self) -> set[int]:
        return {token_id for key in _SPECIAL_IDS if (token_id := self.token_id(key)) is not None}

    def _special_ids(self) -> set[int]:
        return self._named_ids().union(np.flatnonzero((self.types == CONTROL) | (self.types == UNKNOWN)).tolist())


def _array(metadata: Mapping[str, object], key: str, path: Path) -> GgufArray | None:
    value = metadata.get(_PREFIX + key)
    if not isinstance(value, GgufArray | None):
        raise TokenizerError(f"{path}: {_PREFIX}{key} is {value!r:.60}; expected an array")
    return value


def _of_length(array: GgufArray, length: int, path: Path) -> npt.NDArray[np.generic]:
    if len(array) != length:
        raise TokenizerError(f"{path}: {array.key} has {len(array):,} elements and there are {length:,} tokens")
    return array.numbers()


def _wrong_kind(path: Path, key: str, kind: str, wanted: str) -> TokenizerError:
    return TokenizerError(f"{path}: {_PREFIX}{key} is an array of {kind}; expected {wanted}")
