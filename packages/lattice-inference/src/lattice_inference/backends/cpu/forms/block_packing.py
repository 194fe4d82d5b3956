"""Packs block-quantized weights in parts, on all threads.

Meanwhile one more thread reads the next parts from the file.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lattice_inference.backends.cpu import _cpu
from lattice_inference.backends.cpu.forms.weight_form import PlacedWeight
from lattice_inference.backends.tensor_source import StoredTensorSource, TensorSource
from lattice_inference.backends.weight_reading import check_shapes
from lattice_inference.checkpoint.blocks import BLOCK_FORMATS, dequantize_blocks
from lattice_inference.errors import CheckpointError
from lattice_inference.graph.program import Program

__all__ = ["pack_block_weights", "reading_first_weights"]

_PART_ELEMENTS = 1 << 22
_PARTS_AHEAD = 12  # parts that are read before they are packed, some 50 MB
_READ_AT_ONCE_BYTES = 256 << 20
_TOUCHED_BYTES = 4 << 20
_FIRST_WEIGHTS = 64


@contextlib.contextmanager
def reading_first_weights(program: Program, source: TensorSource) -> Iterator[None]:
    """Have a thread read the first block-quantized weights of ``program`` from their file.

    It reads while the body of the ``with`` statement runs.
    """
    is_over = threading.Event()

    def read(arrays: Iterable[npt.NDArray[np.generic]]) -> None:
        left = _READ_AT_ONCE_BYTES
        for array in arrays:
            step = max(1, _TOUCHED_BYTES // array.strides[0])
            for start in range(0, len(array), step):
                if is_over.is_set() or left <= 0:
                    return
                _cpu.touch_pages(array[start : start + step])
                left -= step * array.strides[0]

    names = dict.fromkeys([name for op in program.ops for ref in op.weights.values() for name in ref.sources])
    arrays = []
    if isinstance(source, StoredTensorSource):
        stored = [name for name in names if name in source and source.info(name).dtype in _cpu.BLOCK_FORMATS]
        arrays = [source.array(name) for name in stored[:_FIRST_WEIGHTS]]
    if not arrays:
        yield
        return
    reader = threading.Thread(target=read, args=(arrays,), daemon=True)
    reader.start()
    try:
        yield
    finally:
        is_over.set()
        reader.join()


@dataclass(frozen=True)
class _Part:
    """Some rows of a weight as they lie in the file, and the function that packs them."""

    weight: PlacedWeight
    blocks: Sequence[npt.NDArray[np.generic]]
    pack: Callable[[], bool]


def pack_block_weights(weights: Sequence[PlacedWeight], source: StoredTensorSource, memory: _cpu.Memory) -> None:
    """Pack ``weights`` into ``memory`` on the pool's number of threads; drop the file's pages.

    Raises:
        CheckpointError: a tensor is missing, has another shape, or a scale that is NaN or infinite.
    """
    for weight in weights:
        check_shapes(weight.ref, [source.info(name).shape for name in weight.ref.sources])
    parts = list(itertools.chain.from_iterable(_parts_of(weight, source, memory) for weight in weights))
    left = {weight: sum(1 for _ in group) for weight, group in itertools.groupby(parts, key=lambda part: part.weight)}
    queue, lock = iter(enumerate(parts)), threading.Lock()
    begun = 0
    ahead, is_over = threading.Semaphore(_PARTS_AHEAD), threading.Event()

    def read() -> None:
        for index, part in enumerate(parts):
            ahead.acquire()
            if is_over.is_set():
                return
            for blocks in part.blocks if index >= begun else ():
                _cpu.touch_pages(blocks)

    def work() -> None:
        nonlocal begun
        while True:
            with lock:
                index, part = next(queue, (-1, None))
                begun = max(begun, index + 1)
            if part is None:
                return
            ahead.release()
            if not part.pack():
                raise CheckpointError(f"{part.weight.name} has a scale that is NaN or infinite: the file is damaged")
            with lock:
                left[part.weight] -= 1
                is_done = left[part.weight] == 0
            if is_done:
                for name in part.weight.ref.sources:
                    source.drop_pages(name)

    threads = min(_cpu.get_num_threads(), len(parts))
    with ThreadPoolExecutor(threads + 1) as pool:
        reader = pool.submit(read)
        try:
            for worker in [pool.submit(work) for _ in range(threads)]:
                worker.result()
        finally:
            is_over.set()
            ahead.release()
        reader.result()
    for name in (name for weight in left for name in weight.ref.sources):
        source.drop_pages(name)  # the reader may have read a page again after it was packed


def _parts_of(weight: PlacedWeight, source: StoredTensorSource, memory: _cpu.Memory) -> Iterator[_Part]:
    ref, form = weight.ref, weight.form.name
    rows, depth = ref.shape
    step = max(_cpu.PANEL, _PART_ELEMENTS // depth // _cpu.PANEL * _cpu.PANEL)
    panel_bytes = weight.form.panel_bytes(depth)
    arrays = [source.array(name) for name in ref.sources]
    stored = [source.info(name).dtype for name in ref.sources]
    bounds = [0, *itertools.accumulate(len(array) for array in arrays)]
    for first in range(0, rows, step):
        pieces = [
            (dtype, array[max(first - begin, 0) : min(first + step, end) - begin])
            for dtype, array, begin, end in zip(stored, arrays, bounds, bounds[1:], strict=False)
            if begin < first + step and end > first
        ]

        def pack(
            pieces: list[tuple[str, npt.NDArray[np.generic]]] = pieces,
            target: int = weight.panels + first // _cpu.PANEL * panel_bytes,
        ) -> bool:
            blocks = [_bytes_of(rows, dtype, form) for dtype, rows in pieces]
            joined = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
            return _cpu.pack_blocks(form, joined, depth, memory, target)

        yield _Part(weight, [blocks for _, blocks in pieces], pack)


def _bytes_of(blocks: npt.NDArray[np.generic], dtype: str, form: str) -> npt.NDArray[np.uint8]:
    """Return rows of blocks as bytes, requantized if their format is not ``form``."""
    if dtype != form:
        from lattice_inference.checkpoint.rounding import quantize_rows

        format = BLOCK_FORMATS[dtype]
        flat = np.ascontiguousarray(blocks).reshape(-1).view(format.layout)
        blocks = quantize_rows(dequantize_blocks(flat, format).reshape(len(blocks), -1), form)
    return np.ascontiguousarray(blocks).view(np.uint8).reshape(len(blocks), -1)
