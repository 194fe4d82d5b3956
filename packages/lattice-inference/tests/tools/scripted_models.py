"""A model that writes what it is told: calls of tools at first, and a text once it has their results."""

from __future__ import annotations

import numpy as np

from tiny_decoders import EOS

RESULT = "RESULT"
"""Each result of a tool holds this word."""


class ScriptedModel:
    """Makes a model of byte tokens follow a script; the grammar may still forbid it.

    Args:
        model: made by ``load_model``; its ``forward`` is replaced until :meth:`close`.
        calls: the answer to a conversation without results.
        answer: the answer to one with results.
    """

    def __init__(self, model, calls: str, answer: str) -> None:
        self._model, self._forward = model, type(model).forward
        self._scripts = [[*calls.encode(), EOS], [*answer.encode(), EOS]]
        model.forward = self.forward

    def forward(self, work):
        logits = np.zeros_like(self._forward(self._model, work))
        row = 0
        for extension in work:
            assert extension.logits in ("last", "none")
            if extension.logits == "last":
                logits[row, self._next(list(extension.sequence.token_ids))] = 50.0
                row += 1
        return logits

    def _next(self, ids: list[int]) -> int:
        text = bytes(token_id for token_id in ids if token_id < 256)
        script = self._scripts[RESULT.encode() in text]
        for done in range(len(script) - 1, 0, -1):
            if ids[-done:] == script[:done]:
                return script[done]
        return script[0]

    def close(self) -> None:
        del self._model.forward
