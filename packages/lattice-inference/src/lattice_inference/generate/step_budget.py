"""How many tokens of prompts fit into a step beside the texts that are being generated."""

from __future__ import annotations

__all__ = ["StepBudget"]

FORGETTING = 0.9
"""What a measurement counts for after each further one."""


class StepBudget:
    """Fits the time of a step to its tokens: seconds = fixed + each * tokens.

    The fit is by least squares, in which older steps count less. A budget is at most twice the last one that was used, so
    that a fit to short steps is not trusted for long ones.

    Args:
        step_seconds: how long a step may take while texts are being generated.
        step_tokens: the most tokens of prompts in a step.
        least: the least.
    """

    def __init__(self, step_seconds: float, step_tokens: int, least: int) -> None:
        self._step_seconds = step_seconds
        self._step_tokens = step_tokens
        self._least = min(least, step_tokens)
        self._last = self._least
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def prompt_tokens(self, decoding: int) -> int:
        """Return how many tokens of prompts to run in a step with ``decoding`` other ones."""
        if decoding == 0:
            return self._step_tokens
        if self._weight == 0:
            return self._least
        fixed, each = self._line()
        fitting = (self._step_seconds - fixed) / each - decoding if each > 0 else self._step_tokens
        return int(max(self._least, min(fitting, self._step_tokens, 2 * self._last)))

    def measure(self, decoding: int, prompt_tokens: int, seconds: float) -> None:
        """Add a step's measured time."""
        x, y = float(decoding + prompt_tokens), max(0.0, seconds)
        self._weight = self._weight * FORGETTING + 1
        self._x = self._x * FORGETTING + x
        self._y = self._y * FORGETTING + y
        self._xx = self._xx * FORGETTING + x * x
        self._xy = self._xy * FORGETTING + x * y
        if prompt_tokens:
            self._last = max(self._least, prompt_tokens)

    def _line(self) -> tuple[float, float]:
        """Return the fixed seconds of a step and those of each token."""
        variance = self._xx * self._weight - self._x * self._x
        if variance > 1e-3 * self._xx * self._weight:
            each = (self._xy * self._weight - self._x * self._y) / variance
            fixed = (self._y - each * self._x) / self._weight
            if each > 0 and fixed >= 0:
                return fixed, each
        return 0.0, self._xy / self._xx if self._xx else 0.0
