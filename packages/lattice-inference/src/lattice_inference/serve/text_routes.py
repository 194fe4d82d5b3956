"""``/v1/embeddings`` and ``/v1/rerank``, batched with the texts of other requests."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lattice_inference.errors import InvalidInputError, LatticeError
from lattice_inference.serve.api_errors import ApiError, refusal_of, run_error_of
from lattice_inference.serve.client_watch import unless_gone
from lattice_inference.serve.fields import Fields
from lattice_inference.serve.served import TextEncoder, roles_of
from lattice_inference.serve.state import EmbeddingKey, RequestNote, ServerState, note_of, read_fields
from lattice_inference.serve.token_batches import TokenBatches

__all__ = ["EMBEDDING_FIELDS", "RERANK_FIELDS", "embed", "rerank"]

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)

EMBEDDING_FIELDS = ("input", "input_type", "encoding_format", "dimensions")
RERANK_FIELDS = ("query", "documents", "top_n", "return_documents")

SHORT_CHARACTERS = 2048
"""Characters, or token ids, that are counted in less time than another thread takes to begin."""

SHORT_NUMBERS = 2**14
"""The numbers of an answer that are written in less than 10 ms."""


async def embed(request: Request, state: ServerState) -> Response:
    """Return the vectors of texts."""
    note = note_of(request)
    fields = await read_fields(request, state.config)
    note.model = fields.needed_text("model")
    base, adapter = state.served.find(note.model, "embedding")
    encoder = state.served.embeddings[base]
    texts, is_ids = _inputs(fields, state.config.max_inputs)
    role = _role(fields, encoder)
    form = fields.choice("encoding_format", ("float", "base64"), "float")
    dimensions = fields.integer("dimensions", 1, encoder.dimension)
    note.ignored = tuple(fields.finish(lenient=state.config.lenient))

    batches, count = state.embedding_batches[base], _counter(encoder, role, is_ids)
    key = EmbeddingKey(adapter, role, is_ids)
    rows = _rows(batches, texts, count, encoder.max_tokens, name="input", note=note, key=key)
    vectors = await unless_gone(request, rows, state.config.request_seconds)
    answer: dict[str, Any] = {"object": "list"}
    if dimensions is not None and dimensions < encoder.dimension:
        vectors = _shortened(vectors, dimensions)
    elif hasattr(encoder, "fingerprint_of") and not is_ids:
        answer["fingerprint"] = encoder.fingerprint_of(role)
    tokens = {"prompt_tokens": note.prompt_tokens, "total_tokens": note.prompt_tokens}
    write = partial(_body, answer, vectors, form, {"model": note.model, "usage": tokens})
    content = write() if vectors.size <= SHORT_NUMBERS else await asyncio.to_thread(write)
    return Response(content, media_type="application/json")


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
    rows = _rows(batches, pairs, count, scorer.max_tokens, name="documents", note=note, key=adapter)
    scores = await unless_gone(request, rows, state.config.request_seconds)
    results: list[dict[str, Any]] = []
    for index in np.argsort(-scores, kind="stable").tolist()[:most]:
        entry: dict[str, Any] = {"index": index, "relevance_score": float(scores[index])}
        results.append({**entry, "document": {"text": documents[index]}} if returns else entry)
    tokens = {"prompt_tokens": note.prompt_tokens, "total_tokens": note.prompt_tokens}
    return JSONResponse({"id": f"rerank-{note.id}", "model": note.model, "results": results, "usage": tokens})


async def _rows(
    batches: TokenBatches[Item, Key],
    items: list[Item],
    count: Callable[[list[Item]], npt.NDArray[np.int32]],
    most: int,
    *,
    name: str,
    note: RequestNote,
    key: Key,
) -> npt.NDArray[np.float32]:
    """Count the tokens of the field ``name``, check them, and return the items' rows."""
    try:
        counts = count(items) if _is_short(items) else await asyncio.to_thread(count, items)
        _check_lengths(counts, most, name)
    except LatticeError as error:
        raise refusal_of(error, name) from error
    note.prompt_tokens = int(counts.sum())
    return await _finished(batches.submit(items, counts.tolist(), key))


def _is_short(items: Sequence[Any]) -> bool:
    """Return whether the tokens are counted at once.

    An item is a text, a list of ids, or a pair of texts.
    """
    if len(items) != 1:
        return False
    (item,) = items
    return (sum(map(len, item)) if isinstance(item, tuple) else len(item)) <= SHORT_CHARACTERS


async def _finished(future: asyncio.Future[npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
    """Return the rows; what goes wrong while they are computed is no fault of the client's."""
    try:
        return await future
    except LatticeError as error:
        raise run_error_of(error) from error


def _inputs(fields: Fields, most: int) -> tuple[list[Any], bool]:
    """Return the texts, or lists of token ids, of ``input``, and whether they are ids."""
    given = fields.any("input")
    if isinstance(given, list) and given and all(type(one) is int for one in given):
        given = [given]
    if not (isinstance(given, list) and given and all(isinstance(one, list) for one in given)):
        return _texts(fields, "input", [given] if isinstance(given, str) else given, most), False
    if not all(one and all(type(token) is int for token in one) for one in given):
        fields.refuse("input", "a text, token ids, or a list of either")
    _check_number("input", given, most)
    return given, True


def _role(fields: Fields, encoder: TextEncoder) -> str | None:
    """Return what ``input_type`` says of an encoder that has roles."""
    roles = roles_of(encoder)
    if not roles:
        return None
    given = fields.choice("input_type", roles, "")
    return given or None


def _counter(encoder: TextEncoder, role: str | None, is_ids: bool) -> Callable[[list[Any]], npt.NDArray[np.int32]]:
    """Return what counts the tokens of inputs."""
    if not is_ids:
        settings: dict[str, Any] = {} if role is None else {"role": role}
        return partial(encoder.count_tokens, **settings)
    if not hasattr(encoder, "encode_tokens"):
        raise ApiError(400, "unsupported", "this model takes texts, no token ids", "input")
    size = encoder.tokenizer.vocab_size if hasattr(encoder, "tokenizer") else 2**31

    def counted(lists: list[list[int]]) -> npt.NDArray[np.int32]:
        for index, ids in enumerate(lists):
            if not 0 <= min(ids) <= max(ids) < size:
                raise InvalidInputError(f"input[{index}] holds a token id that is out of range; ids go to {size - 1:,}")
        return np.array([len(ids) for ids in lists], np.int32)

    return counted


def _texts(fields: Fields, name: str, given: Any, most: int) -> list[str]:
    if not isinstance(given, list) or not given or not all(isinstance(text, str) for text in given):
        fields.refuse(name, "a text, token ids, or a list of either" if name == "input" else "a list of texts")
    _check_number(name, given, most)
    return given


def _check_number(name: str, given: list[Any], most: int) -> None:
    if len(given) > most:
        raise ApiError(400, "too_many_inputs", f"{name} has {len(given):,} texts; at most {most:,} are taken", name)


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


def _body(before: dict[str, Any], vectors: npt.NDArray[np.float32], form: str, after: dict[str, Any]) -> bytes:
    """Return the answer, a vector at a time: other threads wait for each call of the encoder."""
    entries = [
        _dumped({"object": "embedding", "index": i, "embedding": _written(row, form)}) for i, row in enumerate(vectors)
    ]
    return f'{_dumped(before)[:-1]},"data":[{",".join(entries)}],{_dumped(after)[1:]}'.encode()


def _dumped(value: dict[str, Any]) -> str:
    """Return JSON as :class:`JSONResponse` writes it."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _written(row: npt.NDArray[np.float32], form: str) -> list[float] | str:
    if form == "float":
        numbers: list[float] = row.tolist()
        return numbers
    return base64.b64encode(row.astype("<f4").tobytes()).decode()
