from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

_Float32 = npt.NDArray[np.float32]
_Int32 = npt.NDArray[np.int32]
_Weight = npt.NDArray[np.float32] | npt.NDArray[np.uint16]
_Operand = tuple[int, int, int]
_Products = Literal["widened", "dot", "tiles"]

PANEL: int
HUGE_PAGE: int
MAX_SLOTS: int
MAX_HEAD_DIM: int
INT8_DEPTH: int
QUANTIZE_ROWS: int
INT8_LINEAR: int
QUANTIZE_BLOCKS: int
BLOCK_LINEAR: int
DEQUANTIZED_LINEAR: int
ROUND_ROWS: int
BFLOAT16_LINEAR: int
TILE_ATTENTION: int
CAUSAL_ATTENTION: int
QUANTIZE_BLOCK_PAIRS: int
WEIGHT_TYPES: dict[str, int]
BLOCK_FORMATS: tuple[str, ...]
KV_TYPES: dict[str, tuple[int, int]]
TILE_BOUNDS: dict[str, tuple[int, int]]

def select_isa(requested: str | None = None) -> str: ...
def available_isas() -> list[str]: ...
def cpu_features() -> list[str]: ...
def has_dot_products(isa: str) -> bool: ...
def has_tiles(isa: str) -> bool: ...
def bfloat16_products(isa: str) -> list[_Products]: ...
def tile_sizes(isa: str) -> dict[str, int]: ...
def bfloat16_panel_bytes(k: int) -> int: ...
def bfloat16_row_floats(k: int) -> int: ...
def pack_bfloat16_panels(weight: npt.NDArray[np.uint16], target: Memory, offset: int) -> None: ...
def get_num_threads() -> int: ...
def set_num_threads(threads: int) -> None: ...
def trim_heap() -> None: ...

class Memory:
    nbytes: int
    def __init__(self, nbytes: int, huge_pages: bool = False) -> None: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

def pack_panels(weight: _Weight, target: Memory, offset: int) -> None: ...
def int8_panel_bytes(k: int) -> int: ...
def integer_row_floats(k: int) -> int: ...
def pack_int8_panels(weight: npt.NDArray[np.int8], scales: _Float32, target: Memory, offset: int) -> None: ...
def touch_pages(array: npt.NDArray[np.generic]) -> None: ...
def block_panel_bytes(format: str, k: int) -> int: ...
def block_row_floats(k: int) -> int: ...
def pack_blocks(format: str, rows: npt.NDArray[np.uint8], k: int, target: Memory, offset: int) -> bool: ...
def elementwise(function: str, x: _Float32, *, isa: str) -> _Float32: ...

class KvPages:
    count: int
    page_tokens: int
    pages: int
    page_bytes: int
    def __init__(self, layers: Sequence[tuple[int, int, str]], page_tokens: int, pages: int) -> None: ...
    def check(self, cu_seqlens: _Int32, context: _Int32, pages: _Int32, cu_pages: _Int32) -> None: ...
    def copy_page(self, source: int, target: int) -> None: ...
    def export(self, page: int) -> bytes: ...
    def import_(self, page: int, content: bytes) -> None: ...

class Plan:
    isa: str
    dot: bool
    tiles: bool
    step_tokens: int
    def __init__(
        self,
        isa: str,
        dot: bool | None = None,
        tiles: bool | None = None,
        bfloat16: str = "widened",
        sizes: Mapping[str, int] | None = None,
    ) -> None: ...
    def append(
        self,
        kernel: int,
        *,
        rows: int,
        inputs: Sequence[_Operand],
        output: _Operand | None,
        k: int,
        n: int,
        residual: _Operand | None = None,
        weight: _Weight | tuple[Memory, int] | None = None,
        bias: _Float32 | None = None,
        activation: int = 0,
        mode: int = 0,
        heads: int = 0,
        kv_heads: int = 0,
        head_dim: int = 0,
        scale: float = 1.0,
        epsilon: float = 0.0,
        layer: int = 0,
        window: int = 0,
        packed: bool = False,
        weight_type: str = "float32",
        quantized: _Operand | None = None,
        bounds: _Float32 | None = None,
        rounded: _Operand | None = None,
        pairs: bool = False,
    ) -> None: ...
    def __len__(self) -> int: ...
    def check_ids(self, which: int, table_rows: int) -> None: ...
    def scratch_bytes(self, max_seqlen: int) -> int: ...
    def bookkeeping_bytes(self, cu_seqlens: _Int32, context: _Int32 | None = None) -> int: ...
    def run(
        self,
        token_ids: _Int32,
        token_type_ids: _Int32,
        positions: _Int32,
        cu_seqlens: _Int32,
        max_seqlen: int,
        arena: Memory,
        slot_offsets: Sequence[int],
        scratch_offset: int,
        scratch_bytes: int,
        threads: int,
        bookkeeping_offset: int,
        logit_rows: _Int32 | None = None,
        kv: KvPages | None = None,
        context: _Int32 | None = None,
        pages: _Int32 | None = None,
        cu_pages: _Int32 | None = None,
        first: int = 0,
        end: int | None = None,
    ) -> tuple[int, int] | None: ...
