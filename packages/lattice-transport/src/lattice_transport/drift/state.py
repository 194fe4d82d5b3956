"""The file of a saved detector.

Sizes are checked before unpacking, and every number has bounds.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from lattice_transport.atomic_file import write_atomically
from lattice_transport.errors import InvalidInputError, shown

__all__ = ["MOST_COUNT", "check_state", "read_state", "write_state"]

_Float64 = npt.NDArray[np.float64]

FORMAT = 1
MOST_COUNT = 1 << 53
"""Of vectors seen and such: what JSON readers of other languages keep exactly."""

_MOST_STATE_BYTES = 1 << 16
_MOST_HEADER = 1 << 12
_MOST_DIMENSION = 1 << 20
_MOST_TEXT = 4096
_ARRAYS = {"pending": 2, "reference": 2, "window": 2, "null": 1, "cross_u": 1, "cross_v": 1, "own_v": 1}
_SETTINGS = (
    "window_size",
    "check_interval",
    "false_alarm_rate",
    "metric",
    "epsilon",
    "cooldown",
    "reindex_effect",
    "permutations",
    "seed",
    "reference_fingerprint",
)
_PROGRESS = ("fingerprint", "dimension", "samples_seen", "since_check", "cooling", "position", "chosen_epsilon")


def write_state(path: str | os.PathLike[str], state: dict[str, Any], arrays: dict[str, _Float64]) -> None:
    """Write the file, which is either whole or not there."""
    encoded = np.frombuffer(json.dumps({"format": FORMAT, **state}).encode(), np.uint8)

    def write(file: IO[bytes]) -> None:
        np.savez(file, state=encoded, **arrays)  # type: ignore[arg-type]

    write_atomically(path, write)


def read_state(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, _Float64]]:
    """Return what :func:`write_state` wrote.

    Raises:
        OSError: the file cannot be read.
        InvalidInputError: it is no such file, or its parts are larger than the file or not what they should be.
    """
    name = os.fspath(path)
    with open(Path(name), "rb") as opened:
        try:
            with zipfile.ZipFile(opened) as archive:
                members = _members(archive, os.fstat(opened.fileno()).st_size)
                raw = _array(archive, members.pop("state"), np.dtype(np.uint8), 1)
                arrays = {
                    part: _array(archive, member, np.dtype(np.float64), _ARRAYS[part])
                    for part, member in members.items()
                }
            state = json.loads(raw.tobytes().decode())
        except InvalidInputError as error:
            raise InvalidInputError(f"{name} is not a saved detector: {error}") from None
        except Exception as error:  # zipfile, NumPy and JSON have many ways to fail on damaged bytes
            raise InvalidInputError(f"{name} is not a saved detector: {_first_line(error)}") from None
    if not isinstance(state, dict):
        raise InvalidInputError(f"{name} is not a saved detector: its state is no object")
    return state, arrays


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:200] or type(error).__name__


def _members(archive: zipfile.ZipFile, file_size: int) -> dict[str, zipfile.ZipInfo]:
    found: dict[str, zipfile.ZipInfo] = {}
    total = 0
    for member in archive.infolist():
        part = member.filename.removesuffix(".npy")
        if part in found or (part != "state" and part not in _ARRAYS) or part == member.filename:
            raise InvalidInputError(f"it has a part {shown(member.filename)}")
        if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size:
            raise InvalidInputError(f"its part {part} is compressed, which no saved detector is")
        total += member.file_size
        found[part] = member
    if total > file_size:
        raise InvalidInputError(f"its parts claim {total} bytes, the file has {file_size}")
    if "state" not in found:
        raise InvalidInputError("it has no state")
    if found["state"].file_size > _MOST_STATE_BYTES:
        raise InvalidInputError(f"its state has {found['state'].file_size} bytes, {_MOST_STATE_BYTES} are the most")
    return found


def _array(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, dtype: np.dtype[Any], dimensions: int
) -> npt.NDArray[Any]:
    data = archive.read(member)
    header = io.BytesIO(data)
    if np.lib.format.read_magic(header) != (1, 0):
        raise InvalidInputError(f"{member.filename} has another version than 1.0")
    shape, fortran, found = np.lib.format.read_array_header_1_0(header, max_header_size=_MOST_HEADER)
    size = dtype.itemsize
    for length in shape:
        size *= length
    if found != dtype or fortran or len(shape) != dimensions or size != len(data) - header.tell():
        raise InvalidInputError(f"{member.filename} is {found} of shape {shape}, which does not fit the file")
    return np.frombuffer(data, dtype, offset=header.tell()).reshape(shape).copy()


def check_state(state: dict[str, Any], arrays: dict[str, _Float64]) -> dict[str, Any]:
    """Return the settings of a saved detector.

    Numbers out of bounds and parts that do not fit together are refused. The settings themselves are checked by the
    detector that is made with them.
    """
    if state.get("format") != FORMAT:
        raise InvalidInputError(
            f"a detector of format {shown(state.get('format'))} was saved; this version reads {FORMAT}"
        )
    missing = [name for name in (*_SETTINGS, *_PROGRESS) if name not in state]
    missing += [name for name in ("pending", "reference", "window", "null") if name not in arrays]
    if missing:
        raise InvalidInputError(f"a saved detector lacks {', '.join(missing)}")
    settings = {name: state[name] for name in _SETTINGS}
    size, width = state["window_size"], state["dimension"]
    for name, least, most in (
        ("window_size", 16, 4096),
        ("samples_seen", 0, MOST_COUNT),
        ("since_check", 0, MOST_COUNT),
        ("cooling", 0, MOST_COUNT),
        ("position", 0, 4095),
    ):
        _check_whole(name, state[name], least, most)
    if width is not None:
        _check_whole("dimension", width, 1, _MOST_DIMENSION)
    for name in ("fingerprint", "reference_fingerprint"):
        text = state[name]
        if text is not None and not (isinstance(text, str) and len(text) <= _MOST_TEXT):
            raise InvalidInputError(f"{name} of a saved detector is {shown(text)}")
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise InvalidInputError(f"{name} of a saved detector is not finite")
        if array.ndim == 2 and len(array) and array.shape[1] != width:
            raise InvalidInputError(f"{name} of a saved detector has {array.shape[1]} columns, its vectors {width}")
    pending, reference, window = (len(arrays[name]) for name in ("pending", "reference", "window"))
    if pending >= 2 * size or reference not in (0, size) or window > size:
        raise InvalidInputError("the windows of a saved detector do not fit its window_size")
    if len(arrays["null"]) == 0:
        return settings
    if len(arrays["null"]) != state["permutations"] or reference != size or pending:
        raise InvalidInputError("the calibration of a saved detector is incomplete")
    for name in ("cross_u", "cross_v", "own_v"):
        if name not in arrays or arrays[name].shape != (size,):
            raise InvalidInputError(f"{name} of a saved detector does not fit its window_size")
    return settings


def _check_whole(name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidInputError(f"{name} of a saved detector is {shown(value)}; it must be from {least} to {most}")
