"""``lattice-embed check-drift``: compare this release with frozen vectors.

What cannot be compared fails.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lattice_embed.catalogue import Role
from lattice_embed.drift import DriftBaseline, DriftTolerance, check_drift
from lattice_embed.errors import InvalidInputError, UnknownModelError
from lattice_embed.model_source import resolve_model
from lattice_embed.native_service import NativeEmbeddingService
from lattice_embed.output_files import check_output, write_computed
from lattice_inference.cli.text_input import read_lines
from lattice_inference.errors import LatticeError, ModelNotFoundError

__all__ = ["run"]

BASELINES_VARIABLE = "LATTICE_DRIFT_BASELINES"
ENFORCE_VARIABLE = "LATTICE_DRIFT_ENFORCE"

UPDATE_OPTIONS = ("input", "role", "precision", "output_dim", "max_abs_difference", "max_cosine_distance")


def run(options: argparse.Namespace) -> int:
    """Check the baselines, or write one; the exit status says whether all pass."""
    if options.update_baseline and options.enforce:
        raise InvalidInputError("--enforce does not go with --update-baseline, which writes a baseline and checks none")
    if options.update_baseline:
        return _update(options)
    given = [name for name in UPDATE_OPTIONS if getattr(options, name) is not None]
    if given:
        raise InvalidInputError(f"--{given[0].replace('_', '-')} goes with --update-baseline only")
    if options.model is not None:
        resolve_model(options.model)  # a name that is none is a mistake of the request, not of a baseline
    enforce = options.enforce or os.environ.get(ENFORCE_VARIABLE, "").strip() not in ("", "0")
    outcomes = [_check(path, options) for path in _find_baselines(options.baselines)]
    passed = all(outcome["status"] == "ok" or (outcome["status"] == "skipped" and not enforce) for outcome in outcomes)
    if options.json:
        print(json.dumps({"passed": passed, "enforced": enforce, "baselines": outcomes}))
    else:
        for outcome in outcomes:
            print(f"{outcome['status']:<8}  {outcome['baseline']}: {outcome['reason']}")
        print("passed" if passed else "not passed")
    return 0 if passed else 1


def _find_baselines(given: list[str]) -> list[Path]:
    """Return the selected files.

    A folder without files is an error: no file would be checked, and the check would pass.
    """
    named = given or [os.environ.get(BASELINES_VARIABLE, "").strip()]
    if named == [""]:
        raise InvalidInputError(f"no baseline: name a file or a folder, or set {BASELINES_VARIABLE}")
    paths: list[Path] = []
    for name in named:
        path = Path(name)
        if not path.is_dir():
            paths.append(path)
            continue
        found = sorted(path.glob("*.json"))
        if not found:
            raise InvalidInputError(f"{path} holds no baseline (*.json), so nothing would be checked")
        paths += found
    return paths


def _check(path: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the outcome for one baseline.

    An error is an outcome too, so that the other baselines are still checked.
    """
    outcome: dict[str, Any] = {"baseline": str(path), "model": None}
    try:
        baseline = DriftBaseline.load(path)
        outcome["model"] = baseline.model
        with _service(options, baseline) as service:
            try:
                service.load()
            except ModelNotFoundError as error:
                return outcome | {"status": "skipped", "reason": f"{baseline.model} is not on this machine: {error}"}
            report = check_drift(service, baseline)
    except (LatticeError, OSError) as error:
        return outcome | {"status": "error", "reason": str(error)}
    return outcome | asdict(report)


def _service(options: argparse.Namespace, baseline: DriftBaseline) -> NativeEmbeddingService:
    try:
        return NativeEmbeddingService(
            options.model or baseline.model,
            output_dim=baseline.output_dim,
            precision=baseline.precision,  # type: ignore[arg-type]  # checked by the service
            threads=options.threads,
            device=options.device,
        )
    except UnknownModelError as error:
        raise UnknownModelError(
            f"{error}; the baseline's model was a directory, so say where it is: --model DIR"
        ) from None


def _update(options: argparse.Namespace) -> int:
    if len(options.baselines) != 1:
        raise InvalidInputError("--update-baseline writes one file: name one BASELINE")
    path = Path(options.baselines[0])
    if path.is_dir() or not path.parent.is_dir():
        raise InvalidInputError(f"{path} cannot be written: it is a folder, or lies in none")
    check_output(path, str(path))
    former = None if options.input is not None and not path.exists() else _former(path, options)
    texts = list(former.texts) if former is not None and options.input is None else read_lines(options.input)
    model = options.model or (None if former is None else former.model)
    if model is None:
        raise InvalidInputError("a new baseline needs --model")
    with NativeEmbeddingService(
        model,
        output_dim=_either(options.output_dim, former, "output_dim", None),
        precision=_either(options.precision, former, "precision", "float32"),
        threads=options.threads,
        device=options.device,
    ) as service:
        baseline = DriftBaseline.of(
            service,
            texts,
            role=Role(options.role) if options.role else (Role.GENERIC if former is None else former.role),
            tolerance=_tolerance(options, former),
        )
        change = None
        if former is not None and former.texts == baseline.texts:
            change = check_drift(service, former)
    write_computed(path, baseline.write_to, "the baseline's contents")
    if options.json:
        report = {
            "baseline": str(path),
            "model": baseline.model,
            "texts": len(baseline.texts),
            "dimensions": int(baseline.vectors.shape[1]),
            "change": None if change is None else asdict(change),
        }
        print(json.dumps(report))
        return 0
    print(f"{path}: {len(baseline.texts)} texts, {baseline.vectors.shape[1]} dimensions ({baseline.model})")
    if change is not None:
        print(f"compared with what was there: {change.status}: {change.reason}")
    return 0


def _former(path: Path, options: argparse.Namespace) -> DriftBaseline | None:
    """Return the baseline that is replaced.

    A damaged one is replaced only if the caller gives all settings.
    """
    if options.input is not None and options.model is not None:
        try:
            return DriftBaseline.load(path)
        except LatticeError:
            return None
    return DriftBaseline.load(path)


def _either(given: Any, former: DriftBaseline | None, name: str, default: Any) -> Any:
    if given is not None:
        return given
    return default if former is None else getattr(former, name)


def _tolerance(options: argparse.Namespace, former: DriftBaseline | None) -> DriftTolerance:
    before = DriftTolerance() if former is None else former.tolerance
    difference, distance = options.max_abs_difference, options.max_cosine_distance
    return DriftTolerance(
        max_abs_difference=before.max_abs_difference if difference is None else difference,
        max_cosine_distance=before.max_cosine_distance if distance is None else distance,
    )
