"""Builds for AArch64 and tests the NEON kernels and their bits under qemu.

Python and NumPy for AArch64 are unpacked into build/neon, nothing is installed. Needs Debian 12 or a system whose
``apt-get download`` has Python 3.11 for arm64, and gcc-aarch64-linux-gnu and qemu-user-static. qemu shows what the kernels
compute, not how fast.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from working_copy import copy_sources

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "neon"
SYSTEM = WORK / "system"
SITE = WORK / "site"
BYTECODE = WORK / "bytecode"

# What Python needs at run time.
DEBIAN = [
    "libc6",
    "libgcc-s1",
    "python3.11-minimal",
    "libpython3.11-minimal",
    "libpython3.11-stdlib",
    "libexpat1",
    "zlib1g",
    "libssl3",
    "libffi8",
    "libbz2-1.0",
    "liblzma5",
    "libstdc++6",
    "libuuid1",
]
TESTS = {
    "lattice-inference": [
        "tests/backends/test_bfloat16.py",
        "tests/backends/test_blocks.py",
        "tests/backends/test_conformance.py",
        "tests/backends/test_int8.py",
        "tests/backends/test_moe.py",
        "tests/backends/test_recurrent_ops.py",
        "tests/backends/test_same_bits.py",
        "tests/backends/test_vector_math.py",
        "tests/models/test_tiny_bert.py",
    ],
    "lattice-embed": ["tests/test_vectors.py", "tests/test_stored_vectors.py", "tests/test_nearest_vectors.py"],
    "lattice-fann": ["tests/test_network.py", "tests/test_optimizers.py"],
    "lattice-transport": ["tests/test_native_math.py", "tests/test_goldens.py"],
}


def run(*command: str | os.PathLike[str], cwd: Path | None = None, environment: dict[str, str] | None = None) -> None:
    subprocess.run(command, cwd=cwd, env=environment, check=True)


def unpack_python() -> None:
    """Put a Python for AArch64 in build/neon/system and the tests' imports in build/neon/site."""
    if not (SYSTEM / "usr/bin/python3.11").exists():
        known = subprocess.run(["dpkg", "--print-foreign-architectures"], capture_output=True, text=True, check=True)
        added = "arm64" not in known.stdout.split()
        downloads = WORK / "downloads"
        downloads.mkdir(parents=True, exist_ok=True)
        if added:
            run("dpkg", "--add-architecture", "arm64")
        try:
            run("apt-get", "update", "-qq")
            # apt drops to a user that may not write here, and says so on stderr; the download itself works
            run("apt-get", "download", "-qq", *[f"{name}:arm64" for name in DEBIAN], cwd=downloads)
        finally:
            if added:
                run("dpkg", "--remove-architecture", "arm64")
        for package in sorted(downloads.glob("*.deb")):
            run("dpkg", "-x", package, SYSTEM)
    if not SITE.exists():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(SITE), "--only-binary=:all:"]
        for tag in (
            "manylinux_2_28_aarch64",
            "manylinux_2_27_aarch64",
            "manylinux_2_17_aarch64",
            "manylinux2014_aarch64",
        ):
            pip += ["--platform", tag]
        run(
            *pip,
            "--python-version",
            "3.11",
            "numpy",
            "pytest",
            "hypothesis",
            "safetensors",
            "scipy",
            "blake3",
            "mpmath",
            "gguf",
        )


def build() -> dict[str, str]:
    """Cross-compile the packages in a copy of the tree; return the environment that finds them."""
    copy_sources(WORK)
    environment = {
        **os.environ,
        "CC": "aarch64-linux-gnu-gcc",
        "LDSHARED": "aarch64-linux-gnu-gcc -shared",
        "LATTICE_TARGET_ARCH": "aarch64",
    }
    for name in TESTS:
        package = WORK / "packages" / name
        run(sys.executable, "setup.py", "-q", "build_ext", "--inplace", cwd=package, environment=environment)
        for module in package.rglob("*.so"):  # named for the machine that compiled it
            module.rename(module.with_name(module.name.split(".")[0] + ".cpython-311-aarch64-linux-gnu.so"))
    paths = [SITE, *(WORK / "packages" / name / "src" for name in TESTS)]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "PYTHONPYCACHEPREFIX": str(BYTECODE),
        "LATTICE_TEST_EMULATED": "1",
        # Threads that wait for work spin, which an emulated CPU does slowly and at the cost of those that have some. Tests
        # of threads say how many they want.
        "LATTICE_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def compile_modules() -> None:
    """Compile with this Python, not under qemu, what the tests import.

    Bytecode is the same for every processor.
    """
    if sys.version_info[:2] == (3, 11):
        folders = [SITE, SYSTEM / "usr/lib/python3.11", *(WORK / "packages" / name / "src" for name in TESTS)]
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(BYTECODE)}
        # what cannot be compiled is a template, or a test of the library that it is in
        command = [sys.executable, "-m", "compileall", "-q", "-q", "-x", "/tests?/", *map(str, folders)]
        subprocess.run(command, env=environment, check=False)


def main() -> None:
    for tool in ("qemu-aarch64-static", "aarch64-linux-gnu-gcc", "dpkg"):
        if shutil.which(tool) is None:
            sys.exit(f"{tool} is missing: install qemu-user-static and gcc-aarch64-linux-gnu")
    WORK.mkdir(parents=True, exist_ok=True)
    unpack_python()
    environment = build()
    compile_modules()
    python = ["qemu-aarch64-static", "-L", str(SYSTEM), str(SYSTEM / "usr/bin/python3.11")]
    check = (
        "from lattice_inference.runtime import cpu_info; import platform; print(platform.machine(), cpu_info());"
        "assert cpu_info()['isa'] == 'neon'"
    )
    run(*python, "-c", check, environment=environment)
    for name, tests in TESTS.items():
        present = [test for test in tests if (WORK / "packages" / name / test).exists()]
        command = [*python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *present]
        run(*command, cwd=WORK / "packages" / name, environment=environment)


if __name__ == "__main__":
    main()
