"""Optimal transport and drift detection as a light library.

    from lattice_transport import PointClouds, solve

    result = solve(None, None, PointClouds(x, y))
    result.transport_cost, result.converged, result.plan()

Names are imported when they are first used: ``import lattice_transport`` by itself costs next to nothing.
"""

TYPE_CHECKING = False  # typing's, which type checkers know by its name: the package imports nothing ahead
if TYPE_CHECKING:
    from typing import Any

    from lattice_transport._version import __version__
    from lattice_transport.barycenters import (
        BarycenterResult,
        FreeSupportResult,
        barycenter,
        free_support_barycenter,
    )
    from lattice_transport.config import EpsilonSchedule, SinkhornConfig, SinkhornProgress
    from lattice_transport.costs import PointClouds, cost_matrix
    from lattice_transport.divergence import DivergenceResult, SelfTerm, self_term, sinkhorn_divergence
    from lattice_transport.drift import (
        DriftItems,
        DriftObservation,
        DriftReport,
        DriftSummary,
        DriftVerdict,
        OnlineDriftDetector,
        TestResult,
        VectorSet,
        Verdict,
        detect_drift,
    )
    from lattice_transport.errors import (
        BusyError,
        CancelledError,
        CostOverflowError,
        DimensionMismatchError,
        EmptyProblemError,
        InvalidEpsilonError,
        InvalidInputError,
        InvalidMarginalError,
        InvalidScheduleError,
        MarginalMassMismatchError,
        MissingDependencyError,
        MixedModelsError,
        NonFiniteCostError,
        NonFinitePointError,
        NotConvergedError,
        NumericalError,
        OutOfMemoryError,
        PivotLimitError,
        TooFewSamplesError,
        TransportError,
        WorkspaceError,
    )
    from lattice_transport.exact import EmdResult, emd, sliced_wasserstein, wasserstein_1d
    from lattice_transport.gaussian import (
        Gaussian,
        fit_gaussian,
        gaussian_wasserstein,
    )
    from lattice_transport.measures import normalize_weights, uniform_weights
    from lattice_transport.plans import (
        DivergenceGradient,
        SparsePlan,
        barycentric_projection,
        divergence_gradient,
        extract_sparse_plan,
        transport_gradient,
        weight_gradients,
    )
    from lattice_transport.result import SinkhornResult, SinkhornStage
    from lattice_transport.sinkhorn import SinkhornWorkspace, solve, solve_batch
    from lattice_transport.unbalanced import solve_unbalanced

_MODULES: dict[str, tuple[str, ...]] = {
    "drift": (
        "DriftItems",
        "DriftObservation",
        "DriftReport",
        "DriftSummary",
        "DriftVerdict",
        "OnlineDriftDetector",
        "TestResult",
        "VectorSet",
        "Verdict",
        "detect_drift",
    ),
    "barycenters": (
        "BarycenterResult",
        "FreeSupportResult",
        "barycenter",
        "free_support_barycenter",
    ),
    "gaussian": (
        "Gaussian",
        "fit_gaussian",
        "gaussian_wasserstein",
    ),
    "plans": (
        "DivergenceGradient",
        "SparsePlan",
        "barycentric_projection",
        "divergence_gradient",
        "extract_sparse_plan",
        "transport_gradient",
        "weight_gradients",
    ),
    "config": ("EpsilonSchedule", "SinkhornConfig", "SinkhornProgress"),
    "costs": ("PointClouds", "cost_matrix"),
    "divergence": ("DivergenceResult", "SelfTerm", "self_term", "sinkhorn_divergence"),
    "_version": ("__version__",),
    "errors": (
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
    ),
    "exact": ("EmdResult", "emd", "sliced_wasserstein", "wasserstein_1d"),
    "measures": ("normalize_weights", "uniform_weights"),
    "result": ("SinkhornResult", "SinkhornStage"),
    "sinkhorn": ("SinkhornWorkspace", "solve", "solve_batch"),
    "unbalanced": ("solve_unbalanced",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "BarycenterResult",
    "BusyError",
    "CancelledError",
    "CostOverflowError",
    "DimensionMismatchError",
    "DivergenceGradient",
    "DivergenceResult",
    "DriftItems",
    "DriftObservation",
    "DriftReport",
    "DriftSummary",
    "DriftVerdict",
    "EmdResult",
    "EmptyProblemError",
    "EpsilonSchedule",
    "FreeSupportResult",
    "Gaussian",
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
    "OnlineDriftDetector",
    "PivotLimitError",
    "PointClouds",
    "SelfTerm",
    "SinkhornConfig",
    "SinkhornProgress",
    "SinkhornResult",
    "SinkhornStage",
    "SinkhornWorkspace",
    "SparsePlan",
    "TestResult",
    "TooFewSamplesError",
    "TransportError",
    "VectorSet",
    "Verdict",
    "WorkspaceError",
    "barycenter",
    "barycentric_projection",
    "cost_matrix",
    "detect_drift",
    "divergence_gradient",
    "emd",
    "extract_sparse_plan",
    "fit_gaussian",
    "free_support_barycenter",
    "gaussian_wasserstein",
    "normalize_weights",
    "self_term",
    "sinkhorn_divergence",
    "sliced_wasserstein",
    "solve",
    "solve_batch",
    "solve_unbalanced",
    "transport_gradient",
    "uniform_weights",
    "wasserstein_1d",
    "weight_gradients",
    "__version__",
]


def __getattr__(name: str) -> "Any":
    import importlib

    if name not in _MODULE_OF:
        raise AttributeError(f"module 'lattice_transport' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"lattice_transport.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
