"""A valid call of every public callable that takes something, by its name, for :mod:`walk_public_callables`.

A call is built where it is needed: it is a pair of the callable and its arguments by name. Names that are digits stand for
arguments by position. Nothing here is checked: a call that does not succeed as it is fails the walk.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any

import numpy as np

import lattice_embed
import lattice_embed.migration
import lattice_embed.stores
import lattice_embed.vectors as vectors
import lattice_fann
import lattice_inference
import lattice_transport

__all__ = ["CALLS", "MADE_BY_THE_LIBRARY", "Call"]

Call = tuple[Callable[..., Any], dict[str, Any]]

CALLS: dict[str, Callable[[], Call]] = {}

#: Results and states, which callers are given and do not make.
MADE_BY_THE_LIBRARY = {
    "lattice_inference": {
        *{"CachedSequence", "CausalLanguageModel", "CrossEncoder", "EncodedTexts", "Encoder", "Encoding", "Extension"},
        *{"FinishReason", "GenerateResult", "GenerationStream", "KvCache", "LogitComparison", "MemoryReport"},
        *{"ModelFiles", "Perplexity", "StreamPiece", "TokenLogprobs", "Tokenizer"},
    },
    "lattice_embed": {
        *{"CacheStats", "DriftReport", "RankedDocument", "RemoteUsage", "ShardStats", "DocumentVersion", "Match"},
        *{
            "StoreOnDisk",
            "VectorStore",
            "EmbeddingService",
            "BackfillProgress",
            "QueryAnswer",
            "RoutingConfig",
            "Metric",
        },
        *{"HalfMatrix", "StoredMatrix", "StoredVector", "TopK", "BinaryVector", "Int4Vector", "QuantizedVector"},
        *{"BackfillCoordinator", "MigrationController", "MigrationPlan"},
        *{"code_of", "queries_for", "rows_for"},  # what the modules of vectors ask each other
    },
    "lattice_fann": {
        "EpochRecord",
        "GradientCheck",
        "Gradients",
        "InputScaling",
        "RlooStep",
        "Trainer",
        "TrainingResult",
    }
    | {"TrainingState"},
    "lattice_transport": {
        *{
            "BarycenterResult",
            "DivergenceGradient",
            "DivergenceResult",
            "DriftItems",
            "DriftObservation",
            "DriftReport",
        },
        *{"DriftSummary", "DriftVerdict", "EmdResult", "FreeSupportResult", "Gaussian", "SelfTerm", "SinkhornProgress"},
        *{"SinkhornResult", "SinkhornStage", "SparsePlan", "TestResult"},
    },
}


def call(name: str) -> Callable[[Callable[[], Call]], Callable[[], Call]]:
    """Register the call of ``name``, such as ``lattice_fann.Network.load``."""

    def register(build: Callable[[], Call]) -> Callable[[], Call]:
        CALLS[name] = build
        return build

    return register


def calls(prefix: str, subject: Callable[[], Any], arguments: dict[str, dict[str, Any]]) -> None:
    """Register calls of attributes of what ``subject`` makes. ``""`` is the thing itself; callable values are made late."""
    for name, given in arguments.items():

        def build(name: str = name, given: dict[str, Any] = given) -> Call:
            made = subject()
            late = {key: value() if callable(value) else value for key, value in given.items()}
            return (getattr(made, name) if name else made), late

        CALLS[f"{prefix}.{name}" if name else prefix] = build


def matrix(rows: int = 4, columns: int = 3) -> np.ndarray:
    """Return a matrix of float32 that is the same at every call."""
    return np.random.RandomState(rows * 100 + columns).standard_normal((rows, columns)).astype(np.float32)


# lattice_inference

_text = {"text": "a text"}


def encoder() -> lattice_inference.Encoder:
    """Return a small encoder."""
    return lattice_inference.load_encoder("encoder")


def tokenizer() -> lattice_inference.Tokenizer:
    """Return the tokenizer of the small decoder."""
    return lattice_inference.load_tokenizer("decoder")


def decoder() -> lattice_inference.CausalLanguageModel:
    """Return a small decoder."""
    return lattice_inference.load_model("decoder")


def session() -> lattice_inference.Session:
    """Return a session of the small decoder."""
    return lattice_inference.Session(decoder())


def started_session() -> lattice_inference.Session:
    """Return a session that has a text."""
    started = session()
    started.generate("a", _short())
    return started


def reranker() -> lattice_inference.CrossEncoder:
    """Return a small cross-encoder."""
    return lattice_inference.load_cross_encoder("reranker")


def _short() -> lattice_inference.GenerateConfig:
    return lattice_inference.GenerateConfig(max_new_tokens=2, seed=1)


def _cache() -> lattice_inference.KvCache:
    return decoder().open_cache(tokens=64)


_model = {"model": decoder}
calls(
    "lattice_inference",
    lambda: lattice_inference,
    {
        "load_encoder": {"path_or_name": "encoder"},
        "load_cross_encoder": {"path_or_name": "reranker"},
        "load_model": {"path_or_name": "decoder"},
        "load_tokenizer": {"path": "decoder"},
        "load_chat_template": {"path": "decoder"},
        "Session": _model,
        "SessionConfig": {},
        "GenerateConfig": {},
        "ChatTemplate": {"source": "{{ messages[0].content }}"},
        "Chat": {"session": session},
        "perplexity": _model | {"text": "a text that is long enough", "window": 8, "stride": 4},
        "compare_logits": {"reference": decoder}
        | _model
        | {"text": "a text that is long enough", "window": 8, "stride": 4},
        "memory_report": _model,
        "find_model": {"name": "./encoder"},
        "set_num_threads": {"threads": 1},
        "VectorCache": {"folder": "vector-cache"},
    },
)
calls(
    "lattice_inference.Encoder",
    encoder,
    {"encode": {"texts": ["a text"]}, "count_tokens": {"texts": ["a text"]}, "token_offsets": _text},
)
calls(
    "lattice_inference.CrossEncoder",
    reranker,
    {
        "score": {"query": "a", "documents": ["a text"]},
        "score_pairs": {"pairs": [("a", "b")]},
        "count_tokens": {"pairs": [("a", "b")]},
    },
)
calls(
    "lattice_inference.CausalLanguageModel",
    decoder,
    {"open_cache": {"tokens": 32}},
)


@call("lattice_inference.CausalLanguageModel.forward")
def _forward() -> Call:
    model = decoder()
    cache = model.open_cache(tokens=32)
    return model.forward, {"extensions": [lattice_inference.Extension(cache.start([1, 2]), [1, 2])]}


calls("lattice_inference.KvCache", _cache, {"start": {"token_ids": [1, 2]}})


@call("lattice_inference.KvCache.remember")
def _remember() -> Call:
    cache = _cache()
    return cache.remember, {"sequence": cache.start([1])}


@call("lattice_inference.KvCache.save")
def _save() -> Call:
    model = decoder()
    cache = model.open_cache(tokens=32)
    sequence = cache.start([1, 2])
    model.forward([lattice_inference.Extension(sequence, [1, 2])])
    return cache.save, {"path": "out-cache", "sequence": sequence}


@call("lattice_inference.KvCache.restore")
def _restore() -> Call:
    save, given = _save()
    save(**given)
    return _cache().restore, {"path": "out-cache"}


def _sequence() -> lattice_inference.CachedSequence:
    return _cache().start([1, 2])


calls("lattice_inference.CachedSequence", _sequence, {"reserve": {"tokens": 2}, "rewind": {"length": 0}})


@call("lattice_inference.CachedSequence.commit")
def _commit() -> Call:
    sequence = _sequence()
    sequence.reserve(2)
    return sequence.commit, {"token_ids": [1, 2]}


calls(
    "lattice_inference.Session",
    started_session,
    {
        "generate": {"prompt": "a", "config": _short},
        "extend": {"text": "a", "config": _short},
        "stream": {"prompt": "a", "config": _short},
        "generate_batch": {"prompts": ["a"], "config": _short},
        "rewind": {"length": 0},
    },
)
calls(
    "lattice_inference.Chat",
    lambda: lattice_inference.Chat(session(), config=_short()),
    {"send": _text, "stream": _text},
)
calls(
    "lattice_inference.GenerateConfig",
    lattice_inference.GenerateConfig,
    {"greedy": {}, "filled_from": {"other": lattice_inference.GenerateConfig()}, "resolve": {}},
)
calls(
    "lattice_inference.ChatTemplate",
    lambda: lattice_inference.ChatTemplate("{{ messages[0].content }}"),
    {"render": {"messages": [{"role": "user", "content": "a"}]}},
)
calls(
    "lattice_inference.Tokenizer",
    tokenizer,
    {
        "encode": _text,
        "encode_batch": {"texts": ["a"]},
        "encode_packed": {"texts": ["a"]},
        "decode": {"ids": [65]},
        "count": _text,
        "stream": {},
        "token_of": {"token_id": 65, "skip_special_tokens": True},
        "id_to_token": {"token_id": 65},
        "token_to_id": {"token": "a"},
        "special_token_count": {},
    },
)
calls(
    "lattice_inference.Encoding",
    lambda: tokenizer().encode("a"),
    {"padded": {"length": 8, "left": False, "token_id": 0, "type_id": 0}},
)
calls(
    "lattice_inference.VectorCache",
    lambda: lattice_inference.VectorCache("vector-cache"),
    {
        "get_many": {"keys": [b"k" * 32]},
        "look_up": {"keys": [b"k" * 32]},
        "put_many": {"entries": [(b"k" * 32, b"abcd")], "space": "s"},
        "clear": {},
    },
)


# lattice_embed


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
    _SERVICE | {"count_tokens": _TEXTS, "token_offsets": _text, "token_room": {}},
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
        "EmbeddingModel": {"0": "all-minilm-l6-v2"},
        "EmbeddingResult": {"vectors": matrix},
        "VectorProvenance": {"model": "m", "dimensions": 3},
        "check_drift": {"service": service, "baseline": _baseline},
    },
)
calls(
    "lattice_embed.CrossEncoder",
    lambda: lattice_embed.CrossEncoder("reranker"),
    {
        "score": {"query": "a", "documents": ["a text"]},
        "score_pairs": {"pairs": [("a", "b")]},
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
calls("lattice_embed.DriftBaseline", _baseline, {"save": {"path": "out-baseline.json"}})


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
    {"to_embedding_key": {"revision": "r"}},
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

# lattice_fann

_X, _Y = matrix(12, 3), np.arange(12) % 2


def network() -> lattice_fann.Network:
    """Return a small network."""
    builder = lattice_fann.NetworkBuilder().input(3).hidden(4, lattice_fann.Activation.RELU)
    return builder.output(2, lattice_fann.Activation.SOFTMAX).build(seed=0)


def _layer() -> lattice_fann.Layer:
    return lattice_fann.Layer(np.ones((2, 3), np.float32), np.zeros(2, np.float32))


def _trained(kind: str) -> Callable[[], Any]:
    return lambda: getattr(lattice_fann, kind)((4,), max_iter=2, random_state=0).fit(_X, _Y)


_config = {"config": lambda: lattice_fann.TrainingConfig(max_epochs=2, batch_size=4)}
_net = {"network": network}
calls(
    "lattice_fann",
    lambda: lattice_fann,
    {
        "Activation": {"tag": 1},
        "BackpropTrainer": _net | _config,
        "Layer": {"weights": np.ones((2, 3)), "biases": np.zeros(2)},
        "Network": {"layers": lambda: [_layer()]},
        "TrainingConfig": {},
        "MLPClassifier": {},
        "MLPRegressor": {},
        "CosineDecay": {},
        "ExponentialDecay": {},
        "LinearDecay": {},
        "StepDecay": {"every": 2},
        "Warmup": {"epochs": 2.0},
        "DiagonalFisher": {"size": 3},
        "RlooConfig": {},
        "RlooTrainer": {"gate": lambda: lattice_fann.NetworkBuilder().input(3).output(2).build(seed=0)},
        "load_balance_aux_loss": {"probabilities": np.full((2, 2), 0.5)},
        "router_z_loss": {"logits": matrix()},
        "backpropagate": _net | {"inputs": _X, "output_gradients": np.ones((12, 2), np.float32)},
        "check_gradients": _net | {"inputs": _X, "targets": _Y, "samples": 3},
        "gradients": _net | {"inputs": _X, "targets": _Y},
        "set_num_threads": {"0": 1},
    },
)
calls(
    "lattice_fann.Activation",
    lambda: lattice_fann.Activation,
    {"from_name": {"name": "relu"}, "leaky_relu": {"alpha": 0.1}},
)
calls(
    "lattice_fann.BackpropTrainer",
    lambda: lattice_fann.BackpropTrainer(network(), _config["config"]()),
    {"train": {"inputs": _X, "targets": _Y}},
)
calls("lattice_fann.Layer", _layer, {"forward": {"x": matrix(1)[0]}})
calls("lattice_fann.Layer", lambda: lattice_fann.Layer, {"create": {"num_inputs": 3, "num_outputs": 2}})
calls(
    "lattice_fann.Network",
    network,
    {
        "forward": {"x": matrix(1)[0]},
        "forward_batch": {"x": _X},
        "layer_outputs": {"x": matrix(1)[0]},
        "fit_input_scaling": {"x": _X},
        "save": {"path": "out.fann"},
        "to_bytes": {},
        "set_parameter_vector": {"vector": lambda: network().parameter_vector()},
    },
)
calls(
    "lattice_fann.Network",
    lambda: lattice_fann.Network,
    {"load": {"path": "network.fann"}, "from_bytes": {"content": lambda: network().to_bytes()}},
)
calls(
    "lattice_fann.NetworkBuilder",
    lattice_fann.NetworkBuilder,
    {"input": {"size": 3}},
)
calls(
    "lattice_fann.NetworkBuilder",
    lambda: lattice_fann.NetworkBuilder().input(3),
    {"hidden": {"size": 3}, "output": {"size": 3}, "dense": {"size": 3}},
)
calls("lattice_fann.NetworkBuilder", lambda: lattice_fann.NetworkBuilder().input(3).output(2), {"build": {}})
for _name in ("MLPClassifier", "MLPRegressor"):
    _kind = getattr(lattice_fann, _name)
    calls(f"lattice_fann.{_name}", lambda kind=_kind: kind((4,), max_iter=2), {"fit": {"x": _X, "y": _Y}})
    calls(f"lattice_fann.{_name}", lambda kind=_kind: kind((4,), max_iter=2), {"partial_fit": {"x": _X, "y": _Y}})
    calls(
        f"lattice_fann.{_name}",
        _trained(_name),
        {"predict": {"x": _X}, "score": {"x": _X, "y": _Y}, "get_params": {}},
    )
calls(
    "lattice_fann.MLPClassifier",
    _trained("MLPClassifier"),
    {"predict_proba": {"x": _X}, "predict_log_proba": {"x": _X}},
)
calls(
    "lattice_fann.DiagonalFisher",
    lambda: lattice_fann.DiagonalFisher(3),
    {
        "observe_gradient": {"gradient": np.ones(3)},
        "penalty": {"parameters": np.ones(3), "strength": 1.0},
        "penalty_gradient": {"parameters": np.ones(3), "strength": 1.0},
        "project_delta": {"delta": np.ones(3)},
        "set_anchor": {"parameters": np.ones(3)},
    },
)


def _rloo() -> lattice_fann.RlooTrainer:
    return lattice_fann.RlooTrainer(lattice_fann.NetworkBuilder().input(3).output(2).build(seed=0), seed=0)


calls(
    "lattice_fann.RlooTrainer",
    _rloo,
    {
        "probabilities": {"context": matrix(1)[0]},
        "step": {"context": matrix(1)[0], "action": 0, "reward": 1.0},
        "rloo_step": {"context": matrix(1)[0], "preferred": 0},
    },
)

# lattice_transport

_x, _y = matrix(6, 2).astype(np.float64), matrix(5, 2).astype(np.float64)
_cost = np.abs(_x[:, :1] - _y[:, 0])


def _clouds() -> lattice_transport.PointClouds:
    return lattice_transport.PointClouds(_x, _y)


def _solved() -> lattice_transport.SinkhornResult:
    return lattice_transport.solve(None, None, _clouds(), epsilon=1.0)


_balanced = {"a": np.full(6, 1 / 6), "b": np.full(5, 1 / 5), "cost": _cost, "epsilon": 1.0}
_points = {"x": _x, "y": _y}
_detector = {"window_size": 16, "check_interval": 8}
calls(
    "lattice_transport",
    lambda: lattice_transport,
    {
        "EpsilonSchedule": {"start": 1.0},
        "OnlineDriftDetector": _detector,
        "PointClouds": _points,
        "SinkhornConfig": {},
        "SinkhornWorkspace": {"rows": 3, "columns": 3},
        "VectorSet": {"vectors": _x},
        "barycenter": {"costs": [_cost.T, _cost.T], "epsilon": 1.0},
        "barycentric_projection": {"result": _solved, "y": _y},
        "cost_matrix": _points,
        "detect_drift": {"reference": matrix(30, 2), "current": matrix(20, 2), "permutations": 19},
        "divergence_gradient": {
            "divergence": lambda: lattice_transport.sinkhorn_divergence(None, None, _clouds(), epsilon=1.0),
            "clouds": _clouds,
        },
        "emd": {key: _balanced[key] for key in ("a", "b", "cost")},
        "extract_sparse_plan": {"result": _solved},
        "fit_gaussian": {"points": _x},
        "free_support_barycenter": {"measures": [_x, _y], "initial": _x[:3], "epsilon": 1.0},
        "gaussian_wasserstein": {
            "first": lambda: lattice_transport.fit_gaussian(_x),
            "second": lambda: lattice_transport.fit_gaussian(_y),
        },
        "normalize_weights": {"weights": [1.0, 2.0]},
        "self_term": {"points": _x},
        "sinkhorn_divergence": {"a": None, "b": None, "cost": _clouds, "epsilon": 1.0},
        "sliced_wasserstein": _points,
        "solve": _balanced,
        "solve_batch": {"problems": [(None, None, _cost)]},
        "solve_unbalanced": _balanced,
        "transport_gradient": {"result": _solved, "clouds": _clouds},
        "uniform_weights": {"count": 3},
        "wasserstein_1d": {"x": _x[:, 0], "y": _y[:, 0]},
        "weight_gradients": {"result": _solved},
    },
)
calls("lattice_transport.EpsilonSchedule", lambda: lattice_transport.EpsilonSchedule(1.0), {"stages": {"target": 0.5}})
calls(
    "lattice_transport.OnlineDriftDetector",
    lambda: lattice_transport.OnlineDriftDetector(**_detector),
    {"observe": {"vector": _x[0]}, "save": {"path": "out.npz"}},
)


@call("lattice_transport.OnlineDriftDetector.restore")
def _restored() -> Call:
    lattice_transport.OnlineDriftDetector(**_detector).save("out.npz")
    return lattice_transport.OnlineDriftDetector.restore, {"path": "out.npz"}


calls("lattice_transport.SinkhornResult", _solved, {"plan_blocks": {}})
calls("lattice_transport.VectorSet", lambda: lattice_transport.VectorSet(_x), {"subset": {"kept": np.array([0, 1])}})
