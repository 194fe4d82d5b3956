"""Guesses that a text goes on as it did before, where its last tokens stood the last time."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lattice_inference.generate.drafts import row_cost

if TYPE_CHECKING:
    from lattice_inference.generate.config import ResolvedConfig
    from lattice_inference.generate.rejection import Candidates

__all__ = ["NgramDrafts"]

LEAST_MATCH = 2
"""The shortest repetition that a guess is made from."""

MOST_MATCH = 16
"""Repetitions of this length and longer count alike."""

MOST_PLACES = 8
"""How many earlier places are compared for the longest repetition."""

FIRST_CHANCES = (0.0, 0.0, 0.2, 0.35, 0.5, 0.5, 0.6, 0.6, 0.75, 0.75, 0.75, 0.75, 0.9, 0.9, 0.9, 0.9, 0.95)
"""How often a guess after a repetition of a length is right, before the text has shown it."""

GROUP = (0, 0, 2, 3, 4, 4, 6, 6, 8, 8, 8, 8, 12, 12, 12, 12, 16)
"""The lengths whose guesses are counted together, named by the shortest one."""

LEARNING = 0.1
"""How much one guess changes the chance of its group."""


class NgramDrafts:
    """A source of drafts from the prompt and the text themselves; see :class:`Drafts`.

    It is an index of pairs of tokens. Each place in the text has a link to the one before it that follows the same pair. The
    longest repetition is found along these links. Whether its guess is right is noted for each token of the text, also where
    nothing was drafted. So a text that never repeats itself is generated without drafts, and one that begins to gets them.
    """

    candidates: Sequence[Candidates] = ()
    """None of its drafts is drawn."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._ids = array("i")
        self._links = array("i")  # by place: the earlier place after the same two tokens, or 0
        self._latest: dict[int, int] = {}  # the same by the two tokens, of the whole text
        self._place = 0  # where the longest repetition goes on
        self._length = 0
        self._chances = list(FIRST_CHANCES)

    def start(self, token_ids: Sequence[int], config: ResolvedConfig | None = None) -> None:
        """Begin a text after ``token_ids``; see :meth:`Drafts.start`."""
        self._chances = list(FIRST_CHANCES)
        held = len(self._ids)
        if held > len(token_ids) or self._ids != array("i", token_ids[:held]):
            self._forget()
            held = 0
        for token_id in token_ids[held:]:
            self._append(token_id)
        self._place = self._length = 0
        self._find()

    def accept(self, token_id: int) -> None:
        """Append the next token of the text; see :meth:`Drafts.accept`."""
        is_right = False
        if self._length:
            is_right = self._ids[self._place] == token_id
            group = GROUP[self._length]
            self._chances[group] += LEARNING * (is_right - self._chances[group])
        self._append(token_id)
        if is_right:  # what was the longest repetition still is, by one token more
            self._place += 1
            self._length = min(self._length + 1, MOST_MATCH)
        else:
            self._find()

    def propose(self, most: int, company: int) -> list[int]:
        """Return the tokens that followed the repetition; see :meth:`Drafts.propose`."""
        if not self._length:
            return []
        cost = row_cost(company)
        chance = expected = 1.0
        drafts: list[int] = []
        ids, end = self._ids, len(self._ids)
        while len(drafts) < most:
            chance *= self._chances[GROUP[min(self._length + len(drafts), MOST_MATCH)]]
            if chance * (1 + cost * len(drafts)) <= cost * expected:  # the row would cost more than it brings
                break
            expected += chance
            place = self._place + len(drafts)
            # what overlaps its own end repeats with that distance
            drafts.append(ids[place] if place < end else drafts[place - end])
        return drafts

    def close(self) -> None:
        """Forget the text."""
        self._forget()

    def _append(self, token_id: int) -> None:
        ids = self._ids
        ids.append(token_id)
        place = len(ids)
        if place < LEAST_MATCH:
            self._links.append(0)
            return
        pair = ids[-2] << 32 | token_id
        self._links.append(self._latest.get(pair, 0))
        self._latest[pair] = place

    def _find(self) -> None:
        """Find the longest repetition of the text's end; of equally long ones the latest."""
        self._length = 0
        ids, place = self._ids, self._links[-1] if self._links else 0
        for _ in range(MOST_PLACES):
            if not place:
                return
            length, end = LEAST_MATCH, len(ids)
            most = min(MOST_MATCH, place)
            while length < most and ids[place - 1 - length] == ids[end - 1 - length]:
                length += 1
            if length > self._length:
                self._place, self._length = place, length
            place = self._links[place - 1]
