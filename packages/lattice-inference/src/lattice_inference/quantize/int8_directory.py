"""A model's directory with int8 weights: what ``precision="int8"`` makes at load, made once.

Weights are row-major int8 with a tensor of scales beside each, independent of the processor. The same code quantizes
here and at load (:mod:`lattice_inference.checkpoint.int8_weights`), so both give the same bits. With a calibration
the range that a weight's input is rounded within, low and high, stands beside it, too.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lattice_inference._version import __version__
from lattice_inference.backends.opening import open_backend
from lattice_inference.backends.protocol import FileForm
from lattice_inference.calibration import RANGE_SUFFIX, Calibration, check_calibration
from lattice_inference.checkpoint.atomic_file import atomic_directory
from lattice_inference.checkpoint.checkpoint import Checkpoint
from lattice_inference.checkpoint.formats import is_gguf, only_gguf
from lattice_inference.checkpoint.read_once import reading_once
from lattice_inference.checkpoint.safetensors import SINGLE_FILE
from lattice_inference.checkpoint.safetensors_writer import StoredTensor, write_safetensors
from lattice_inference.checkpoint.tensor_rows import parse_rows
from lattice_inference.errors import CheckpointError, InvalidInputError, UnsupportedError
from lattice_inference.graph.program import Program, WeightRef
from lattice_inference.models.experts import single_name
from lattice_inference.quantize.destination import copy_model_files
from lattice_inference.quantize.model_program import ModelProgram, open_model_program
from lattice_inference.quantize.report import QuantizeReport

__all__ = ["quantize_int8"]


@reading_once()
def quantize_int8(
    directory: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    calibration: Calibration | None = None,
    overwrite: bool = False,
    on_tensor: Callable[[str], object] = lambda name: None,
) -> QuantizeReport:
    """Write the encoder, cross-encoder or decoder in ``directory`` to a new one in int8.

    Linears over tokens are int8, tables float16 (but for one that is the output matrix too), what stands on top of the model
    float32. Every other file that a model consists of is copied. ``load_encoder``, ``load_cross_encoder`` and
    ``load_model`` load the result, with ``precision="int8"`` to the bits that the source gives. A language model is written
    for ``load_model``, one with sentence-transformers' files for ``load_encoder``.

    Args:
        directory: a model's directory with safetensors weights in floats.
        destination: the directory to be made. It appears when it is complete.
        calibration: fixed ranges for the inputs of the linears, which loading then applies; without them each row has its
            own range.
        overwrite: replace ``destination`` if it is a model's directory.
        on_tensor: told of each tensor that was written, by its name.

    Raises:
        InvalidInputError: ``destination`` exists, or lies in no folder; ``calibration`` is another model's.
        UnsupportedError: ``directory`` is a GGUF file, whose int8 is Q8_0, or has recurrent layers.
        CheckpointError, ModelConfigError, ModelNotFoundError: a file of the source is malformed or missing.
        WriteError: ``destination`` cannot be written; what was there is there still.
    """
    check_calibration(calibration, "int8")
    source, destination = Path(directory), Path(destination)
    _check(source, destination, overwrite)
    with ExitStack() as stack:
        model = open_model_program(source, stack)
        if model.program.recurrent_specs or _reads_parts(model.program):
            raise UnsupportedError(
                f"{source}: int8 weights of models with recurrent layers are not written to files: load with "
                "precision='int8', or write Q8_0 from a GGUF file (quantize_gguf)"
            )
        with atomic_directory(destination) as work:
            copy_model_files(source, work)
            tensors = _write(model, calibration, work / SINGLE_FILE, on_tensor)
        source_bytes = sum(model.checkpoint.info(name).nbytes for name in model.checkpoint.names())
    return QuantizeReport(
        destination,
        dict(Counter(tensor.dtype for tensor in tensors)),
        source_bytes,
        sum(tensor.nbytes for tensor in tensors),
        (destination / SINGLE_FILE).stat().st_size,
    )


def _check(source: Path, destination: Path, overwrite: bool) -> None:
    if is_gguf(source) or _holds_only_gguf(source):
        raise UnsupportedError(
            f"{source}: only a directory is written with int8 weights; a GGUF file has Q8_0 for that (quantize_gguf), or is "
            "loaded with precision='int8'"
        )
    if destination.exists():
        if destination.samefile(source):
            raise InvalidInputError(f"{destination}: is the source itself: write to another directory")
        if not overwrite:
            raise InvalidInputError(f"{destination}: exists: write to another directory, or allow it to be replaced")
        if not (destination / "config.json").is_file():
            raise InvalidInputError(f"{destination}: is no model's directory, and is not replaced")
    if not destination.parent.is_dir():
        raise InvalidInputError(f"{destination}: the folder {destination.parent} does not exist")


def _reads_parts(program: Program) -> bool:
    """Whether a linear multiplies rows of a tensor, and not all of it."""
    refs = {ref for op in program.ops for ref in op.weights.values()}
    return any(not ref.is_stack and parse_rows(ref.sources[0]) is not None for ref in refs)


def _holds_only_gguf(source: Path) -> bool:
    return not os.path.exists(source / "config.json") and only_gguf(source) is not None


@dataclass(frozen=True)
class _Matrix:
    """A weight of the source that is written.

    Attributes:
        source: the name of its tensor there, or of rows of one.
        name: the name of its tensor in the new file.
        shape: its shape.
        form: how it is written.
        has_range: whether its input has a calibrated range.
    """

    source: str
    name: str
    shape: tuple[int, ...]
    form: FileForm
    has_range: bool


def _write(
    model: ModelProgram, calibration: Calibration | None, path: Path, on_tensor: Callable[[str], object]
) -> list[StoredTensor]:
    matrices = list(_matrices(model, is_calibrated=calibration is not None))
    tensors = [tensor for matrix in matrices for tensor in _tensors(matrix)]
    metadata = {"format": "pt", "lattice.precision": "int8", "lattice.version": __version__}
    if calibration is not None:
        metadata["lattice.calibration"] = calibration.as_metadata()
    with open(path, "wb") as file:  # in a folder that appears when it is complete
        write_safetensors(file, tensors, _arrays(model.checkpoint, matrices, calibration, on_tensor), metadata)
    return tensors


def _matrices(model: ModelProgram, *, is_calibrated: bool) -> Iterator[_Matrix]:
    """Yield what is written; the matrices of a stack one by one, each with its scales.

    Experts have no calibrated range: few rows of a text reach each of them.
    """
    forms = open_backend(precision="int8").file_forms(model.program, model.checkpoint)
    used: dict[str, tuple[WeightRef, str, bool]] = {}
    for op in model.program.ops:
        for part, ref in op.weights.items():
            used[ref.sources[0]] = ref, part, op.kind != "moe"
    for name, (ref, part, is_observed) in used.items():
        if name not in model.checkpoint:  # it is worked out at load
            continue
        has_range = is_calibrated and is_observed and forms[ref].takes_range
        for number, matrix in enumerate(ref.matrices()):
            source = matrix.sources[0]
            target = single_name(source, part, number) if ref.is_stack else source
            yield _Matrix(source, target, matrix.shape, forms[ref], has_range)


def _tensors(matrix: _Matrix) -> list[StoredTensor]:
    ranges = [StoredTensor(matrix.name + RANGE_SUFFIX, "F32", (2,))] if matrix.has_range else []
    return [*matrix.form.file_tensors(matrix.name, matrix.shape), *ranges]


def _arrays(
    checkpoint: Checkpoint,
    matrices: Iterable[_Matrix],
    calibration: Calibration | None,
    on_tensor: Callable[[str], object],
) -> Iterator[npt.NDArray[np.generic]]:
    for matrix in matrices:
        name = matrix.source
        if checkpoint.info(name).dtype == "I8":
            raise CheckpointError(f"{checkpoint.directory}: {name} is int8 already")
        weight = checkpoint.float32(name)
        if weight.shape != matrix.shape:
            raise CheckpointError(
                f"the model needs a tensor of shape {matrix.shape}, the checkpoint has {name} {weight.shape}"
            )
        yield from matrix.form.file_arrays(weight, name)
        if matrix.has_range and calibration is not None:
            limits = calibration.range(name)
            yield np.array([limits.low, limits.high], np.float32)
        checkpoint.drop_pages(name)
        on_tensor(matrix.name)
