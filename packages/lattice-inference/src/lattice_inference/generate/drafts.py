"""What guesses the next tokens of a text, for one step of the model to check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from lattice_inference.generate.config import ResolvedConfig
    from lattice_inference.generate.rejection import Candidates

__all__ = ["MOST_DRAFTS", "ROW_COST", "Drafts", "row_cost"]

MOST_DRAFTS = 15
"""The most drafted tokens of a step; with the token before them they are 16 rows."""

ROW_COST = 0.25
"""What each further row adds to a step of one row, as a share of it.

It is a constant and no measurement, so that drafts never depend on how busy the machine is.
"""


class Drafts(Protocol):
    """Guesses the next tokens of one text. For one thread at a time.

    A wrong guess costs time and changes no text. So a source may guess as it likes, and should guess nothing where that does
    not pay. A source may be used for one text after another; :meth:`start` begins each. Then :meth:`accept` tells it every
    token of the text, and between them :meth:`propose` asks it for guesses. Its guesses are not part of the text until they
    are accepted, so it undoes on its own what it has run for them.

    Attributes:
        candidates: what each token of the last proposal was drawn from, if drafts are verified by rejection; else empty.
    """

    candidates: Sequence[Candidates]

    def start(self, token_ids: Sequence[int], config: ResolvedConfig) -> None:
        """Begin a text.

        What was learned from the text before is forgotten.

        Args:
            token_ids: the context before it.
            config: how its tokens are chosen.
        """

    def accept(self, token_id: int) -> None:
        """Append the next token of the text, whether it was guessed or not."""

    def propose(self, most: int, company: int) -> list[int]:
        """Return the tokens that may come next, in order.

        Args:
            most: the most tokens to return, at least 1.
            company: how many texts, this one included, the step serves; see :func:`row_cost`.
        """

    def close(self) -> None:
        """Free what the source holds; closing twice is harmless."""


def row_cost(company: int) -> float:
    """Return the cost of one more row of a step, where the time of a token without drafts is 1.

    In a step that serves many texts a token costs less, so a guess must be right more often to pay.
    """
    return ROW_COST * company / (1 + ROW_COST * (company - 1))
