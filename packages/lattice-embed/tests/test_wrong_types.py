"""Every public function and class refuses wrong types and values by a typed error, whatever the argument."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lattice_embed
from lattice_embed import (
    CachedEmbeddingService,
    CrossEncoder,
    DriftBaseline,
    DriftTolerance,
    EmbeddingCache,
    EmbeddingKey,
    EmbeddingModel,
    EmbeddingResult,
    ModelConfig,
    ModelDescription,
    NativeEmbeddingService,
    RemoteEmbeddingService,
    RetryPolicy,
    Role,
    VectorProvenance,
    add_model,
    check_drift,
    stores,
)
from lattice_embed import vectors as ops
from lattice_embed.integrations.sentence_transformers import SentenceEncoder
from lattice_embed.migration import BackfillConfig
from lattice_inference.errors import LatticeError

ROWS = np.random.default_rng(1).standard_normal((3, 8)).astype(np.float32)
INT8 = ops.quantize(ROWS, "int8")
INT4 = ops.quantize(ROWS, "int4")
BITS = ops.quantize(ROWS, "binary")
HALVES = ops.quantize(ROWS, "float16")
SPACE = stores.VectorSpace(model="m", fingerprint="f", dimensions=8)
DESCRIPTION = {"slug": "s", "model_id": "m/s", "native_dimensions": 8, "max_tokens": 9, "pooling": "mean"}

WRONG: dict[str, Any] = {
    "None": None,
    "True": True,
    "zero": 0,
    "minus one": -1,
    "a fraction": 1.5,
    "NaN": float("nan"),
    "infinity": float("inf"),
    "10**400": 10**400,
    "complex": 1j,
    "a text": "x",
    "no text": "",
    "bytes": b"x",
    "NUL": "a\0b",
    "a lone surrogate": "\ud800",
    "an empty list": [],
    "a list of None": [None],
    "a list of numbers": [1],
    "a ragged list": [[1.0], [1.0, 2.0]],
    "a list of 10**400": [10**400],
    "a mapping": {"a": 1},
    "a set": {1},
    "an object": object(),
    "a function": len,
    "a class": dict,
    "a NumPy number": np.float32(1.0),
    "a 0-d array": np.array(1.0),
    "an empty array": np.zeros((0,), np.float32),
    "an array of objects": np.array([None], object),
    "a 3-d array": np.zeros((1, 1, 1), np.float32),
    "an array of texts": np.array(["a"]),
    "a wide array": np.zeros((2, 9), np.int64),
}

Call = tuple[Callable[..., Any], dict[str, Any]]


def pair(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b: function(a, b)


VECTORS: dict[str, Call] = {
    **{
        name: (pair(getattr(ops, name)), {"a": ROWS[0], "b": ROWS[1]})
        for name in (
            "cosine_similarity",
            "dot_product",
            "euclidean_distance",
            "manhattan_distance",
            "squared_euclidean_distance",
        )
    },
    "cosine_similarity of int8": (pair(ops.cosine_similarity), {"a": INT8[0], "b": INT8[1]}),
    "cosine_similarity_i8": (pair(ops.cosine_similarity_i8), {"a": INT8.data[0], "b": INT8.data[1]}),
    "dot_product_i8": (pair(ops.dot_product_i8), {"a": INT8[0], "b": INT8[1]}),
    "dot_product_i8_raw": (pair(ops.dot_product_i8_raw), {"a": INT8.data[0], "b": INT8.data[1]}),
    "dot_product_int4": (pair(ops.dot_product_int4), {"a": INT4[0], "b": INT4[1]}),
    "hamming_distance_binary": (pair(ops.hamming_distance_binary), {"a": BITS[0], "b": BITS[1]}),
    "batch_cosine_similarity": (pair(ops.batch_cosine_similarity), {"a": ROWS, "b": ROWS}),
    "batch_cosine_similarity of pairs": (
        lambda pairs: ops.batch_cosine_similarity(pairs),
        {"pairs": [(ROWS[0], ROWS[1])]},
    ),
    "one_vs_many": (ops.one_vs_many, {"query": ROWS[0], "matrix": ROWS, "metric": "dot"}),
    "one_vs_many of int8": (ops.one_vs_many, {"query": ROWS[0], "matrix": INT8, "metric": "dot"}),
    "many_vs_many": (ops.many_vs_many, {"a": ROWS, "b": ROWS, "metric": "cosine"}),
    "many_vs_many of int4": (ops.many_vs_many, {"a": ROWS, "b": INT4, "metric": "cosine"}),
    "many_vs_many to int4": (ops.many_vs_many, {"a": INT4, "b": ROWS, "metric": "cosine"}),
    "top_k": (
        ops.top_k,
        {"query": ROWS[0], "matrix": ROWS, "k": 2, "metric": "cosine", "rescore": None, "oversample": None},
    ),
    "top_k, rescored": (
        ops.top_k,
        {"query": ROWS[0], "matrix": INT8, "k": 2, "metric": "cosine", "rescore": ROWS, "oversample": 2},
    ),
    "search": (
        ops.search,
        {"queries": ROWS, "matrix": ROWS, "k": 2, "metric": "dot", "rescore": None, "oversample": None},
    ),
    "search, rescored": (
        ops.search,
        {"queries": ROWS, "matrix": BITS, "k": 2, "metric": "dot", "rescore": HALVES, "oversample": 2},
    ),
    "normalize": (ops.normalize, {"vectors": ROWS, "out": None, "in_place": False}),
    "quantize": (ops.quantize, {"vectors": ROWS, "tier": "int8", "calibration": None}),
    "Int8Matrix": (
        ops.Int8Matrix,
        {"data": INT8.data, "scales": INT8.scales, "norms": INT8.norms, "calibration": None},
    ),
    "Int8Matrix.quantize": (ops.Int8Matrix.quantize, {"vectors": ROWS, "calibration": None}),
    "Int8Matrix.take": (INT8.take, {"rows": [0]}),
    "Int8Matrix[]": (INT8.__getitem__, {"index": 0}),
    "Int4Matrix": (
        ops.Int4Matrix,
        {"data": INT4.data, "dims": 8, "scales": INT4.scales, "max_abs": INT4.max_abs, "norms": INT4.norms},
    ),
    "Int4Matrix.take": (INT4.take, {"rows": [0]}),
    "BinaryMatrix": (ops.BinaryMatrix, {"data": BITS.data, "dims": 8, "threshold": 0.0}),
    "BinaryMatrix.quantize": (ops.BinaryMatrix.quantize, {"vectors": ROWS, "threshold": 0.0}),
    "BinaryMatrix.take": (BITS.take, {"rows": [0]}),
    "Float16Matrix": (ops.Float16Matrix, {"data": HALVES.data}),
    "Float16Matrix.quantize": (ops.Float16Matrix.quantize, {"vectors": ROWS}),
    "BFloat16Matrix": (ops.BFloat16Matrix, {"data": HALVES.data}),
    "BFloat16Matrix.quantize": (ops.BFloat16Matrix.quantize, {"vectors": ROWS}),
    "HalfMatrix.take": (HALVES.take, {"rows": [0]}),
    "HalfMatrix[]": (HALVES.__getitem__, {"index": 0}),
    "QuantizedVector": (ops.QuantizedVector, {"matrix": INT8, "index": 0}),
    "QuantizedVector.quantize": (ops.QuantizedVector.quantize, {"vector": ROWS[0], "calibration": None}),
    "Int4Vector": (ops.Int4Vector, {"matrix": INT4, "index": 0}),
    "Int4Vector.quantize": (ops.Int4Vector.quantize, {"vector": ROWS[0]}),
    "BinaryVector": (ops.BinaryVector, {"matrix": BITS, "index": 0}),
    "BinaryVector.quantize": (ops.BinaryVector.quantize, {"vector": ROWS[0], "threshold": 0.0}),
    "Int8Calibration": (ops.Int8Calibration, {"steps": np.ones(8), "offsets": np.zeros(8)}),
    "Int8Calibration.fit": (ops.Int8Calibration.fit, {"vectors": ROWS, "quantile": 1.0}),
    "QuantizationTier.storage_bytes": (ops.QuantizationTier.INT8.storage_bytes, {"dims": 8}),
    "SentenceEncoder.similarity": (
        lambda a, b: similarity_of(SentenceEncoder.similarity, a, b),
        {"a": ROWS, "b": ROWS},
    ),
    "SentenceEncoder.similarity_pairwise": (
        lambda a, b: similarity_of(SentenceEncoder.similarity_pairwise, a, b),
        {"a": ROWS, "b": ROWS},
    ),
}


def similarity_of(method: Callable[..., Any], a: Any, b: Any) -> Any:
    encoder: Any = SentenceEncoder.__new__(SentenceEncoder)
    encoder.similarity_fn_name = "cosine"
    return method(encoder, a, b)


VALUES: dict[str, Call] = {
    "EmbeddingResult": (
        EmbeddingResult,
        {
            "vectors": ROWS,
            "token_counts": [1, 2, 3],
            "truncated": [False] * 3,
            "fingerprint": "",
            "provenance": None,
            "model": "m",
            "role": Role.QUERY,
            "prompt": "",
        },
    ),
    "EmbeddingModel.parse": (EmbeddingModel.parse, {"name": "minilm"}),
    "ModelDescription": (
        ModelDescription,
        {
            **DESCRIPTION,
            "query_prompt": "",
            "passage_prompt": "",
            "supports_output_dim": False,
            "is_remote": False,
            "key_version": "",
            "license": "",
            "architecture": "",
            "tokenizer": "",
            "weights_bytes": None,
        },
    ),
    "ModelDescription.prompt": (ModelDescription(**DESCRIPTION).prompt, {"role": Role.QUERY}),
    "add_model": (add_model, {"description": ModelDescription(**DESCRIPTION), "aliases": ["other"]}),
    "ModelConfig": (ModelConfig, {"model": EmbeddingModel.QWEN3_EMBEDDING_0_6B, "output_dim": 64}),
    "ModelConfig.to_embedding_key": (
        ModelConfig(EmbeddingModel.ALL_MINILM_L6_V2).to_embedding_key,
        {"revision": "r"},
    ),
    "EmbeddingKey": (EmbeddingKey, {"model": "m", "revision": "r", "dims": 8}),
    "VectorProvenance": (
        VectorProvenance,
        {
            "model": "m",
            "weights": "",
            "pooling": "",
            "prompt": "",
            "dimensions": 8,
            "precision": "float32",
            "normalized": True,
            "numerics_version": 0,
        },
    ),
    "VectorProvenance.from_json": (
        VectorProvenance.from_json,
        {"text": "{}"},
    ),
    "VectorProvenance.check_comparable": (
        VectorProvenance(model="m", dimensions=8).check_comparable,
        {"other": VectorProvenance(model="m", dimensions=8)},
    ),
    "EmbeddingCache": (EmbeddingCache, {"capacity": 9, "max_bytes": None}),
    "DriftTolerance": (DriftTolerance, {"max_abs_difference": 0.0, "max_cosine_distance": 0.0}),
    "DriftBaseline": (
        DriftBaseline,
        {
            "model": "m",
            "texts": ("a", "b", "c"),
            "vectors": ROWS,
            "fingerprint": "f",
            "numerics_version": 1,
            "role": Role.GENERIC,
            "precision": "float32",
            "output_dim": None,
            "tolerance": DriftTolerance(),
        },
    ),
    "DriftBaseline.load": (DriftBaseline.load, {"path": "none.json"}),
    "RetryPolicy": (
        RetryPolicy,
        {"max_retries": 1, "initial_delay": 0.1, "max_delay": 0.1, "max_retry_after": 1.0},
    ),
    "RemoteEmbeddingService": (
        lambda **options: RemoteEmbeddingService(**options).close(),
        {
            "model": "m",
            "base_url": "http://localhost:1/v1",
            "api_key": None,
            "api_key_variable": None,
            "allow_plain_http": None,
            "headers": None,
            "output_dim": None,
            "native_dimensions": None,
            "encoding_format": "base64",
            "max_texts_per_request": 9,
            "max_tokens_per_request": 9,
            "count_tokens": None,
            "retry": None,
            "timeout": 1.0,
            "deadline": 1.0,
            "max_batch_size": 9,
            "max_text_chars": 9,
        },
    ),
    "CrossEncoder": (
        CrossEncoder,
        {"model": "a/b", "precision": "float32", "threads": 1, "truncate": "error", "max_text_chars": 9},
    ),
    "NativeEmbeddingService": (
        NativeEmbeddingService,
        {
            "model": "minilm",
            "output_dim": None,
            "precision": "float32",
            "threads": 1,
            "truncate": "right",
            "max_batch_size": 9,
            "max_text_chars": 9,
            "cache": None,
        },
    ),
    "CachedEmbeddingService": (
        CachedEmbeddingService,
        {"inner": None, "capacity": 9, "max_bytes": None, "cache": None},
    ),
    "Chunking": (stores.Chunking, {"tokens": 9, "overlap": 1}),
    "open_store": (stores.open_store, {"path": "none"}),
    "BackfillConfig": (
        BackfillConfig,
        {"batch_size": 1, "max_concurrent": 1, "target_query_threshold": 1.0, "rollback_window_secs": 1.0},
    ),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def try_all(call: Callable[..., Any], valid: dict[str, Any]) -> Iterator[str]:
    """Yield what happened for each wrong value of each argument that raised anything but a typed error."""
    for name in valid:
        for described, value in WRONG.items():
            if name == "progress" and callable(value):
                continue  # it is called, and what it raises is its caller's
            try:
                outcome = call(**{**valid, name: value})
                if asyncio.iscoroutine(outcome):
                    asyncio.run(outcome)
            except (LatticeError, OSError):
                pass
            except IndexError as error:
                if name != "index":  # of which iteration over a sequence is told its end
                    yield f"{name}={described}: {error!r}"
            except Exception as error:
                yield f"{name}={described}: {error!r}"


@pytest.mark.parametrize("name", VECTORS)
def test_vector_operations(name: str) -> None:
    call, valid = VECTORS[name]
    call(**{argument: value.copy() if isinstance(value, np.ndarray) else value for argument, value in valid.items()})
    assert list(try_all(call, valid)) == []


@pytest.mark.parametrize("name", VALUES)
def test_values_and_constructors(name: str, loader: Any) -> None:
    call, valid = VALUES[name]
    with suppress(LatticeError):
        call(**valid)
    assert list(try_all(call, valid)) == []


SERVICE: dict[str, dict[str, Any]] = {
    "embed": {"texts": ["a"], "model": None, "role": Role.QUERY, "normalize": True},
    "embed_one": {"text": "a", "model": None, "role": Role.QUERY, "normalize": True},
    "embed_query": {"text": "a", "model": None, "normalize": True},
    "embed_passage": {"text": ["a"], "model": None, "normalize": True},
    "encode": {"texts": ["a"], "model": None, "role": Role.QUERY, "normalize": True},
    "aembed": {"texts": ["a"], "model": None, "role": Role.QUERY, "normalize": True},
    "aembed_one": {"text": "a", "model": None, "role": Role.QUERY, "normalize": True},
    "aencode": {"texts": ["a"], "model": None, "role": Role.QUERY, "normalize": True},
    "provenance": {"model": None, "role": Role.QUERY, "normalize": True},
    "model_config": {"model": None},
    "supports_model": {"model": "minilm"},
    "count_tokens": {"texts": ["a"], "role": Role.QUERY},
    "token_offsets": {"text": "a"},
    "token_room": {"role": Role.QUERY},
}
STREAMS: dict[str, dict[str, Any]] = {
    "embed_batches": {
        "texts": ["a"],
        "model": None,
        "role": Role.QUERY,
        "normalize": True,
        "batch_size": 1,
        "progress": None,
    },
    "embed_iter": {
        "texts": ["a"],
        "model": None,
        "role": Role.QUERY,
        "normalize": True,
        "batch_size": 1,
        "progress": None,
    },
}


@pytest.mark.parametrize("name", [*SERVICE, *STREAMS])
@pytest.mark.parametrize("cached", [False, True])
def test_methods_of_services(name: str, cached: bool, service: NativeEmbeddingService) -> None:
    used: Any = CachedEmbeddingService(service) if cached else service
    if cached and name.startswith(("count_tokens", "token_")):
        return
    method = getattr(used, name)
    valid = (SERVICE | STREAMS)[name]
    call = (lambda **options: list(method(**options))) if name in STREAMS else method
    assert list(try_all(call, valid)) == []


def test_functions_that_take_a_service(service: NativeEmbeddingService) -> None:
    baseline = DriftBaseline.of(service, ["a"])
    assert list(try_all(check_drift, {"service": service, "baseline": baseline})) == []
    calls: dict[Callable[..., Any], dict[str, Any]] = {
        DriftBaseline.of: {"service": service, "texts": ["a"], "role": Role.QUERY, "tolerance": None},
        stores.VectorSpace.of: {"service": service, "role": Role.PASSAGE, "chunking": None},
        stores.DocumentEmbedder: {"service": service, "space": stores.VectorSpace.of(service)},
        stores.DocumentEmbedder(service, stores.VectorSpace.of(service)).embed: {"documents": [("d", "t")]},
        stores.DocumentEmbedder(service, stores.VectorSpace.of(service)).embed_query: {"text": "t"},
        SentenceEncoderLike(service).encode: {
            "inputs": ["a"],
            "prompt_name": None,
            "prompt": None,
            "batch_size": 2,
            "output_value": "sentence_embedding",
            "precision": "float32",
            "device": None,
            "normalize_embeddings": True,
            "truncate_dim": 384,
            "pool": None,
            "chunk_size": None,
        },
    }
    for call, valid in calls.items():
        call(**valid)
        assert list(try_all(call, valid)) == [], call


def SentenceEncoderLike(service: NativeEmbeddingService) -> Any:
    encoder: Any = SentenceEncoder.__new__(SentenceEncoder)
    encoder.service = service
    encoder.prompts = {"query": "q: "}
    encoder.default_prompt_name = None
    encoder.similarity_fn_name = "cosine"
    encoder.truncate_dim = None
    return encoder


def test_every_public_name_is_tried_or_known_to_take_nothing() -> None:
    tried = {name.split(".")[0].split(" ")[0].split(",")[0] for name in (*VECTORS, *VALUES)}
    tried |= {"check_drift", "Metric", "list_models"}
    untried = {
        name
        for module in (lattice_embed, ops)
        for name in module.__all__
        if callable(getattr(module, name)) and name not in tried and not isinstance(getattr(module, name), type)
    }
    assert untried == set()


def test_integers_of_numpy_are_integers() -> None:
    description = ModelDescription(**{**DESCRIPTION, "native_dimensions": np.int64(8)})
    assert type(description.native_dimensions) is int
    made = VectorProvenance(model="m", dimensions=np.int32(8))  # type: ignore[arg-type]
    assert made.fingerprint == VectorProvenance(model="m", dimensions=8).fingerprint
