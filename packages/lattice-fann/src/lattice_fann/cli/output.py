"""Output files of commands.

They are checked as far as possible before any work is done for them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from lattice_fann.errors import FannError, InvalidInputError
from lattice_fann.formats.atomic_write import check_writable
from lattice_fann.formats.binary_v2 import WeightType
from lattice_fann.formats.files import obstacle, save
from lattice_fann.network import Network

__all__ = ["check_format", "check_output", "save_or_rescue"]


def check_output(option: str, name: str | None, inputs: Sequence[str] = ()) -> Path | None:
    """Return the path that ``option`` names, or None if it was not given.

    Raises:
        InvalidInputError: no such folder, no plain file, or one of the command's ``inputs``.
        OSError: the folder cannot be written to.
    """
    if name is None:
        return None
    path = Path(name)
    if not name or "\0" in name:
        raise InvalidInputError(f"{option} {name!r} is no file name")
    try:
        if not path.parent.is_dir():
            raise InvalidInputError(f"{option} {name}: the folder {path.parent} does not exist")
        if path.is_dir():
            raise InvalidInputError(f"{option} {name}: this is a folder; name a file in it")
        if path.exists() and not path.is_file():
            raise InvalidInputError(f"{option} {name}: this is no plain file, and would be replaced by one")
        for source in inputs:
            if source != "-" and path.exists() and Path(source).exists() and path.samefile(source):
                raise InvalidInputError(f"{option} {name}: this is the file that is read; name another one")
        check_writable(path)
    except OSError as error:
        raise type(error)(error.errno, f"{option} cannot be written: {error.strerror}", name) from None
    return path


def check_format(network: Network, path: Path, weights: WeightType) -> None:
    """Refuse a network that the format of ``path`` cannot hold, whatever its weights will be.

    Raises:
        InvalidInputError: it cannot.
    """
    reason = obstacle(network, path, weights)
    if reason is not None:
        needs = ": a .net file needs --no-scaling and --activation tanh or sigmoid, and takes numbers to predict only"
        remedy = f"Name a .fann file, which holds every network{needs if path.suffix.lower() == '.net' else ''}"
        raise InvalidInputError(f"--output {path}: {reason}. {remedy}")


def save_or_rescue(network: Network, path: Path, weights: WeightType) -> str | None:
    """Write a trained network; return None, or what went wrong and where the network is instead.

    A trained network is not lost when the disk is full or a weight does not fit the format. It is then written with
    float32 weights under another name, beside ``path`` or in the temporary folder.
    """
    try:
        save(network, path, weights=weights)
    except (FannError, OSError) as error:
        for folder in (path.parent, Path(tempfile.gettempdir())):
            rescued = _free_name(folder, path.stem)
            try:
                save(network, rescued)
            except (FannError, OSError):
                continue
            return f"--output {path}: {error}. The trained network is in {rescued} instead"
        return f"--output {path}: {error}. The trained network could not be kept anywhere else"
    return None


def _free_name(folder: Path, stem: str) -> Path:
    number = 0
    while (path := folder / f"{stem}.rescued{number or ''}.fann").exists():
        number += 1
    return path
