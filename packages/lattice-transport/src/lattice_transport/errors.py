"""Every error that lattice_transport raises on purpose; base class :class:`TransportError`.

Errors about arguments also derive from ``ValueError``; those carry what was wrong as attributes.
"""

from __future__ import annotations

__all__ = [
    "BusyError",
    "CancelledError",
    "CostOverflowError",
    "DimensionMismatchError",
    "EmptyProblemError",
    "InvalidEpsilonError",
    "InvalidInputError",
    "InvalidMarginalError",
    "InvalidScheduleError",
    "MarginalMassMismatchError",
    "MissingDependencyError",
    "MixedModelsError",
    "NonFiniteCostError",
    "NonFinitePointError",
    "NotConvergedError",
    "NumericalError",
    "OutOfMemoryError",
    "PivotLimitError",
    "TooFewSamplesError",
    "TransportError",
    "WorkspaceError",
]


def shown(value: object) -> str:
    """Return what an error shows of a value: its repr, unless that is long or fails."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # such as an integer of too many digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:60]}... ({type(value).__name__})"


class TransportError(Exception):
    """Base of every error that this package raises on purpose."""


class InvalidInputError(TransportError, ValueError):
    """An argument has a value, type or shape that the call cannot take."""


class BusyError(TransportError, RuntimeError):
    """Another thread works on the same detector."""


class OutOfMemoryError(TransportError, MemoryError):
    """There is not enough memory for a requested matrix."""

    def __init__(self, what: str, rows: int, columns: int) -> None:
        self.rows = rows
        self.columns = columns
        super().__init__(f"there is no memory for {what} of {rows:,} x {columns:,} numbers; give fewer vectors")


class EmptyProblemError(InvalidInputError):
    """A cost, a cloud of points or a marginal has no entries, or no mass."""


class InvalidEpsilonError(InvalidInputError):
    """An epsilon, tau or threshold is not a positive finite number."""

    def __init__(self, name: str, value: object) -> None:
        self.name = name
        self.value = value
        super().__init__(f"{name} must be a positive finite number, not {shown(value)}")


class DimensionMismatchError(InvalidInputError):
    """Lengths that must agree do not."""

    def __init__(self, what: str, *, expected: object, actual: object) -> None:
        self.what = what
        self.expected = expected
        self.actual = actual
        super().__init__(f"{what}: expected {expected}, got {actual}")


class InvalidMarginalError(InvalidInputError):
    """A weight is negative, infinite or NaN. ``axis`` is 0 for the source, 1 for the target."""

    def __init__(self, axis: int, index: int, value: float) -> None:
        self.axis = axis
        self.index = index
        self.value = value
        side = "source" if axis == 0 else "target"
        super().__init__(f"weight {index} of the {side} is {value!r}; weights are finite and not negative")


class MarginalMassMismatchError(InvalidInputError):
    """The marginals of a balanced problem do not have the same mass."""

    def __init__(self, source_sum: float, target_sum: float, tolerance: float) -> None:
        self.source_sum = source_sum
        self.target_sum = target_sum
        self.tolerance = tolerance
        super().__init__(
            f"the source weighs {source_sum:.9g} and the target {target_sum:.9g}, which differ by more than a part "
            f"of {tolerance:.3g}; rescale one of them, or use solve_unbalanced"
        )


class NonFiniteCostError(InvalidInputError):
    """A cost is infinite or NaN."""

    def __init__(self, row: int, column: int, value: float) -> None:
        self.row = row
        self.column = column
        self.value = value
        super().__init__(f"the cost from {row} to {column} is {value!r}; costs must be finite")


class NonFinitePointError(InvalidInputError):
    """A coordinate of a point is infinite or NaN."""

    def __init__(self, name: str, point: int, dimension: int, value: float) -> None:
        self.name = name
        self.point = point
        self.dimension = dimension
        self.value = value
        super().__init__(f"coordinate {dimension} of point {point} of {name} is {value!r}; coordinates must be finite")


class InvalidScheduleError(InvalidInputError):
    """A field of an epsilon schedule has a value that makes no schedule."""

    def __init__(self, field: str, value: object, why: str) -> None:
        self.field = field
        self.value = value
        super().__init__(f"{field} of the epsilon schedule is {shown(value)}: {why}")


class WorkspaceError(InvalidInputError):
    """A workspace is too small for a problem, or made for another kind of cost."""


class MixedModelsError(InvalidInputError):
    """The vectors of one set come from several models, so their distances have no meaning."""

    def __init__(self, name: str, fingerprints: list[str]) -> None:
        self.name = name
        self.fingerprints = fingerprints
        super().__init__(
            f"{name} mixes vectors of {len(fingerprints)} models ({', '.join(fingerprints[:4])}); compare one model's "
            "vectors with another's by passing them as two sets"
        )


class TooFewSamplesError(InvalidInputError):
    """A test or a fit has too few vectors to say anything."""

    def __init__(self, name: str, count: int, least: int) -> None:
        self.name = name
        self.count = count
        self.least = least
        super().__init__(f"{name}: {count} are too few, at least {least} are needed; collect more")


class NotConvergedError(TransportError):
    """The iterations were used up and ``error_on_non_convergence`` was set."""

    def __init__(self, iterations: int, last_error: float, threshold: float) -> None:
        self.iterations = iterations
        self.last_error = last_error
        self.threshold = threshold
        super().__init__(
            f"not converged: error {last_error:.3g} after {iterations} iterations, {threshold:.3g} is required; "
            "raise max_iterations or epsilon, or use an epsilon schedule"
        )


class PivotLimitError(NotConvergedError):
    """The exact solver took as many pivots as it may before its plan was optimal.

    ``gap`` is what the plan's cost may be above the optimum; infinite when the plan does not carry all of the mass.
    """

    def __init__(self, pivots: int, gap: float) -> None:
        self.pivots = pivots
        self.gap = gap
        self.threshold: float
        self.last_error: float
        self.iterations: int
        self.iterations, self.last_error, self.threshold = pivots, gap, 0.0
        state = f"its cost may be {gap:.3g} above the optimum" if gap < float("inf") else "it lacks some of the mass"
        TransportError.__init__(
            self,
            f"the plan is not optimal after {pivots} pivots and {state}; raise max_pivots, or leave it out for its default",
        )


class NumericalError(TransportError, ArithmeticError):
    """The arithmetic left the range of its numbers. Rescale the costs."""


class CostOverflowError(InvalidInputError, NumericalError):
    """Costs are so large that their sums would overflow."""

    def __init__(self, value: float, limit: float) -> None:
        self.value = value
        self.limit = limit
        super().__init__(
            f"a cost of {value:.6g} is too large: sums of costs would overflow. For this problem the limit is {limit:.3g}; "
            "divide all costs by one number, or give forbidden pairs a smaller cost"
        )


class CancelledError(TransportError):
    """The observer returned False."""


class MissingDependencyError(TransportError, ImportError):
    """An optional package is needed for what was asked."""
