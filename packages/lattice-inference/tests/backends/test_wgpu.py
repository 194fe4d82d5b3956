"""WGPU on this machine's Vulkan adapter, which may be a CPU: weights, bits, whole models, a device that is lost."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
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
from lattice_inference.errors import (
    DeviceLostError,
    DeviceMemoryError,
    DeviceUnavailableError,
    NonFiniteError,
    UnsupportedError,
)
from lattice_inference.graph.batch import Batch
from lattice_inference.graph.builder import GraphBuilder
from lattice_inference.graph.program import KvSpec
from lattice_inference.quantize import quantize_int8

from .bodies import GPU_BODIES
from .programs import Tensors, batch_of, one_op, random_batch, random_bert, sequence_of
from .test_blocks import FORMATS, StoredTensors, dequantized, drawn_blocks

if not GPU_BODIES:
    pytest.skip("no adapter for WGPU, or not its package", allow_module_level=True)

from lattice_inference.backends.wgpu import WgpuBackend
from lattice_inference.backends.wgpu.device import open_device
from lattice_inference.backends.wgpu.encoding import PreparedDispatches

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
    backend = WgpuBackend(precision="stored", **options)
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
    ready = WgpuBackend(precision="stored").compile(program, StoredTensors({"w": weight}))
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
        backend = WgpuBackend(fused=fused)
        ready = backend.compile(program, Tensors(tensors))
        kinds.append({op.kind for op in ready.program.ops})
        results.append(ready.run(batch, state=backend.open_state(program.kv_specs, page_tokens=16, pages=3)))
    assert {"linear_silu_mul", "rope_kv_write"} <= kinds[0]
    assert not {"linear_silu_mul", "rope_kv_write"} & kinds[1]
    for name, array in results[0].items():
        assert array.tobytes() == results[1][name].tobytes()
        assert np.abs(array - want[name]).max() <= (2e-5 if name == "gated" else 2e-3) * np.abs(want[name]).max()


def test_few_rows_with_and_without_subgroups():
    weight = (np.random.default_rng(1).standard_normal((45, 512)) * 0.1).astype(np.float32)
    for rows in ROWS[:3]:
        for subgroups in (False, True):
            got, want, bound = decoder_linear(weight, rows, subgroups=subgroups)
            assert (np.abs(got - want) <= bound).all(), (rows, subgroups)


def test_fusions_cuts_company_and_steps_in_flight_change_no_byte():
    rng = np.random.default_rng(0)
    program, tensors = random_bert(rng)
    batch, other = random_batch(rng, [3, 17, 40]), random_batch(rng, [60])
    ready = WgpuBackend().compile(program, Tensors(tensors))
    want = ready.run(batch)
    exact = reference.run(program, tensors, batch)
    for name, array in want.items():
        assert np.abs(array - exact[name]).max() <= 2e-6 * np.abs(exact[name]).max()
    in_flight = [ready.submit(other), ready.submit(batch), ready.submit(other)]
    cut = WgpuBackend(max_binding_bytes=4096).compile(program, Tensors(tensors)).run(batch)
    unfused = WgpuBackend(fused=False).compile(program, Tensors(tensors)).run(batch)
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
        WgpuBackend().compile(program, Tensors(tensors)).run(batch)
    assert caught.value.rows == (1,)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_an_encoder_gives_the_results_of_the_cpu(data_directory, precision):
    with (
        load_encoder(data_directory / "tiny_bert", precision=precision, device="wgpu") as encoder,
        load_encoder(data_directory / "tiny_bert", precision=precision, backend="cpu") as plain,
    ):
        assert encoder.device == "wgpu"
        assert encoder.device_name in encoder.fingerprint
        assert ("software" in encoder.device_name) == open_device().description.is_software
        assert encoder.fingerprint != plain.fingerprint
        got, want = encoder.encode(TEXTS), plain.encode(TEXTS)
        tolerance = 1e-6 if precision != "bfloat16" else 2e-2  # the CPU may round rows to bfloat16, too
        np.testing.assert_allclose(got.vectors, want.vectors, atol=tolerance, rtol=0)
        if precision == "float32":
            assert encoder.space == plain.space
            assert pickle.loads(pickle.dumps(encoder)).device == "wgpu"


def test_a_cross_encoder_gives_the_scores_of_the_cpu(tmp_path):
    directory = write_directory(tmp_path / "scorer", CASES["cross-encoder-bert"])
    scores = []
    for device in ("cpu", "wgpu"):
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
    got, want = (logits(directory, device, precision="float32") for device in ("wgpu", "cpu"))
    np.testing.assert_allclose(got, want, atol=2e-5 * np.abs(want).max(), rtol=0)


def test_quantized_files_run_as_they_are(tmp_path):
    directory = write_directory(tmp_path / "llama", DECODERS["llama"])
    quantize_int8(directory, tmp_path / "int8")
    got, want = (logits(tmp_path / "int8", device, precision="stored") for device in ("wgpu", "cpu"))
    np.testing.assert_allclose(got, want, atol=2e-5 * np.abs(want).max(), rtol=0)
    with pytest.raises(UnsupportedError, match="activations='float32'"):
        load_model(tmp_path / "int8", device="wgpu", precision="stored", activations="int8")


def test_a_session_generates_the_tokens_of_the_cpu(tmp_path):
    directory = write_directory(tmp_path / "llama", DECODERS["llama"])
    results = []
    for device in ("cpu", "wgpu"):
        with load_model(directory, precision="float32", device=device) as model, Session(model) as session:
            results.append(session.generate([5, 6, 7], GenerateConfig.greedy(12)).token_ids)
    assert results[0] == results[1]
    assert len(results[0]) > 0


def test_the_real_minilm_gives_the_vectors_of_the_cpu(minilm_directory):
    texts = [f"{TEXTS[index % 3]} {index}" for index in range(50)]
    vectors = []
    for device in ("cpu", "wgpu"):
        with load_encoder(minilm_directory, device=device) as encoder:
            vectors.append(encoder.encode(texts).vectors)
    np.testing.assert_allclose(*vectors, atol=1e-6, rtol=0)


def test_the_real_smollm2_writes_the_tokens_of_the_cpu(smollm2):
    results = []
    for device in ("cpu", "wgpu"):
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
    for device in ("cpu", "wgpu"):
        with load_model(smollm2, precision="stored", activations="float32", device=device) as model:
            ids = np.array(model.tokenizer.encode(text).ids[:129], np.int32)
            assert len(ids) == 129
            with model.open_cache(tokens=160) as cache:
                rows = model.forward([Extension(cache.sequence(), ids[:-1], "all")]).astype(np.float64)
        rows -= rows.max(axis=1, keepdims=True)
        likelihoods = rows[np.arange(128), ids[1:]] - np.log(np.exp(rows).sum(axis=1))
        means.append(likelihoods.mean())
    assert abs(means[0] - means[1]) <= 1e-3


def test_the_packages_own_methods_give_the_same_bytes(monkeypatch):
    """A step is encoded by its C functions; a release without them is still served."""
    rng = np.random.default_rng(0)
    program, tensors = random_bert(rng)
    batch = random_batch(rng, [3, 17])
    assert open_device().prepare([]).is_direct
    want = WgpuBackend().compile(program, Tensors(tensors)).run(batch)["pooled"]
    made = []

    def prepare(self, dispatches):
        made.append(PreparedDispatches(dispatches, is_plain=True))
        return made[-1]

    monkeypatch.setattr(type(open_device()), "prepare", prepare)
    got = WgpuBackend().compile(program, Tensors(tensors)).run(batch)["pooled"]
    assert [each.is_direct for each in made] == [False]
    assert got.tobytes() == want.tobytes()


def answer_of_a_child(call):
    """What ``call`` raises in a forked child."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            call()
            os.write(writer, b"did it")
        except DeviceUnavailableError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    try:
        return os.read(reader, 1000).decode()
    finally:
        os.close(reader)


def test_a_forked_child_is_refused():
    """It is refused by its process id: a wait for the device would never end there."""
    rng = np.random.default_rng(0)
    program, tensors = random_bert(rng)
    ready, batch = WgpuBackend().compile(program, Tensors(tensors)), random_batch(rng, [3])
    pending = ready.submit(batch)
    for call in (open_device, lambda: ready.run(batch), pending.wait):
        assert "forked" in answer_of_a_child(call)
    assert pending.wait()["pooled"].tobytes() == ready.run(batch)["pooled"].tobytes()


def test_an_interrupt_ends_a_wait_and_the_step_is_still_there(request):
    rng = np.random.default_rng(0)
    program, tensors = random_bert(rng)
    ready, batch = WgpuBackend().compile(program, Tensors(tensors)), random_batch(rng, [200, 300])
    want = ready.run(batch)["pooled"]
    request.addfinalizer(partial(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT)))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupted = False
    for _ in range(20):  # until one comes while the device computes
        pending, done = ready.submit(batch), threading.Event()
        timer = threading.Timer(0.02, lambda done=done: done.is_set() or os.kill(os.getpid(), signal.SIGINT))
        try:
            timer.start()
            pending.wait()
            done.set()
            timer.join()
        except KeyboardInterrupt:
            interrupted = True
            timer.join()
        assert pending.wait()["pooled"].tobytes() == want.tobytes()
        if interrupted:
            break
    assert interrupted
    assert ready.run(batch)["pooled"].tobytes() == want.tobytes()


def test_eight_threads_generate_with_one_model(tmp_path):
    directory = write_directory(tmp_path / "llama", DECODERS["llama"])
    with load_model(directory, precision="float32", device="wgpu") as model:

        def generated(first):
            with Session(model) as session:
                return session.generate([first, 6, 7], GenerateConfig.greedy(6)).token_ids

        want = [generated(first) for first in range(3, 11)]
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(generated, range(3, 11))) == want


def test_a_buffer_above_the_devices_limit_is_told_in_bytes_and_the_device_goes_on():
    device = open_device()
    with pytest.raises(DeviceMemoryError, match="no buffers of 1,125,899,906,842,624 bytes: open a smaller cache"):
        device.buffer(1 << 50)
    assert not device.is_lost
    assert device.buffer(64).nbytes == 64


def test_a_device_takes_at_most_150_mb_of_this_process():
    code = """
from lattice_inference import load_model
from lattice_inference.memory.resident import resident_bytes
before = resident_bytes()
from lattice_inference.backends.wgpu.device import open_device
open_device()
print(resident_bytes() - before)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert 0 < int(run.stdout) <= 150e6


def step_after(pending, ready, batch):
    """Wait for a step that may have ended before the device was lost, then run another."""
    pending.wait()
    ready.run(batch)


def test_a_device_that_is_lost_says_so_and_loading_again_works():
    rng = np.random.default_rng(0)
    program, tensors = random_bert(rng)
    backend = WgpuBackend()
    ready, batch = backend.compile(program, Tensors(tensors)), random_batch(rng, [3])
    want = ready.run(batch)["pooled"]
    pending = ready.submit(batch)
    backend.device.destroy()
    with pytest.raises(DeviceLostError, match="load the model again"):
        step_after(pending, ready, batch)
    for _ in range(2):
        with pytest.raises(DeviceLostError):
            ready.run(batch)
    again = WgpuBackend()
    assert again.device is not backend.device
    assert again.compile(program, Tensors(tensors)).run(batch)["pooled"].tobytes() == want.tobytes()
