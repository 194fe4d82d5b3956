"""How many tokens to draft where drafting itself takes time."""

from __future__ import annotations

from lattice_inference.generate.drafts import ROW_COST, row_cost

__all__ = ["DraftLength"]

FIRST_CHANCE = 0.7
"""How often a draft is right, before the text has shown it."""

LEARNING = 0.08
"""How much one checked draft changes the chance."""

FIRST_PAUSE = 16
LONGEST_PAUSE = 256
"""The tokens between two trials where drafts do not pay; each trial doubles the pause."""

TRIAL = 2
"""The drafts of a trial."""


class DraftLength:
    """Chooses the number of drafts that pays best, from those checked so far.

    It knows the costs as shares of a step and never looks at a clock, so a text has the same drafts on any machine.

    Args:
        draft_cost: the time of one draft, as a share of a step of the model with one row.
    """

    def __init__(self, draft_cost: float) -> None:
        self.draft_cost = draft_cost
        self._chance = FIRST_CHANCE
        self._pause = FIRST_PAUSE
        self._left = 0  # tokens to the next trial

    def choose(self, most: int, company: int) -> int:
        """Return how many tokens to draft, 0 to ``most``; see :meth:`Drafts.propose`."""
        share = row_cost(company)
        cost = share * (1 + self.draft_cost / ROW_COST)
        chance = expected = speed = 1.0
        best = 0
        for count in range(1, most + 1):
            chance *= self._chance
            expected += chance
            if expected / (1 + cost * count) > speed:
                best, speed = count, expected / (1 + cost * count)
        if best:
            self._pause = FIRST_PAUSE
            return best
        if self._left or cost >= 1:  # at such a cost not even right drafts pay
            self._left = max(0, self._left - 1)
            return 0
        self._left = self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return min(TRIAL, most)

    def note(self, is_right: bool) -> None:
        """Take whether a draft was right; of a step those up to the first wrong one count."""
        self._chance += LEARNING * (is_right - self._chance)
        if is_right:
            self._left = 0  # the next trial follows at once
