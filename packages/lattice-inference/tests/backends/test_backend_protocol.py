"""Backends are one to their callers: the same results, the same refusals, and no class of theirs is named."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import numpy as np
import pytest

import lattice_inference
from drawn_checkpoints import write_directory
from lattice_inference import Extension, GenerateConfig, Session, load_cross_encoder, load_encoder, load_model
from lattice_inference.backends.opening import open_backend
from lattice_inference.errors import InvalidInputError, NonFiniteError, UnsupportedError
from lattice_inference.generate.decoder_program import DecoderProgram
from lattice_inference.graph.batch import Batch
from lattice_inference.graph.builder import GraphBuilder
from lattice_inference.graph.program import KvSpec

from .programs import Tensors

DATA = Path(__file__).parents[1] / "data"
CASES = json.loads((DATA / "architectures" / "cases.json").read_text())["cases"]
DECODERS = json.loads((DATA / "decoders" / "cases.json").read_text())["cases"]
TEXTS = ["The cat sat on the mat.", "a", "Dogs and cats are not the same animal, says a zebra."]
BACKENDS = ("cpu", "reference")


@pytest.fixture(scope="module")
def decoder_directory(tmp_path_factory):
    return write_directory(tmp_path_factory.mktemp("protocol") / "llama", DECODERS["llama"])


def test_an_encoder_gives_the_reference_results(data_directory):
    found = {}
    for backend in BACKENDS:
        with load_encoder(data_directory / "tiny_bert", backend=backend) as encoder:
            found[backend] = encoder.encode(TEXTS)
    assert found["reference"].vectors.dtype == np.float32
    assert (found["reference"].token_counts == found["cpu"].token_counts).all()
    np.testing.assert_allclose(found["cpu"].vectors, found["reference"].vectors, atol=1e-6, rtol=0)


def test_a_cross_encoder_gives_the_reference_results(tmp_path):
    directory = write_directory(tmp_path / "scorer", CASES["cross-encoder-bert"])
    scores = []
    for backend in BACKENDS:
        with load_cross_encoder(directory, backend=backend) as scorer:
            scores.append(scorer.score("the cat", TEXTS))
    np.testing.assert_allclose(*scores, atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_a_decoder_gives_the_reference_results(decoder_directory, dtype):
    ids = np.arange(3, 40, dtype=np.int32)
    found = []
    for backend in BACKENDS:
        with load_model(decoder_directory, precision="float32", backend=backend) as model:
            with model.open_cache(tokens=256, dtype=dtype, page_tokens=16) as cache:
                a = cache.sequence()
                first = model.forward([Extension(a, ids[:20], "all")])
                b = a.fork()
                rest = model.forward([Extension(a, ids[20:], "all"), Extension(b, ids[5:9], "last")])
                a.rewind(18)  # writes to a page that b shares
                again = model.forward([Extension(a, ids[:3], "all"), Extension(b, ids[:1], "last")])
            found.append(np.concatenate([first, rest, again]))
    scale = np.abs(found[1]).max()
    # a key that one of the two rounds the other way moves a logit a little
    tolerance = {"float32": 2e-5, "float16": 1e-3, "bfloat16": 8e-3, "int8": 8e-3}[dtype]
    np.testing.assert_allclose(found[0], found[1], atol=tolerance * scale, rtol=0)


def test_a_session_of_the_reference_generates_the_same_tokens(decoder_directory):
    results = []
    for backend in BACKENDS:
        with load_model(decoder_directory, precision="float32", backend=backend) as model:
            assert (":reference" in model.fingerprint) == (backend == "reference")
            with Session(model) as session:
                results.append(session.generate([5, 6, 7], GenerateConfig.greedy(12)).token_ids)
    assert results[0] == results[1]
    assert len(results[0]) > 0


def test_what_the_reference_would_not_do_is_refused(data_directory, decoder_directory):
    for options, message in (
        ({"threads": 2}, "takes no threads=2"),
        ({"precision": "bfloat16"}, "rounds no weights to bfloat16"),
        ({"precision": "int8"}, "rounds no weights to int8"),
    ):
        with pytest.raises(UnsupportedError, match=message):
            load_encoder(data_directory / "tiny_bert", backend="reference", **options)
    for load, path in ((load_encoder, data_directory / "tiny_bert"), (load_model, decoder_directory)):
        with pytest.raises(UnsupportedError, match="backend must be one of cpu, reference, not 'gpu'"):
            load(path, backend="gpu")


@pytest.mark.parametrize("activations", ["int8", "float32"])
def test_quantized_weights_need_float_activations_in_the_reference(decoder_directory, tmp_path, activations):
    from lattice_inference.quantize import quantize_int8

    quantize_int8(decoder_directory, tmp_path / "int8")
    if activations == "int8":
        with pytest.raises(UnsupportedError, match="rounds no rows to integers: pass activations='float32'"):
            load_model(tmp_path / "int8", backend="reference")
        return
    found = []
    for backend in BACKENDS:
        with (
            load_model(tmp_path / "int8", activations=activations, backend=backend) as model,
            model.open_cache(tokens=64, dtype="float32") as cache,
        ):
            found.append(model.forward([Extension(cache.sequence(), [3, 4, 5], "all")]))
    np.testing.assert_allclose(found[0], found[1], atol=2e-5 * np.abs(found[1]).max(), rtol=0)


def _lookup():
    """A program that looks up ids in two tables, with the tables."""
    rng = np.random.default_rng(0)
    tables = {"words": rng.standard_normal((7, 16)), "types": rng.standard_normal((2, 16))}
    graph = GraphBuilder()
    words = graph.embed_rows(graph.weight("words", (7, 16), use="rows"), ids="token_ids")
    types = graph.embed_rows(graph.weight("types", (2, 16), use="rows"), ids="token_type_ids")
    return graph.build({"y": graph.add(words, types)}), Tensors({k: v.astype(np.float32) for k, v in tables.items()})


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token_ids": [1, 2, 7]}, "token_ids of sequence 1 holds 7, which the model's table has no row for"),
        ({"token_ids": [-1, 2, 3]}, "token_ids of sequence 0 holds -1"),
        ({"token_type_ids": [0, 1, 2]}, "token_type_ids of sequence 1 holds 2"),
        ({"context_lengths": [0, 0]}, "this program keeps no state"),
        ({"logit_rows": [0]}, "this program keeps no state"),
    ],
)
def test_every_backend_refuses_a_bad_batch_alike(backend, changes, message):
    program, tensors = _lookup()
    ready = open_backend(backend).compile(program, tensors)
    fields = {"token_ids": [1, 2, 3], "cu_seqlens": [0, 2, 3], "token_type_ids": [0, 1, 1]}
    batch = Batch(**{name: np.array(value, np.int32) for name, value in {**fields, **changes}.items()})
    for call in (ready.run, ready.submit):
        with pytest.raises(InvalidInputError, match=message):
            call(batch)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_submits_and_closes_alike(backend):
    program, tensors = _lookup()
    ready = open_backend(backend).compile(program, tensors)
    batch = Batch(np.array([1, 2, 3], np.int32), np.array([0, 2, 3], np.int32))
    pending = ready.submit(batch, outputs=("y",))
    assert (pending.wait()["y"] == ready.run(batch)["y"]).all()
    assert ready.submit(batch, outputs=()).wait() == {}
    assert ready.step_tokens > 0
    assert sum(size.nbytes for size in ready.weight_sizes) >= 4 * 9 * 16
    ready.trim()
    for _ in range(2):
        ready.close()
    for call in (ready.run, ready.submit):
        with pytest.raises(InvalidInputError, match="closed"):
            call(batch)
    assert pending.wait()["y"].shape == (3, 16)


@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_that_are_none_are_told_when_they_are_waited_for(backend):
    program, tensors = _lookup()
    tensors.tensors["words"][2, 5] = np.inf
    pending = (
        open_backend(backend)
        .compile(program, tensors)
        .submit(Batch(np.array([1, 2], np.int32), np.array([0, 2], np.int32)))
    )
    with pytest.raises(NonFiniteError, match="rows") as caught:
        pending.wait()
    assert caught.value.rows == (1,)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_table": ([0],)}, "sequence 0 needs room for 20 tokens and has 1 pages"),
        ({"block_table": ([0, 4],)}, "there is no page 4 among 4"),
        ({"block_table": ([-1, 1],)}, "there is no page -1 among 4"),
        ({"block_table": None}, "it needs a state, and a batch with context_lengths and block_table"),
        ({"state": None}, "it needs a state"),
        ({"heads": 1}, "opened for another program"),
        ({"of": "other"}, "was not opened by this model"),
    ],
)
def test_every_backend_refuses_bad_pages_alike(backend, changes, message, decoder_directory):
    from lattice_inference.models.family import LOGITS
    from lattice_inference.models.opened_model import open_model

    with open_model(decoder_directory, causal=True) as opened:
        program, source = opened.program(LOGITS), opened.tensors(LOGITS)
        ready = open_backend(backend).compile(program, source)
    specs = [KvSpec(s.layer, changes.get("heads", s.kv_heads), s.head_dim, "float32") for s in program.kv_specs]
    other = BACKENDS[1 - BACKENDS.index(backend)]
    opener = open_backend(other if changes.get("of") else backend)
    state = opener.open_state(specs, page_tokens=16, pages=4) if "state" not in changes else None
    table = changes.get("block_table", ([0, 1],))
    batch = Batch(
        np.arange(3, 8, dtype=np.int32),
        np.array([0, 5], np.int32),
        context_lengths=np.array([15], np.int32),
        block_table=None if table is None else tuple(np.array(row, np.int32) for row in table),
        logit_rows=np.array([4], np.int32),
    )
    with pytest.raises(InvalidInputError, match=message):
        ready.run(batch, state=state)


def test_a_decoder_has_steps_of_its_backend(decoder_directory):
    assert not hasattr(DecoderProgram, "STEP_TOKENS")
    with load_model(decoder_directory, precision="float32") as model:
        assert model._program._program.step_tokens >= 16


def _classes(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)}


def test_none_outside_of_the_cpu_backend_names_its_classes():
    root = Path(lattice_inference.__file__).parent
    own = root / "backends" / "cpu"
    classes = {name for path in own.rglob("*.py") for name in _classes(path) if not name.startswith("_")}
    assert {"CpuBackend", "CpuProgram", "CpuState", "WeightForms"} <= classes
    named = {}
    packages = Path(__file__).parents[3]
    for path in (*root.rglob("*.py"), *packages.glob("lattice-[!i]*/src/**/*.py")):
        if own in path.parents or path == root / "backends" / "opening.py":  # which makes a backend by its name
            continue
        text = path.read_text()
        if not any(name in text for name in classes):
            continue
        tree = ast.parse(text)
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        names |= {a.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for a in node.names}
        if found := names & (classes - _classes(path)):
            named[str(path)] = found
    assert named == {}
