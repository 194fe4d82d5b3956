"""``/v1/embeddings`` and ``/v1/rerank``, batched with the texts of other requests."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lattice_inference.errors import LatticeError
from lattice_inference.serve.api_errors import ApiError, refusal_of, run_error_of
from lattice_inference.serve.event_stream import unless_gone
from lattice_inference.serve.fields import Fields
from lattice_inference.serve.state import RequestNote, ServerState, note_of, read_fields
from lattice_inference.serve.token_batches import TokenBatches

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["EMBEDDING_FIELDS", "RERANK_FIELDS", "embed", "rerank"]

Item = TypeVar("Item")

EMBEDDING_FIELDS = ("input", "encoding_format", "dimensions")
RERANK_FIELDS = ("query", "documents", "top_n", "return_documents")


async def embed(request: Request, state: ServerState) -> Response:
    """Return the vectors of texts."""
    note = note_of(request)
    fields = await read_fields(request, state.config)
    note.model = fields.needed_text("model")
    base, adapter = state.served.find(note.model, "embedding")
    encoder = state.served.embeddings[base]
    given = fields.any("input")
    texts = _texts(fields, "input", [given] if isinstance(given, str) else given, state.config.max_inputs)
    form = fields.choice("encoding_format", ("float", "base64"), "float")
    dimensions = fields.integer("dimensions", 1, encoder.dimension)
    note.ignored = tuple(fields.finish(lenient=state.config.lenient))

    batches, count = state.embedding_batches[base], encoder.count_tokens
    rows = _rows(batches, texts, count, encoder.max_tokens, name="input", note=note, adapter=adapter)
    vectors = await unless_gone(request, rows, state.config.request_seconds)
    if dimensions is not None and dimensions < encoder.dimension:
        vectors = _shortened(vectors, dimensions)
    data = [{"object": "embedding", "index": i, "embedding": _written(row, form)} for i, row in enumerate(vectors)]
    tokens = {"prompt_tokens": note.prompt_tokens, "total_tokens": note.prompt_tokens}
    return JSONResponse({"object": "list", "data": data, "model": note.model, "usage": tokens})


async def rerank(request: Request, state: ServerState) -> Response:
    """Return the scores of documents for a query, highest first."""
    note = note_of(request)
    fields = await read_fields(request, state.config)
    note.model = fields.needed_text("model")
    base, adapter = state.served.find(note.model, "reranker")
    scorer = state.served.rerankers[base]
    query = fields.needed_text("query")
    given = fields.any("documents")
    if isinstance(given, list):  # Cohere's form of a document is a mapping
        given = [one["text"] if isinstance(one, dict) and set(one) == {"text"} else one for one in given]
    documents = _texts(fields, "documents", given, state.config.max_inputs)
    most = fields.integer("top_n", 1, 2**31)
    returns = fields.flag("return_documents")
    note.ignored = tuple(fields.finish(lenient=state.config.lenient))
    pairs = [(query, document) for document in documents]

    batches, count = state.pair_batches[base], scorer.count_tokens
    rows = _rows(batches, pairs, count, scorer.max_tokens, name="documents", note=note, adapter=adapter)
    scores = await unless_gone(request, rows, state.config.request_seconds)
    results: list[dict[str, Any]] = []
    for index in np.argsort(-scores, kind="stable").tolist()[:most]:
        entry: dict[str, Any] = {"index": index, "relevance_score": float(scores[index])}
        results.append({**entry, "document": {"text": documents[index]}} if returns else entry)
    tokens = {"prompt_tokens": note.prompt_tokens, "total_tokens": note.prompt_tokens}
    return JSONResponse({"id": f"rerank-{note.id}", "model": note.model, "results": results, "usage": tokens})


async def _rows(
    batches: TokenBatches[Item],
    items: list[Item],
    count: Callable[[list[Item]], npt.NDArray[np.int32]],
    most: int,
    *,
    name: str,
    note: RequestNote,
    adapter: str | None,
) -> npt.NDArray[np.float32]:
    """Count the tokens of the field ``name``, check them, and return the items' rows."""
    try:
        counts = await asyncio.to_thread(count, items)
        _check_lengths(counts, most, name)
    except LatticeError as error:
        raise refusal_of(error, name) from error
    note.prompt_tokens = int(counts.sum())
    return await _finished(batches.submit(items, counts.tolist(), adapter))


async def _finished(future: Future[npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
    """Return the rows; what goes wrong while they are computed is no fault of the client's."""
    try:
        return await asyncio.wrap_future(future)
    except LatticeError as error:
        raise run_error_of(error) from error


def _texts(fields: Fields, name: str, given: Any, most: int) -> list[str]:
    if not isinstance(given, list) or not given or not all(isinstance(text, str) for text in given):
        fields.refuse(name, "a text, or a list of texts" if name == "input" else "a list of texts")
    if len(given) > most:
        raise ApiError(400, "too_many_inputs", f"{name} has {len(given):,} texts; at most {most:,} are taken", name)
    return given


def _check_lengths(counts: npt.NDArray[np.int32], most: int, name: str) -> None:
    index = int(np.argmax(counts))
    if counts[index] > most:
        raise ApiError(
            400,
            "context_length_exceeded",
            f"{name}[{index}] has {int(counts[index]):,} tokens; the model takes {most:,}",
            name,
        )


def _shortened(vectors: npt.NDArray[np.float32], dimensions: int) -> npt.NDArray[np.float32]:
    """Return the first components, scaled to length 1."""
    short = vectors[:, :dimensions].astype(np.float64)
    lengths = np.linalg.norm(short, axis=1, keepdims=True)
    return (short / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def _written(row: npt.NDArray[np.float32], form: str) -> list[float] | str:
    if form == "float":
        numbers: list[float] = row.tolist()
        return numbers
    return base64.b64encode(row.astype("<f4").tobytes()).decode()
