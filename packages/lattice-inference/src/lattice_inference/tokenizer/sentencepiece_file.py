"""Reads SentencePiece model files strictly: a protobuf message.

They are ``tokenizer.model``, ``sentencepiece.bpe.model`` and so on. The message is ``ModelProto`` of SentencePiece's
``sentencepiece_model.proto``. Fields that change ids are read; fields that only record the training are skipped.
Every length is checked against the rest of the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from lattice_inference.errors import TokenizerError
from lattice_inference.tokenizer._tokenizer import read_protobuf_pieces
from lattice_inference.tokenizer.fields import MAX_FILE_BYTES, read_file

__all__ = [
    "BYTE",
    "CONTROL",
    "MAX_FILE_BYTES",
    "MAX_PIECES",
    "NORMAL",
    "UNKNOWN",
    "UNUSED",
    "USER_DEFINED",
    "NormalizerSpec",
    "SentencePieceFile",
    "parse_sentencepiece",
    "read_sentencepiece_file",
]

MAX_PIECES = 4 * 2**20
"""Most pieces that a model may have."""

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Types of pieces: BYTE pieces are ``<0x00>`` to ``<0xFF>``; CONTROL pieces are never found in a text."""

ModelType = Literal["unigram", "bpe", "word", "char"]

_MODEL_TYPES: dict[int, ModelType] = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WIRE_NAMES = {_VARINT: "varint", _FIXED64: "64-bit", _BYTES: "length-delimited", _FIXED32: "32-bit"}


@dataclass(frozen=True)
class NormalizerSpec:
    """What SentencePiece does to a text before the model sees it.

    ``precompiled_charsmap``: the replacement rules, compiled (empty: none); ``add_dummy_prefix``: a space is put before
    the text; ``remove_extra_whitespaces``: runs of spaces become one and the ends are stripped; ``escape_whitespaces``:
    spaces become U+2581.
    """

    name: str = ""
    precompiled_charsmap: bytes = b""
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True
    escape_whitespaces: bool = True


@dataclass(frozen=True)
class SentencePieceFile:
    """The contents of a SentencePiece model file; a piece's id is its place.

    ``text``: the pieces in UTF-8, laid end to end; ``ends`` (n,) int32: where each ends; ``scores`` (n,) float32;
    ``types`` (n,) uint8: NORMAL, UNKNOWN, ...; the ids of special pieces are -1 where the model has none.
    """

    text: bytes
    ends: npt.NDArray[np.int32]
    scores: npt.NDArray[np.float32]
    types: npt.NDArray[np.uint8]
    model_type: ModelType = "unigram"
    byte_fallback: bool = False
    whitespace_is_suffix: bool = False
    unk_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
    pad_id: int = -1
    normalizer: NormalizerSpec = NormalizerSpec()

    def __len__(self) -> int:
        return len(self.ends)

    @cached_property
    def pieces(self) -> list[str]:
        """The pieces as strings."""
        ends = self.ends.tolist()
        return [self.text[start:end].decode() for start, end in zip([0, *ends], ends, strict=False)]


def read_sentencepiece_file(path: Path) -> SentencePieceFile:
    """Read a model file.

    Raises :class:`TokenizerError` if it is too large or not a SentencePiece model.
    """
    return parse_sentencepiece(read_file(path), str(path))


def parse_sentencepiece(data: bytes, source: str = "tokenizer.model") -> SentencePieceFile:
    """Return the model that the message ``data`` states; ``source`` names it in messages.

    Raises:
        TokenizerError: the bytes are not such a message, or state something impossible.
    """
    pieces, rest = _pieces(data, source)
    if not len(pieces.ends):
        raise TokenizerError(f"{source} has no pieces: it is not a SentencePiece model")
    message = _Message(rest, source)
    trainer: dict[str, int] = {}
    normalizer = NormalizerSpec()
    for field, wire, value in message:
        if field == 2:
            trainer |= _trainer(message.nested(field, wire, value, "trainer_spec"))
        elif field == 3:
            normalizer = _normalizer(message.nested(field, wire, value, "normalizer_spec"))
    number = trainer.pop("model_type", 1)
    if number not in _MODEL_TYPES:
        raise TokenizerError(f"{source}: trainer_spec.model_type is {number}; expected 1 to 4")
    for name in ("unk_id", "bos_id", "eos_id", "pad_id"):
        token_id = trainer.get(name, -1)
        if not -1 <= token_id < len(pieces.ends):
            raise TokenizerError(f"{source}: trainer_spec.{name} is {token_id}; there are {len(pieces.ends):,} pieces")
    return SentencePieceFile(
        text=pieces.text,
        ends=pieces.ends,
        scores=pieces.scores,
        types=pieces.types,
        model_type=_MODEL_TYPES[number],
        byte_fallback=bool(trainer.pop("byte_fallback", 0)),
        whitespace_is_suffix=bool(trainer.pop("whitespace_is_suffix", 0)),
        normalizer=normalizer,
        **trainer,
    )


@dataclass(frozen=True)
class _Pieces:
    text: bytes
    ends: npt.NDArray[np.int32]
    scores: npt.NDArray[np.float32]
    types: npt.NDArray[np.uint8]


def _pieces(data: bytes, source: str) -> tuple[_Pieces, bytes]:
    """Return the pieces, and a message with the other fields only."""
    found = read_protobuf_pieces(data, MAX_PIECES)
    if found is None:
        return _checked_pieces(data, source), data
    text, ends, scores, types, rest = found
    return _Pieces(text, ends, scores.astype(np.float32), np.frombuffer(types, np.uint8)), rest


def _checked_pieces(data: bytes, source: str) -> _Pieces:
    """Read the pieces one by one, to say what is wrong with a message that the C reader refused."""
    message = _Message(data, source)
    texts: list[bytes] = []
    scores: list[float] = []
    types = bytearray()
    for field, wire, value in message:
        if field != 1:
            continue
        if len(texts) >= MAX_PIECES:
            raise TokenizerError(f"{source} has more than {MAX_PIECES:,} pieces")
        text, score, kind = _piece(message.nested(field, wire, value, f"pieces[{len(texts)}]"))
        texts.append(text)
        scores.append(score)
        types.append(kind)
    score_array = np.array(scores, np.float32)
    if not np.isfinite(score_array).all():
        i = int(np.argmin(np.isfinite(score_array)))
        raise TokenizerError(f"{source}: pieces[{i}] has the score {score_array[i]}, which is not a number to add")
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64).astype(np.int32)
    return _Pieces(b"".join(texts), ends, score_array, np.frombuffer(bytes(types), np.uint8))


def _piece(message: _Message) -> tuple[bytes, float, int]:
    text, score, kind = b"", 0.0, NORMAL
    for field, wire, value in message:
        if field == 1:
            text = message.text(field, wire, value)
        elif field == 2:
            score = message.float32(field, wire, value)
        elif field == 3:
            kind = message.integer(field, wire, value)
            if not NORMAL <= kind <= BYTE:
                raise TokenizerError(f"{message.where}.type is {kind}; expected {NORMAL} to {BYTE}")
    return text, score, kind


_TRAINER_FIELDS = {
    3: "model_type",
    24: "whitespace_is_suffix",
    35: "byte_fallback",
    40: "unk_id",
    41: "bos_id",
    42: "eos_id",
    43: "pad_id",
}


def _trainer(message: _Message) -> dict[str, int]:
    found = {}
    for field, wire, value in message:
        if field in _TRAINER_FIELDS:
            found[_TRAINER_FIELDS[field]] = message.integer(field, wire, value)
    return found


def _normalizer(message: _Message) -> NormalizerSpec:
    name, charsmap = "", b""
    flags = {3: True, 4: True, 5: True}
    for field, wire, value in message:
        if field == 1:
            name = message.text(field, wire, value).decode()
        elif field == 2:
            charsmap = message.raw(field, wire, value)
        elif field in flags:
            flags[field] = bool(message.integer(field, wire, value))
    return NormalizerSpec(name, charsmap, *flags.values())


class _Message:
    """The fields of one protobuf message, in their order, as (number, wire type, value)."""

    def __init__(self, data: bytes, where: str) -> None:
        self.where = where
        self._data = data

    def __iter__(self) -> Iterator[tuple[int, int, int | bytes]]:
        data, position = self._data, 0
        while position < len(data):
            key, position = self._varint(position)
            field, wire = key >> 3, key & 7
            value: int | bytes
            if wire == _VARINT:
                value, position = self._varint(position)
            elif wire == _BYTES:
                length, position = self._varint(position)
                value = self._take(position, length)
                position += length
            elif wire in (_FIXED32, _FIXED64):
                length = 4 if wire == _FIXED32 else 8
                value = self._take(position, length)
                position += length
            else:
                raise TokenizerError(f"{self.where} is not a SentencePiece model: wire type {wire} at {position:,}")
            if field == 0:
                raise TokenizerError(f"{self.where} is not a SentencePiece model: a field with the number 0")
            yield field, wire, value

    def _varint(self, position: int) -> tuple[int, int]:
        value = 0
        for shift in range(0, 70, 7):
            if position >= len(self._data):
                raise TokenizerError(f"{self.where} ends inside a number: the file is cut short or not a model")
            byte = self._data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & (2**64 - 1), position
        raise TokenizerError(f"{self.where} is not a SentencePiece model: a number of more than 10 bytes")

    def _take(self, position: int, length: int) -> bytes:
        if length > len(self._data) - position:
            raise TokenizerError(
                f"{self.where} states {length:,} bytes where {len(self._data) - position:,} are left: the file is cut "
                "short or not a model"
            )
        return self._data[position : position + length]

    def nested(self, field: int, wire: int, value: int | bytes, where: str) -> _Message:
        """Return the message that a field holds."""
        return _Message(self.raw(field, wire, value), f"{self.where}: {where}")

    def raw(self, field: int, wire: int, value: int | bytes) -> bytes:
        """Return the bytes that a field holds."""
        if wire != _BYTES or not isinstance(value, bytes):
            raise self._wrong(field, wire)
        return value

    def text(self, field: int, wire: int, value: int | bytes) -> bytes:
        """Return the bytes that a field holds, which must be UTF-8."""
        data = self.raw(field, wire, value)
        try:
            data.decode()
        except UnicodeDecodeError as error:
            raise TokenizerError(f"{self.where} has a string that is not UTF-8: {error}") from None
        return data

    def integer(self, field: int, wire: int, value: int | bytes) -> int:
        """Return the 32-bit integer that a field holds (protobuf writes negative ones as 64 bits)."""
        if wire != _VARINT or not isinstance(value, int):
            raise self._wrong(field, wire)
        number = value - 2**64 if value >= 2**63 else value
        if not -(2**31) <= number < 2**31:
            raise TokenizerError(f"{self.where} has the number {number} in field {field}; expected 32 bits")
        return number

    def float32(self, field: int, wire: int, value: int | bytes) -> float:
        """Return the float32 that a field holds."""
        if wire != _FIXED32 or not isinstance(value, bytes):
            raise self._wrong(field, wire)
        return float(struct.unpack("<f", value)[0])

    def _wrong(self, field: int, wire: int) -> TokenizerError:
        return TokenizerError(f"{self.where} is not a SentencePiece model: field {field} is {_WIRE_NAMES[wire]}")
