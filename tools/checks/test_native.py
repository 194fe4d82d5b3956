"""The native sources: no instruction above the baseline outside kernels; tests of headers."""

from __future__ import annotations

import ast
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "tools" / "native"
sys.path.insert(0, str(NATIVE))

import native_build  # noqa: E402

COMPILER = shutil.which("gcc") or shutil.which("cc")
OBJDUMP = shutil.which("objdump")
BASELINE = native_build.INSTRUCTION_SETS["x86_64"][0]

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler")
needs_objdump = pytest.mark.skipif(
    COMPILER is None or OBJDUMP is None or platform.machine() not in {"x86_64", "AMD64"},
    reason="needs a C compiler and objdump for x86-64",
)

# What only a CPU beyond x86-64-v2 runs: registers of AVX, mask registers, and every mnemonic of a VEX or EVEX encoding.
# Other instructions that begin with v (verr, verw, VMX) are no business of a kernel and counted as well. Not tzcnt: it is
# bsf with a prefix that older CPUs pass over, and compilers write it for __builtin_ctz on the baseline too.
BEYOND_BASELINE = re.compile(
    r"%[yz]mm|%k[0-7]\b|^v[a-z]|^(?:andn|bextr|bls[ir]|blsmsk|lzcnt|bzhi|mulx|pdep|pext|rorx|sarx|shlx|shrx|movbe)[lqw]?\b"
)
INSTRUCTION = re.compile(r"^\s*[0-9a-f]+:\t(?:[0-9a-f]{2} )+\s*\t(?P<text>.+)$")


def compile_object(source: Path, folder: Path, flags: list[str]) -> Path:
    target = folder / f"{source.stem}.o"
    command = [str(COMPILER), "-c", str(source), "-o", str(target), "-fPIC", *flags]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def instructions(target: Path) -> list[str]:
    listing = subprocess.run([str(OBJDUMP), "-d", str(target)], capture_output=True, text=True, check=True).stdout
    return [match["text"] for line in listing.splitlines() if (match := INSTRUCTION.match(line))]


def beyond_baseline(target: Path) -> list[str]:
    return [text for text in instructions(target) if BEYOND_BASELINE.search(text)]


def c_sources() -> list[Path]:
    """Return our C files.

    What Cython writes lies beside its source, in no folder of that name.
    """
    return sorted(ROOT.glob("packages/*/src/**/kernels/**/*.c"))


def header_folders(source: Path) -> list[Path]:
    return [NATIVE / "include", source.parent, source.parent.parent]


def package_of(source: Path) -> Path:
    return next(parent for parent in source.parents if parent.parent.name == "packages")


def built_object(source: Path, level: str) -> Path | None:
    """Return the object that the package was linked from.

    None if its build folder lacks it or something changed since.
    """
    package = package_of(source)
    built = sorted(package.glob(f"build/temp.*/*/{level}/**/{source.stem}.o"), key=lambda path: path.stat().st_mtime)
    watched = [source, NATIVE / "native_build.py", *NATIVE.glob("include/**/*.h"), *package.glob("src/**/*.h")]
    newest = max(path.stat().st_mtime for path in watched)
    return built[-1] if built and built[-1].stat().st_mtime >= newest else None


def compiled_for_baseline(source: Path, folder: Path) -> Path:
    """Return the baseline object of ``source``: the built one, or compiled as in the build."""
    level = "baseline" if is_kernel(source) else "plain"
    built = built_object(source, level)
    if built is not None:
        return built
    flags = [*native_build.KERNEL_FLAGS, "-Werror", *[f"-I{path}" for path in header_folders(source)]]
    if level == "baseline":
        flags += [*BASELINE.flags, "-DLATTICE_ISA_BASELINE=1"]
    return compile_object(source, folder, flags)


def is_kernel(source: Path) -> bool:
    """Whether the package's setup.py lists ``source`` among ``kernels=``.

    These are compiled once per instruction set.
    """
    tree = ast.parse((package_of(source) / "setup.py").read_text())
    lists = [node.value for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "kernels"]
    return any(source.name in ast.unparse(each) for each in lists)


@pytest.mark.slow
@needs_objdump
@pytest.mark.parametrize("source", c_sources(), ids=lambda path: f"{path.parts[-4]}/{path.name}")
def test_baseline_objects_hold_no_instruction_beyond_x86_64_v2(source: Path, tmp_path: Path) -> None:
    target = compiled_for_baseline(source, tmp_path)
    assert beyond_baseline(target) == []


@needs_objdump
def test_kernels_were_found_among_the_sources() -> None:
    kernels = {path.name for path in c_sources() if is_kernel(path)}
    assert {"kernels.c", "vector_kernels.c"} <= kernels
    assert {"run_step.c", "wordpiece.c", "parallel_scores.c"} <= {path.name for path in c_sources()} - kernels


@needs_objdump
@pytest.mark.parametrize(
    ("flags", "body"),
    [
        (["-mavx"], "void f(float *x) { for (int i = 0; i < 8; i++) x[i] += 1; }"),
        (["-mavx", "-mfma"], "float f(float x) { return __builtin_fmaf(x, x, x); }"),
        (["-mavx512f"], "void f(float *x) { for (int i = 0; i < 64; i++) x[i] += 1; }"),
        (["-mbmi2"], "unsigned f(unsigned x, unsigned y) { return x << y; }"),
        (["-mlzcnt"], "int f(unsigned x) { return __builtin_clz(x); }"),
    ],
    ids=["avx", "fma", "avx512", "bmi2", "lzcnt"],
)
def test_the_check_finds_one_function_of_a_higher_level(flags: list[str], body: str, tmp_path: Path) -> None:
    source = tmp_path / "one.c"
    source.write_text(body)
    assert beyond_baseline(compile_object(source, tmp_path, ["-O3", *flags]))
    plain = compile_object(source, tmp_path, ["-O3", *BASELINE.flags])
    assert instructions(plain)
    assert beyond_baseline(plain) == []


def build_and_run(name: str, folder: Path, *arguments: str) -> str:
    program = folder / name
    command = [str(COMPILER), "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{NATIVE / 'include'}"]
    command += [str(NATIVE / "tests" / f"{name}.c"), "-o", str(program), "-lpthread"]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    done = subprocess.run([str(program), *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@needs_compiler
def test_pool_runs_every_task_once_on_threads_that_may_take_part(tmp_path: Path) -> None:
    assert build_and_run("pool_test", tmp_path, "20000", "10") == "pool: ok\n"


@needs_compiler
@pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's")
def test_cpu_quota_of_control_groups_cuts_the_threads(tmp_path: Path) -> None:
    assert build_and_run("processors_test", tmp_path, str(tmp_path / "roots")).startswith("processors: ok")


@needs_compiler
def test_a_level_needs_the_word_of_cpu_and_operating_system(tmp_path: Path) -> None:
    assert build_and_run("cpu_test", tmp_path).startswith("cpu: ok")


@pytest.mark.parametrize("package", ["lattice-inference", "lattice-embed", "lattice-fann", "lattice-transport"])
def test_a_missing_compiler_is_told_before_anything_is_compiled(package: str, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "setup.py",
        "-q",
        "build_ext",
        "--build-lib",
        str(tmp_path),
        "--build-temp",
        str(tmp_path),
    ]
    done = subprocess.run(
        command,
        cwd=ROOT / "packages" / package,
        env={**os.environ, "CC": "no-such-compiler -pthread"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"{package} is built from C, and there is no C compiler here (looked for: no-such")
    assert "apt-get install gcc" in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_missing_headers_of_python_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(native_build.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("CC", sys.executable)  # anything that can be run
    with pytest.raises(SystemExit, match=r"headers of Python .* are not here .*Python\.h\). Install them"):
        native_build.check_tools("lattice-fann")


def test_only_files_are_dependencies_of_an_extension(tmp_path: Path) -> None:
    """A system header's name is no file, and a missing file makes setuptools compile anew."""
    header = tmp_path / "table.h"
    header.touch()
    template = native_build.Extension("module", ["module.pyx"])
    settings = {"name": "module", "sources": ["module.c"], "depends": ["Python.h", "<math.h>", str(header)]}
    kept, _ = native_build._keep_extension(template, settings)
    assert (kept.sources, kept.depends) == (["module.c"], [str(header)])
