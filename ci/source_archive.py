"""Builds reproducible sdists: sorted members, one time, no owner."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

__all__ = ["build_sdist", "commit_time", "normalize"]

ROOT = Path(__file__).resolve().parent.parent


def commit_time() -> int:
    """Return ``SOURCE_DATE_EPOCH``, else the time of the checked-out commit.

    0 outside of a git checkout.
    """
    if "SOURCE_DATE_EPOCH" in os.environ:
        return int(os.environ["SOURCE_DATE_EPOCH"])
    command = ["git", "-c", "safe.directory=*", "log", "-1", "--format=%ct"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return int(done.stdout) if done.returncode == 0 else 0


def build_sdist(folder: Path, output: Path, epoch: int) -> Path:
    """Build the sdist of a package into a folder and return it.

    Raises:
        RuntimeError: it cannot be built.
    """
    with tempfile.TemporaryDirectory(prefix="lattice-sdist-") as built:
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
        command = [sys.executable, "-m", "build", "--sdist", "--outdir", built, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            raise RuntimeError(f"{folder.name}: no sdist could be built:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        (archive,) = Path(built).glob("*.tar.gz")
        output.mkdir(parents=True, exist_ok=True)
        target = output / archive.name
        target.write_bytes(normalize(archive.read_bytes(), epoch))
        return target


def normalize(archive: bytes, epoch: int) -> bytes:
    """Return a ``.tar.gz`` with the same contents in one order, with one time and no owner."""
    packed = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as source,
        gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=epoch, compresslevel=9) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as target,
    ):
        for member in sorted(source.getmembers(), key=lambda member: member.name):
            plain = tarfile.TarInfo(member.name)
            plain.type, plain.size, plain.linkname = member.type, member.size, member.linkname
            plain.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            plain.mtime = epoch
            target.addfile(plain, source.extractfile(member) if member.isfile() else None)
    return packed.getvalue()
