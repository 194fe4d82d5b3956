"""Decoding asks nobody for memory: a counter in place of the C library's allocation functions stays still in every step.

What a step returns, the logits, is an array of its own; it is made after the step.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

COUNTER = Path(__file__).parent / "count_allocations.c"
COMPILER = shutil.which("cc")

pytestmark = pytest.mark.skipif(
    platform.system() != "Linux" or platform.libc_ver()[0] != "glibc" or COMPILER is None,
    reason="needs glibc, which has its allocation functions under second names, and a C compiler",
)

DECODE = """
import ctypes, json, sys
import numpy as np
from lattice_inference import Extension, load_model
from lattice_inference.backends.cpu import backend

counter = ctypes.CDLL(sys.argv[1])
allocations, mappings = counter.allocations, counter.mappings
allocations.restype = mappings.restype = ctypes.c_long
counted = []


class CountingPlan:
    def __init__(self, plan):
        self.plan = plan

    def __getattr__(self, name):
        return getattr(self.plan, name)

    def run(self, *arguments):
        before = allocations()
        result = self.plan.run(*arguments)
        counted.append(allocations() - before)
        return result


made = backend.CpuProgram.__init__


def counting(self, plan, *rest):
    made(self, plan, *rest)
    plan.native = CountingPlan(plan.native)


backend.CpuProgram.__init__ = counting
before = allocations()
np.empty(1 << 20)
noticed = allocations() - before
with load_model(sys.argv[2], threads=2) as model, model.open_cache(tokens=1024) as cache:
    sequence = cache.sequence()
    model.forward([Extension(sequence, list(range(20)))])
    for token in range(230):  # over several pages
        if token == 1:
            mapped = mappings()
        model.forward([Extension(sequence, [token % 100])])
    mapped = mappings() - mapped
print(json.dumps({"noticed": noticed, "steps": counted, "mapped": mapped}))
"""


def write_model(folder, kind):
    sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
    if kind == "experts":
        import qwen3_moe_files

        return qwen3_moe_files.write(folder, qwen3_moe_files.CASES["moe"] | {"vocab_size": 264})
    from drawn_checkpoints import write_directory

    cases = json.loads((Path(__file__).parents[1] / "data" / "decoders" / "cases.json").read_text())["cases"]
    return write_directory(folder, cases["llama"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "experts"])
def test_a_step_of_decoding_allocates_nothing(tmp_path, kind):
    model = write_model(tmp_path / "model", kind)
    library = tmp_path / "count_allocations.so"
    subprocess.run([COMPILER, "-O1", "-shared", "-fPIC", "-o", library, COUNTER, "-ldl"], check=True)
    environment = dict(os.environ, LD_PRELOAD=str(library), PYTHONPATH=os.pathsep.join(sys.path))
    command = [sys.executable, "-c", DECODE, str(library), str(model)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    counted = json.loads(done.stdout)
    assert counted["noticed"] >= 1
    steps = counted["steps"]
    assert len(steps) == 231
    # workers are created in the first steps; Python may take room for its own small objects once in a while
    assert counted["mapped"] <= 3  # arenas are kept from step to step
    assert sum(steps[2:]) <= 3, [(step, count) for step, count in enumerate(steps) if count]
