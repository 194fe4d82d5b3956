"""The host code for Metal over a stand-in device: the very Objective-C, compiled by gcc, with kernels that the CPU runs."""

from __future__ import annotations

import gc
import json
import mmap
import os
import re
import shutil
import subprocess
import threading
import zipfile
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

from lattice_inference import GenerateConfig, Session, load_encoder, load_model
from lattice_inference.backends import reference
from lattice_inference.backends.gpu.device import Dispatch, Span
from lattice_inference.backends.gpu.mapped_weights import mapping_of
from lattice_inference.backends.metal import MetalBackend, device
from lattice_inference.backends.metal.kernel_source import THREADS, assembled_source
from lattice_inference.backends.opening import open_backend
from lattice_inference.cli import doctor_command
from lattice_inference.errors import DeviceLostError, DeviceMemoryError, DeviceUnavailableError, UnsupportedError
from lattice_inference.memory.device_need import device_need
from lattice_inference.memory.fit import estimate_memory

from .metal_host import TOOLS, loaded_host, needs_host
from .programs import Tensors, random_batch, random_bert

pytestmark = [pytest.mark.slow, needs_host()]
PAGE = mmap.PAGESIZE
METAL = TOOLS.parents[1] / "packages/lattice-inference/src/lattice_inference/backends/metal"  # wheels have less


@pytest.fixture(scope="module")
def host():
    with loaded_host() as fake:
        yield fake


@pytest.fixture
def metal(host, monkeypatch):
    """The stand-in, without a device that is open and with its first settings."""
    device._opened.forget()
    gc.collect()
    host.reset()
    monkeypatch.delenv("LATTICE_MAP_WEIGHTS", raising=False)
    yield host
    host.reset()
    device._opened.forget()


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A tiny Llama of drawn weights in Q8_0, as a GGUF file."""
    import sys

    sys.path.insert(0, str(TOOLS.parent / "models"))
    import random_llama

    path = tmp_path_factory.mktemp("llama") / "tiny.gguf"
    random_llama.write_random_llama(path, random_llama.SHAPES["tiny"], "Q8_0")
    return path


def bert(seed=0):
    rng = np.random.default_rng(seed)
    program, tensors = random_bert(rng)
    return program, tensors, random_batch(rng, [5, 9, 1])


def tokens_of(model, count=6):
    with Session(model) as session:
        return session.generate([1, 5, 9, 2], GenerateConfig.greedy(count)).token_ids


# --- opening ---


def test_the_source_serves_without_a_library_and_has_no_fast_math(metal):
    opened = device.open_device()
    assert opened.description.identity == "metal:EMULATED Metal device:macOS 15.1.0"
    assert opened.library == "source compiled here, since no library was built"
    assert metal.source == assembled_source()
    assert metal.fast_math == 0
    assert device.open_device() is opened
    assert "EMULATED Metal device (macOS 15.1.0), binds 1,073,741,824 bytes, working set" in opened.describe()


def test_the_library_is_tried_first_and_then_the_source(metal, monkeypatch, tmp_path):
    monkeypatch.setattr(device, "files", lambda package: tmp_path)
    library = tmp_path / "lattice.metallib"
    library.write_bytes(b"MTLB")
    assert device.open_device().library == "library compiled when Lattice was built"
    assert metal.source == ""
    device._opened.forget()
    metal.set(refuse_library=1)
    expected = "source compiled here, since the built library was refused: the file is no library for this system"
    assert device.open_device().library == expected
    device._opened.forget()
    metal.set(refuse_source=1)
    with pytest.raises(
        DeviceUnavailableError, match="no library for this system; the source was refused: program_source"
    ):
        device.open_device()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"no_device": 1}, "this machine has no Metal device"),
        ({"macos": 10}, "macOS 10.1.0 is too old: Metal's kernels need macOS 11"),
        ({"old_gpu": 1}, "no products of matrices in a simdgroup"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(settings, message, metal):
    objects = metal.objects
    metal.set(**settings)
    with pytest.raises(DeviceUnavailableError, match=message):
        open_backend(device="metal")
    assert metal.objects == objects
    assert open_backend(device="auto").__class__.__name__ != "MetalBackend"


def test_auto_is_metal_where_it_is_there(metal):
    assert isinstance(open_backend(device="auto"), MetalBackend)
    assert not isinstance(open_backend(device="auto", precision="int8"), MetalBackend)


def test_kernels_that_are_missing_or_of_other_lanes_are_refused(metal, monkeypatch):
    opened = device.open_device()
    with pytest.raises(UnsupportedError, match="no kernel 'nothing'"):
        opened.kernel("nothing", ())
    monkeypatch.setattr(device, "function_of", lambda name, constants: ("nothing", ()))
    with pytest.raises(DeviceUnavailableError, match="nothing: there is no function of that name"):
        opened.kernel("norm", ())
    monkeypatch.undo()
    metal.set(lanes=64)
    with pytest.raises(DeviceUnavailableError, match="simdgroups of 64 lanes and threadgroups of 1024, not 32 and 64"):
        opened.kernel("copy_rows", (("FROM_STEP", 0),))


def test_a_forked_child_is_refused(metal, monkeypatch):
    opened = device.open_device()
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with pytest.raises(DeviceUnavailableError, match="method 'spawn'"):
        opened.buffer(16)


def test_all_is_let_go(metal):
    program, tensors, batch = bert()
    before = metal.objects
    ready = MetalBackend().compile(program, Tensors(tensors))
    ready.run(batch)
    assert metal.objects > before
    del ready
    device._opened.forget()
    gc.collect()
    assert metal.objects == before
    assert metal.resident == 0


# --- steps ---


def test_a_step_is_one_command_buffer_with_one_encoder(metal):
    program, tensors, batch = bert()
    ready = MetalBackend().compile(program, Tensors(tensors))
    first = ready.run(batch)
    want = reference.run(program, tensors, batch)
    np.testing.assert_allclose(first["pooled"], want["pooled"], rtol=1e-4, atol=1e-4)
    counts = {name: getattr(metal, name) for name in ("committed", "encoders", "blits", "requests")}
    again = ready.run(batch)
    assert again["pooled"].tobytes() == first["pooled"].tobytes()
    assert metal.committed == counts["committed"] + 1
    assert metal.encoders == counts["encoders"] + 1
    assert metal.blits == counts["blits"] == 0  # nothing is copied, results are read where they lie
    assert metal.requests == counts["requests"] == 1  # residency, once for all
    assert metal.switches < metal.dispatches


def test_no_residency_is_requested_before_macos_15(metal):
    metal.set(macos=14)
    program, tensors, batch = bert()
    MetalBackend().compile(program, Tensors(tensors)).run(batch)
    assert metal.requests == metal.resident == 0


def test_steps_in_flight_are_not_disturbed_by_what_is_written_for_later_ones(metal):
    """Nothing runs before it is waited for, so every write of the CPU would be seen too early."""
    program, tensors, _ = bert()
    batches = [random_batch(np.random.default_rng(seed), [5, 9, 1 + seed]) for seed in range(4)]
    ready = MetalBackend().compile(program, Tensors(tensors))
    want = [ready.run(batch)["pooled"].tobytes() for batch in batches]
    metal.set(is_late=1)
    pending = [ready.submit(batch) for batch in batches]
    assert [each.wait()["pooled"].tobytes() for each in reversed(pending)] == want[::-1]
    opened = device.open_device()
    words = opened.buffer(64)
    blits = metal.blits
    ready.submit(batches[0])
    opened.upload(words, np.arange(16, dtype=np.uint8), 4)  # in order, after the step
    assert metal.blits == blits + 1
    assert opened.read([Span(words, 4, 16)]).tolist() == list(range(16))


def test_copies_run_in_order(metal):
    opened = device.open_device()
    a, b, scratch = (opened.buffer(16) for _ in range(3))
    opened.upload(a, np.arange(16, dtype=np.uint8))
    opened.upload(b, np.arange(16, 32, dtype=np.uint8))
    metal.set(is_late=1)
    opened.copy([(Span(a, 0, 16), scratch, 0), (Span(scratch, 0, 8), b, 8), (Span(b, 0, 16), a, 0)])
    assert opened.read([Span(a, 0, 16)]).tolist() == [*range(16, 24), *range(8)]
    assert metal.blits == 3  # each needs the one before


def test_threads_may_submit_at_once(metal):
    program, tensors, batch = bert()
    ready = MetalBackend().compile(program, Tensors(tensors))
    want = ready.run(batch)["pooled"].tobytes()
    got = []
    threads = [threading.Thread(target=lambda: got.append(ready.run(batch)["pooled"].tobytes())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [want] * 4


# --- faults ---


def test_a_command_buffer_without_memory_is_told_and_the_next_step_runs(metal):
    program, tensors, batch = bert()
    ready = MetalBackend().compile(program, Tensors(tensors))
    want = ready.run(batch)["pooled"].tobytes()
    metal.set(fail_next=8)
    with pytest.raises(DeviceMemoryError, match="a command buffer failed: the emulated GPU was told to fail"):
        ready.run(batch)
    assert ready.run(batch)["pooled"].tobytes() == want


def test_a_command_buffer_that_fails_loses_the_device(metal):
    program, tensors, batch = bert()
    ready = MetalBackend().compile(program, Tensors(tensors))
    opened = device.open_device()
    metal.set(fail_next=1)
    pending = ready.submit(batch)
    for call in (pending.wait, lambda: ready.run(batch), lambda: opened.buffer(16), opened.check):
        with pytest.raises(DeviceLostError, match=r"told to fail.*load the model again"):
            call()
    assert device.open_device() is not opened
    assert MetalBackend().compile(program, Tensors(tensors)).run(batch)["pooled"].shape == (3, 48)


@pytest.mark.parametrize("code", [1, 8])
def test_a_copy_that_fails_loses_the_device(code, metal):
    opened = device.open_device()
    a, b = opened.buffer(16), opened.buffer(16)
    metal.set(fail_next=code)
    opened.copy([(Span(a, 0, 16), b, 0)])
    with pytest.raises(DeviceLostError, match="told to fail"):
        opened.read([Span(b, 0, 16)])


def test_no_command_buffer_loses_the_device(metal):
    program, tensors, batch = bert()
    ready = MetalBackend().compile(program, Tensors(tensors))
    metal.set(no_commands=1)
    with pytest.raises(DeviceLostError, match="no command buffer"):
        ready.run(batch)


def test_full_memory_is_told_and_nothing_has_changed(metal):
    program, tensors, batch = bert()
    ready = MetalBackend().compile(program, Tensors(tensors))
    want = ready.run(batch)["pooled"].tobytes()
    metal.set(room=1)
    with pytest.raises(DeviceMemoryError, match="EMULATED Metal device has no room: load a smaller model"):
        ready.run(random_batch(np.random.default_rng(1), [400]))
    assert ready.run(batch)["pooled"].tobytes() == want


def test_a_working_set_that_is_too_small_is_told_before_loading(metal, llama):
    metal.set(working_set=100_000)
    buffers = metal.objects
    with pytest.raises(DeviceMemoryError, match="and macOS recommends to use at most 100,000"):
        load_model(llama, device="metal")
    assert metal.objects - buffers < 8  # the device, its queue and its library
    need = device_need(estimate_memory(llama, context=64), "metal")
    assert need is not None
    assert need.working_set_bytes == 100_000
    assert not need.fits_with(100_001)
    assert need.fits_with(1) == (need.largest_keys_bytes <= need.binding_bytes)
    device._opened.forget()
    metal.set(working_set=200_000)
    with pytest.raises(DeviceMemoryError, match="macOS recommends at most 200,000"):
        device.open_device().buffer(200_001)


def test_doctor_says_what_a_model_takes_there(metal, llama, capsys):
    options = Namespace(model=str(llama), context=64, device="metal", json=True)
    metal.set(working_set=100_000)
    assert doctor_command.run(options) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["devices"]["metal"].endswith("source compiled here, since no library was built")
    assert report["device"]["working_set_bytes"] == 100_000
    fits = {each["precision"]: each["fits"] for each in report["precisions"]}
    assert fits == {"stored": False, "float32": False, "bfloat16": False}


# --- mapped weights ---


def is_mapped(path):
    return str(path) in Path("/proc/self/maps").read_text(encoding="utf-8")


def test_a_mapped_model_is_used_where_it_lies_until_it_is_closed(metal, llama, monkeypatch):
    gc.collect()
    assert not is_mapped(llama)
    with load_model(llama, device="metal") as model:
        assert metal.no_copies == 1  # one buffer over the whole file
        assert is_mapped(llama)
        assert device.open_device()._handle.allocated_bytes() < 2 * llama.stat().st_size
        mapped = tokens_of(model)
    del model
    gc.collect()
    assert not is_mapped(llama)
    monkeypatch.setenv("LATTICE_MAP_WEIGHTS", "0")
    with load_model(llama, device="metal") as model:
        assert metal.no_copies == 1
        assert tokens_of(model) == mapped
    with load_model(llama, activations="float32") as model:
        assert tokens_of(model) == mapped


def test_a_file_above_the_largest_buffer_has_several(metal, llama):
    with load_model(llama, device="metal") as model:
        want = tokens_of(model)
    device._opened.forget()
    metal.reset()
    metal.set(most_bytes=12 * PAGE)
    with load_model(llama, device="metal") as model:
        assert metal.no_copies > 2
        assert tokens_of(model) == want


def test_pages_outlive_the_model_while_a_step_is_in_flight(metal, llama):
    """The mapping goes when the last step that reads it has ended, not before."""
    gc.collect()
    opened = device.open_device()
    with llama.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    want = mapping[-64:]
    assert any(want)
    place = opened.map_bytes(np.frombuffer(mapping, np.uint8)[-64:])
    arena, target = opened.buffer(64), opened.buffer(64)
    metal.set(is_late=1)
    opened.copy([(Span(place, 0, 64), target, 0)])
    step = opened.bind("step", [arena, arena, arena])
    kernel = opened.kernel("copy_rows", (("FROM_STEP", 0),))
    reading = opened.submit(step, opened.prepare([Dispatch(kernel, opened.bind("weights", [place]), 0, 0)]), [])
    del place, mapping
    gc.collect()
    assert is_mapped(llama)
    assert opened.read([Span(target, 0, 64)]).tobytes() == want
    del reading
    gc.collect()
    assert not is_mapped(llama)


def test_tensors_that_do_not_lie_side_by_side_are_several_calls(metal, llama, monkeypatch):
    with load_model(llama, device="metal") as model:
        runs = [call.weights for call in model._program._program._plan._lowered.calls if call.weights]
        buffers = {id(part.handle) for weights in runs for part in weights if part is not None and part.offset}
        assert len(buffers) == 1  # all of them in the file
        widths = [call.record["n"] for call in model._program._program._plan._lowered.calls if "k" in call.record]
    monkeypatch.setenv("LATTICE_MAP_WEIGHTS", "0")
    with load_model(llama, device="metal") as model:
        copied = [call.record["n"] for call in model._program._program._plan._lowered.calls if "k" in call.record]
    assert sum(widths) >= sum(copied)
    assert len(widths) >= len(copied)


def test_other_precisions_and_bytes_that_kernels_cannot_address_are_copied(metal, llama):
    with load_model(llama, device="metal", precision="float16"):
        assert metal.no_copies == 0
    opened = device.open_device()
    assert opened.map_bytes(np.zeros(100, np.uint8)) is None
    with llama.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    view = np.frombuffer(mapping, np.float16, 100, 34)
    assert mapping_of(view[3:]) == (mapping, 40)
    place = opened.map_bytes(view[3:].view(np.uint8))
    assert place is not None
    assert place.bytes(0, 194).tobytes() == view[3:].tobytes()
    with pytest.raises(ValueError, match="read-only"):
        place.bytes(0, 4)[:] = 0


# --- models by the public interface ---


def test_an_encoder_is_within_the_tolerance_of_the_cpu(metal, data_directory):
    texts = ["The cat sat on the mat.", "a"]
    path = data_directory / "tiny_bert"
    with load_encoder(path) as cpu, load_encoder(path, device="metal") as gpu:
        assert gpu.device == "metal"
        assert gpu.device_name == "metal:EMULATED Metal device:macOS 15.1.0"
        np.testing.assert_allclose(gpu.encode(texts).vectors, cpu.encode(texts).vectors, atol=1e-5)
        assert gpu.space == cpu.space
        assert gpu.fingerprint != cpu.fingerprint


def test_the_benchmark_runs_at_tiny_sizes(metal, data_directory, tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS.parents[1] / "benchmarks"))
    import gpu

    sizes = ["--early", "2", "--late", "4", "--prompt", "12", "--texts", "1", "--copy-mb", "1", "--repeats", "2"]
    arguments = [
        "--device",
        "metal",
        "--shape",
        "tiny",
        "tiny-qwen3.5",
        "--types",
        "Q8_0",
        "--folder",
        str(tmp_path),
        *sizes,
    ]
    encoder = ["--encoder", str(data_directory / "tiny_bert"), "--json", str(tmp_path / "record.json")]
    assert gpu.main([*arguments, *encoder]) == 0
    record = json.loads((tmp_path / "record.json").read_text(encoding="utf-8"))
    assert record["kind"] == "metal"
    assert record["software"] is True  # no record of the stand-in meets a limit
    assert {each["type"] for each in record["loads"]} == {"tiny, Q8_0", "tiny-qwen3.5, Q8_0"}
    assert "EMULATED Metal device (macOS 15.1.0, software" in capsys.readouterr().out


# --- what a Mac's compiler and headers say ---


def test_clang_accepts_the_source_for_a_macs_runtime():
    if shutil.which("clang") is None:
        if os.environ.get("LATTICE_REQUIRE_METAL") == "1":
            pytest.fail("clang is not installed")
        pytest.skip("needs clang")
    include = subprocess.run(
        ["gcc", "-print-file-name=include"], capture_output=True, text=True, check=True
    ).stdout.strip()
    flags = ["-x", "objective-c", "-fobjc-runtime=macosx-11.0", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"]
    folders = [f"-I{TOOLS / 'fake'}", f"-I{METAL}", f"-isystem{include}"]
    done = subprocess.run(["clang", *flags, *folders, str(METAL / "metal_device.m")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def metadata():
    """The text of PyObjC's metadata of Metal, from the wheel that the variable names."""
    path = os.environ.get("LATTICE_METAL_METADATA")
    if path is None:
        if os.environ.get("LATTICE_REQUIRE_METAL") == "1":
            pytest.fail("LATTICE_METAL_METADATA names no wheel of pyobjc-framework-Metal")
        pytest.skip("needs the wheel of pyobjc-framework-Metal")
    with zipfile.ZipFile(path) as archive:
        return archive.read("Metal/_metadata.py").decode()


# Methods of classes whose types PyObjC takes from the system itself. Apple documents each; metadata has only corrections.
OF_CLASSES = {
    "setConstantValue:type:atIndex:": "MTLFunctionConstantValues",
    "setLanguageVersion:": "MTLCompileOptions",
}
# Objective-C's and Foundation's own.
OF_FOUNDATION = set(
    "alloc init autorelease release retain drain lock unlock UTF8String stringWithUTF8String: fileURLWithPath: "
    "localizedDescription code processInfo operatingSystemVersion respondsToSelector:".split()
)


def selectors(source):
    """Return the selectors of all messages in a source of Objective-C."""
    source = re.sub(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"])*\"", " ", source, flags=re.DOTALL)
    found, stack = set(), []
    for token in re.findall(r"[\[\]()]|[A-Za-z_]\w*\s*:|[A-Za-z_]\w*|[^\s]", source):
        if token in "[(":
            stack.append([token, [], [], False])
        elif token in "])" and stack:
            opener, parts, words, _ = stack.pop()
            if opener == "[" and (parts or len(words) > 1):
                found.add("".join(parts) if parts else words[-1])
            if stack:
                stack[-1][2].append("")
        elif stack:
            if token.endswith(":") and stack[-1][0] == "[":
                stack[-1][1].append(re.sub(r"\s", "", token))
            elif re.match(r"[A-Za-z_]", token):
                stack[-1][2].append(token)
    return {each for each in found if each}


def test_selectors_are_found_in_a_source():
    source = "[a b]; [[c d] e:[f g] h:1]; x[i]; y[i + j]; [(id<P>)q go]; [k last:m[n]];"
    assert selectors(source) >= {"b", "d", "e:h:", "g", "go", "last:"}


def test_every_selector_is_apples():
    text = metadata()
    used = selectors((METAL / "metal_device.m").read_text(encoding="utf-8"))
    used = {each for each in used if not re.fullmatch("[a-z]", each)}
    unknown = {each for each in used - OF_FOUNDATION - OF_CLASSES.keys() if f'b"{each}"' not in text}
    assert unknown == set()
    assert used > {
        "commit",
        "newBufferWithBytesNoCopy:length:options:deallocator:",
        "addAllocation:",
        "requestResidency",
    }


def test_every_value_is_apples():
    text = metadata()
    header = (TOOLS / "fake" / "Metal" / "Metal.h").read_text(encoding="utf-8")
    values = dict(re.findall(r"\b(MTL\w+) = (\d+)", header))
    assert len(values) == 7
    for name, value in values.items():
        assert f"${name}@{value}$" in text, name
    assert THREADS == 64
