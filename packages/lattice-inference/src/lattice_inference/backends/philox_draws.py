"""Random words that depend on a key and a place only: Philox4x64-10, as NumPy has it.

The generator is that of Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lattice_inference.graph.training_batch import Dropout, Noise

__all__ = ["dropout_factors", "noise_of_rows"]

_DROPOUT_STREAM, _NOISE_STREAM = 1, 2
_WORDS = 8  # of 32 bits in a block


def _words(rows: int, columns: int, seed: int, stream: int, number: int, step: int) -> npt.NDArray[np.uint32]:
    """Return a word of 32 bits for each element, (rows, columns); see ``low_rank_inner``."""
    blocks = -(-columns // _WORDS)
    # NumPy counts up before it computes a block
    key, counter = np.array([seed, stream], np.uint64), np.array([0, number, step, 0], np.uint64)
    raw = np.random.Philox(key=key, counter=counter).random_raw(rows * blocks * 4)
    halves = np.stack([raw & np.uint64(0xFFFFFFFF), raw >> np.uint64(32)], axis=-1).astype(np.uint32)
    return halves.reshape(rows, blocks * _WORDS)[:, :columns]


def dropout_factors(dropout: Dropout, number: int, rows: int, columns: int) -> npt.NDArray[np.float32]:
    """Return what the inputs of a site are multiplied by, (rows, columns).

    It is 0, or the factor of the elements that stay.

    Args:
        dropout: rate, seed and step.
        number: the number of the site.
        rows, columns: the shape of the inputs.
    """
    words = _words(rows, columns, dropout.seed, _DROPOUT_STREAM, number, dropout.step)
    return np.where(words < np.uint32(dropout.threshold), np.float32(0), dropout.factor)


def noise_of_rows(
    noise: Noise, cu_seqlens: npt.NDArray[np.int32], columns: int, dtype: npt.DTypeLike = np.float32
) -> npt.NDArray[np.float32]:
    """Return what NEFTune adds to the embeddings of a packed batch, (tokens, columns)."""
    lengths = np.diff(cu_seqlens)
    words = _words(int(cu_seqlens[-1]), columns, noise.seed, _NOISE_STREAM, 0, noise.step)
    sizes = (float(noise.alpha) / np.sqrt(lengths.astype(np.float64) * columns)).astype(np.float32)
    unit = (words >> np.uint32(8)).astype(np.float32) * np.float32(2**-23) - np.float32(1)
    return (unit * np.repeat(sizes, lengths)[:, None]).astype(dtype)
