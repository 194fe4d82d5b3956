"""Runs the tests of AVX-512 kernels on any x86-64 CPU, compiled for AVX2 through SIMDe.

The point is the bits: the recorded hashes of vectors and the comparison of all levels are among those tests. Needs SIMDe's
headers (Debian: libsimde-dev).

On a CPU that has these instructions, the sessions ``tests`` and ``slow_tests`` run the same tests on it. There only the
smaller packages are emulated, which keeps the emulation itself working; ``--all`` emulates lattice-inference too, whose
kernels take the compiler minutes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from working_copy import copy_sources

ROOT = Path(__file__).resolve().parent.parent
TESTS = {
    "lattice-inference": ["tests/backends"],
    "lattice-embed": ["tests/test_vectors.py", "tests/test_stored_vectors.py", "tests/test_nearest_vectors.py"],
    "lattice-fann": ["tests/test_network.py", "tests/test_gradients.py", "tests/test_optimizers.py"],
    "lattice-transport": ["tests/test_native_math.py", "tests/test_goldens.py"],
}
# Tests of one other level say here what they say in the session ``tests``; the comparisons of all levels stay.
LEFT_OUT = "not avx2 and (not baseline or baseline_is_close)"


# What Linux calls the instructions that are emulated.
FLAGS = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}


def has_avx512() -> bool:
    """Whether this CPU has the instructions that are emulated."""
    return set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split()) >= FLAGS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="emulate every package, also on a CPU with AVX-512")
    names = list(TESTS)
    if not parser.parse_args().all and has_avx512():
        names.remove("lattice-inference")
        print("this CPU has AVX-512, so the session tests runs lattice-inference's kernels; --all emulates them too")
    work = ROOT / "build" / "avx512"
    shutil.rmtree(work, ignore_errors=True)
    environment = {
        **os.environ,
        "LATTICE_EMULATE_AVX512": "1",
        "LATTICE_NUM_THREADS": "1",  # it is the bits that count; tests of threads say how many they want
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(str(work / "packages" / name / "src") for name in TESTS),
    }
    copy_sources(work)
    for name in names:
        build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        subprocess.run(build, cwd=work / "packages" / name, env=environment, check=True)
    check = "from lattice_fann._engine import available_isas; assert 'avx512' in available_isas()"
    subprocess.run([sys.executable, "-c", check], env=environment, check=True)
    for name in names:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", LEFT_OUT, *TESTS[name]]
        subprocess.run(command, cwd=work / "packages" / name, env=environment, check=True)


if __name__ == "__main__":
    main()
