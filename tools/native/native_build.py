"""Builds Lattice's extension modules: Cython once, C kernels once per instruction set.

Every package's ``setup.py`` uses this module, from ``tools/native`` in the workspace or from the copy of that folder
inside an sdist. It does three things that setuptools does not do by itself:

* a *kernel* source is compiled once for each instruction set of the target, with that set's flags and
  ``-DLATTICE_ISA_<NAME>``, and the objects are linked into one extension, which chooses among them at run time;
* Cython's C is compiled at ``-O2`` (it is glue) and our kernels at ``-O3``;
* objects are rebuilt only when a source or a header they depend on is newer.

On Macs with an Apple GPU it also builds a :class:`~metal_library.MetalLibrary` and a :class:`MetalExtension`; a build that
fails there leaves the rest.

Environment variables:

* ``LATTICE_WERROR=1`` makes warnings in our C errors (CI does);
* ``LATTICE_SANITIZE=address,undefined`` builds with sanitizers;
* ``LATTICE_EMULATE_AVX512=1`` compiles the AVX-512 kernels for AVX2 through SIMDe, so that their logic can be tested on a
  CPU without AVX-512 (never for speed);
* ``LATTICE_REQUIRE_METALLIB=1`` fails a build without the library of Metal kernels (wheels have it);
* ``LATTICE_TARGET_ARCH`` names the target when cross-compiling;
* ``LATTICE_BUILD_JOBS`` sets the number of compilers run at once (by default one for each processor).
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metal_library import LIBRARY_NAME, MetalLibrary, compile_library, library_is_required
from setuptools import Extension
from setuptools.command.build_ext import build_ext

NATIVE_ROOT = Path(__file__).resolve().parent
INCLUDE = NATIVE_ROOT / "include"


@dataclass(frozen=True)
class InstructionSet:
    """A level that kernels are compiled for: its name in ``LATTICE_ISA`` and its compiler flags."""

    name: str
    flags: tuple[str, ...]


# The baseline is x86-64-v2 (SSE4.2, POPCNT) on x86 and plain C without fused multiply-add elsewhere.
INSTRUCTION_SETS: dict[str, tuple[InstructionSet, ...]] = {
    "x86_64": (
        InstructionSet("baseline", ("-msse4.2", "-mpopcnt")),
        InstructionSet("avx2", ("-mavx2", "-mfma", "-mf16c", "-mpopcnt")),
        InstructionSet(
            "avx512", ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx2", "-mfma", "-mf16c", "-mpopcnt")
        ),
    ),
    "aarch64": (InstructionSet("baseline", ()), InstructionSet("neon", ())),
    "other": (InstructionSet("baseline", ()),),
}

# AVX-512 intrinsics written out in AVX2 by the headers of SIMDe, for tests on CPUs without it.
EMULATED_AVX512 = InstructionSet("avx512", ("-mavx2", "-mfma", "-mf16c", "-mpopcnt"))

KERNEL_FLAGS = (
    "-std=c11",
    "-O3",
    "-g0",
    "-ffp-contract=off",  # FMA only where it is written: the same bits from every compiler and instruction set
    "-fno-math-errno",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Wno-psabi",
)
# The compiler takes minutes over what SIMDe makes of a kernel at -O3; which instructions it chooses changes no result.
EMULATION_FLAGS = ("-O1",)
DOOR_FLAGS = ("-O2", "-g0", "-ffp-contract=off", "-fvisibility=hidden", "-Wno-psabi")


def target_architecture() -> str:
    """Return ``x86_64``, ``aarch64`` or ``other`` for the machine that is compiled for."""
    machine = os.environ.get("LATTICE_TARGET_ARCH", platform.machine()).lower()
    if machine in {"x86_64", "amd64"}:
        return "x86_64"
    if machine in {"aarch64", "arm64"}:
        return "aarch64"
    return "other"


def instruction_sets() -> tuple[InstructionSet, ...]:
    """Return the levels to compile kernels for."""
    levels = INSTRUCTION_SETS[target_architecture()]
    if not emulating_avx512():
        return levels
    return tuple(EMULATED_AVX512 if level.name == "avx512" else level for level in levels)


def emulating_avx512() -> bool:
    """Whether the AVX-512 kernels are built to run on AVX2."""
    return os.environ.get("LATTICE_EMULATE_AVX512") == "1"


def sanitizer_flags() -> list[str]:
    """Return the compiler and linker flags for the sanitizers named by ``LATTICE_SANITIZE``.

    They follow the others. At ``-O3`` the compiler takes minutes over the checks of a kernel, at ``-O1`` seconds, at
    ``-O0`` minutes again. Checks of null pointers, of objects' sizes and of a pointer's arithmetic are left out where
    addresses are checked, since AddressSanitizer sees the access itself: that is half of the compiler's work.
    """
    names = os.environ.get("LATTICE_SANITIZE", "")
    if not names:
        return []
    flags = [f"-fsanitize={names}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-O1", "-g1"]
    if {"address", "undefined"} <= set(names.split(",")):
        flags.append("-fno-sanitize=object-size,null,pointer-overflow")
    return flags


def runs_here(level: InstructionSet) -> bool:
    """Whether this CPU has the instructions of ``level``; true where that cannot be told."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return True
    words = next((line.split() for line in lines if line.startswith("flags")), None)
    return words is None or all(flag.removeprefix("-m").replace(".", "_") in words for flag in level.flags)


class NativeExtension(Extension):
    """An extension module with ``kernels``: C files that are compiled once per instruction set.

    ``sources`` holds the ``.pyx`` file and C files compiled once; ``header_folders`` are searched for headers and
    watched for changes.
    """

    def __init__(
        self,
        name: str,
        sources: list[str],
        *,
        kernels: list[str] | None = None,
        header_folders: list[str] | None = None,
    ) -> None:
        import numpy

        folders = [str(INCLUDE), *(header_folders or [])]
        headers = [str(path) for folder in folders for path in sorted(Path(folder).rglob("*.h"))]
        self.kernels = kernels or []
        super().__init__(
            name,
            sources,
            include_dirs=[*folders, numpy.get_include()],
            depends=headers,
            extra_compile_args=[*DOOR_FLAGS, *sanitizer_flags()],
            extra_link_args=[
                *(["-Wl,-s"] if sys.platform == "linux" and not sanitizer_flags() else []),
                *sanitizer_flags(),
            ],
            libraries=[] if sys.platform == "win32" else ["m"],
        )
        self.define_macros.append(("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION"))
        if emulating_avx512():
            self.define_macros.append(("LATTICE_EMULATE_AVX512", "1"))


class MetalExtension(NativeExtension):
    """An extension module over Apple's Metal; a build goes on without it."""

    def __init__(self, name: str, sources: list[str], *, header_folders: list[str]) -> None:
        super().__init__(name, sources, header_folders=header_folders)
        self.optional = not library_is_required()
        self.extra_link_args += ["-framework", "Foundation", "-framework", "Metal"]


def builds_metal() -> bool:
    """Whether Metal's parts are built: on macOS for Apple's own processors."""
    return sys.platform == "darwin" and target_architecture() == "aarch64"


class BuildNative(build_ext):
    """``build_ext`` that compiles the kernels of a :class:`NativeExtension` before it is linked.

    A :class:`~metal_library.MetalLibrary` lies beside the modules of its package.
    """

    def get_ext_filename(self, fullname: str) -> str:
        """Return the file of a module or library, below the folder of packages."""
        if isinstance(self.ext_map.get(fullname), MetalLibrary):
            return os.path.join(*fullname.split(".")[:-1], LIBRARY_NAME)
        return str(super().get_ext_filename(fullname))

    def build_extension(self, ext: Any) -> None:
        """Compile the kernels of ``ext``, then the extension itself with the kernels' objects."""
        if isinstance(ext, MetalLibrary):
            target = Path(self.get_ext_fullpath(ext.name))
            compile_library(ext.source(), target, Path(self.build_temp) / ext.name)
            return
        if isinstance(ext, NativeExtension):
            sources = [source for source in ext.sources if source.endswith(".c") and "kernels" in Path(source).parts]
            ext.sources = [source for source in ext.sources if source not in sources]
            jobs: list[tuple[str, InstructionSet | None]] = [(source, None) for source in sources]
            jobs += [(k, isa) for k in ext.kernels for isa in instruction_sets()]
            with ThreadPoolExecutor(int(os.environ.get("LATTICE_BUILD_JOBS", os.cpu_count() or 1))) as pool:
                objects = list(pool.map(lambda job: self._compile_kernel(ext, *job), jobs))
            ext.extra_objects = [*(ext.extra_objects or []), *objects]
            ext.depends = [*ext.depends, *objects]
        super().build_extension(ext)

    def _compile_kernel(self, ext: NativeExtension, source: str, isa: InstructionSet | None) -> str:
        flags = [*KERNEL_FLAGS, *(EMULATION_FLAGS if emulating_avx512() else ())]
        if isa is None or runs_here(isa):
            flags += sanitizer_flags()
        elif sanitizer_flags():  # it is only linked: its checks would be a third of the compiler's work
            flags += EMULATION_FLAGS
        if os.environ.get("LATTICE_WERROR") == "1":
            flags.append("-Werror")
        if sanitizer_flags():
            flags.append("-fno-wrapv")  # Python's own flags have -fwrapv, which would leave signed overflow unseen
        suffix = "plain"
        if isa is not None:
            suffix = isa.name
            flags += [*isa.flags, f"-DLATTICE_ISA_{isa.name.upper()}=1"]
        # One folder a (module, instruction set): the compiler names an object after its source.
        output = Path(self.build_temp) / ext.name / suffix
        output.mkdir(parents=True, exist_ok=True)
        target = Path(self.compiler.object_filenames([source], output_dir=str(output))[0])
        newest = max(Path(path).stat().st_mtime for path in [source, __file__, *ext.depends] if Path(path).exists())
        if not self.force and target.exists() and target.stat().st_mtime >= newest:
            return str(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        (built,) = self.compiler.compile(
            [source],
            output_dir=str(output),
            macros=ext.define_macros,
            include_dirs=ext.include_dirs,
            extra_postargs=flags,
        )
        return str(built)


COMPILING_COMMANDS = {"bdist", "bdist_wheel", "build", "build_ext", "develop", "editable_wheel", "install"}

NO_COMPILER = """\
{package} is built from C, and there is no C compiler here (looked for: {compiler}). Install one:
  Debian, Ubuntu:  apt-get install gcc libc6-dev
  Fedora, RHEL:    dnf install gcc
  Alpine:          apk add gcc musl-dev
  macOS:           xcode-select --install
or name yours in the environment variable CC."""

NO_HEADERS = """\
{package} is built from C, and the headers of Python {version} are not here (looked for: {header}). Install them:
  Debian, Ubuntu:  apt-get install python3-dev
  Fedora, RHEL:    dnf install python3-devel
  Alpine:          apk add python3-dev"""


def check_tools(package: str) -> None:
    """Fail with a clear message without a C compiler or Python's header, before compiling."""
    compiler = (os.environ.get("CC", "").strip() or sysconfig.get_config_var("CC") or "cc").split()
    if sys.platform != "win32" and not shutil.which(compiler[0]):
        raise SystemExit(NO_COMPILER.format(package=package, compiler=" ".join(compiler)))
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if sys.platform != "win32" and "LATTICE_TARGET_ARCH" not in os.environ and not header.exists():
        raise SystemExit(NO_HEADERS.format(package=package, version=platform.python_version(), header=header))


def _keep_extension(template: Extension, settings: dict[str, Any]) -> tuple[Extension, dict[str, Any]]:
    """Give Cython the extension itself.

    Otherwise it would make a new one, which knows no kernels. Cython lists headers by name too, such as ``Python.h``:
    a dependency that is no file would compile everything anew.
    """
    template.sources = settings["sources"]
    template.depends = sorted({*template.depends, *filter(os.path.exists, settings.get("depends", []))})
    return template, {"module_name": settings["name"]}


def setup_arguments(extensions: list[NativeExtension], libraries: list[MetalLibrary] | None = None) -> dict[str, Any]:
    """Return the arguments of ``setuptools.setup`` that build ``extensions`` and ``libraries``.

    Raises:
        SystemExit: the command compiles, and there is no compiler; the message says what to install.
    """
    if COMPILING_COMMANDS & set(sys.argv):
        check_tools(extensions[0].name.partition(".")[0].replace("_", "-"))
    from Cython.Build import cythonize

    modules = cythonize(
        extensions,
        compiler_directives={
            "language_level": 3,
            "embedsignature": True,
            "boundscheck": False,
            "wraparound": False,
            "freethreading_compatible": True,
        },
        include_path=[str(INCLUDE)],
        create_extension=_keep_extension,
    )
    return {"ext_modules": [*modules, *(libraries or [])], "cmdclass": {"build_ext": BuildNative}}
