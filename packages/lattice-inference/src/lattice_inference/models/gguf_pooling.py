"""How the vectors of tokens become one, as GGUF files say it."""

from __future__ import annotations

from collections.abc import Mapping

from lattice_inference.errors import UnsupportedError
from lattice_inference.models.config_fields import ConfigFields
from lattice_inference.models.sentence_modules import Pooling

__all__ = ["POOLING_TYPES", "RANK", "read_pooling"]

#: The values of ``pooling_type`` that give one vector a text; 0 is none.
POOLING_TYPES: Mapping[int, Pooling] = {1: Pooling.MEAN, 2: Pooling.CLS, 3: Pooling.LAST}

#: The value that gives the score of a reranker.
RANK = 4


def read_pooling(fields: ConfigFields, architecture: str) -> Pooling | None:
    """Return the pooling that an open file names; None where it names none.

    Raises:
        ModelConfigError: it is no integer.
        UnsupportedError: it is another kind, which is not built.
    """
    key = f"{architecture}.pooling_type"
    kind = fields.integer(key, 0, 2**31 - 1, default=0)
    if kind not in (0, *POOLING_TYPES):
        raise UnsupportedError(f"{fields.source}: {key} is {kind}; built are {', '.join(map(str, POOLING_TYPES))}")
    return POOLING_TYPES.get(kind)
