"""Valid calls of lattice_embed's public callables."""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Callable
from typing import Any

import numpy as np

import lattice_embed
import lattice_embed.migration
import lattice_embed.stores
import lattice_embed.vectors as vectors

from .call_registry import Call, call, calls, matrix

_text = {"text": "a text"}


def service() -> lattice_embed.NativeEmbeddingService:
    """Return a service with the small encoder."""
    return lattice_embed.NativeEmbeddingService("encoder")


def _remote() -> lattice_embed.RemoteEmbeddingService:
    return lattice_embed.RemoteEmbeddingService(
        "m", base_url="http://127.0.0.1:9/v1", retry=lattice_embed.RetryPolicy(max_retries=0)
    )


def _baseline() -> lattice_embed.DriftBaseline:
    return lattice_embed.DriftBaseline.of(service(), ["a text"])


def _fields(value: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {name: getattr(value(), name) for name in value().__dataclass_fields__}


def _result() -> lattice_embed.EmbeddingResult:
    return service().embed(["a text"])


def _cached() -> Any:
    from lattice_embed.embedding_cache import CachedEmbedding

    return CachedEmbedding(matrix(1)[0].tobytes(), token_count=3, truncated=False, origin=None)


_TEXTS = {"texts": ["a text"]}
_SERVICE = {
    "embed": _TEXTS,
    "aembed": _TEXTS,
    "encode": _TEXTS,
    "aencode": _TEXTS,
    "embed_one": _text,
    "aembed_one": _text,
    "embed_query": _text,
    "aembed_query": _text,
    "embed_passage": _text,
    "aembed_passage": _text,
    "embed_iter": _TEXTS,
    "embed_batches": _TEXTS,
    "supports_model": {"model": "encoder"},
    "model_config": {"model": None},
    "provenance": {},
}
calls(
    "lattice_embed.NativeEmbeddingService",
    service,
    _SERVICE
    | {"count_tokens": _TEXTS, "token_offsets": _text, "token_room": {}, "embed_parallel": _TEXTS | {"processes": 2}},
)
calls(
    "lattice_embed.CachedEmbeddingService",
    lambda: lattice_embed.CachedEmbeddingService(service()),
    _SERVICE | {"count_tokens": _TEXTS},
)
calls(
    "lattice_embed.RemoteEmbeddingService",
    _remote,
    _SERVICE,  # without a server a right call ends with an error of its type
)
calls(
    "lattice_embed",
    lambda: lattice_embed,
    {
        "NativeEmbeddingService": {"model": "encoder"},
        "CachedEmbeddingService": {"inner": service},
        "RemoteEmbeddingService": {"model": "m", "base_url": "http://127.0.0.1:9/v1"},
        "CrossEncoder": {"model": "reranker"},
        "EmbeddingCache": {},
        "EmbeddingKey": {"model": "m", "revision": "r", "dims": 3},
        "DriftTolerance": {},
        "RetryPolicy": {},
        "ModelConfig": {"model": lattice_embed.EmbeddingModel.ALL_MINILM_L6_V2},
        "ModelDescription": {
            "slug": "s",
            "model_id": "a/b",
            "native_dimensions": 8,
            "max_tokens": 8,
            "pooling": "mean",
        },
        "EmbeddingResult": {"vectors": matrix},
        "VectorProvenance": {"model": "m", "dimensions": 3},
        "check_drift": {"service": service, "baseline": _baseline},
        "list_models": {},
        "add_model": {
            "description": lattice_embed.ModelDescription(
                slug="added", model_id="encoder", native_dimensions=8, max_tokens=8, pooling="mean"
            )
        },
    },
)
calls(
    "lattice_embed.CrossEncoder",
    lambda: lattice_embed.CrossEncoder("reranker"),
    {
        "score": {"query": "a", "documents": ["a text"]},
        "score_pairs": {"pairs": [("a", "b")]},
        "count_tokens": {"pairs": [("a", "b")]},
        "rank": {"query": "a", "documents": ["a text"]},
    },
)
calls(
    "lattice_embed.EmbeddingCache",
    lattice_embed.EmbeddingCache,
    {
        "get": {"key": b"k" * 32},
        "peek": {"key": b"k" * 32},
        "put": {"key": b"k" * 32, "entry": _cached},
        "get_many": {"keys": [b"k" * 32]},
        "put_many": {"entries": lambda: [(b"k" * 32, _cached())]},
    },
)
calls("lattice_embed.DriftBaseline", lambda: lattice_embed.DriftBaseline, {"of": {"service": service} | _TEXTS})
calls(
    "lattice_embed.DriftBaseline", _baseline, {"save": {"path": "out-baseline.json"}, "write_to": {"file": io.BytesIO}}
)


@call("lattice_embed.DriftBaseline.load")
def _load_baseline() -> Call:
    _baseline().save("out-baseline.json")
    return lattice_embed.DriftBaseline.load, {"path": "out-baseline.json"}


@call("lattice_embed.DriftBaseline")
def _new_baseline() -> Call:
    return lattice_embed.DriftBaseline, _fields(_baseline)()


calls(
    "lattice_embed.ModelDescription",
    lambda: lattice_embed.EmbeddingModel.ALL_MINILM_L6_V2.description,
    {"prompt": {"role": lattice_embed.Role.QUERY}},
)
calls(
    "lattice_embed.ModelConfig",
    lambda: lattice_embed.ModelConfig(lattice_embed.EmbeddingModel.ALL_MINILM_L6_V2),
    {
        "to_embedding_key": {"revision": "r"},
        "try_new": {"model": lattice_embed.EmbeddingModel.ALL_MINILM_L6_V2},
    },
)
calls("lattice_embed.RetryPolicy", lattice_embed.RetryPolicy, {"delay": {"retry": 1}})
calls(
    "lattice_embed.VectorProvenance",
    lambda: lattice_embed.VectorProvenance(model="m", dimensions=3),
    {"check_comparable": {"other": lattice_embed.VectorProvenance(model="m", dimensions=3)}},
)
calls(
    "lattice_embed.VectorProvenance",
    lambda: lattice_embed.VectorProvenance,
    {"from_json": {"text": lattice_embed.VectorProvenance(model="m", dimensions=3).to_json()}},
)

# lattice_embed.vectors

_PAIR = {"0": matrix(1)[0], "1": matrix(2)[0]}
_AGAINST = {"query": matrix(1)[0], "matrix": matrix()}
calls(
    "lattice_embed.vectors",
    lambda: vectors,
    {
        "dot_product": _PAIR,
        "cosine_similarity": _PAIR,
        "euclidean_distance": _PAIR,
        "squared_euclidean_distance": _PAIR,
        "manhattan_distance": _PAIR,
        "batch_cosine_similarity": {"0": matrix(), "1": matrix()},
        "normalize": {"vectors": matrix()},
        "one_vs_many": _AGAINST,
        "many_vs_many": {"a": matrix(), "b": matrix()},
        "top_k": _AGAINST | {"k": 2},
        "search": {"queries": matrix(), "matrix": matrix(), "k": 2},
        "quantize": {"vectors": matrix(), "tier": "int8"},
        "BinaryMatrix": {"data": np.zeros((2, 1), np.uint8), "dims": 8},
        "BFloat16Matrix": {"data": np.zeros((2, 3), np.uint16)},
        "Float16Matrix": {"data": np.zeros((2, 3), np.uint16)},
        "Int8Matrix": {"data": np.ones((2, 3), np.int8), "scales": np.ones(2, np.float32)},
        "Int4Matrix": {
            "data": np.full((2, 2), 0x11, np.uint8),
            "dims": 4,
            "scales": np.ones(2, np.float32),
            "max_abs": np.ones(2, np.float32),
        },
        "Int8Calibration": {"steps": np.ones(3, np.float32), "offsets": np.zeros(3, np.float32)},
        "hamming_distance_binary": {
            "0": lambda: vectors.BinaryVector.quantize(matrix(1, 8)[0]),
            "1": lambda: vectors.BinaryVector.quantize(matrix(2, 8)[0]),
        },
        "cosine_similarity_i8": {
            "0": lambda: vectors.QuantizedVector.quantize(matrix(1)[0]),
            "1": lambda: vectors.QuantizedVector.quantize(matrix(2)[0]),
        },
        "dot_product_i8": {
            "0": lambda: vectors.QuantizedVector.quantize(matrix(1)[0]),
            "1": lambda: vectors.QuantizedVector.quantize(matrix(2)[0]),
        },
        "dot_product_i8_raw": {"0": np.ones(3, np.int8), "1": np.ones(3, np.int8)},
        "dot_product_int4": {
            "0": lambda: vectors.Int4Vector.quantize(matrix(1)[0]),
            "1": lambda: vectors.Int4Vector.quantize(matrix(2)[0]),
        },
    },
)
for _name in ("BFloat16Matrix", "Float16Matrix", "BinaryMatrix", "Int8Matrix", "Int4Matrix"):
    _kind = getattr(vectors, _name)
    calls(f"lattice_embed.vectors.{_name}", lambda kind=_kind: kind, {"quantize": {"vectors": matrix()}})
    calls(f"lattice_embed.vectors.{_name}", lambda kind=_kind: kind.quantize(matrix()), {"take": {"rows": [0, 1]}})
for _name in ("BinaryVector", "Int4Vector", "QuantizedVector"):
    _kind = getattr(vectors, _name)
    calls(f"lattice_embed.vectors.{_name}", lambda kind=_kind: kind, {"quantize": {"vector": matrix(1)[0]}})
calls("lattice_embed.vectors.Int8Calibration", lambda: vectors.Int8Calibration, {"fit": {"vectors": matrix()}})
calls(
    "lattice_embed.vectors.Int8Calibration",
    lambda: vectors.Int8Calibration.fit(matrix()),
    {"quantize": {"rows": matrix()}, "dequantize": {"data": np.ones((2, 3), np.int8)}},
)
calls(
    "lattice_embed.vectors.QuantizationTier",
    lambda: vectors.QuantizationTier,
    {"from_age_seconds": {"age": 1.0}},
)
calls(
    "lattice_embed.vectors.QuantizationTier",
    lambda: next(iter(vectors.QuantizationTier)),
    {"storage_bytes": {"dims": 8}},
)

# lattice_embed.stores

_numbers = itertools.count()
_SPACE = lattice_embed.stores.VectorSpace(model="m", fingerprint="f", dimensions=3)


def _document() -> lattice_embed.stores.StoredDocument:
    return lattice_embed.stores.StoredDocument.embedded("1", "a", matrix(1), fingerprint="f")


def _new_path() -> str:
    """Return a path that no other call uses."""
    return f"out-store-{os.getpid()}-{next(_numbers)}.db"


def _store(kind: str) -> Callable[[], Any]:
    def create() -> Any:
        store = getattr(lattice_embed.stores, kind).create(_new_path(), _SPACE)
        store.put([_document()])
        return store

    return create


_ids = {"ids": ["1"]}
for _name in ("SqliteVectorStore", "NumpyVectorStore"):
    _kind = getattr(lattice_embed.stores, _name)
    calls(f"lattice_embed.stores.{_name}", lambda kind=_kind: kind, {"create": {"path": _new_path}})
    calls(
        f"lattice_embed.stores.{_name}",
        _store(_name),
        {
            "put": {"documents": lambda: [_document()]},
            "delete": _ids,
            "get": _ids,
            "versions": _ids,
            "scan": {},
            "query": {"vector": matrix(1)[0]},
        },
    )

    @call(f"lattice_embed.stores.{_name}")
    def _open(kind: Any = _kind) -> Call:
        path = _new_path()
        kind.create(path, _SPACE).close()
        return kind, {"path": path}


@call("lattice_embed.stores.open_store")
def _open_store() -> Call:
    path = _new_path()
    lattice_embed.stores.create_store(path, _SPACE).close()
    return lattice_embed.stores.open_store, {"path": path}


@call("lattice_embed.stores.StoredDocument")
def _new_document() -> Call:
    return lattice_embed.stores.StoredDocument, _fields(_document)()


calls(
    "lattice_embed.stores",
    lambda: lattice_embed.stores,
    {
        "create_store": {"path": _new_path},
        "Chunking": {},
        "SkipReason": {"kind": next(iter(lattice_embed.stores.SkipKind))},
        "VectorSpace": {"model": "m", "fingerprint": "f", "dimensions": 3},
        "DocumentEmbedder": {"service": service, "space": lambda: lattice_embed.stores.VectorSpace.of(service())},
    },
)
calls(
    "lattice_embed.stores.StoredDocument",
    lambda: lattice_embed.stores.StoredDocument,
    {
        "pending": {"document_id": "1", "text": "a"},
        "skipped": {"document_id": "1", "text": "a", "reason": "manual_skip"},
        "embedded": {"document_id": "1", "text": "a", "vectors": matrix(1), "fingerprint": "f"},
    },
)
calls(
    "lattice_embed.stores.DocumentEmbedder",
    lambda: lattice_embed.stores.DocumentEmbedder(service(), lattice_embed.stores.VectorSpace.of(service())),
    {"embed": {"documents": [("1", "a")]}, "embed_query": _text},
)
calls("lattice_embed.stores.Chunking", lattice_embed.stores.Chunking, {"within": {"room": 100}})
calls(
    "lattice_embed.stores.SkipReason",
    lambda: lattice_embed.stores.SkipReason,
    {
        "parse": {"stored": "manual_skip"},
        "of": {"error": lambda: lattice_embed.NonFiniteVectorError(index=0, model="m")},
    },
)
calls("lattice_embed.stores.VectorSpace", lambda: _SPACE, {"check_fingerprint": {"fingerprint": "f"}})
calls(
    "lattice_embed.stores.VectorSpace",
    lambda: lattice_embed.stores.VectorSpace,
    {"of": {"service": service}, "from_fields": {"fields": _SPACE.to_fields()}},
)
calls("lattice_embed.migration", lambda: lattice_embed.migration, {"BackfillConfig": {}})


@call("lattice_embed.migration.read_verdict")
def _read_verdict() -> Call:
    return lattice_embed.migration.read_verdict, {"report": {"verdict": {"decision": "stable"}}}
