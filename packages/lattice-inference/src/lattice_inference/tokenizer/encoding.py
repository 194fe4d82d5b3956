"""What encoding gives: the tokens of one text, or of many texts laid end to end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from lattice_inference.argument_checks import check_count, checked_flag
from lattice_inference.token_ids import MOST_TOKEN_ID

__all__ = ["Encoding", "PackedEncoding"]

Int32Array = npt.NDArray[np.int32]


class Vocabulary(Protocol):
    """What can name tokens."""

    def id_to_token(self, token_id: int) -> str | None:
        """Return the token with the id ``token_id``, or ``None`` if there is none."""


class Encoding:
    """The tokens of one text or pair.

    ``ids`` are (n,) int32. ``offsets`` are (n, 2) int32: the characters ``text[start:end]`` of each token in its
    text, (0, 0) for a special token of the template. ``type_ids`` are (n,) int32: which text of a pair a token
    belongs to. ``truncated`` tells whether tokens were dropped to keep a limit.

    >>> from lattice_inference import find_model, load_tokenizer
    >>> encoding = load_tokenizer(find_model("all-minilm-l6-v2").directory).encode("Hello world!")
    >>> encoding.tokens
    ['[CLS]', 'hello', 'world', '!', '[SEP]']
    >>> encoding.offsets.tolist()
    [[0, 0], [0, 5], [6, 11], [11, 12], [0, 0]]
    """

    __slots__ = ("_padding", "_vocabulary", "ids", "offsets", "truncated", "type_ids")

    def __init__(
        self,
        ids: Int32Array,
        offsets: Int32Array,
        type_ids: Int32Array,
        truncated: bool,
        vocabulary: Vocabulary,
        padding: tuple[int, int] = (0, 0),
    ) -> None:
        self.ids: Int32Array = ids
        self.offsets: Int32Array = offsets
        self.type_ids: Int32Array = type_ids
        self.truncated: bool = truncated
        self._vocabulary = vocabulary
        self._padding = padding

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"Encoding({len(self)} tokens, truncated={self.truncated})"

    @property
    def tokens(self) -> list[str]:
        """The tokens as strings, looked up when asked for."""
        return [self._vocabulary.id_to_token(token_id) or "" for token_id in self.ids.tolist()]

    @property
    def attention_mask(self) -> Int32Array:
        """(n,) int32: 0 for padding (which only a file's own limits add), else 1."""
        mask = np.ones(len(self.ids), np.int32)
        left, right = self._padding
        mask[:left] = 0
        mask[len(mask) - right :] = 0
        return mask

    def padded(self, length: int, *, left: bool, token_id: int, type_id: int) -> Encoding:
        """Return the encoding padded to ``length`` tokens.

        One that is as long already is returned as it is.
        """
        if type(length) is not int or not length <= MOST_TOKEN_ID:
            length = check_count("length", length, least=0, most=MOST_TOKEN_ID)
        missing = length - len(self.ids)
        if missing <= 0:
            return self
        token_id = check_count("token_id", token_id, least=0, most=MOST_TOKEN_ID)
        type_id = check_count("type_id", type_id, least=0, most=MOST_TOKEN_ID)
        width = (missing, 0) if checked_flag("left", left) else (0, missing)
        return Encoding(
            np.pad(self.ids, width, constant_values=token_id),
            np.pad(self.offsets, (width, (0, 0))),
            np.pad(self.type_ids, width, constant_values=type_id),
            self.truncated,
            self._vocabulary,
            (self._padding[0] + width[0], self._padding[1] + width[1]),
        )


@dataclass(slots=True)
class PackedEncoding:
    """The tokens of B texts laid end to end, T in all, without padding.

    ``token_ids`` (T,) int32; ``cu_seqlens`` (B + 1,) int32: text i has the tokens ``cu_seqlens[i]:cu_seqlens[i + 1]``;
    ``type_ids`` (T,) int32; ``token_counts`` (B,) int32: the tokens that each text has without truncation, special
    tokens included; ``truncated`` (B,) bool.
    """

    token_ids: Int32Array
    cu_seqlens: Int32Array
    type_ids: Int32Array
    token_counts: Int32Array
    truncated: npt.NDArray[np.bool_]

    def select(self, rows: Sequence[int] | npt.NDArray[np.intp]) -> PackedEncoding:
        """Return the encoding of some of the texts, in the order of ``rows``."""
        bounds = self.cu_seqlens
        spans = [slice(bounds[row], bounds[row + 1]) for row in rows]
        index = np.asarray(rows, np.intp)
        new_bounds = np.zeros(len(index) + 1, np.int32)
        np.cumsum((bounds[1:] - bounds[:-1])[index], out=new_bounds[1:])
        ids = [self.token_ids[span] for span in spans]
        types = [self.type_ids[span] for span in spans]
        empty = np.zeros(0, np.int32)
        return PackedEncoding(
            np.concatenate(ids) if ids else empty,
            new_bounds,
            np.concatenate(types) if types else empty,
            self.token_counts[index],
            self.truncated[index],
        )

    def without(self, token_id: int) -> PackedEncoding:
        """Return the encoding without the tokens of an id; a text may have none left.

        Counts stay as they are.
        """
        kept = self.token_ids != token_id
        before = np.zeros(len(kept) + 1, np.int32)
        np.cumsum(kept, out=before[1:])
        return PackedEncoding(
            self.token_ids[kept], before[self.cu_seqlens], self.type_ids[kept], self.token_counts, self.truncated
        )

    def framed(self, before: Sequence[int], after: Sequence[int]) -> PackedEncoding:
        """Return the encoding with tokens ``before`` and ``after`` each text.

        Their type is 0.
        """
        bounds, extra = self.cu_seqlens, len(before) + len(after)
        count = len(bounds) - 1
        new_bounds = bounds + extra * np.arange(count + 1, dtype=np.int32)
        moved = extra * np.arange(count, dtype=np.int64) + len(before)
        places = np.arange(len(self.token_ids)) + np.repeat(moved, bounds[1:] - bounds[:-1])
        ids, types = (np.zeros(int(new_bounds[-1]), np.int32) for _ in range(2))
        ids[places], types[places] = self.token_ids, self.type_ids
        for place, token in enumerate(before):
            ids[new_bounds[:-1] + place] = token
        for place, token in enumerate(reversed(after), 1):
            ids[new_bounds[1:] - place] = token
        return PackedEncoding(ids, new_bounds, types, self.token_counts + np.int32(extra), self.truncated)
