"""``lattice-transport barycenter``: the mean of sets of vectors."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from lattice_transport.barycenters import barycenter, free_support_barycenter
from lattice_transport.checks import check_count, check_seed
from lattice_transport.cli.files import (
    Progress,
    check_output,
    print_json,
    read_vectors,
    set_threads,
    suggests,
    write_npy,
)
from lattice_transport.costs import PointClouds, as_points
from lattice_transport.errors import DimensionMismatchError, InvalidInputError

__all__ = ["run"]


def _lambdas(text: str | None, count: int) -> list[float] | None:
    if text is None:
        return None
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        raise InvalidInputError(f"--lambdas {text}: numbers separated by commas are expected") from None
    if len(values) != count:
        raise DimensionMismatchError("--lambdas", expected=count, actual=len(values))
    return values


@suggests("fewer --points")
def run(options: argparse.Namespace) -> int:
    """Find the barycentre and write it."""
    set_threads(options)
    output = check_output("--output", options.output)
    lambdas = _lambdas(options.lambdas, len(options.measures))
    if options.points is not None:
        if options.debiased:
            raise InvalidInputError("--debiased goes with --support only")
        check_count("--points", options.points, most=1 << 31)
    measures = [as_points(read_vectors(name), name) for name in options.measures]
    report: dict[str, Any] = {"measures": len(measures), "output": str(output)}
    if options.points is not None:
        for name, points in zip(options.measures, measures, strict=True):
            if points.shape[1] != measures[0].shape[1]:
                raise DimensionMismatchError(
                    f"dimension of {name}", expected=measures[0].shape[1], actual=points.shape[1]
                )
        random = np.random.default_rng(check_seed(options.seed))
        pooled = np.concatenate(measures)
        chosen = pooled[random.integers(len(pooled), size=options.points)]
        # points that start in one place would stay together
        start = chosen + 1e-3 * pooled.std(axis=0) * random.standard_normal(chosen.shape)
        moved = free_support_barycenter(
            measures, start, lambdas=lambdas, metric=options.metric, epsilon=options.epsilon
        )
        write_npy(output, moved.points)
        converged = moved.converged
        report |= {
            "epsilon": moved.epsilon,
            "points": len(moved.points),
            "updates": moved.updates,
            "objective": moved.objective,
        }
        line = (
            f"{len(moved.points)} points after {moved.updates} updates, mean cost {moved.objective:.6g}, "
            f"epsilon {moved.epsilon:.6g}: {output}"
        )
    else:
        support = as_points(read_vectors(options.support), options.support)
        with Progress("iterations") as progress:
            fixed = barycenter(
                [PointClouds(points, support, options.metric) for points in measures],
                lambdas=lambdas,
                epsilon=options.epsilon,
                debiased=options.debiased,
                support_cost=PointClouds(support, support, options.metric) if options.debiased else None,
                observer=lambda done, error: progress.show(f"{done}, error {error:.2e}"),
            )
        write_npy(output, fixed.weights)
        converged = fixed.converged
        report |= {
            "epsilon": fixed.epsilon,
            "points": len(support),
            "iterations": fixed.iterations,
            "last_error": fixed.last_error,
        }
        line = f"{len(support)} weights after {fixed.iterations} iterations, epsilon {fixed.epsilon:.6g}: {output}"
    report["converged"] = converged
    if options.json:
        print_json(report)
    else:
        print(line if converged else f"NOT CONVERGED: {line}")
    return 0 if converged else 1
