"""A curve of losses in characters, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lattice_tune.arguments import plain_numbers, whole
from lattice_tune.errors import InvalidInputError

__all__ = ["loss_curve"]

_BLOCKS = " ▁▂▃▄▅▆▇█"


def loss_curve(losses: Sequence[float], *, width: int = 60, height: int = 8) -> str:
    """Return lines that show losses over time; each column is the mean of some updates.

    Args:
        losses: at least one, all finite.
        width: most columns.
        height: lines, without the one below.

    Raises:
        InvalidInputError: there are no losses, or one is not finite.
    """
    columns, rows = whole(width, "width", least=1, most=1000), whole(height, "height", least=1, most=100)
    numbers = plain_numbers(losses, "losses")
    values = numbers.astype(np.float64) if numbers.dtype.kind in "iuf" else np.empty(0)
    if values.ndim != 1 or not values.size or not np.isfinite(values).all():
        raise InvalidInputError("losses must be a list of at least one finite number")
    means = np.array([part.mean() for part in np.array_split(values, min(columns, values.size))])
    low, high = min(0.0, float(means.min())), float(means.max())
    eighths = np.rint((means - low) / ((high - low) or 1.0) * rows * 8).astype(int)
    lines = []
    for row in range(rows - 1, -1, -1):
        label = f"{low + (high - low) * (row + 1) / rows:9.4g} "
        lines.append((label + "".join(_BLOCKS[min(max(level - 8 * row, 0), 8)] for level in eighths)).rstrip())
    lines.append(f"{'update':>9} 1{values.size:>{max(len(means) - 1, len(str(values.size)) + 1)}}")
    return "\n".join(lines)
