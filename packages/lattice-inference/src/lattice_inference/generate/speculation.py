"""Speculation: the drafts of one generation, and the logits that the model gave for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from lattice_inference.generate.config import ResolvedConfig
    from lattice_inference.generate.drafts import Drafts
    from lattice_inference.generate.rejection import Candidates

__all__ = ["Speculation"]

Rows = npt.NDArray[np.float32]


class Speculation:
    """The drafts of one generation. For one thread at a time.

    A step runs the tokens that are not cached yet, and drafted ones after them. The generation takes the logits row by
    row, as if each came from another step. A further row counts only if the token chosen from the one before is the
    drafted one. So every token is chosen from the logits, and by the draw, that it has without drafts.

    Args:
        drafts: what guesses tokens; :meth:`Drafts.start` is called.
        context: the tokens before the first generated one.
        config: how the generation chooses tokens.

    Attributes:
        drafted_tokens: how many tokens were drafted and run.
        accepted_tokens: how many of them became part of the text.
    """

    def __init__(self, drafts: Drafts, context: Sequence[int], config: ResolvedConfig) -> None:
        self.drafts = drafts
        self.drafted_tokens: int = 0
        self.accepted_tokens: int = 0
        self._rows: Rows | None = None
        self._drafted: list[int] = []
        self._candidates: Sequence[Candidates] = ()
        self._used = 0  # of the drafted tokens
        drafts.start(context, config)

    def hold(self, rows: Rows, drafted: list[int]) -> None:
        """Keep the logits of a step's last tokens.

        Args:
            rows: (1 + drafts, vocabulary): those after the last token before the drafts, and after each draft.
            drafted: the drafts.
        """
        self._rows, self._drafted, self._used = rows, drafted, 0
        self._candidates = self.drafts.candidates
        self.drafted_tokens += len(drafted)

    def follow(self, token_ids: list[int]) -> Rows | None:
        """Return the logits after the tokens that were chosen from the row before.

        None if there are none, because a token is another one than the draft.
        """
        if self._rows is None:
            return None
        end = self._used + len(token_ids)
        if not token_ids or self._drafted[self._used : end] != token_ids:
            return None
        self._used = end
        self.accepted_tokens += len(token_ids)
        row: Rows = self._rows[end]
        return row

    def drawn_draft(self) -> tuple[int, Candidates] | None:
        """Return the draft of the next token and what it was drawn from, or None."""
        if self._rows is None or self._used >= len(self._candidates):
            return None
        return self._drafted[self._used], self._candidates[self._used]

    def drop(self, token_ids: list[int]) -> int:
        """Forget the logits; return how many of the first of ``token_ids`` were drafted."""
        count = 0
        for token_id, drafted in zip(token_ids, self._drafted[self._used :], strict=False):
            if token_id != drafted:
                break
            count += 1
        self.accepted_tokens += count
        self._rows, self._drafted, self._candidates, self._used = None, [], (), 0
        return count
