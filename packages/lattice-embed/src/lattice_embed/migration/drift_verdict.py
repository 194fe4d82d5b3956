"""Reads the verdict of a drift report: whether a corpus is to be embedded again."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lattice_embed.argument_checks import check_path
from lattice_embed.errors import InvalidInputError
from lattice_embed.stores.space import VectorSpace

__all__ = ["DriftVerdict", "read_verdict"]

MAX_REPORT_BYTES = 256 << 20
_DECISIONS = ("stable", "watch", "reindex")


@dataclass(frozen=True)
class DriftVerdict:
    """What a drift report of lattice-transport decided.

    Attributes:
        decision: ``"stable"``, ``"watch"`` or ``"reindex"``.
        reasons: why.
        spaces: the fingerprints, or names of models, of the vectors that were compared, where the report knows them.
    """

    decision: str
    reasons: tuple[str, ...]
    spaces: frozenset[str]

    @property
    def wants_backfill(self) -> bool:
        """Whether the corpus is to be embedded again."""
        return self.decision == "reindex"

    def check_source(self, space: VectorSpace) -> None:
        """Refuse a report that compared other vectors than those of the store to be embedded again.

        Raises:
            InvalidInputError: the report knows its vectors' spaces, and the store's is none of them.
        """
        if space.fingerprint and self.spaces and not {space.fingerprint, space.model} & self.spaces:
            raise InvalidInputError(
                f"the drift report compared vectors of {', '.join(sorted(self.spaces))}, and the store holds those of "
                f"{space.model or 'another model'} ({space.fingerprint}): give the report of this store's vectors"
            )


def read_verdict(report: object) -> DriftVerdict:
    """Return the verdict of a report.

    Args:
        report: the result of ``lattice_transport.detect_drift``, its ``to_dict()``, or a file with that as JSON, as
            ``lattice-transport drift --json`` prints it.

    Raises:
        InvalidInputError: it is no such report.
        OSError: the file cannot be read.
    """
    if isinstance(report, (str, os.PathLike)):
        return _of_fields(_read(check_path("report", report)), str(report))
    if isinstance(report, Mapping):
        return _of_fields(report, "the report")
    if not hasattr(report, "verdict") or not callable(getattr(report, "to_dict", None)):
        raise InvalidInputError(
            f"report is of type {type(report).__name__}; give what lattice_transport.detect_drift returns, or its JSON file"
        )
    return _of_fields(report.to_dict(items=False), "the report")  # type: ignore[attr-defined]


def _read(path: Path) -> Any:
    with path.open("rb") as file:
        content = file.read(MAX_REPORT_BYTES + 1)
    if len(content) > MAX_REPORT_BYTES:
        raise InvalidInputError(f"{path} has over {MAX_REPORT_BYTES} bytes: no drift report has so many")
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"{path} is no JSON: {error}") from None


def _of_fields(fields: Any, name: str) -> DriftVerdict:
    verdict = fields.get("verdict") if isinstance(fields, Mapping) else None
    decision = verdict.get("decision") if isinstance(verdict, Mapping) else None
    if not isinstance(verdict, Mapping) or not isinstance(decision, str) or decision not in _DECISIONS:
        raise InvalidInputError(
            f"{name} is no drift report: it has no verdict with a decision of {', '.join(_DECISIONS)}. "
            "'lattice-transport drift --json' prints one"
        )
    reasons = verdict.get("reasons", [])
    if not isinstance(reasons, list) or not all(isinstance(reason, str) for reason in reasons):
        raise InvalidInputError(f"{name}: the verdict's reasons are no list of texts")
    known = [fields.get("reference_model"), fields.get("current_model")]
    return DriftVerdict(decision, tuple(reasons), frozenset(text for text in known if isinstance(text, str) and text))
