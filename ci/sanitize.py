"""Runs the packages' tests under AddressSanitizer and UndefinedBehaviorSanitizer.

The thread pool's C test also runs under ThreadSanitizer. Needs gcc with its sanitizer libraries; builds in
build/sanitize.

Two kinds of tests are left to the plain run. One goes over every code point of Unicode. The other forks while other
threads allocate: the child may wait for ever for AddressSanitizer's allocator (ThreadSanitizer's allows it).
ThreadSanitizer runs a C program and not Python, whose own locks and reference counts it cannot follow.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from working_copy import copy_sources

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "sanitize"
TESTS = {
    "lattice-inference": [
        "tests/backends",
        "tests/generate/test_row_sampler.py",
        "tests/models/test_tiny_bert.py",
        "tests/tokenizer/test_bad_files.py",
        "tests/tokenizer/test_bad_unigram_files.py",
        "tests/tokenizer/test_bpe_files.py",
        "tests/tokenizer/test_bpe_random.py",
        "tests/tokenizer/test_inputs.py",
        "tests/tokenizer/test_pairs_and_truncation.py",
        "tests/tokenizer/test_random.py",
        "tests/tokenizer/test_sentencepiece.py",
        "tests/tokenizer/test_special_tokens.py",
        "tests/tokenizer/test_unigram_random.py",
        "tests/tokenizer/test_vocabulary_file.py",
        "tests/tokenizer/test_wordpiece.py",
        "tests/vector_cache/test_journal.py",
    ],
    "lattice-embed": [
        "tests/test_vectors.py",
        "tests/test_stored_vectors.py",
        "tests/test_nearest_vectors.py",
        "tests/test_embedding_cache.py",
        "tests/test_cached_service.py",
    ],
    "lattice-fann": [
        "tests/test_network.py",
        "tests/test_optimizers.py",
        "tests/test_training.py",
        "tests/test_threads.py",
    ],
    "lattice-transport": [
        "tests/test_native_math.py",
        "tests/test_array_entry.py",
        "tests/test_divergence.py",
        "tests/test_exact.py",
        "tests/test_exact_range.py",
        "tests/test_plans.py",
    ],
}
ATTEMPTS, SECONDS = 4, 180  # of a test in C that may lock up

# Only quick tests run: conftest.py at the root leaves the others out, which draw thousands of cases of what these show. The
# sweeps are too slow under a sanitizer, a fork beside running threads waits inside its allocator, an emulated CPU cannot
# load it, and who counts allocations wants to come before all libraries, as it does.
LEFT_OUT = (
    "not every_code_point and not forked_while and not fork_in_the_middle and not cpu_without_avx "
    "and not allocates_nothing"
)


def library(name: str) -> str:
    """Return the path of gcc's run-time library ``name``."""
    printed = subprocess.run(
        ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not os.path.isabs(printed):
        sys.exit(f"gcc has no {name}: install its sanitizer libraries")
    return printed


def has_avx512() -> bool:
    """Whether this build uses 64-byte vectors.

    gcc before 14 does not align the frames for them that it moves off the stack. It moves them there to see uses
    after return, which therefore a CPU without such vectors has to look for.
    """
    return " avx512f " in Path("/proc/cpuinfo").read_text(encoding="utf-8")


def sanitized_environment() -> dict[str, str]:
    """Return the environment of a process with sanitized extension modules and a plain Python."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(WORK / "packages" / name / "src") for name in TESTS),
        # Python is not linked with the libraries, and they must come before all others.
        "LD_PRELOAD": f"{library('libasan.so')} {library('libubsan.so')}",
        # Python keeps interned strings and static types to its end and pymalloc's arenas with them: all would be reported.
        # The rest finds reads past what Python lends: with pymalloc a buffer's neighbours are other objects, not an end.
        "ASAN_OPTIONS": f"detect_leaks=0:strict_string_checks=1:detect_stack_use_after_return={int(not has_avx512())}",
        "PYTHONMALLOC": "malloc",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "LATTICE_NUM_THREADS": "1",  # tests of threads say how many they want
        "OPENBLAS_NUM_THREADS": "1",
    }


def build() -> None:
    """Build the packages in a copy of the tree."""
    copy_sources(WORK)
    environment = {
        **os.environ,
        "LATTICE_SANITIZE": "address,undefined",
        "CC": "gcc",
        # Each check is a call: written out, those of a file of kernels take the compiler a minute.
        "CFLAGS": "--param=asan-instrumentation-with-call-threshold=0",
    }
    for name in TESTS:
        command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        subprocess.run(command, cwd=WORK / "packages" / name, env=environment, check=True)


def check_that_faults_are_seen(environment: dict[str, str]) -> None:
    """Check that the sanitizer finds a C function's read of one byte too many.

    A run without findings must mean something.
    """
    source, module = WORK / "fault.c", WORK / "fault.so"
    source.write_text("#include <stdlib.h>\nint fault(void) { volatile char *x = malloc(3); return x[3]; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-fsanitize=address", source, "-o", module], check=True)
    code = f"import ctypes; ctypes.CDLL({str(module)!r}).fault()"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    if "heap-buffer-overflow" not in done.stderr:
        sys.exit(f"AddressSanitizer did not see a read past the end:\n{done.stderr}")


def run_packages() -> None:
    """Run the tests of the packages with sanitized kernels."""
    build()
    environment = sanitized_environment()
    check_that_faults_are_seen(environment)
    for name, tests in TESTS.items():
        present = [test for test in tests if (WORK / "packages" / name / test).exists()]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", LEFT_OUT, "--timeout", "600"]
        subprocess.run([*command, *present], cwd=WORK / "packages" / name, env=environment, check=True)


def run_until_it_ends(command: list[str], environment: dict[str, str]) -> None:
    """Run a test, and again if it hangs.

    What ThreadSanitizer holds when a process forks may lock up the child. What the test or the sanitizer finds ends
    the session at once; a test that locks up each time does, too.
    """
    for _ in range(ATTEMPTS):
        with subprocess.Popen(command, env=environment, start_new_session=True) as process:
            try:
                status = process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                print("does not end, again: ", end="", flush=True)
                continue
        if status != 0:
            sys.exit(f"{' '.join(command)}: exit status {status}")
        return
    sys.exit(f"{' '.join(command)} did not end within {SECONDS} s, {ATTEMPTS} times")


def run_c_tests(rounds: int) -> None:
    """Compile the C tests of the shared headers with each sanitizer and run them."""
    WORK.mkdir(parents=True, exist_ok=True)
    native = ROOT / "tools" / "native"
    roots = WORK / "roots"
    shutil.rmtree(roots, ignore_errors=True)
    for sanitizers, name, arguments in (
        ("address,undefined", "processors_test", [str(roots)]),
        ("address,undefined", "cpu_test", []),
        ("address,undefined", "pool_test", [str(rounds), "0"]),
        ("thread", "pool_test", [str(rounds)]),
    ):
        program = WORK / f"{name}_{sanitizers.partition(',')[0]}"
        command = ["gcc", "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", f"-fsanitize={sanitizers}"]
        command += [f"-I{native / 'include'}", str(native / "tests" / f"{name}.c"), "-o", str(program), "-lpthread"]
        subprocess.run(command, check=True)
        environment = {
            **os.environ,
            "TSAN_OPTIONS": "halt_on_error=1:die_after_fork=0",  # the test forks on purpose, and computes in the child
            "ASAN_OPTIONS": "detect_leaks=0",  # the pool of a process lives as long as the process
            "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        }
        print(f"{name} under {sanitizers}: ", end="", flush=True)
        run_until_it_ends([str(program), *arguments], environment)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("packages", "c"), help="run one half")
    parser.add_argument("--rounds", type=int, default=2000, help="regions that each of the pool's callers opens")
    options = parser.parse_args()
    if shutil.which("gcc") is None:
        sys.exit("gcc is missing")
    if options.only != "packages":
        run_c_tests(options.rounds)
    if options.only != "c":
        run_packages()


if __name__ == "__main__":
    main()
