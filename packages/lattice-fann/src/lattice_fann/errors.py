"""Every error that lattice_fann raises on purpose.

One tree under :class:`FannError`; each class also derives from the builtin that a Python user would catch.
"""

from __future__ import annotations

__all__ = [
    "BusyError",
    "FannError",
    "FormatError",
    "GradientError",
    "InvalidInputError",
    "InvalidNetworkError",
    "NotNumbersError",
    "NumericInstability",
    "ShapeTooLargeError",
    "SizeMismatchError",
    "TrainingError",
    "UnsupportedError",
]


_LONGEST_MESSAGE = 2_000


class FannError(Exception):
    """Base of every error raised on purpose."""


class InvalidInputError(FannError, ValueError):
    """An argument has a value, type or shape that the call cannot take."""


class NotNumbersError(InvalidInputError, TypeError):
    """An array holds Python objects that are no numbers."""


class BusyError(FannError, RuntimeError):
    """Another thread trains the same network."""


class SizeMismatchError(InvalidInputError):
    """An array's size is not the one that the network or its companion array asks for."""


class InvalidNetworkError(FannError, ValueError):
    """Layers that make no network.

    There are none, widths do not fit, a softmax is not last, or values are not finite.
    """


class ShapeTooLargeError(InvalidNetworkError):
    """A tensor would hold more elements than ``MAX_ALLOWED_ELEMENTS``."""


class FormatError(FannError, ValueError):
    """Bytes or a file are no network.

    Wrong magic or version, truncated, too long, or impossible values. A file may hold text of any length; what a
    message quotes of it is cut.
    """

    def __init__(self, message: str) -> None:
        half = _LONGEST_MESSAGE // 2
        super().__init__(message if len(message) <= 2 * half else f"{message[:half]} [...] {message[-half:]}")


class UnsupportedError(FannError, ValueError):
    """A valid request or file needs what this package, or the chosen format, cannot express."""


class TrainingError(FannError, RuntimeError):
    """Training cannot go on. The network then holds its last good weights."""


class GradientError(TrainingError, ArithmeticError):
    """A gradient, the loss of a batch or an updated weight is not finite."""


class NumericInstability(FannError, ArithmeticError):  # noqa: N818 - the name is fixed
    """A value that is not finite came up in a forward pass.

    Attributes:
        layer: the layer whose output it is, from 0; None for the input itself.
        row: the row of the batch, None for a single sample.
        index: the position within the row.
    """

    def __init__(self, layer: int | None, index: int, row: int | None = None) -> None:
        self.layer = layer
        self.index = index
        self.row = row
        where = "the input" if layer is None else f"the output of layer {layer}"
        of_row = "" if row is None else f" of row {row}"
        advice = (
            "clean the input"
            if layer is None
            else "look for exploding weights: a lower learning rate, clipping, scaling"
        )
        super().__init__(f"value {index}{of_row} of {where} is not finite: {advice}")

    def __reduce__(self) -> tuple[type[NumericInstability], tuple[int | None, int, int | None]]:
        return type(self), (self.layer, self.index, self.row)
