"""Reports what this version can run.

It calls the code that would run it, and keeps no separate list.
"""

from __future__ import annotations

from functools import cache

from lattice_inference.errors import LatticeError, UnsupportedError
from lattice_inference.models.families import runs_as_encoder

__all__ = ["runs_model_type", "runs_tokenizer_model"]


def runs_model_type(model_type: str) -> bool:
    """Whether models of this ``model_type`` (in ``config.json``) can be loaded as encoders."""
    return runs_as_encoder(model_type)


@cache
def runs_tokenizer_model(kind: str) -> bool:
    """Whether a tokenizer.json with a model of type ``kind`` can be loaded.

    Kinds are ``"WordPiece"``, ``"Unigram"`` and ``"BPE"``.
    """
    from lattice_inference.tokenizer.models import parse_model

    try:
        parse_model({"type": kind})
    except UnsupportedError:
        return False
    except LatticeError:  # the type is known; only its vocabulary is missing here
        return True
    return True
