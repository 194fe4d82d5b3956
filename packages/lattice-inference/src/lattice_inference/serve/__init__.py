"""An HTTP server for the clients of OpenAI's API; needs the extra ``[serve]``."""

from __future__ import annotations

from lattice_inference.errors import UnsupportedError

try:
    import starlette  # noqa: F401
except ImportError as error:
    raise UnsupportedError("serving needs starlette and uvicorn: pip install 'lattice-inference[serve]'") from error

from lattice_inference.serve.app import create_app
from lattice_inference.serve.config import ServeConfig
from lattice_inference.serve.served import PairScorer, TextEncoder, Vectors

__all__ = ["PairScorer", "ServeConfig", "TextEncoder", "Vectors", "create_app"]
