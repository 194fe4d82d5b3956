"""Running programs on the CPU: threads, forks, memory, and what is refused."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import threading

import numpy as np
import pytest

from lattice_inference.backends.cpu import CpuBackend, _cpu
from lattice_inference.backends.cpu.arena import ArenaPool
from lattice_inference.errors import CheckpointError, InvalidInputError, NonFiniteError
from lattice_inference.graph.batch import Batch
from lattice_inference.graph.builder import GraphBuilder

from .programs import Tensors, batch_of, one_op, random_batch, random_bert


@pytest.fixture(scope="module")
def ready():
    program, tensors = random_bert(np.random.default_rng(3))
    return CpuBackend().compile(program, Tensors(tensors))


@pytest.mark.slow
def test_eight_python_threads_at_once_get_what_one_gets(ready):
    rng = np.random.default_rng(1)
    batches = [random_batch(rng, rng.integers(1, 60, 6).tolist()) for _ in range(16)]
    want = [ready.run(batch)["normalized"] for batch in batches]
    wrong: list[int] = []

    def work(offset: int) -> None:
        for turn in range(20):
            index = (offset * 5 + turn) % len(batches)
            if (ready.run(batches[index])["normalized"] != want[index]).any():
                wrong.append(index)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert not worker.is_alive()
    assert wrong == []


def test_the_pool_starts_no_more_threads_than_asked(ready):
    program = """
import numpy as np, os, threading, time
from lattice_inference.backends.cpu import _cpu, CpuBackend
from lattice_inference.graph.batch import Batch
from lattice_inference.graph.builder import GraphBuilder
g = GraphBuilder()
x = g.embed_rows(g.weight("t", (64, 64), use="rows"), ids="token_ids")
y = g.linear(x, g.weight("w", (64, 64)))
class Ones:
    def float32(self, name): return np.ones((64, 64), np.float32)
    def drop_pages(self, name): pass
ready = CpuBackend().compile(g.build({"y": y}), Ones())
count = lambda: len(os.listdir("/proc/self/task"))
assert _cpu.get_num_threads() == 3, _cpu.get_num_threads()
before = count()
batch = Batch(np.arange(64, dtype=np.int32), np.array([0, 64], np.int32))
workers = [threading.Thread(target=lambda: [ready.run(batch) for _ in range(50)]) for _ in range(8)]
[w.start() for w in workers]; [w.join() for w in workers]
deadline = time.monotonic() + 20  # a joined thread stays listed until the system has reaped it
while count() - before != 2 and time.monotonic() < deadline: time.sleep(0.05)
assert count() - before == 2, (before, count())
"""
    if not os.path.isdir("/proc/self/task"):
        pytest.skip("threads of a process are counted through /proc")
    environment = {**os.environ, "LATTICE_NUM_THREADS": "3", "OPENBLAS_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment, timeout=60)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_computes_what_its_parent_does(ready):
    batch = random_batch(np.random.default_rng(2), [40, 50, 60])
    want = ready.run(batch)["normalized"]
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if (ready.run(batch)["normalized"] == want).all() else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert (ready.run(batch)["normalized"] == want).all()


def run_with(environment, code):
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=60
    )


@pytest.mark.slow
def test_thread_count_comes_from_the_environment():
    code = "from lattice_inference.backends.cpu import _cpu; print(_cpu.get_num_threads())"
    assert run_with({"LATTICE_NUM_THREADS": "5", "OMP_NUM_THREADS": "2"}, code).stdout.strip() == "5"
    assert run_with({"LATTICE_NUM_THREADS": "", "OMP_NUM_THREADS": "2,1"}, code).stdout.strip() == "2"
    refused = run_with({"LATTICE_NUM_THREADS": "many"}, code)
    assert "LATTICE_NUM_THREADS must be an integer from 1 to 256, not 'many'" in refused.stderr


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no processor affinity on this system")
def test_thread_count_follows_the_affinity_of_the_process():
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from lattice_inference.backends.cpu import _cpu; print(_cpu.get_num_threads())"
    )
    assert run_with({"LATTICE_NUM_THREADS": "", "OMP_NUM_THREADS": ""}, code).stdout.strip() == "1"


SUM_OF_A_STEP = """
import hashlib, numpy as np, os, sys
from lattice_inference.backends.cpu import CpuBackend, _cpu
from lattice_inference.graph.batch import Batch
from lattice_inference.graph.builder import GraphBuilder
from lattice_inference.runtime import cpu_info
g = GraphBuilder()
x = g.embed_rows(g.weight("t", (97, 64), use="rows"), ids="token_ids")
program = g.build({"y": g.gelu(g.linear(x, g.weight("w", (64, 64))))})
exact = lambda rows: (np.arange(rows * 64, dtype=np.float32) % 37 - 18).reshape(rows, 64) / 64
tensors = {"t": exact(97), "w": exact(64)}
class Tensors:
    def float32(self, name): return tensors[name]
    def drop_pages(self, name): pass
batch = Batch(np.arange(97, dtype=np.int32).repeat(2), np.array([0, 194], np.int32))
y = CpuBackend().compile(program, Tensors()).run(batch)["y"]
digest = hashlib.sha256(y.tobytes()).hexdigest()
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no processor affinity on this system")
def test_four_threads_on_one_processor_compute_what_others_do():
    one = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    environment = {"LATTICE_NUM_THREADS": "4", "OPENBLAS_NUM_THREADS": "1"}
    free = run_with(environment, SUM_OF_A_STEP + "print(digest)")
    assert free.returncode == 0, free.stderr
    assert run_with(environment, one + SUM_OF_A_STEP + "print(digest)").stdout == free.stdout


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads of a process are listed through /proc")
def test_no_thread_is_pinned_and_none_starts_at_import():
    code = """
import os
import numpy
affinity = os.sched_getaffinity(0)
threads = lambda: [int(name) for name in os.listdir("/proc/self/task")]
before = len(threads())
import lattice_inference.backends.cpu
assert len(threads()) == before, "the import started a thread"
"""
    code += (
        SUM_OF_A_STEP
        + "assert len(threads()) == before + 2 and all(os.sched_getaffinity(t) == affinity for t in threads())"
    )
    done = run_with({"LATTICE_NUM_THREADS": "3", "OPENBLAS_NUM_THREADS": "1"}, code)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.skipif(
    platform.machine() != "x86_64" or shutil.which("qemu-x86_64-static") is None, reason="needs qemu-x86_64-static"
)
def test_a_cpu_without_avx_computes_on_the_baseline():
    """The whole library on an emulated x86-64-v2, where any instruction beyond it ends the process."""
    command = ["qemu-x86_64-static", "-cpu", "Nehalem", sys.executable, "-c"]
    check = (
        "assert cpu_info()['isa'] == 'baseline' and _cpu.available_isas() == ['baseline'], cpu_info(); print(digest)"
    )
    environment = {**os.environ, "LATTICE_ISA": "", "LATTICE_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "1"}
    command.append(SUM_OF_A_STEP + check)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    native = run_with({"LATTICE_ISA": "baseline"}, SUM_OF_A_STEP + "print(digest)")
    assert done.stdout == native.stdout


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this Python has a GIL")
def test_import_leaves_the_gil_off():
    code = "import lattice_inference.backends.cpu, lattice_inference.tokenizer, sys; print(sys._is_gil_enabled())"
    assert run_with({"PYTHONWARNINGS": "error"}, code).stdout == "False\n"


@pytest.mark.slow
def test_instruction_set_comes_from_the_environment():
    code = "from lattice_inference.runtime import cpu_info; print(cpu_info()['isa'])"
    assert run_with({"LATTICE_ISA": "baseline"}, code).stdout.strip() == "baseline"
    refused = run_with({"LATTICE_ISA": "sse9"}, code)
    assert "no instruction set named 'sse9'" in refused.stderr


def test_flush_to_zero_of_another_library_changes_nothing():
    """torch and others may set flush-to-zero in the calling thread; regions run with it off, and it is put back."""
    code = r"""
import ctypes, ctypes.util, numpy as np, platform, sys
from lattice_inference.backends.cpu import _cpu
if platform.machine() != "x86_64":
    print("ok"); sys.exit()
from lattice_inference.backends.cpu import CpuBackend
from lattice_inference.graph.batch import Batch
from lattice_inference.graph.builder import GraphBuilder
g = GraphBuilder()
x = g.embed_rows(g.weight("t", (1, 16), use="rows"), ids="token_ids")
program = g.build({"y": g.add(x, x)})
tiny = np.full((1, 16), 1e-40, np.float32)
class Tiny:
    def float32(self, name): return tiny
    def drop_pages(self, name): pass
libm = ctypes.CDLL(ctypes.util.find_library("m"))
class Environment(ctypes.Structure):
    _fields_ = [("x87", ctypes.c_uint32 * 7), ("mxcsr", ctypes.c_uint32)]
environment = Environment()
libm.fegetenv(ctypes.byref(environment)); environment.mxcsr |= 0x8040; libm.fesetenv(ctypes.byref(environment))
ready = CpuBackend().compile(program, Tiny())
y = ready.run(Batch(np.zeros(1, np.int32), np.array([0, 1], np.int32)))["y"]
libm.fegetenv(ctypes.byref(environment))
assert environment.mxcsr & 0x8040 == 0x8040, "the caller's environment was not restored"
environment.mxcsr &= ~0x8040; libm.fesetenv(ctypes.byref(environment))
assert 0 < tiny[0, 0] and y[0, 0] == tiny[0, 0] + tiny[0, 0], y
print("ok")
"""
    done = run_with({}, code)
    assert done.stdout.strip() == "ok", done.stderr


def test_an_id_outside_its_table_is_refused_by_sequence(ready):
    ids = np.zeros(9, np.int32)
    ids[6] = 97
    with pytest.raises(InvalidInputError, match="token_ids of sequence 1 holds 97"):
        ready.run(Batch(ids, np.array([0, 4, 9], np.int32)))
    with pytest.raises(InvalidInputError, match="positions of sequence 0 holds 2048"):
        ready.run(Batch(np.zeros(2049, np.int32), np.array([0, 2049], np.int32)))
    ids[6] = -1
    with pytest.raises(InvalidInputError, match="holds -1"):
        ready.run(Batch(ids, np.array([0, 4, 9], np.int32)))


def test_state_that_a_program_has_not_is_refused(ready):
    batch = Batch(np.zeros(2, np.int32), np.array([0, 2], np.int32), logit_rows=np.array([1], np.int32))
    with pytest.raises(InvalidInputError, match="keeps no state"):
        ready.run(batch)


def test_a_tensor_of_the_wrong_shape_is_refused():
    g = GraphBuilder()
    x = g.embed_rows(g.weight("t", (4, 8), use="rows"), ids="token_ids")
    program = g.build({"y": g.linear(x, g.weight("w", (8, 8)))})
    tensors = {"t": np.ones((4, 8), np.float32), "w": np.ones((8, 7), np.float32)}
    with pytest.raises(CheckpointError, match=r"\(8, 8\).*w \(8, 7\)"):
        CpuBackend().compile(program, Tensors(tensors))


def test_a_nan_is_refused_and_named_by_its_row():
    x = np.ones((3, 16), np.float32)
    x[1, 3] = np.nan
    program, tensors = one_op({"x": x}, lambda g, v: g.gelu(v["x"]))
    with pytest.raises(NonFiniteError, match=r"rows \[1\]") as caught:
        CpuBackend().compile(program, Tensors(tensors)).run(batch_of([3]))
    assert caught.value.rows == (1,)


def test_large_values_that_sum_to_infinity_are_not_mistaken_for_infinity():
    x = np.full((2, 16), 3e38, np.float32)
    program, tensors = one_op({"x": x}, lambda g, v: g.relu(v["x"]))
    assert (CpuBackend().compile(program, Tensors(tensors)).run(batch_of([2]))["y"] == x).all()


@pytest.mark.slow
def test_memory_of_a_burst_is_given_back(ready):
    pool = ArenaPool(keep_bytes=1 << 20)
    small, large = pool.take(1000), pool.take(64 << 20)
    pool.give_back(small)
    pool.give_back(large)
    assert pool.idle_bytes == small.nbytes
    assert pool.take(500) is small
    rng = np.random.default_rng(0)
    ready.run(random_batch(rng, [1500] * 12))
    assert 0 < ready._arenas.idle_bytes <= ready._arenas.keep_bytes
    ready.trim()
    assert ready._arenas.idle_bytes == 0


def test_memory_is_zeroed_aligned_and_writable():
    for huge in (False, True):
        memory = _cpu.Memory(5 << 20, huge)
        array = np.frombuffer(memory, np.uint8)
        assert array.ctypes.data % 4096 == 0
        assert not array.any()
        array[-1] = 7
        assert bytes(memoryview(memory)[-1:]) == b"\x07"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_children_forked_while_other_threads_take_memory_find_no_lock_held():
    """In a process of its own: it forks while threads run, as a server's worker pool does."""
    program = """
import os, signal, sys, threading
from lattice_inference.backends.cpu.arena import ArenaPool
sys.setswitchinterval(1e-5)
pool = ArenaPool(keep_bytes=1 << 30)
for arena in [pool.take(1) for _ in range(1000)]: pool.give_back(arena)  # so that most of the time is spent inside
kept = pool.idle_bytes
def take_and_give_back():
    arena = pool.take(1)
    pool.give_back(arena)
def work():
    while not done: take_and_give_back()
done = False
workers = [threading.Thread(target=work) for _ in range(2)]
for worker in workers: worker.start()
try:
    for _ in range(10):
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            take_and_give_back()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, "the child hangs"
finally:
    done = True
    for worker in workers: worker.join()
assert pool.idle_bytes == kept, (pool.idle_bytes, kept)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, timeout=100)


def test_an_op_with_activation_and_residual_is_refused() -> None:
    plan = _cpu.Plan("baseline")
    with pytest.raises(ValueError, match="activation or a residual"):
        plan.append(
            "linear",
            rows="tokens",
            inputs=[(0, 16, 0)],
            output=(1, 16, 0),
            k=16,
            n=16,
            residual=(0, 16, 0),
            activation="gelu_erf",
            weight_type="float32",
            weight=None,
        )
