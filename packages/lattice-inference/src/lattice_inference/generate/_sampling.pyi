from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

SAMPLED: int
NO_TOKEN: int
PAST_FLOAT32: int

class TokenCounts:
    used: int
    places: int
    greatest: int
    def __init__(self) -> None: ...
    def add(self, token: int, count: int) -> None: ...
    def copy(self) -> TokenCounts: ...
    def items(self) -> dict[int, int]: ...

class RowSettings:
    seed: int
    vocabulary: int
    top: int
    counts: TokenCounts | None
    def __init__(
        self,
        *,
        scale: float,
        top_p: float,
        typical_p: float,
        min_p: float,
        top_k: int,
        repetition: float,
        presence: float,
        frequency: float,
        bias: Mapping[int, float],
        seed: int,
        vocabulary: int,
        top: int,
        counts: TokenCounts | None,
    ) -> None: ...

class _HasSettings(Protocol):
    settings: RowSettings

def sample(
    logits: npt.NDArray[np.float32],
    draws: Sequence[tuple[_HasSettings, int, npt.NDArray[np.uint32] | None]],
    rows: Sequence[int],
    *,
    isa: str | None = None,
    threads: int | None = None,
) -> list[tuple[int, int, float, float | None, tuple[tuple[int, float], ...]]]: ...
def distribution(
    logits: npt.NDArray[np.float32],
    settings: RowSettings,
    allowed: npt.NDArray[np.uint32] | None,
    *,
    isa: str | None = None,
) -> tuple[int, int, float, npt.NDArray[np.int64], npt.NDArray[np.float64]]: ...
def available_isas() -> list[str]: ...
