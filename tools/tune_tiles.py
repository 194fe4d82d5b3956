"""Chooses the CPU backend's block sizes by measuring: a column of kernels/tile_table.h.

Encoders of MiniLM's shape with drawn weights run batches of several shapes with one size changed at a time. Values
take turns (A B C B C A ...). For every batch a value's ratio is its time over that of the table's value, the median
over the rounds. Values are compared by the geometric mean of these ratios. A value is chosen if it is faster by more
than ``--margin``; the next size is measured with it. No size changes a bit of a result, and the tool makes sure of
that.

Run it on a machine that does nothing else, with the threads that users have. Without ``--write`` it only prints.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from statistics import fmean, median

import numpy as np
import numpy.typing as npt

from lattice_inference.backends.cpu import CpuBackend, CpuProgram, _cpu
from lattice_inference.encode.text_program import steps_of_texts
from lattice_inference.graph.batch import Batch
from lattice_inference.models.bert import build_bert_encoder
from lattice_inference.models.bert_config import BertConfig
from lattice_inference.precision import Precision

__all__ = ["SIZES", "Size", "main", "read_table", "write_column"]

KERNELS = "packages/lattice-inference/src/lattice_inference/backends/cpu/kernels"
TABLE = Path(__file__).resolve().parents[1] / KERNELS / "tile_table.h"
COLUMNS = ("baseline", "avx2", "avx512", "neon")
_ROW = re.compile(
    r"^(?P<before> *SIZE\((?P<name>\w+), *\d+, *\d+,)(?P<sizes>(?: *\d+,?){4})(?P<after>\).*)$", re.MULTILINE
)

TURN_SECONDS, MOST_RUNS = 0.01, 20
"""How long a turn is at least: short batches run several times, or one interruption would decide."""

BATCHES: dict[str, tuple[int, ...]] = {
    "1x10": (10,),
    "2x20": (20,) * 2,
    "32x20": (20,) * 32,
    "8x128": (128,) * 8,
    "4x256": (256,) * 4,
    "mixed": tuple(2 + 13 * i % 199 for i in range(64)),
}

EXAMPLES = """
examples:
  python tools/tune_tiles.py                                 the best instruction set of this CPU; some minutes
  python tools/tune_tiles.py --isa avx2 --write              and put what was chosen into the table
  python tools/tune_tiles.py --sizes score_rows step_tokens --rounds 31
"""


@dataclass(frozen=True)
class Size:
    """How one size is measured.

    Attributes:
        values: what is tried besides the table's value.
        batches: names of :data:`BATCHES`.
        precisions: of the encoders that it matters to.
        needs: ``"avx512"``: of that column only; ``"tiles"``: where the CPU has matrix tiles, too.
    """

    values: tuple[int, ...]
    batches: tuple[str, ...]
    precisions: tuple[Precision, ...] = ("float32",)
    needs: str = ""


_ALL: tuple[Precision, ...] = ("float32", "bfloat16", "int8")
_BLOCKS = (65536, 131072, 196608, 262144, 393216, 524288, 786432)
_TASKS = (1, 2, 3, 4, 6, 8)

SIZES: dict[str, Size] = {
    "step_tokens": Size((512, 768, 1024, 1536, 2048), ("mixed",), _ALL),
    "row_task_rows": Size((4, 8, 16, 32, 64), ("2x20", "32x20", "8x128"), _ALL),
    "query_block_rows": Size((48, 96, 128, 192, 256), ("8x128", "4x256", "mixed"), ("float32", "bfloat16")),
    "score_rows": Size((12, 14, 24, 28, 42, 48), ("32x20", "8x128", "4x256")),
    "linear_block_bytes": Size(_BLOCKS, ("32x20", "8x128", "4x256")),
    "linear_few_rows": Size((16, 24, 32, 48, 64), ("1x10", "2x20", "32x20")),
    "linear_packing_panels": Size((8, 12, 16, 24, 32, 48), ("32x20", "8x128"), needs="avx512"),
    "linear_tasks": Size(_TASKS, ("32x20", "8x128")),
    "linear_few_rows_tasks": Size(_TASKS, ("1x10",)),
    "int8_block_bytes": Size(_BLOCKS, ("32x20", "8x128"), ("int8",)),
    "int8_amx_rows": Size((32, 64, 96, 128, 256), ("32x20", "8x128"), ("int8",), "tiles"),
    "int8_amx_least_rows": Size((4, 6, 8, 11, 16), ("1x10",), ("int8",), "tiles"),
    "int8_tasks": Size(_TASKS, ("1x10", "32x20", "8x128"), ("int8",)),
    "bfloat16_block_bytes": Size((*_BLOCKS, 1048576), ("32x20", "8x128"), ("bfloat16",)),
    "bfloat16_tasks": Size(_TASKS, ("1x10", "32x20", "8x128"), ("bfloat16",)),
}
"""The sizes in the order in which they are measured: all of the table."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and with ``--write`` change the table; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--isa", choices=_cpu.available_isas(), default=_cpu.select_isa(), help="the column")
    parser.add_argument(
        "--sizes", nargs="+", choices=list(SIZES), default=list(SIZES), metavar="NAME", help="(default: all)"
    )
    parser.add_argument("--rounds", type=int, default=15, metavar="N", help="turns of each value (default: 15)")
    parser.add_argument(
        "--margin", type=float, default=0.01, metavar="X", help="least gain that changes the table (0.01)"
    )
    parser.add_argument("--layers", type=int, default=3, metavar="N", help="of the encoders (default: 3)")
    parser.add_argument("--table", type=Path, default=TABLE, help="the header (default: this tree's)")
    parser.add_argument("--write", action="store_true", help="put what was chosen into the table")
    options = parser.parse_args(arguments)
    if options.rounds < 1 or options.layers < 1:
        parser.error("--rounds and --layers are at least 1")
    chosen = _cpu.tile_sizes(options.isa)
    print(f"{options.isa}, {_cpu.get_num_threads()} threads; time by that of the table's value, which is marked *")
    model = _DrawnModel(options.layers)
    for name in options.sizes:
        size = SIZES[name]
        if not _is_measurable(size, options.isa):
            print(f"{name}: not on {options.isa} here")
            continue
        ratios = _measure(model, options.isa, chosen, name, size, options.rounds)
        best = min(ratios, key=lambda value: ratios[value])
        marked = (f"{v}{'*' * (v == chosen[name])} {ratio:.3f}" for v, ratio in ratios.items())
        print(f"{name}: {', '.join(marked)}", flush=True)
        if ratios[best] < 1 - options.margin:
            chosen[name] = best
    text = options.table.read_text(encoding="utf-8")
    changed = write_column(text, options.isa, chosen)
    print("\n".join(match[0] for match in _ROW.finditer(changed)))
    if options.write and changed != text:
        options.table.write_text(changed, encoding="utf-8")
        print(f"{options.table} was written: build the package again")
    return 0


def read_table(text: str) -> dict[str, dict[str, int]]:
    """Return the sizes of a header by column and name.

    Raises:
        ValueError: it holds no table.
    """
    rows = {match["name"]: map(int, re.findall(r"\d+", match["sizes"])) for match in _ROW.finditer(text)}
    if not rows:
        raise ValueError("there is no SIZE(name, least, most, baseline, avx2, avx512, neon) in it")
    columns: dict[str, dict[str, int]] = {column: {} for column in COLUMNS}
    for name, sizes in rows.items():
        for column, value in zip(COLUMNS, sizes, strict=True):
            columns[column][name] = value
    return columns


def write_column(text: str, isa: str, sizes: Mapping[str, int]) -> str:
    """Return a header with other sizes in one column; everything else is as it was.

    Raises:
        ValueError: a size is not in the table.
    """
    missing = set(sizes) - set(read_table(text)[isa])
    if missing:
        raise ValueError(f"the table has no {', '.join(sorted(missing))}")

    def row(match: re.Match[str]) -> str:
        cells = re.findall(r" *\d+", match["sizes"])
        column = COLUMNS.index(isa)
        cells[column] = f"{sizes.get(match['name'], int(cells[column])):>{len(cells[column])}}"
        return f"{match['before']}{','.join(cells)}{match['after']}"

    return _ROW.sub(row, text)


class _DrawnModel:
    """MiniLM's shape with fewer layers and words, and drawn weights."""

    def __init__(self, layers: int) -> None:
        config = {"model_type": "bert", "architectures": ["BertModel"], "vocab_size": 1024, "hidden_size": 384}
        config |= {
            "num_hidden_layers": layers,
            "num_attention_heads": 12,
            "intermediate_size": 1536,
            "hidden_act": "gelu",
        }
        config |= {"max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12}
        self._program = build_bert_encoder(BertConfig.from_mapping(config), pooling="mean")
        self._draw = np.random.default_rng(0)
        self._tensors: dict[str, npt.NDArray[np.float32]] = {}
        weights = [weight for op in self._program.ops for weight in op.weights.values()]
        self._shapes = {name: weight.shape for weight in weights for name in weight.sources}

    def float32(self, name: str) -> npt.NDArray[np.float32]:
        """Return a tensor: drawn when it is first asked for."""
        if name not in self._tensors:
            tensor = self._draw.standard_normal(self._shapes[name], np.float32) * np.float32(0.05)
            self._tensors[name] = tensor + 1 if name.endswith("LayerNorm.weight") else tensor
        return self._tensors[name]

    def drop_pages(self, name: str) -> None:
        """Nothing to let go of."""

    def compile(self, backend: CpuBackend) -> CpuProgram:
        """Return the model ready to run."""
        return backend.compile(self._program, self)


def _is_measurable(size: Size, isa: str) -> bool:
    return {"": True, "avx512": isa == "avx512", "tiles": isa == "avx512" and _cpu.has_amx(isa)}[size.needs]


def _measure(
    model: _DrawnModel, isa: str, chosen: Mapping[str, int], name: str, size: Size, rounds: int
) -> dict[int, float]:
    """Return the time of every value of a size by that of the chosen one."""
    values = sorted({*size.values, chosen[name]})
    programs = {
        (precision, value): model.compile(CpuBackend(isa=isa, precision=precision, tile_sizes={**chosen, name: value}))
        for precision in size.precisions
        for value in values
    }
    logs: dict[int, list[float]] = {value: [] for value in values}
    for precision in size.precisions:
        for batch in size.batches:
            seconds: dict[int, list[float]] = {value: [] for value in values}
            steps = {value: _steps(BATCHES[batch], programs[precision, value].step_tokens) for value in values}
            results = {value: _run(programs[precision, value], steps[value]) for value in values}
            if len(set(results.values())) != 1:
                raise RuntimeError(f"{name} changes the result of {batch} in {precision}: it is no size to choose")
            for turn in range(rounds):
                for value in values[turn % len(values) :] + values[: turn % len(values)]:
                    seconds[value].append(_seconds(programs[precision, value], steps[value]))
            for value in values:
                logs[value].append(
                    log(median(a / b for a, b in zip(seconds[value], seconds[chosen[name]], strict=True)))
                )
    return {value: exp(fmean(of_value)) for value, of_value in logs.items()}


def _steps(lengths: Sequence[int], most_tokens: int) -> list[tuple[npt.NDArray[np.intp], Batch]]:
    """Return the steps of texts of so many tokens, each with the texts that are in it."""
    bounds = np.cumsum([0, *lengths]).astype(np.int32)
    steps = []
    for rows in steps_of_texts(bounds, most_tokens):
        of_rows = [lengths[row] for row in rows]
        ids = np.concatenate([np.arange(length, dtype=np.int32) * 7 % 1024 for length in of_rows])
        positions = np.concatenate([np.arange(length, dtype=np.int32) for length in of_rows])
        steps.append((rows, Batch(ids, np.cumsum([0, *of_rows]).astype(np.int32), positions=positions)))
    return steps


def _seconds(program: CpuProgram, steps: Sequence[tuple[npt.NDArray[np.intp], Batch]]) -> float:
    """Return the median time of the steps, over as many runs as a turn has time for."""
    seconds: list[float] = []
    while not seconds or (sum(seconds) < TURN_SECONDS and len(seconds) < MOST_RUNS):
        start = time.perf_counter()
        for _, step in steps:
            program.run(step, outputs=("normalized",))
        seconds.append(time.perf_counter() - start)
    return median(seconds)


def _run(program: CpuProgram, steps: Sequence[tuple[npt.NDArray[np.intp], Batch]]) -> bytes:
    """Return the bytes of the vectors in the order of the texts."""
    order = np.concatenate([rows for rows, _ in steps])
    vectors = np.concatenate([program.run(step, outputs=("normalized",))["normalized"] for _, step in steps])
    return vectors[np.argsort(order)].tobytes()


if __name__ == "__main__":
    sys.exit(main())
