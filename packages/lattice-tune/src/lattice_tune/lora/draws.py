"""Everything that is drawn, from counters: nothing has to be stored to draw it again.

A number is one word of Philox4x64-10 [Salmon et al. 2011], with the seed as key. The counter tells what is drawn, for
which epoch or matrix, and which one of them it is. So a training that goes on from a checkpoint draws what the first one
would have drawn.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import numpy.typing as npt

__all__ = ["epoch_order", "first_factor", "part_number"]

_ORDER, _FACTOR = 1, 2
_MOST_PARTS = 1 << 20


def _words(seed: int, purpose: int, which: int, count: int) -> npt.NDArray[np.uint64]:
    words: npt.NDArray[np.uint64] = np.random.Philox(key=seed, counter=[0, which, purpose, 0]).random_raw(count)
    return words


def epoch_order(seed: int, epoch: int, examples: int) -> npt.NDArray[np.int64]:
    """Return the order of the examples in an epoch, (examples,) int64."""
    return np.argsort(_words(seed, _ORDER, epoch, examples), kind="stable").astype(np.int64)


def first_factor(seed: int, site: str, rank: int, inputs: int) -> npt.NDArray[np.float32]:
    """Return the first A of a site, (rank, inputs) float32.

    It is uniform within 1 / sqrt(inputs), as in PEFT (Kaiming, a = sqrt(5)), and depends on the seed and the site's name.
    """
    which = int.from_bytes(blake2b(site.encode(), digest_size=8).digest(), "little")
    shares = (_words(seed, _FACTOR, which, rank * inputs) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    first: npt.NDArray[np.float32] = ((2.0 * shares - 1.0) / np.sqrt(inputs)).astype(np.float32)
    return first.reshape(rank, inputs)


def part_number(step: int, part: int) -> int:
    """Return the number under which dropout and noise of one part of an update are drawn."""
    return step * _MOST_PARTS + part
