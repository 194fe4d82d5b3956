from typing import Any, Self

import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]

def select_isa(requested: str | None = None) -> str: ...
def available_isas() -> list[str]: ...
def get_num_threads() -> int: ...
def set_num_threads(threads: int) -> None: ...
def padded(n: int) -> int: ...
def aligned_zeros(floats: int) -> Float32Array: ...

class Engine:
    parameters: Float32Array
    isa: str
    def __new__(cls, *arguments: Any, **options: Any) -> Self: ...
    def _allocate(self, widths: list[int], activations: list[tuple[int, float]], isa: str | None) -> None: ...
    def _set_input_scaling(self, mean: npt.ArrayLike | None, scale: npt.ArrayLike | None) -> None: ...
    def _input_scaling(self) -> tuple[Float32Array, Float32Array] | None: ...
    def _views(self, whole: Float32Array, l: int) -> tuple[Float32Array, Float32Array]: ...
    def forward(self, x: npt.ArrayLike, out: Float32Array | None = None) -> Float32Array: ...
    def forward_batch(self, x: npt.ArrayLike, out: Float32Array | None = None) -> Float32Array: ...
    def _sums_batch(self, x: npt.ArrayLike) -> Float32Array: ...

class StepEngine:
    gradients: Float32Array
    moment1: Float32Array
    moment2: Float32Array
    def __init__(
        self, engine: Engine, most_rows: int, loss: int, loss_parameter: float, hard_share: float = 0.0
    ) -> None: ...
    def gradient(
        self,
        inputs: Float32Array,
        targets: Float32Array,
        order: npt.NDArray[np.int64],
        row_weights: Float32Array,
        sanitize: bool,
        *,
        drop: float = 0.0,
        drop_seed: int = 0,
    ) -> tuple[int, float, float, tuple[int | None, int, int] | None]: ...
    def update(
        self,
        kind: int,
        learning_rate: float,
        *,
        momentum: float = 0.0,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        correction1: float = 1.0,
        correction2_root: float = 1.0,
        gradient_scale: float = 1.0,
        gradient_limit: float = ...,
        shrink: float = 0.5,
        grow: float = 1.2,
        smallest_step: float = 1e-6,
        largest_step: float = 50.0,
        decay_biases: bool = False,
    ) -> None: ...

def update_flat(
    kind: int,
    learning_rate: float,
    parameters: Float32Array,
    gradients: Float32Array,
    moment1: Float32Array,
    moment2: Float32Array,
    *,
    momentum: float = 0.0,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    weight_decay: float = 0.0,
    correction1: float = 1.0,
    correction2_root: float = 1.0,
    gradient_scale: float = 1.0,
    isa: str | None = None,
) -> None: ...
def row_losses(
    loss: int,
    parameter: float,
    z: Float32Array,
    y: Float32Array,
    targets: npt.ArrayLike,
    *,
    hard_share: float = 0.0,
    isa: str | None = None,
) -> Float32Array: ...
def activate(activation: int, alpha: float, z: npt.ArrayLike, *, isa: str | None = None) -> Float32Array: ...
