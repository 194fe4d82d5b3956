"""What every engine that decodes offers to a benchmark, and how it is timed."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Decoder", "Decoding", "drawn_ids"]

FIRST_TOKEN = 1
PROMPT_CHUNK = 512


@dataclass(frozen=True)
class Decoding:
    """What decoding took: seconds a token, the first ids, and what the engine's own counter says of a token."""

    seconds: float
    ids: list[int]
    own_seconds_a_token: float | None


class Decoder(ABC):
    """Something that turns token ids into the most likely next one."""

    vocabulary: int
    decodes = True
    """Whether its decoding compares with ours; its prompts always do."""

    @abstractmethod
    def restart(self) -> None:
        """Forget all tokens."""

    @abstractmethod
    def extend(self, ids: Sequence[int]) -> int:
        """Append tokens and return the most likely next one."""

    def own_seconds(self) -> float | None:
        """Return what the engine's own counter says a token took since the restart, if it has one."""
        return None

    def decode(self, early: int, late: int, context: int) -> Decoding:
        """Decode greedily after ``context`` tokens (at least one); time the tokens from ``early`` to ``late``."""
        self.restart()
        prompt = drawn_ids(self.vocabulary, context) if context > 0 else [FIRST_TOKEN]
        for start in range(0, len(prompt), PROMPT_CHUNK):
            following = self.extend(prompt[start : start + PROMPT_CHUNK])
        ids = [following]
        began = 0.0
        while len(ids) < late:
            if len(ids) == early:
                began = time.perf_counter()
            ids.append(self.extend([ids[-1]]))
        return Decoding((time.perf_counter() - began) / (late - early), ids[:early], self.own_seconds())

    def prefill(self, tokens: int) -> float:
        """Return the seconds that a prompt of so many tokens takes."""
        ids = drawn_ids(self.vocabulary, tokens)
        self.restart()
        start = time.perf_counter()
        self.extend(ids)
        return time.perf_counter() - start


def drawn_ids(vocabulary: int, count: int) -> list[int]:
    """Return token ids, the same for every engine."""
    return [int(value) for value in np.random.default_rng(0).integers(3, vocabulary, count)]
