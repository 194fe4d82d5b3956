"""What every engine that decodes offers to a benchmark, and how it is timed."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

__all__ = ["Decoder", "Decoding", "drawn_ids"]

FIRST_TOKEN = 1
PROMPT_CHUNK = 512


@dataclass(frozen=True)
class Decoding:
    """The result of decoding: seconds a token, the first ids, and the engine's counter."""

    seconds: float
    ids: list[int]
    own_seconds_a_token: float | None


class Decoder(ABC):
    """Something that turns token ids into the most likely next one."""

    vocabulary: int
    decodes = True
    """Whether its decoding compares with ours; its prompts always do."""
    clock: Callable[[], float] = staticmethod(time.perf_counter)
    """What times are read from; processor time where other work shares the machine."""

    @abstractmethod
    def restart(self) -> None:
        """Forget all tokens."""

    @abstractmethod
    def extend(self, ids: Sequence[int]) -> int:
        """Append tokens and return the most likely next one."""

    def keep(self, path: Path) -> None:
        """Write the engine's state after the tokens so far to a file for another run.

        Raises:
            NotImplementedError: the engine cannot.
        """
        raise NotImplementedError

    def fetch(self, path: Path, tokens: int) -> None:
        """Go on from ``tokens`` tokens that :meth:`keep` wrote."""
        raise NotImplementedError

    def about(self) -> str | None:
        """Return what the engine says of how it was built, if it does."""
        return None

    def own_seconds(self) -> float | None:
        """Return what the engine's own counter says a token took since the restart, if it has one."""
        return None

    def decode(self, early: int, late: int, context: int, kept: Path | None = None) -> Decoding:
        """Decode greedily after at least one token of ``context``.

        The tokens from ``early`` to ``late`` are timed. With ``kept`` all but the last of the context come from this
        file, which is written unless it is there.
        """
        self.restart()
        prompt = drawn_ids(self.vocabulary, context) if context > 0 else [FIRST_TOKEN]
        if kept is not None and kept.exists():
            self.fetch(kept, len(prompt) - 1)
        else:
            for start in range(0, len(prompt) - 1, PROMPT_CHUNK):
                self.extend(prompt[start : min(start + PROMPT_CHUNK, len(prompt) - 1)])
            if kept is not None:
                self.keep(kept)
        ids = [self.extend(prompt[-1:])]
        began = 0.0
        while len(ids) < late:
            if len(ids) == early:
                began = self.clock()
            ids.append(self.extend([ids[-1]]))
        return Decoding((self.clock() - began) / (late - early), ids[:early], self.own_seconds())

    def prefill(self, tokens: int) -> float:
        """Return the seconds that a prompt of so many tokens takes."""
        ids = drawn_ids(self.vocabulary, tokens)
        self.restart()
        start = self.clock()
        self.extend(ids)
        return self.clock() - start


def drawn_ids(vocabulary: int, count: int) -> list[int]:
    """Return token ids, the same for every engine."""
    return [int(value) for value in np.random.default_rng(0).integers(3, vocabulary, count)]
