from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

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
DELTA_BLOCK: int
MOST_TAPS: int
INT8_DEPTH: int
KERNELS: dict[str, int]
RECORDS: dict[str, str]
ROW_KINDS: dict[str, int]
IDS: dict[str, int]
ACTIVATIONS: dict[str, int]
PAIRINGS: dict[str, int]
POOLS: dict[str, int]
FUNCTIONS: dict[str, int]
BFLOAT16_PRODUCTS: dict[str, int]
KV_TYPES: dict[str, int]
BLOCK_FORMATS: tuple[str, ...]
WEIGHT_TYPES: dict[str, int]
TILE_BOUNDS: dict[str, tuple[int, int]]

def select_isa(requested: str | None = None) -> str: ...
def available_isas() -> list[str]: ...
def cpu_features() -> list[str]: ...
def has_dot_products(isa: str) -> bool: ...
def has_amx(isa: str) -> bool: ...
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

def slot_offsets(states: Sequence[tuple[str, tuple[int, ...]]]) -> tuple[list[int], int]: ...

class RecurrentSlots:
    count: int
    slots: int
    slot_bytes: int
    def __init__(self, states: Sequence[tuple[str, tuple[int, ...]]], slots: int) -> None: ...
    def check(self, cu_seqlens: _Int32, context: _Int32, read: _Int32, write: _Int32) -> None: ...
    def copy(self, source: int, target: int) -> None: ...
    def export(self, slot: int) -> bytes: ...
    def import_(self, slot: int, content: bytes) -> None: ...

class Adapter:
    scratch_row_bytes: int
    def __init__(
        self,
        plan: Plan,
        memory: Memory,
        groups: Sequence[tuple[str, int, Sequence[tuple[int, int, int, int, float]]] | None],
    ) -> None: ...

class StepAdapters:
    owners: tuple[Adapter, ...]
    scratch_row_bytes: int
    def __init__(
        self, adapters: tuple[Adapter, ...], numbers: _Int32, cu_seqlens: _Int32, logit_rows: _Int32 | None = None
    ) -> None: ...
    def scratch_bytes(self, tokens: int) -> int: ...

class TrainedFactors:
    shapes: tuple[tuple[int, int, int], ...]
    arrays: list[tuple[_Float32, _Float32, _Float32, _Float32]]
    nbytes: int
    def __init__(self, shapes: Iterable[tuple[int, int, int]]) -> None: ...
    def zero_gradients(self) -> None: ...

class StepTraining:
    def __init__(
        self,
        factors: TrainedFactors,
        *,
        targets: _Int32 | None = None,
        target_weights: _Float32 | None = None,
        dropout: tuple[int, int, int, float, float] | None = None,
        noise: tuple[int, int, int, float, float] | None = None,
    ) -> None: ...

class Step:
    def __init__(
        self,
        *,
        token_ids: _Int32,
        token_type_ids: _Int32,
        positions: _Int32,
        cu_seqlens: _Int32,
        max_seqlen: int,
        logit_rows: _Int32 | None = None,
        arena: Memory,
        slot_offsets: Sequence[int],
        scratch_offset: int,
        scratch_bytes: int,
        threads: int,
        bookkeeping_offset: int,
        kv: KvPages | None = None,
        context: _Int32 | None = None,
        pages: _Int32 | None = None,
        cu_pages: _Int32 | None = None,
        adapters: StepAdapters | None = None,
        recurrent: RecurrentSlots | None = None,
        read_slots: _Int32 | None = None,
        write_slots: _Int32 | None = None,
        inputs: tuple[_Float32, ...] = (),
        training: StepTraining | None = None,
    ) -> None: ...

def routes_floats(experts: int, chosen: int) -> int: ...

class Plan:
    isa: str
    groups: list[tuple[int, int]]
    dot: bool
    amx: bool
    step_tokens: int
    inputs_used: list[tuple[str, int, int]]
    shapes: tuple[tuple[int, int, int], ...]
    def __init__(
        self,
        isa: str,
        dot: bool | None = None,
        amx: bool | None = None,
        bfloat16: str = "widened",
        sizes: Mapping[str, int] | None = None,
    ) -> None: ...
    def append(
        self,
        kernel: str,
        *,
        rows: str,
        inputs: Sequence[_Operand],
        output: _Operand | None,
        k: int,
        n: int,
        rounded: _Operand | None = None,
        pairs: bool = False,
        each: int = 1,
        experts: dict[str, Any] | None = None,
        **parameters: Any,
    ) -> None: ...
    def use_factors(self, sites: Mapping[str, tuple[int, int, int]]) -> None: ...
    def check_ids(self, which: str, table_rows: int) -> None: ...
    def scratch_bytes(self, max_seqlen: int) -> int: ...
    def bookkeeping_bytes(self, cu_seqlens: _Int32, context: _Int32 | None = None) -> int: ...
    def __len__(self) -> int: ...
    def run(self, given: Step, first: int = 0, end: int | None = None) -> tuple[str, int] | None: ...
