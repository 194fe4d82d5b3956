"""Times lattice-transport, POT, ott-jax and geomloss on the same problems.

They have the same stop, one run and alternating order. A peer that is not installed is left out. Times are medians
over rounds in which every system takes its turn; CPU time is given as well, because on a shared machine the wall
clock also measures the neighbours. Each Sinkhorn result's L1 marginal error is computed from its plan in float64, so
that the stop rules, which differ, can be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

THREADS = int(os.environ.get("LATTICE_NUM_THREADS", "2"))
for variable in ("LATTICE_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, str(THREADS))
os.environ.setdefault("XLA_FLAGS", f"--xla_cpu_multi_thread_eigen=true intra_op_parallelism_threads={THREADS}")

import numpy as np  # noqa: E402

from harness.options import Record, add_record_options, finish, save_so_far  # noqa: E402
from harness.progress import report  # noqa: E402
from harness.record import describe_run  # noqa: E402
from harness.transport_tables import SCRIPT, misses, render  # noqa: E402

__all__ = ["main", "misses", "render"]

DISTRIBUTIONS = ("pot", "ott-jax", "jax", "geomloss", "torch")


def alternating(systems: dict[str, Callable[[], Any]], rounds: int) -> dict[str, dict[str, Any]]:
    """Run every system once to warm up, then in turns.

    Returns wall and CPU medians in ms and the last result.
    """
    results = {name: {"wall": [], "cpu": [], "value": run()} for name, run in systems.items()}
    for turn in range(rounds):
        names = list(systems)
        for name in names if turn % 2 == 0 else reversed(names):
            wall, cpu = time.perf_counter(), time.process_time()
            results[name]["value"] = systems[name]()
            results[name]["wall"].append(1e3 * (time.perf_counter() - wall))
            results[name]["cpu"].append(1e3 * (time.process_time() - cpu))
    return {
        name: {
            "wall_ms": round(float(np.median(found["wall"])), 3),
            "wall_ms_best": round(float(np.min(found["wall"])), 3),
            "cpu_ms": round(float(np.median(found["cpu"])), 3),
            "value": found["value"],
        }
        for name, found in results.items()
    }


def clouds(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    x, y = random.random((n, 2)), random.random((n, 2))
    cost = ((x[:, None] - y[None]) ** 2).sum(-1)
    return x, y, cost / cost.max()


def marginal_error(plan: Any, n: int) -> float:
    wide = np.asarray(plan, np.float64)
    return float(max(np.abs(wide.sum(0) - 1 / n).sum(), np.abs(wide.sum(1) - 1 / n).sum()))


def sinkhorn(quick: bool) -> list[dict[str, Any]]:
    from lattice_transport import solve

    rows = []
    for n in (256, 1000) if quick else (256, 1000, 2000):
        for epsilon in (0.05,) if quick else (0.05, 0.005):
            _, _, cost = clouds(n)
            narrow = cost.astype(np.float32)
            weights = np.full(n, 1 / n)
            weights32 = weights.astype(np.float32)
            settings = {"epsilon": epsilon, "convergence_threshold": 1e-6, "max_iterations": 5000}

            def ours(matrix: np.ndarray, settings: dict[str, Any] = settings) -> Any:
                return solve(None, None, matrix, **settings)

            systems: dict[str, Callable[[], Any]] = {
                "lattice float32": partial(ours, narrow),
                "lattice float64": partial(ours, cost),
            }
            try:
                import ot
            except ImportError:
                pass
            else:

                def pot(a: np.ndarray, m: np.ndarray, epsilon: float = epsilon) -> Any:
                    return ot.sinkhorn(a, a, m, epsilon, method="sinkhorn_log", stopThr=1e-6, numItermax=5000)

                if epsilon == 0.05 or n <= 256:
                    systems["POT sinkhorn_log float64"] = partial(pot, weights, cost)
                    systems["POT sinkhorn_log float32"] = partial(pot, weights32, narrow)
            systems |= jax_system(narrow, epsilon)
            systems |= geomloss_systems(n, epsilon)
            measured = alternating(systems, 3 if n >= 2000 else 7)
            for name, found in measured.items():
                value = found.pop("value")
                plan = value.plan() if hasattr(value, "plan") else value
                row = {"n": n, "epsilon": epsilon, "system": name} | found
                row["error"] = marginal_error(plan, n)
                if hasattr(value, "iterations"):
                    row["iterations"] = value.iterations
                    row["precision"] = value.precision
                rows.append(row)
                report(json.dumps(row))
    return rows


def jax_system(cost: np.ndarray, epsilon: float) -> dict[str, Callable[[], Any]]:
    try:
        import jax
        from ott.geometry import geometry
        from ott.solvers import linear
    except ImportError:
        return {}

    def solve_matrix(matrix: Any) -> Any:
        return linear.solve(
            geometry.Geometry(cost_matrix=matrix, epsilon=epsilon), lse_mode=True, threshold=1e-6, max_iterations=5000
        ).matrix

    solved = jax.jit(solve_matrix)
    return {"ott-jax lse float32": lambda: jax.block_until_ready(solved(cost))}


class GeomlossResult:
    """What geomloss returns, its potentials, with the plan that follows from them."""

    def __init__(self, potentials: tuple[Any, Any], cost: np.ndarray, epsilon: float) -> None:
        self._potentials, self._cost, self._epsilon = potentials, cost, epsilon

    def plan(self) -> np.ndarray:
        """Return the coupling, (n, n) float64."""
        f, g = (np.asarray(potential, np.float64).ravel() for potential in self._potentials)
        n = len(f)
        plan: np.ndarray = np.exp((f[:, None] + g[None] - self._cost) / self._epsilon) / n**2
        return plan


def geomloss_systems(n: int, epsilon: float) -> dict[str, Callable[[], Any]]:
    """geomloss takes points and half their squared distance.

    It stops by its annealing alone: its default, and slower.
    """
    try:
        import torch
        from geomloss import SamplesLoss
    except ImportError:
        return {}
    torch.set_num_threads(THREADS)
    x, y, cost = clouds(n)
    scale = np.sqrt(2 / ((x[:, None] - y[None]) ** 2).sum(-1).max())
    points = [torch.from_numpy((scale * cloud).astype(np.float32)) for cloud in (x, y)]

    def solve_points(loss: Any) -> GeomlossResult:
        with torch.no_grad():
            return GeomlossResult(loss(*points), cost, epsilon)

    systems: dict[str, Callable[[], Any]] = {}
    for scaling in (0.5, 0.95):
        loss = SamplesLoss(
            "sinkhorn", p=2, blur=epsilon**0.5, scaling=scaling, debias=False, potentials=True, backend="tensorized"
        )
        systems[f"geomloss float32 scaling {scaling}"] = partial(solve_points, loss)
    return systems


def point_clouds(quick: bool) -> dict[str, Any]:
    """Return peak memory and time of clouds whose matrix would not fit.

    They run in a fresh process, so that the peak is theirs.
    """
    n = 4000 if quick else 20_000
    script = (
        "import resource, time, numpy as np\n"
        "from lattice_transport import PointClouds, solve\n"
        f"r = np.random.default_rng(0); x = r.standard_normal(({n}, 384), dtype=np.float32)\n"
        f"y = r.standard_normal(({n}, 384), dtype=np.float32)\n"
        "x /= np.linalg.norm(x, axis=1, keepdims=True); y /= np.linalg.norm(y, axis=1, keepdims=True)\n"
        "t = time.perf_counter(); c = time.process_time()\n"
        "s = solve(None, None, PointClouds(x, y), epsilon=0.1, convergence_threshold=1e-3, max_iterations=4)\n"
        "print(time.perf_counter() - t, time.process_time() - c, s.iterations, s.last_error, "
        "resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, s.precision)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    row = {
        "n": n,
        "dimension": 384,
        "wall_s": float(done[0]),
        "cpu_s": float(done[1]),
        "iterations": int(done[2]),
        "residual": float(done[3]),
        "peak_rss_mb": round(float(done[4]), 1),
        "precision": done[5],
    }
    report(json.dumps(row))
    return row


def online(_quick: bool) -> dict[str, Any]:
    from lattice_transport import OnlineDriftDetector

    random = np.random.default_rng(0)
    detector = OnlineDriftDetector(256, check_interval=16, permutations=99)
    for _ in range(512):
        detector.observe(random.standard_normal(384))
    walls, cpus, observes = [], [], []
    for _ in range(40):
        for _ in range(15):
            start = time.perf_counter()
            detector.observe(random.standard_normal(384))
            observes.append(time.perf_counter() - start)
        start = time.perf_counter()
        cpu = time.process_time()
        status = detector.observe(random.standard_normal(384)).status
        if status == "stable":
            walls.append(time.perf_counter() - start)
            cpus.append(time.process_time() - cpu)
    row = {
        "window": 256,
        "dimension": 384,
        "check_wall_ms": round(1e3 * float(np.median(walls)), 3),
        "check_cpu_ms": round(1e3 * float(np.median(cpus)), 3),
        "observe_wall_ms": round(1e3 * float(np.median(observes)), 3),
        "checks": len(walls),
    }
    report(json.dumps(row))
    return row


def exact(quick: bool) -> list[dict[str, Any]]:
    from lattice_transport import emd

    rows = []
    for n in (256, 1000) if quick else (256, 1000, 2000):
        _, _, cost = clouds(n)
        weights = np.random.default_rng(1).random(n)
        weights /= weights.sum()
        systems: dict[str, Callable[[], Any]] = {"lattice emd": partial(emd, weights, None, cost)}
        try:
            import ot
        except ImportError:
            pass
        else:
            systems["POT emd"] = partial(ot.emd2, weights, np.full(n, 1 / n), cost, numItermax=10_000_000)
        for name, found in alternating(systems, 3).items():
            row = {"n": n, "system": name} | found
            row["value"] = float(row["value"])
            rows.append(row)
            report(json.dumps(row))
    return rows


def power(quick: bool) -> list[dict[str, Any]]:
    """Return false alarms under the null, and power against shifts, of three tests.

    These are the divergence, MMD and the classifier, on the same data.
    """
    from lattice_transport import OnlineDriftDetector, detect_drift

    rows = []
    nulls = 100 if quick else 1000
    random = np.random.default_rng(0)
    alarms = {"divergence": 0, "mmd": 0, "classifier": 0}
    for seed in range(nulls):
        outcome = detect_drift(
            random.normal(size=(24, 8)), random.normal(size=(24, 8)), permutations=39, false_alarm_rate=0.05, seed=seed
        )
        alarms["divergence"] += outcome.drifted
        for test in outcome.baselines:
            alarms[test.name] += test.p_value <= 0.05
    half_width = 2.576 * (0.05 * 0.95 / nulls) ** 0.5
    rows.append(
        {"kind": "false alarms", "nulls": nulls, "stated": 0.05, "band": [0.05 - half_width, 0.05 + half_width]}
    )
    rows[-1] |= {name: count / nulls for name, count in alarms.items()}
    online_alarms = 0
    for seed in range(nulls):
        detector = OnlineDriftDetector(32, check_interval=32, false_alarm_rate=0.05, permutations=99, seed=seed)
        status = [detector.observe(vector).status for vector in random.normal(size=(96, 8))][-1]
        online_alarms += status == "drift"
    rows[-1]["online"] = online_alarms / nulls
    report(json.dumps(rows[-1]))
    trials = 10 if quick else 40
    for n, shift in ((16, 0.2), (32, 0.1), (64, 0.05), (64, 0.2)):
        found = {"divergence": 0, "mmd": 0, "classifier": 0}
        for seed in range(trials):
            outcome = detect_drift(
                random.normal(size=(n, 384)), random.normal(size=(n, 384)) + shift, permutations=99, seed=seed
            )
            found["divergence"] += outcome.drifted
            for test in outcome.baselines:
                found[test.name] += test.p_value <= 0.05
        rows.append({"kind": "power", "n": n, "dimension": 384, "shift_sigma": shift, "trials": trials})
        rows[-1] |= {name: count / trials for name, count in found.items()}
        report(json.dumps(rows[-1]))
    return rows


def import_time(_: bool) -> dict[str, Any]:
    def of(statement: str) -> float:
        times = []
        for _ in range(7):
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", statement], check=True)
            times.append(time.perf_counter() - start)
        return 1e3 * float(np.median(times))

    base = of("import numpy")
    row = {
        "numpy_ms": round(base, 1),
        "lattice_transport_over_numpy_ms": round(of("import numpy, lattice_transport") - base, 1),
        "with_solve_over_numpy_ms": round(of("import numpy; from lattice_transport import solve") - base, 1),
    }
    report(json.dumps(row))
    return row


PARTS: dict[str, Callable[[bool], Any]] = {
    "sinkhorn": sinkhorn,
    "emd": exact,
    "clouds": point_clouds,
    "online": online,
    "power": power,
    "import": import_time,
}


EXAMPLES = """
examples:
  python benchmarks/transport.py --markdown docs/benchmarks.md
  python benchmarks/transport.py --only sinkhorn,emd --quick --json /tmp/transport.json
  python benchmarks/transport.py --from benchmarks/results/transport.json --check
"""


def parts(text: str) -> list[str]:
    """Read names of parts, separated by commas, for argparse."""
    names = text.split(",")
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(PARTS)}")
    return names


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes and few repetitions")
    parser.add_argument(
        "--only", type=parts, default=list(PARTS), metavar="PARTS", help=f"some of {','.join(PARTS)} (default: all)"
    )
    add_record_options(parser, SCRIPT)
    options = parser.parse_args(arguments)
    return finish(SCRIPT, options, measure=partial(measure, options), render=render, misses=misses)


def measure(options: argparse.Namespace) -> Record:
    """Run the parts that the options name and return the record."""
    record: Record = {**describe_run(SCRIPT, distributions=DISTRIBUTIONS), "threads": THREADS}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in options.only:
            record[name] = PARTS[name](options.quick)
            save_so_far(options, record)
    record["peak_rss_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)
    report()
    return record


if __name__ == "__main__":
    sys.exit(main())
