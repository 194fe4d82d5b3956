"""A measurement's machine, command and figures, and its JSON file.

A figure without them does not count.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

__all__ = ["RESULTS", "append_samples", "describe_run", "read_record", "usable_cpus", "write_record"]

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).resolve().parents[1] / "results"
"""Where records lie, beside the scripts that make them."""

FORMAT = 1
_OUR_PACKAGES = ("lattice_inference", "lattice_embed")


def describe_run(script: str, *, distributions: Iterable[str] = ()) -> dict[str, Any]:
    """Return machine, versions, command, commit, load and date of a run that starts now."""
    return {
        "format": FORMAT,
        "script": script,
        "command": shlex.join(["python", _relative(sys.argv[0]), *map(_without_folder, sys.argv[1:])]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": _machine(),
        "versions": _versions(distributions),
    }


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record as JSON, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=1, allow_nan=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def read_record(path: Path, script: str) -> dict[str, Any]:
    """Return a record that ``script`` wrote.

    Raises:
        ValueError: the file is no such record.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT or record.get("script") != script:
        raise ValueError(f"{path} is no record (format {FORMAT}) of benchmarks/{script}.py")
    return record


def usable_cpus() -> int:
    """Return how many CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def append_samples(before: Mapping[str, Any], record: Mapping[str, Any], fields: Iterable[str]) -> dict[str, Any]:
    """Merge the samples of two records of one script.

    Machine, versions, commit and ``fields`` must be alike.

    Raises:
        ValueError: they are not.
    """
    for field in ("machine", "versions", "commit", *fields):
        ours, theirs = _comparable(record[field]), _comparable(before[field])
        if ours != theirs:
            raise ValueError(f"--append: the record has {field} {theirs}, this run {ours}")
    command = f"{before['command']}\n    {record['command']}"
    return {**before, "command": command, "samples": before["samples"] + record["samples"]}


def _comparable(fact: Any) -> Any:
    """Return what must be alike in two records.

    The load, and changed files such as a record, are left out.
    """
    return {**fact, "load_average": None} if isinstance(fact, dict) else str(fact).rstrip("+")


def _relative(path: str) -> str:
    absolute = Path(path).resolve()
    return str(absolute.relative_to(ROOT)) if absolute.is_relative_to(ROOT) else absolute.name


def _without_folder(argument: str) -> str:
    """Return an argument as any user would type it.

    Paths outside the tree are reduced to their name.
    """
    return _relative(argument) if os.path.isabs(argument) else argument


def _commit() -> str | None:
    """The commit of the tree, with ``+`` when files differ from it."""
    try:
        run = [
            subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
            for command in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        ]
    except (OSError, subprocess.CalledProcessError):
        return None
    return run[0] + ("+" if run[1] else "")


def _machine() -> dict[str, Any]:
    return {
        "cpu": _cpu_name(),
        "architecture": platform.machine(),
        "system": platform.platform(terse=True),
        "usable_cpus": usable_cpus(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def _cpu_name() -> str:
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    fields: dict[str, str] = {}
    cpuinfo = Path("/proc/cpuinfo")
    for line in cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else ():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    if "model name" not in fields:
        return platform.processor() or "unknown"
    return f"{fields['model name']} (family {fields.get('cpu family', '?')}, model {fields.get('model', '?')})"


def _versions(distributions: Iterable[str]) -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in _OUR_PACKAGES:
        versions[package] = str(__import__(package).__version__)
    for name in ("numpy", *distributions):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
