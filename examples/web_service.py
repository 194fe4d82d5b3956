"""Embed texts in a web service, with FastAPI.

    uvicorn --app-dir examples web_service:app
    curl -s localhost:8000/embeddings -H 'content-type: application/json' -d '{"texts": ["a cat"], "role": "query"}'

One service serves all requests: the model is loaded once, before the first request, and the computation runs in a
worker thread, so the event loop stays free. An invalid request is status 422 with the error message.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from lattice_embed import InvalidInputError, NativeEmbeddingService, Role

service = NativeEmbeddingService(os.environ.get("LATTICE_EMBED_MODEL", "all-minilm-l6-v2"), max_batch_size=256)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Load the model before the first request, and release it after the last."""
    await service.aload()
    yield
    service.close()


app = FastAPI(lifespan=lifespan)


class EmbeddingRequest(BaseModel):
    """Texts to embed, and what they are for."""

    texts: list[str]
    role: Literal["query", "passage", "generic"] = "generic"


@app.post("/embeddings")
async def embeddings(request: EmbeddingRequest) -> dict[str, Any]:
    """Return a vector for each text, and which texts were cut."""
    try:
        result = await service.aembed(request.texts, role=Role(request.role))
    except InvalidInputError as error:
        raise HTTPException(422, str(error)) from error
    return {
        "model": result.model,
        "fingerprint": result.fingerprint,
        "vectors": result.vectors.tolist(),
        "truncated": [bool(flag) for flag in result.truncated],
    }
