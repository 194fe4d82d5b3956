"""The Metal kernels: their one source text, and how a kernel of the lowering is named in it.

One text serves the compiler at build time, compiling at run time, which has no include path, and the emulation of the tests.
``setup.py`` loads this file by its path, so it imports the standard library only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

__all__ = [
    "CONSTANTS",
    "FORMATS",
    "FOUND_BUFFERS",
    "KERNELS",
    "MOST_CHOSEN",
    "THREADS",
    "KernelShape",
    "MetalFunction",
    "assembled_source",
    "function_names",
    "function_of",
]

THREADS = 64
"""Threads of a threadgroup, in every kernel: two simdgroups of 32."""

FOUND_BUFFERS = 3
"""The number of a kernel's first own buffer: those before it are the arena, the step's words and the record."""

MOST_CHOSEN = 512
"""Experts that a row may go through: their numbers lie in threadgroup memory."""

FORMATS = {
    "float32": "Float32",
    "float16": "Float16",
    "bfloat16": "Bfloat16",
    "int8": "Int8",
    "Q8_0": "Q8_0",
    "Q4_0": "Q4_0",
    "Q4_1": "Q4_1",
    "Q5_0": "Q5_0",
    "Q5_1": "Q5_1",
    "Q4_K": "Q4_K",
    "Q5_K": "Q5_K",
    "Q6_K": "Q6_K",
}
"""What weights are kept in, and the accessor of each."""

CONSTANTS = (
    "ACTIVATION",
    "ADD",
    "ALONE",
    "BIAS",
    "BLOCK",
    "CAUSAL",
    "EACH",
    "FORM",
    "FROM_STEP",
    "GATED",
    "GROUPING",
    "HEAD_DIM",
    "KIND",
    "KV_TYPE",
    "MODE",
    "NORMALIZED",
    "PAGED",
    "QUERIES",
    "RESIDUAL",
    "ROTATION",
    "ROWS_OF",
    "SENT",
    "SHARED",
    "SLOTS",
    "TAPS",
)
"""What a pipeline is specialised for; the place of a name is the number of its function constant. All are uint."""

_ROWS = (1, 2, 4, 8)
_DROPPED = frozenset({"SUBGROUPS"})  # simdgroups are always there


@dataclass(frozen=True)
class KernelShape:
    """What a kernel is given.

    Attributes:
        bindings: its own buffers: weights, pages, slots, or none.
        macro: what makes one function a format; None for a kernel that is one function.
        rows: the numbers of rows that there is a function for, beside formats.
    """

    bindings: Literal["weights", "pages", "slots"] | None = None
    macro: str | None = None
    rows: tuple[int, ...] = ()


KERNELS: Mapping[str, KernelShape] = {
    "embed_rows": KernelShape("weights", "EMBED_ROWS"),
    "copy_rows": KernelShape(),
    "elementwise": KernelShape(),
    "norm": KernelShape("weights"),
    "rope": KernelShape(),
    "pool": KernelShape(),
    "kv_write": KernelShape("pages"),
    "linear_few": KernelShape("weights", "LINEAR_FEW", _ROWS),
    "linear_tiled": KernelShape("weights", "LINEAR_TILED"),
    "moe_route": KernelShape(),
    "moe_group": KernelShape(),
    "linear_grouped_few": KernelShape("weights", "LINEAR_GROUPED_FEW"),
    "linear_grouped_tiled": KernelShape("weights", "LINEAR_GROUPED_TILED"),
    "moe_add": KernelShape(),
    "low_rank_down": KernelShape("weights"),
    "low_rank_up": KernelShape("weights"),
    "short_conv": KernelShape("slots"),
    "gated_delta_rule": KernelShape("slots"),
    "attention_few": KernelShape("pages"),
    "attention_merge": KernelShape(),
    "attention_tiled": KernelShape("pages"),
}
"""Every kernel by the name that the lowering has for it."""

_BEFORE = ("prelude", "vector_math", "weights", "weights/scales_of_k")
_SHARED = ("linear_end", "row8", "tiles", "rotation", "kv", "attention_keys", "recurrent", "adapters", "expert_pairs")


class MetalFunction(NamedTuple):
    """A function of the library, and its function constants by number."""

    function: str
    values: tuple[tuple[int, int], ...]


def function_of(name: str, constants: tuple[tuple[str, int | str], ...]) -> MetalFunction:
    """Return what computes the kernel ``name`` for ``constants``.

    Raises:
        ValueError: there is no such kernel, format, number of rows or constant.
    """
    known = dict(constants)
    shape = KERNELS.get(name)
    if shape is None:
        raise ValueError(f"there is no kernel {name!r}")
    function = name
    if shape.macro is not None:
        format = str(known.pop("FORMAT", None))
        if format not in FORMATS:
            raise ValueError(f"{name} has no weights in {format}")
        function = f"{function}_{format.lower()}"
    rows = known.pop("ROWS", None)
    if shape.rows:
        if rows not in shape.rows:
            raise ValueError(f"{name} has {shape.rows} rows, not {rows}")
        function = f"{function}_{rows}"
    values = [
        (CONSTANTS.index(key), int(value)) for key, value in known.items() if key not in _DROPPED and _fits(key, value)
    ]
    return MetalFunction(function, tuple(sorted(values)))


def _fits(key: str, value: int | str) -> bool:
    if key not in CONSTANTS:
        raise ValueError(f"kernels have no constant {key}")
    if key == "EACH" and int(value) > MOST_CHOSEN:
        raise ValueError(f"a row goes through at most {MOST_CHOSEN} experts here, not {value}")
    return True


def function_names(formats: Collection[str] = FORMATS) -> tuple[str, ...]:
    """Return every function of the library, for these formats of weights."""
    return tuple(function for function, _ in _functions(formats))


def assembled_source(formats: Collection[str] = FORMATS) -> str:
    """Return the one source text of all kernels, for these formats of weights."""
    constants = "".join(
        f"constant uint {name} [[function_constant({index})]];\n" for index, name in enumerate(CONSTANTS)
    )
    names = [*_BEFORE, *(f"weights/{format.lower()}" for format in FORMATS), *_SHARED, *KERNELS]
    texts = [
        "#include <metal_stdlib>\nusing namespace metal;\n",
        constants,
        *(f'#line 1 "{name}.metal"\n{_text(name)}' for name in names),
        '#line 1 "functions"\n',
        *(f"{line}\n" for _, line in _functions(formats) if line),
    ]
    return "".join(texts)


def _functions(formats: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield every function, and the line of the source that makes it unless its file does."""
    for name, shape in KERNELS.items():
        if shape.macro is None:
            yield name, ""
            continue
        for format in formats:
            accessor = FORMATS[format]
            function = f"{name}_{format.lower()}"
            if not shape.rows:
                yield function, f"{shape.macro}({function}, {accessor})"
            for rows in shape.rows:
                yield f"{function}_{rows}", f"{shape.macro}({function}_{rows}, {accessor}, {rows})"


@cache
def _text(name: str) -> str:
    return (Path(__file__).with_name("kernels") / f"{name}.metal").read_text(encoding="utf-8")
