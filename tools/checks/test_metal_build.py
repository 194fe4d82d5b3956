"""The build of Metal's kernels by a stand-in for Apple's ``xcrun``, and its wheels."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import tarfile
import textwrap
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "packages" / "lattice-inference"
sys.path[:0] = [str(ROOT / "tools" / "native"), str(ROOT / "ci")]

import metal_library  # noqa: E402
import native_build  # noqa: E402

import check_wheels  # noqa: E402

XCRUN = f"#!{sys.executable}\n" + textwrap.dedent('''\
    """Does what Apple's xcrun does, as far as it goes without its compiler; XCRUN says what is wrong."""
    import json, os, struct, sys
    what = os.environ.get("XCRUN", "")
    tool, *rest = sys.argv[3:]
    with open(os.environ["XCRUN_LOG"], "a") as log:
        log.write(json.dumps(sys.argv[1:]) + "\\n")
    if what == "no tool":
        sys.exit('xcrun: error: unable to find utility "metal", not a developer tool or in PATH')
    if what == "no download":
        sys.exit("error: cannot execute tool 'metal' due to missing Metal Toolchain; use: xcodebuild "
                 "-downloadComponent MetalToolchain")
    source, target = rest[rest.index("-o") - 1], rest[rest.index("-o") + 1]
    text = open(source, "rb").read()
    if what == "refused" and tool == "metal":
        sys.exit(source + ":12:5: error: use of undeclared identifier 'simdgroup'")
    if tool == "metallib":
        system, major = (0x82 if what == "ios" else 0x81), (26 if what == "newer" else 11)
        header = struct.pack("<4sHHHBBHHQ", b"MTLB", 0x8001, 1, 2, 0, system, major, 0, 24 + len(text))
        text = b"" if what == "empty" else header + text
    open(target, "wb").write(text)
''')


@pytest.fixture
def xcrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path with the stand-in; returns the file that lists its calls."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "xcrun").write_text(XCRUN, encoding="utf-8")
    (folder / "xcrun").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    monkeypatch.setenv("XCRUN_LOG", str(tmp_path / "calls"))
    monkeypatch.delenv("LATTICE_REQUIRE_METALLIB", raising=False)
    return tmp_path / "calls"


def compiled(folder: Path) -> Path:
    target = folder / "package" / metal_library.LIBRARY_NAME
    metal_library.compile_library("kernel void k() {}\n", target, folder / "between")
    return target


def test_a_library_is_compiled_for_the_oldest_macos_and_without_fast_math(xcrun: Path, tmp_path: Path) -> None:
    stamp = metal_library.read_stamp(compiled(tmp_path).read_bytes())
    assert stamp.is_macos
    assert stamp.version == (11, 0)
    first, second = xcrun.read_text(encoding="utf-8").splitlines()
    assert first.startswith(
        '["-sdk", "macosx", "metal", "-std=macos-metal2.3", "-mmacosx-version-min=11.0", "-fno-fast-math", "-Werror", "-c", '
    )
    assert second.startswith('["-sdk", "macosx", "metallib", ')


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("no tool", "install Xcode and, from Xcode 26 on, run xcodebuild -downloadComponent MetalToolchain"),
        ("no download", "run xcodebuild -downloadComponent MetalToolchain"),
        ("refused", "refused Lattice's Metal kernels:\n.*:12:5: error: use of undeclared identifier"),
        ("newer", "stamped for macOS 26.0, and it must load on macOS 11.0"),
        ("ios", "stamped for another system than macOS"),
        ("empty", "metallib made no library: it has 0 bytes"),
    ],
)
def test_what_goes_wrong_is_told_and_leaves_no_library(
    wrong: str, message: str, xcrun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compiled(tmp_path).exists()
    monkeypatch.setenv("XCRUN", wrong)
    with pytest.raises(metal_library.CompileError, match=message):
        compiled(tmp_path)
    assert not (tmp_path / "package" / metal_library.LIBRARY_NAME).exists()


def test_a_machine_without_xcode_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(metal_library.CompileError, match=r"no xcrun: install Xcode"):
        compiled(tmp_path)


@pytest.mark.parametrize("system", ["linux", "darwin"])
@pytest.mark.parametrize("processor", ["x86_64", "arm64"])
def test_metal_is_built_on_apples_processors_only(system: str, processor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_build.sys, "platform", system)
    monkeypatch.setenv("LATTICE_TARGET_ARCH", processor)
    assert native_build.builds_metal() == ((system, processor) == ("darwin", "arm64"))


@pytest.mark.parametrize("content", [b"", b"MTLB" + bytes(30), b"ELF." + bytes(30), b"MTLB" + bytes(12) + b"\x21" * 40])
def test_a_file_that_is_no_whole_library_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"it has|it begins with"):
        metal_library.read_stamp(content)


# Runs setup.py of an unpacked sdist as a Mac would, but for the modules in C, which Linux cannot link to Metal.
AS_ON_A_MAC = """\
import runpy, sys
sys.path.insert(0, "native")
import native_build
real = native_build.setup_arguments
native_build.builds_metal = lambda: True
native_build.setup_arguments = lambda extensions, libraries: real(
    [each for each in extensions if each.name.endswith("_journal")], libraries
)
sys.argv = ["setup.py", "-q", "bdist_wheel", "--plat-name", "macosx_11_0_arm64", "--dist-dir", sys.argv[1]]
runpy.run_path("setup.py", run_name="__main__")
"""


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, and beside it the folder that it is unpacked in; setup.py needs Cython."""
    if os.environ.get("LATTICE_REQUIRE_METAL") != "1":
        pytest.importorskip("Cython", reason="nox -s metal has it")
    folder = tmp_path_factory.mktemp("sdist")
    command = [sys.executable, "setup.py", "-q", "sdist", "--dist-dir", str(folder)]
    subprocess.run(command, cwd=PACKAGE, check=True, capture_output=True)
    (path,) = folder.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        archive.extractall(folder, filter="data")
    return path


def wheel_of(sdist: Path, target: Path) -> tuple[subprocess.CompletedProcess[str], list[Path]]:
    (source,) = [path for path in sdist.parent.iterdir() if path.is_dir()]
    done = subprocess.run([sys.executable, "-c", AS_ON_A_MAC, str(target)], cwd=source, capture_output=True, text=True)
    return done, sorted(target.glob("*.whl"))


def metal_files(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if "/metal/" in name]
        return {name.partition("/metal/")[2]: archive.read(name) for name in names}


@pytest.mark.slow
def test_a_wheel_from_the_sdist_has_the_library_and_its_source(xcrun: Path, sdist: Path, tmp_path: Path) -> None:
    done, (wheel,) = wheel_of(sdist, tmp_path / "dist")
    assert done.returncode == 0, done.stderr
    held = metal_files(wheel)
    assert metal_library.read_stamp(held["lattice.metallib"]).version == (11, 0)
    source = held["lattice.metallib"][24:].decode()
    for name, text in held.items():
        if name.endswith(".metal"):
            assert text.decode() in source
    assert not [name for name in held if name.endswith((".m", ".h", ".pyx", ".c"))]
    check_wheels.faults.clear()
    check_wheels.check_metal(wheel, sdist)
    assert check_wheels.faults == [f"{wheel.name}: no module _metal"]  # only a Mac links it
    check_wheels.faults.clear()


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["no download", "newer"])
def test_a_wheel_without_the_compiler_has_the_source_only(
    wrong: str, xcrun: Path, sdist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XCRUN", wrong)
    done, (wheel,) = wheel_of(sdist, tmp_path / "dist")
    assert done.returncode == 0, done.stderr
    assert re.search("MetalToolchain" if wrong == "no download" else "stamped for", done.stderr)
    held = metal_files(wheel)
    assert "lattice.metallib" not in held
    assert "kernels/linear_few.metal" in held
    monkeypatch.setenv("LATTICE_REQUIRE_METALLIB", "1")
    done, wheels = wheel_of(sdist, tmp_path / "required")
    assert done.returncode != 0
    assert wheels == []


def a_wheel(folder: Path, *, tag: str = "macosx_11_0_arm64", version: int = 11, **files: bytes) -> Path:
    """Write a wheel with what the check of Metal looks at."""
    header = struct.pack("<4sHHHBBHHQ", b"MTLB", 0x8001, 1, 2, 0, 0x81, version, 0, 30)
    held = {"lattice.metallib": header + b"kernel", "_metal.cpython-313-darwin.so": b"", "kernels/norm.metal": b"norm"}
    path = folder / f"lattice_inference-0.1.0-cp313-cp313-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in (held | files).items():
            archive.writestr(f"lattice_inference/backends/metal/{name}", content)
    return path


@pytest.fixture
def plain_sdist(tmp_path: Path) -> Path:
    source = tmp_path / "norm.metal"
    source.write_text("norm", encoding="utf-8")
    path = tmp_path / "lattice_inference-0.1.0.tar.gz"
    name = "lattice_inference-0.1.0/src/lattice_inference/backends/metal/kernels/norm.metal"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(source, name)
    return path


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({}, None),
        ({"version": 26}, "is stamped for macOS 26.0, and the tag says 11.0"),
        ({"tag": "macosx_26_0_arm64", "version": 26}, None),
        ({"lattice.metallib": b"x"}, "lattice.metallib: it has 1 bytes"),
        ({"kernels/norm.metal": b"another"}, "kernels/norm.metal is not the sdist's"),
        ({"kernels/more.metal": b""}, "kernels/more.metal is not the sdist's"),
        ({"tag": "macosx_11_0_x86_64"}, "holds Metal's module or library"),
        ({"tag": "manylinux_2_28_aarch64"}, "holds Metal's module or library"),
    ],
)
def test_wheels_of_macs_are_checked_on_any_system(
    changed: dict[str, object], fault: str | None, plain_sdist: Path, tmp_path: Path
) -> None:
    check_wheels.faults.clear()
    check_wheels.check_metal(a_wheel(tmp_path, **changed), plain_sdist)  # type: ignore[arg-type]
    assert len(check_wheels.faults) == (fault is not None)
    assert fault is None or fault in check_wheels.faults[0]
    check_wheels.faults.clear()
