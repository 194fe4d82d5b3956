"""Results of stages in a folder, each named by a digest of its inputs: no work is repeated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lattice_fann import FannError
from lattice_fann.formats.npz import read_arrays
from lattice_inference.checkpoint.atomic_file import atomic_file
from lattice_inference.errors import WriteError
from lattice_tune.errors import TuneError

__all__ = ["StageError", "StageFolder", "StageRecord", "digest_of"]

Float32Array = npt.NDArray[np.float32]


class StageError(TuneError, OSError):
    """The folder of stages cannot be written."""


@dataclass(frozen=True)
class StageRecord:
    """What became of a stage.

    Attributes:
        name: ``"labels"``, ``"vectors"``, ``"student"``, ``"test vectors"`` or ``"evaluation"``, which always takes place.
        digest: of what it was made of.
        skipped: whether its result was there already.
        seconds: wall time.
    """

    name: str
    digest: str
    skipped: bool
    seconds: float


def digest_of(*parts: object) -> str:
    """Return 128 bits, in hex, over texts, bytes, arrays and lists of these."""
    digest = blake2b(digest_size=16)

    def add(part: object) -> None:
        if isinstance(part, (list, tuple)):
            digest.update(b"list" + len(part).to_bytes(8, "little"))
            for entry in part:
                add(entry)
            return
        if isinstance(part, np.ndarray):
            digest.update(f"{part.dtype}{part.shape}".encode())
            content = np.ascontiguousarray(part).tobytes()
        else:
            content = part if isinstance(part, bytes) else str(part).encode()
        digest.update(type(part).__name__.encode() + len(content).to_bytes(8, "little") + content)

    for part in parts:
        add(part)
    return digest.hexdigest()


class StageFolder:
    """Keeps arrays by name and digest; without a folder it keeps nothing.

    Raises:
        StageError: the folder cannot be made.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StageError(f"{folder}: {error.strerror or error}") from error

    def path(self, name: str, digest: str, suffix: str) -> Path | None:
        """Return where a result lies; None without a folder."""
        return None if self.folder is None else self.folder / f"{name}-{digest}{suffix}"

    def array(
        self, name: str, digest: str, shape: tuple[int, int], make: Callable[[], Float32Array]
    ) -> tuple[Float32Array, bool]:
        """Return an array, and whether it was there already; a file that is damaged is made anew.

        An array with NaN is not kept: where a teacher had no answer, it may have one in the next run.
        """
        path = self.path(name, digest, ".npz")
        if path is not None and path.is_file():
            try:
                found = read_arrays(path, ["rows"])["rows"]
            except (FannError, OSError):
                found = np.empty(0)
            if found.dtype == np.float32 and found.shape == shape and np.isfinite(found).all():
                return found, True
        made = make()
        if path is not None and np.isfinite(made).all():
            try:
                with atomic_file(path) as file:
                    np.savez(file, rows=made)
            except WriteError as error:
                raise StageError(str(error)) from error
        return made, False
