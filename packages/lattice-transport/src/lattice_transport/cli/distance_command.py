"""``lattice-transport distance``: how far two sets are apart."""

from __future__ import annotations

import argparse
import math
from typing import Any

from lattice_transport.cli.files import (
    Progress,
    check_output,
    print_json,
    read_vectors,
    set_threads,
    suggests,
    write_npy,
)
from lattice_transport.config import SinkhornConfig, SinkhornProgress
from lattice_transport.costs import PointClouds
from lattice_transport.divergence import sinkhorn_divergence
from lattice_transport.errors import InvalidInputError
from lattice_transport.exact import emd, sliced_wasserstein
from lattice_transport.gaussian import fit_gaussian, gaussian_wasserstein
from lattice_transport.result import SinkhornResult
from lattice_transport.sinkhorn import solve

__all__ = ["run"]


@suggests("another --method")
def run(options: argparse.Namespace) -> int:
    """Compute the distance and print it."""
    set_threads(options)
    plan = check_output("--plan", options.plan) if options.plan else None
    if plan and options.method not in ("sinkhorn", "emd"):
        raise InvalidInputError(f"--plan: the method {options.method} makes no single plan; use sinkhorn or emd")
    x, y = read_vectors(options.source), read_vectors(options.target)
    report: dict[str, Any] = {"method": options.method, "metric": options.metric, "source": len(x), "target": len(y)}
    lines: list[str] = []
    if options.method in ("divergence", "sinkhorn"):
        config = SinkhornConfig(
            epsilon=options.epsilon,
            max_iterations=options.max_iterations,
            convergence_threshold=options.threshold,
        )
        clouds = PointClouds(x, y, options.metric)
        with Progress("solving") as progress:

            def show(state: SinkhornProgress) -> None:
                progress.show(f"{state.batch_index + 1} of {state.batch_len}, residual {state.last_error:.2e}")

            if options.method == "divergence":
                divergence = sinkhorn_divergence(None, None, clouds, config=config, observer=show)
                report |= {"divergence": divergence.value, "converged": divergence.converged}
                result: SinkhornResult = divergence.cross
                lines.append(f"Sinkhorn divergence  {divergence.value:.9g}")
                if options.metric == "sqeuclidean":
                    report["distance"] = math.sqrt(divergence.value)
                    lines.append(f"its square root      {report['distance']:.9g}")
            else:
                result = solve(None, None, clouds, config=config, observer=show)
                report["converged"] = result.converged
        report |= {
            "epsilon": result.epsilon,
            "iterations": result.iterations,
            "row_residual": result.row_residual,
            "col_residual": result.col_residual,
            "column_residual": result.col_residual,  # the key's earlier name
            "transport_cost": result.transport_cost,
            "regularized_cost": result.regularized_cost,
            "entropy": result.entropy,
            "gap": result.gap,
            "precision": result.precision,
        }
        lines.append(f"transport cost       {result.transport_cost:.9g}")
        lines.append(f"epsilon              {result.epsilon:.6g}")
        if not report["converged"]:
            lines.append(f"NOT CONVERGED after {result.iterations} iterations, residual {result.last_error:.3g}")
        if plan:
            write_npy(plan, result.plan())
    elif options.method == "emd":
        exact = emd(None, None, PointClouds(x, y, options.metric))
        report |= {"transport_cost": exact.cost, "pivots": exact.pivots, "gap": exact.gap, "converged": exact.converged}
        lines.append(f"earth mover's distance  {exact.cost:.9g}")
        if options.metric == "sqeuclidean":
            report["distance"] = math.sqrt(max(exact.cost, 0.0))
            lines.append(f"its square root         {report['distance']:.9g}")
        if plan:
            write_npy(plan, exact.plan())
    elif options.method == "sliced":
        report["distance"] = sliced_wasserstein(x, y, projections=options.projections, seed=options.seed)
        lines.append(f"sliced 2-Wasserstein distance  {report['distance']:.9g}")
    else:
        report["distance"] = gaussian_wasserstein(fit_gaussian(x), fit_gaussian(y))
        lines.append(f"Gaussian 2-Wasserstein distance  {report['distance']:.9g}")
    if options.json:
        print_json(report)
    else:
        print("\n".join(lines))
    return 0 if report.get("converged", True) else 1
