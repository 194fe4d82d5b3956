"""Measures the cost before any computation: import time, wheels, size, dependencies.

Import time is over NumPy's: a fresh process imports NumPy, then ours, and only the second is timed. Wheels are built
from the working tree, or taken from --wheels. A fresh virtual environment then gets lattice-embed and its run-time
dependencies, from the package index or from --find-links. Everything in its site-packages but pip is counted.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from harness.options import Record, add_record_options, finish, limits, positive_int
from harness.record import describe_run
from harness.tables import markdown_table, provenance

__all__ = ["main", "misses", "render", "undeclared"]

SCRIPT = "footprint"
ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("lattice-inference", "lattice-embed")
MODULES = ("lattice_inference", "lattice_embed")

EXAMPLES = """
examples:
  python benchmarks/footprint.py                      everything; builds wheels and an environment, about two minutes
  python benchmarks/footprint.py --only import        import time alone
  python benchmarks/footprint.py --wheels dist/ --check
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", choices=["import", "size"], default=["import", "size"], help="measure only these"
    )
    parser.add_argument(
        "--repeats", type=positive_int, default=11, metavar="N", help="fresh processes a module (default: 11)"
    )
    parser.add_argument(
        "--wheels", type=Path, metavar="FOLDER", help="take our wheels from here instead of building them"
    )
    parser.add_argument(
        "--build-isolation", action="store_true", help="let pip fetch the build tools instead of using this Python's"
    )
    parser.add_argument("--find-links", metavar="PLACE", help="take dependencies from here only, not from the index")
    add_record_options(parser, SCRIPT)
    options = parser.parse_args(arguments)
    return finish(SCRIPT, options, measure=partial(measure, options), render=render, misses=misses)


def measure(options: argparse.Namespace) -> Record:
    """Run what the options ask for and return the record.

    Raises:
        RuntimeError: a module cannot be imported, or pip failed.
    """
    record = describe_run(SCRIPT)
    if "import" in options.only:
        record["import_seconds"] = _import_times(options.repeats)
    if "size" in options.only:
        with tempfile.TemporaryDirectory(prefix="lattice-footprint-") as name:
            folder = Path(name)
            wheels = _find_wheels(options.wheels or _build_wheels(folder / "wheels", options.build_isolation))
            record["wheel_bytes"] = {package: wheel.stat().st_size for package, wheel in wheels.items()}
            site = _install(folder / "environment", wheels, options.find_links)
            record["installed_bytes"] = _installed_sizes(site)
            record["undeclared"] = undeclared(_requirements(site), limits(SCRIPT)["distributions"])
    return record


def _import_times(repeats: int) -> dict[str, list[float]]:
    """Seconds that each module's import takes after NumPy's, in fresh processes that take turns."""
    program = (
        "import sys, time, numpy; s = time.perf_counter(); __import__(sys.argv[1]); print(time.perf_counter() - s)"
    )
    seconds: dict[str, list[float]] = {module: [] for module in MODULES}
    for turn in range(repeats + 1):
        for module in MODULES:
            run = _run([sys.executable, "-c", program, module])
            if turn:  # the first brings the files into memory
                seconds[module].append(float(run))
    return seconds


def _build_wheels(folder: Path, isolated: bool) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder)]
    command += [*([] if isolated else ["--no-build-isolation"]), *(f"{ROOT}/packages/{name}" for name in PACKAGES)]
    _run(command, alone=True)
    return folder


def _find_wheels(folder: Path) -> dict[str, Path]:
    wheels = {}
    for package in PACKAGES:
        found = sorted(folder.glob(f"{package.replace('-', '_')}-*.whl"))
        if len(found) != 1:
            raise RuntimeError(f"{folder} holds {len(found)} wheels of {package}; exactly one is needed")
        wheels[package] = found[0].resolve()
    return wheels


def _install(environment: Path, wheels: Mapping[str, Path], find_links: str | None) -> Path:
    """Install our wheels and dependencies in a fresh environment; return its site-packages."""
    _run([sys.executable, "-m", "venv", "--without-pip", str(environment)])
    python = environment / "bin" / "python"
    source = ["--no-index", "--find-links", find_links] if find_links else []
    # siblings are named as files, never looked for in the index: another project owns the name of one of ours there
    ours = [f"{wheels['lattice-inference']}[hub]", str(wheels["lattice-embed"])]
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", str(python)]
    _run([*pip, "install", *source, *ours], alone=True)
    return Path(_run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip())


def _run(command: Sequence[str], *, alone: bool = False) -> str:
    """Run a command and return its output.

    ``alone`` hides PYTHONPATH, whose packages pip would count as installed.
    """
    environment = {name: value for name, value in os.environ.items() if not (alone and name == "PYTHONPATH")}
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if run.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:4])} ... failed: {(run.stderr.strip() or run.stdout.strip())[-600:]}")
    return run.stdout


def _installed_sizes(site: Path) -> dict[str, dict[str, int]]:
    """Return the bytes of ``files`` and of their ``bytecode`` by distribution.

    ``""`` holds what belongs to no distribution.
    """
    owner: dict[Path, str] = {}
    for distribution in importlib.metadata.distributions(path=[str(site)]):
        for file in distribution.files or ():
            owner[Path(str(file.locate())).resolve()] = _canonical(distribution.metadata["Name"])
    sizes: dict[str, dict[str, int]] = {name: {"files": 0, "bytecode": 0} for name in {*owner.values(), ""}}
    for path in site.resolve().rglob("*"):
        if path.is_file():
            kind = "bytecode" if path.suffix == ".pyc" else "files"
            sizes[owner.get(path, "")][kind] += path.stat().st_size
    return dict(sorted(sizes.items(), key=lambda item: -sum(item[1].values())))


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _requirements(site: Path) -> dict[str, set[str]]:
    """What each installed distribution names as its requirements, extras left out."""
    graph = {}
    for distribution in importlib.metadata.distributions(path=[str(site)]):
        needs = [line for line in distribution.requires or () if "extra ==" not in line]
        names = [match[0] for line in needs if (match := re.match(r"[A-Za-z0-9._-]+", line))]
        graph[_canonical(distribution.metadata["Name"])] = {_canonical(name) for name in names}
    return graph


def undeclared(requirements: Mapping[str, set[str]], declared: Sequence[str]) -> list[str]:
    """Return installed distributions that no declared requirement explains.

    They are neither ours, nor declared, nor needed by a declared one.

    Args:
        requirements: the names that each installed distribution requires, by its name.
        declared: the run-time dependencies that the project has decided on.
    """
    allowed: set[str] = set(PACKAGES)
    waiting = [_canonical(name) for name in declared]
    while waiting:
        name = waiting.pop()
        if name not in allowed:
            allowed.add(name)
            waiting += requirements.get(name, ())
    return sorted(set(requirements) - allowed)


def misses(record: Mapping[str, Any]) -> list[str]:
    """Return a line for every limit that is exceeded."""
    bound = limits(SCRIPT)
    lines = []
    if "import_seconds" in record:
        milliseconds = median(record["import_seconds"]["lattice_embed"]) * 1e3
        if not milliseconds <= bound["import_ms_over_numpy"]:
            lines.append(
                f"import lattice_embed: {milliseconds:.1f} ms, {bound['import_ms_over_numpy']} ms is the limit"
            )
    for package, nbytes in record.get("wheel_bytes", {}).items():
        if not nbytes <= bound["wheel_mb"][package] * 1e6:
            lines.append(f"wheel of {package}: {nbytes / 1e6:.2f} MB, {bound['wheel_mb'][package]} MB is the limit")
    if "installed_bytes" in record:
        sizes = {name: size["files"] for name, size in record["installed_bytes"].items()}
        ours = sum(sizes[package] for package in PACKAGES)
        for what, nbytes, limit in (
            ("everything installed", sum(sizes.values()), bound["installed_mb"]),
            ("ours installed", ours, bound["ours_installed_mb"]),
        ):
            if not nbytes <= limit * 1e6:
                lines.append(f"{what}: {nbytes / 1e6:.1f} MB, {limit} MB is the limit")
        lines += [f"{name} is installed, which no run-time dependency needs" for name in record["undeclared"]]
    return lines


def render(record: Mapping[str, Any]) -> str:
    """Return the tables of a record in Markdown."""
    bound = limits(SCRIPT)
    parts = [provenance(record)]
    if "import_seconds" in record:
        rows = [[name, f"{median(seconds) * 1e3:.1f}"] for name, seconds in record["import_seconds"].items()]
        parts.append(markdown_table(["import, after NumPy", f"ms (limit {bound['import_ms_over_numpy']})"], rows))
    if "wheel_bytes" in record:
        rows = [
            [name, f"{nbytes / 1e6:.2f}", str(bound["wheel_mb"][name])]
            for name, nbytes in record["wheel_bytes"].items()
        ]
        parts.append(markdown_table(["wheel", "MB", "limit"], rows))
    if "installed_bytes" in record:
        sizes = record["installed_bytes"]
        rows = [_size_row(name or "no distribution's", [size]) for name, size in sizes.items()]
        rows.append(_size_row(f"all (limit {bound['installed_mb']})", list(sizes.values())))
        ours = [sizes[package] for package in PACKAGES]
        rows.append(_size_row(f"ours (limit {bound['ours_installed_mb']})", ours))
        header = ["installed", "MB", "and bytecode, MB"]
        parts.append(markdown_table(header, rows))
    return "\n\n".join(parts)


def _size_row(name: str, sizes: Sequence[Mapping[str, int]]) -> list[str]:
    files, bytecode = (sum(size[kind] for size in sizes) for kind in ("files", "bytecode"))
    return [name, f"{files / 1e6:.2f}", f"{bytecode / 1e6:.2f}"]


if __name__ == "__main__":
    sys.exit(main())
