"""Measures when the tokens of an answer come."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from lattice_inference.generate.result import StreamPiece

if TYPE_CHECKING:
    from lattice_inference.serve.answers import Choice
    from lattice_inference.serve.metrics import ServeMetrics
    from lattice_inference.serve.state import RequestNote

__all__ = ["timed"]


async def timed(
    source: AsyncGenerator[Choice, None], metrics: ServeMetrics, note: RequestNote
) -> AsyncGenerator[Choice, None]:
    """Yield what ``source`` does, and put the times of tokens into the metrics.

    The number of tokens is noted as they come, so that the log has it for a request that its client leaves. Closing this
    closes the source.

    Args:
        source: pieces and results with the places of their choices.
        metrics: gets the time to the first token, and the gaps between the tokens of a choice.
        note: of the request.
    """
    last: dict[int, float] = {}
    async with contextlib.aclosing(source) as items:
        async for place, item in items:
            if isinstance(item, StreamPiece) and item.token_id is not None:
                now = time.monotonic()
                note.new_tokens += 1
                if not last:
                    metrics.observe("lattice_first_token_seconds", now - note.started, model=note.model)
                if place in last:
                    metrics.observe("lattice_token_gap_seconds", now - last[place], model=note.model)
                last[place] = now
            yield place, item
