"""Programs and whole models on a GPU: weights as the file has them, fusions, bits, the CPU's results."""

from __future__ import annotations

import json
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest

from drawn_checkpoints import write_directory
from lattice_inference import (
    Extension,
    GenerateConfig,
    Session,
    load_cross_encoder,
    load_encoder,
    load_model,
)
from lattice_inference.backends import reference
from lattice_inference.backends.reference_state import ReferenceState
from lattice_inference.errors import NonFiniteError, UnsupportedError
from lattice_inference.graph.batch import Batch
from lattice_inference.graph.builder import GraphBuilder
from lattice_inference.graph.program import KvSpec
from lattice_inference.quantize import quantize_int8

from .bodies import DEVICE, GPU_BODIES, gpu_backend
from .programs import Tensors, batch_of, one_op, random_batch, random_bert, sequence_of
from .test_blocks import FORMATS, StoredTensors, dequantized, drawn_blocks

if not GPU_BODIES:
    pytest.skip("no GPU, nor one that is emulated", allow_module_level=True)

pytestmark = pytest.mark.slow
DATA = Path(__file__).parents[1] / "data"
CASES = json.loads((DATA / "architectures" / "cases.json").read_text())["cases"]
DECODERS = json.loads((DATA / "decoders" / "cases.json").read_text())["cases"]
TEXTS = ["The cat sat on the mat.", "a", "Dogs and cats are not the same animal, says a zebra."]
EPSILON = float(np.finfo(np.float32).eps)
ROWS = (1, 3, 8, 35)  # kernels of few rows, and of many


def decoder_linear(weight, rows, **options):
    """Return what a linear gives for ``rows`` rows: its program keeps pages, so it has kernels of few rows too."""
    rng = np.random.default_rng(rows)
    depth = 512
    x = rng.standard_normal((rows, depth)).astype(np.float32)
    g = GraphBuilder()
    view = g.embed_rows(g.weight("x", x.shape, use="rows"), ids="token_ids")
    key = g.linear(view, g.weight("k", (16, depth)))
    g.kv_write(key, key, layer=0, kv_heads=1, head_dim=16)
    shape = (len(weight[1]) if isinstance(weight, tuple) else len(weight), depth)
    y = g.gelu(g.linear(view, g.weight("w", shape)))
    program = g.build({"y": y}, kv_specs=[KvSpec(0, 1, 16, "float32")])
    tensors = {"x": x, "w": weight, "k": np.zeros((16, depth), np.float32)}
    backend = gpu_backend(precision="stored", **options)
    state = backend.open_state(program.kv_specs, page_tokens=16, pages=4)
    batch = Batch(
        np.arange(rows, dtype=np.int32),
        np.array([0, rows], np.int32),
        context_lengths=np.zeros(1, np.int32),
        block_table=(np.arange(4, dtype=np.int32),),
    )
    got = backend.compile(program, StoredTensors(tensors)).run(batch, state=state)["y"]
    w = (dequantized(weight) if isinstance(weight, tuple) else weight).astype(np.float64)
    product = x.astype(np.float64) @ w.T
    program, _ = one_op({"p": product.astype(np.float64)}, lambda g, v: g.gelu(v["p"]))
    want = reference.run(program, {"p": product}, batch_of([rows]))["y"]
    bound = EPSILON * (depth + 4) * (np.abs(x) @ np.abs(w).T) * 1.2
    return got, want, bound


@pytest.mark.parametrize("format", FORMATS)
def test_blocks_are_multiplied_and_looked_up_as_the_file_has_them(format):
    weight = drawn_blocks(format, rows=45, depth=512)
    for rows in ROWS:
        got, want, bound = decoder_linear(weight, rows)
        assert (np.abs(got - want) <= bound).all(), rows
    got, want, bound = decoder_linear(weight, 3, max_binding_bytes=5000)
    assert (np.abs(got - want) <= bound).all()
    g = GraphBuilder()
    program = g.build({"y": g.embed_rows(g.weight("w", (45, 512), use="rows"), ids="token_ids")})
    ready = gpu_backend(precision="stored").compile(program, StoredTensors({"w": weight}))
    assert np.abs(ready.run(batch_of([45]))["y"] - dequantized(weight)).max() <= 1e-6
    sizes = ready.weight_sizes
    assert [size.dtype for size in sizes] == [format]
    assert sizes[0].nbytes == weight[1].nbytes  # as many bytes as in the file


def gated_program(rng, rows, *, inner=37, hidden=24):
    """A layer's second half beside pages: gate and up with silu_mul, and keys that are rotated as they are written."""
    g = GraphBuilder()
    x = g.embed_rows(g.weight("x", (rows, hidden), use="rows"), ids="token_ids")
    angles = g.rope_angles(g.weight("f", (3,), use="vector"))
    rotated = g.rope(g.linear(x, g.weight("k", (2 * 8, hidden))), angles, heads=2, head_dim=8, pairing="interleaved")
    g.kv_write(rotated, g.linear(x, g.weight("v", (16, hidden))), layer=0, kv_heads=2, head_dim=8)
    query = g.rope(g.linear(x, g.weight("q", (16, hidden))), angles, heads=2, head_dim=8, pairing="interleaved")
    seen = g.paged_attention(query, layer=0, heads=2, kv_heads=2, head_dim=8, scale=0.3)
    gated = g.mul(g.silu(g.linear(x, g.weight("gate", (inner, hidden)))), g.linear(x, g.weight("up", (inner, hidden))))
    program = g.build({"gated": gated, "seen": seen}, kv_specs=[KvSpec(0, 2, 8, "int8")])
    shapes = {"x": (rows, hidden), "k": (16, hidden), "v": (16, hidden), "q": (16, hidden)}
    shapes |= {"gate": (inner, hidden), "up": (inner, hidden)}
    tensors = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return program, tensors | {"f": np.array([1.0, 0.3, 0.05], np.float32)}


@pytest.mark.parametrize("rows", [1, 7, 33])
def test_what_gpus_join_beyond_the_cpu_changes_no_byte(rows):
    program, tensors = gated_program(np.random.default_rng(rows), rows)
    batch = Batch(
        np.arange(rows, dtype=np.int32),
        np.array([0, rows], np.int32),
        context_lengths=np.zeros(1, np.int32),
        block_table=(np.array([2, 0, 1], np.int32),),
    )
    twin = ReferenceState(program.kv_specs, page_tokens=16, pages=3)
    want = reference.run(program, tensors, batch, state=twin)
    results, kinds = [], []
    for fused in (True, False):
        backend = gpu_backend(fused=fused)
        ready = backend.compile(program, Tensors(tensors))
        kinds.append({op.kind for op in ready.program.ops})
        results.append(ready.run(batch, state=backend.open_state(program.kv_specs, page_tokens=16, pages=3)))
    assert {"linear_silu_mul", "rope_kv_write"} <= kinds[0]
    assert not {"linear_silu_mul", "rope_kv_write"} & kinds[1]
    for name, array in results[0].items():
        assert array.tobytes() == results[1][name].tobytes()
        assert np.abs(array - want[name]).max() <= (2e-5 if name == "gated" else 2e-3) * np.abs(want[name]).max()


def test_fusions_cuts_company_and_steps_in_flight_change_no_byte():
    rng = np.random.default_rng(0)
    program, tensors = random_bert(rng)
    batch, other = random_batch(rng, [3, 17, 40]), random_batch(rng, [60])
    ready = gpu_backend().compile(program, Tensors(tensors))
    want = ready.run(batch)
    exact = reference.run(program, tensors, batch)
    for name, array in want.items():
        assert np.abs(array - exact[name]).max() <= 2e-6 * np.abs(exact[name]).max()
    in_flight = [ready.submit(other), ready.submit(batch), ready.submit(other)]
    cut = gpu_backend(max_binding_bytes=4096).compile(program, Tensors(tensors)).run(batch)
    unfused = gpu_backend(fused=False).compile(program, Tensors(tensors)).run(batch)
    for name, array in want.items():
        for again in (in_flight[1].wait(), ready.run(batch), cut, unfused):
            assert again[name].tobytes() == array.tobytes()
        assert in_flight[0].wait()[name].tobytes() == in_flight[2].wait()[name].tobytes()
        for index in range(3):
            assert ready.run(sequence_of(batch, index))[name].tobytes() == array[index].tobytes()
    found = []
    threads = [threading.Thread(target=lambda: found.append(ready.run(batch)["pooled"].tobytes())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) == {want["pooled"].tobytes()}
    assert len(found) == 8


def test_numbers_that_are_none_are_told_with_their_rows():
    rng = np.random.default_rng(0)
    program, tensors = random_bert(rng)
    tensors["words"][5] = np.nan
    batch = random_batch(rng, [4, 6, 3])
    batch.token_ids[:] = np.where(batch.token_ids == 5, 6, batch.token_ids)
    batch.token_ids[6] = 5
    with pytest.raises(NonFiniteError) as caught:
        gpu_backend().compile(program, Tensors(tensors)).run(batch)
    assert caught.value.rows == (1,)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_an_encoder_gives_the_results_of_the_cpu(data_directory, precision):
    with (
        load_encoder(data_directory / "tiny_bert", precision=precision, device=DEVICE) as encoder,
        load_encoder(data_directory / "tiny_bert", precision=precision, backend="cpu") as plain,
    ):
        assert encoder.device == DEVICE
        assert encoder.device_name in encoder.fingerprint
        assert encoder.fingerprint != plain.fingerprint
        got, want = encoder.encode(TEXTS), plain.encode(TEXTS)
        tolerance = 1e-6 if precision != "bfloat16" else 2e-2  # the CPU may round rows to bfloat16, too
        np.testing.assert_allclose(got.vectors, want.vectors, atol=tolerance, rtol=0)
        if precision == "float32":
            assert encoder.space == plain.space
            assert pickle.loads(pickle.dumps(encoder)).device == DEVICE


def test_a_cross_encoder_gives_the_scores_of_the_cpu(tmp_path):
    directory = write_directory(tmp_path / "scorer", CASES["cross-encoder-bert"])
    scores = []
    for device in ("cpu", DEVICE):
        with load_cross_encoder(directory, device=device) as scorer:
            assert scorer.device == device
            scores.append(scorer.score("the cat", TEXTS))
    np.testing.assert_allclose(*scores, atol=1e-6, rtol=0)


def logits(path, device, **options):
    """Prompts of two sequences in chunks, a fork, and tokens one by one."""
    ids = np.arange(3, 40, dtype=np.int32)
    with (
        load_model(path, activations="float32", device=device, **options) as model,
        model.open_cache(tokens=256, dtype="float32", page_tokens=16) as cache,
    ):
        assert model.activations == "float32"
        a = cache.sequence()
        first = model.forward([Extension(a, ids[:20], "all")])
        b = a.fork()
        rest = model.forward([Extension(a, ids[20:], "all"), Extension(b, ids[5:9], "last")])
        a.rewind(18)  # writes to a page that b shares
        again = model.forward([Extension(a, ids[:3], "all"), Extension(b, ids[:1], "last")])
    return np.concatenate([first, rest, again])


@pytest.mark.parametrize("name", ["llama-wide-heads", "yarn-rope", "mistral", "qwen2", "qwen3-with-windows"])
def test_decoders_give_the_logits_of_the_cpu(name, tmp_path):
    directory = write_directory(tmp_path / name, DECODERS[name])
    got, want = (logits(directory, device, precision="float32") for device in (DEVICE, "cpu"))
    np.testing.assert_allclose(got, want, atol=2e-5 * np.abs(want).max(), rtol=0)


def test_quantized_files_run_as_they_are(tmp_path):
    directory = write_directory(tmp_path / "llama", DECODERS["llama"])
    quantize_int8(directory, tmp_path / "int8")
    got, want = (logits(tmp_path / "int8", device, precision="stored") for device in (DEVICE, "cpu"))
    np.testing.assert_allclose(got, want, atol=2e-5 * np.abs(want).max(), rtol=0)
    with pytest.raises(UnsupportedError, match="activations='float32'"):
        load_model(tmp_path / "int8", device=DEVICE, precision="stored", activations="int8")


def test_a_session_generates_the_tokens_of_the_cpu(tmp_path):
    directory = write_directory(tmp_path / "llama", DECODERS["llama"])
    results = []
    for device in ("cpu", DEVICE):
        with load_model(directory, precision="float32", device=device) as model, Session(model) as session:
            results.append(session.generate([5, 6, 7], GenerateConfig.greedy(12)).token_ids)
    assert results[0] == results[1]
    assert len(results[0]) > 0


def test_the_real_minilm_gives_the_vectors_of_the_cpu(minilm_directory):
    texts = [f"{TEXTS[index % 3]} {index}" for index in range(50)]
    vectors = []
    for device in ("cpu", DEVICE):
        with load_encoder(minilm_directory, device=device) as encoder:
            vectors.append(encoder.encode(texts).vectors)
    np.testing.assert_allclose(*vectors, atol=1e-6, rtol=0)


def test_the_real_smollm2_writes_the_tokens_of_the_cpu(smollm2):
    results = []
    for device in ("cpu", DEVICE):
        with (
            load_model(smollm2, precision="stored", activations="float32", device=device) as model,
            Session(model) as session,
        ):
            for prompt in ("The capital of France is", "Water boils at"):
                session.reset()
                results.append(session.generate(prompt, GenerateConfig.greedy(24)).token_ids)
    assert results[:2] == results[2:]
    assert all(len(ids) > 3 for ids in results)


def test_the_real_smollm2_finds_a_text_as_likely_as_the_cpu_does(smollm2):
    text = (DATA / "wikitext2" / "wiki.test.excerpt.raw").read_text(encoding="utf-8")[:2000]
    means = []
    for device in ("cpu", DEVICE):
        with load_model(smollm2, precision="stored", activations="float32", device=device) as model:
            ids = np.array(model.tokenizer.encode(text).ids[:129], np.int32)
            assert len(ids) == 129
            with model.open_cache(tokens=160) as cache:
                rows = model.forward([Extension(cache.sequence(), ids[:-1], "all")]).astype(np.float64)
        rows -= rows.max(axis=1, keepdims=True)
        likelihoods = rows[np.arange(128), ids[1:]] - np.log(np.exp(rows).sum(axis=1))
        means.append(likelihoods.mean())
    assert abs(means[0] - means[1]) <= 1e-3
