"""What ``lattice-tune registry ACTION`` does."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from lattice_tune.errors import InvalidInputError, WeightIntegrityError, shown
from lattice_tune.registry.adapter_manifest import AdapterManifest
from lattice_tune.registry.model_registry import ModelRegistry
from lattice_tune.registry.promotion_gates import MetricThreshold, NotWorseThanLive, PromotionGate, ShadowPassed
from lattice_tune.registry.records import Lineage, ModelMetadata, ModelQuery, RegisteredModel
from lattice_tune.registry.rollback import RollbackController
from lattice_tune.registry.sources import read_source
from lattice_tune.registry.statuses import ModelStatus

__all__ = ["run"]

CREATING = {"register", "import"}
"""Actions that create a missing registry."""


def run(options: argparse.Namespace) -> int:
    """Do what the action says, and return the exit status."""
    with ModelRegistry(options.registry, create=options.action in CREATING) as registry:
        return _ACTIONS[options.action](registry, options)


def _list(registry: ModelRegistry, options: argparse.Namespace) -> int:
    query = ModelQuery(
        name=options.name,
        status=options.status,
        kind=options.kind,
        min_accuracy=options.min_accuracy,
        tags=tuple(options.tag),
        limit=options.limit,
    )
    found = registry.query(query)
    if options.json:
        _print_json({"registry": str(registry.path), "versions": [model.to_fields() for model in found]})
        return 0
    width = max((len(model.reference) for model in found), default=0)
    for model in found:
        aliases = f"  {', '.join(model.aliases)}" if model.aliases else ""
        print(
            f"{model.reference:<{width}}  {model.status.value:<10}  {model.kind.value:<7}  {model.size:>13,} bytes{aliases}"
        )
    if not found:
        print("no versions")
    return 0


def _show(registry: ModelRegistry, options: argparse.Namespace) -> int:
    model = (
        registry.get_latest(options.name) if options.version is None else registry.get(options.name, options.version)
    )
    fields = model.to_fields()
    if options.events:
        events = [event for event in registry.events(model.name) if event.version == str(model.version)]
        fields["events"] = [event.to_fields() for event in events]
    if options.json:
        _print_json(fields)
    else:
        _print_fields(fields)
    return 0


def _register(registry: ModelRegistry, options: argparse.Namespace) -> int:
    governance = None
    if (options.manifest is None) != (options.adapter is None):
        raise InvalidInputError("--manifest and --adapter go together: the manifest's file, and which adapter of it")
    if options.manifest is not None:
        entry = AdapterManifest.read(options.manifest).entry(options.adapter)
        if (digest := read_source(options.source).digest) != entry.integrity_sha256:
            raise WeightIntegrityError(options.source, entry.integrity_sha256, digest)
        governance = entry.governance
    code = dict(_pair(text, "--code") for text in options.code)
    model = registry.register(
        options.name,
        options.version,
        options.source,
        kind=options.kind,
        metadata=ModelMetadata(
            validation_accuracy=options.validation_accuracy,
            test_accuracy=options.test_accuracy,
            metrics=dict(_measures(options.metric, "--metric")),
            tags=tuple(options.tag),
        ),
        lineage=Lineage(
            dataset_digest=options.dataset_digest,
            teacher=options.teacher,
            base_model=options.base_model,
            code_versions=code,
        ),
        parents=options.parent,
        description=options.description,
        registered_by=options.by,
        governance=governance,
    )
    return _tell(model, options, f"registered, {model.size:,} bytes, SHA-256 {model.digest}")


def _promote(registry: ModelRegistry, options: argparse.Namespace) -> int:
    gates: list[PromotionGate] = [
        MetricThreshold(name, at_least=value) for name, value in _measures(options.min_metric, "--min-metric")
    ]
    gates += [MetricThreshold(name, at_most=value) for name, value in _measures(options.max_metric, "--max-metric")]
    gates += [NotWorseThanLive(name) for name in options.not_worse]
    gates += [ShadowPassed()] if options.require_shadow else []
    status = ModelStatus.of(options.to)
    model = registry.get(options.name, options.version)
    if status is ModelStatus.PRODUCTION:
        model = registry.promote(model, gates=gates, actor=options.by, reason=options.reason)
    elif gates:
        raise InvalidInputError(f"gates stand before production; --to {status.value} has none")
    else:
        model = registry.set_status(model, status, actor=options.by, reason=options.reason)
    return _tell(model, options, f"is {model.status.value}")


def _rollback(registry: ModelRegistry, options: argparse.Namespace) -> int:
    record = RollbackController(registry).rollback(options.name, options.to, reason=options.reason, actor=options.by)
    if options.json:
        _print_json(record.to_fields())
    else:
        print(f"{record.name}: {record.to_version} is in production again, {record.from_version} is deprecated")
    return 0


def _delete(registry: ModelRegistry, options: argparse.Namespace) -> int:
    model = registry.get(options.name, options.version)
    registry.delete(model, actor=options.by, reason=options.reason)
    if options.json:
        _print_json({"deleted": model.reference, "id": model.id})
    else:
        print(f"{model.reference}: deleted; `lattice-tune registry gc` removes its files")
    return 0


def _verify(registry: ModelRegistry, options: argparse.Namespace) -> int:
    report = registry.verify(contents=not options.quick)
    if options.json:
        _print_json(asdict(report) | {"is_clean": report.is_clean})
    else:
        for problem in report.problems:
            print(problem)
        print(
            f"{len(report.problems)} problems; {report.versions:,} versions, {report.blobs:,} files of {report.size:,} "
            f"bytes, {report.events:,} events, {report.unreferenced:,} files that no version names"
        )
    return 0 if report.is_clean else 1


def _gc(registry: ModelRegistry, options: argparse.Namespace) -> int:
    report = registry.gc(grace_seconds=options.grace_hours * 3600, dry_run=options.dry_run, actor=options.by)
    if options.json:
        _print_json(asdict(report) | {"dry_run": options.dry_run})
    else:
        done = "would be removed" if options.dry_run else "removed"
        print(
            f"{report.blobs:,} files of {report.size:,} bytes {done}; {report.kept:,} that no version names stay for now"
        )
    return 0


def _lineage(registry: ModelRegistry, options: argparse.Namespace) -> int:
    model = registry.get(options.name, options.version)
    if options.dot:
        if options.json:
            raise InvalidInputError("--dot and --json print different things: give one of them")
        print(registry.lineage_dot(model), end="")
        return 0
    above, below = registry.ancestors(model), registry.descendants(model)
    fields: dict[str, Any] = {
        "version": model.reference,
        "lineage": asdict(model.lineage),
        "parents": list(model.parents),
        "ancestors": [each.reference for each in above],
        "descendants": [each.reference for each in below],
    }
    if options.json:
        _print_json(fields)
    else:
        _print_fields(fields)
    return 0


def _export(registry: ModelRegistry, options: argparse.Namespace) -> int:
    model = registry.get(options.name, options.version)
    registry.export(model, options.file)
    return _tell(model, options, f"written to {options.file}", file=options.file)


def _import(registry: ModelRegistry, options: argparse.Namespace) -> int:
    model = registry.import_(options.file, detach=options.detach, registered_by=options.by)
    return _tell(model, options, f"imported, {model.size:,} bytes")


_ACTIONS = {
    "list": _list,
    "show": _show,
    "register": _register,
    "promote": _promote,
    "rollback": _rollback,
    "delete": _delete,
    "verify": _verify,
    "gc": _gc,
    "lineage": _lineage,
    "export": _export,
    "import": _import,
}


def _tell(model: RegisteredModel, options: argparse.Namespace, what: str, **more: object) -> int:
    if options.json:
        _print_json(model.to_fields() | more)
    else:
        print(f"{model.reference}: {what}")
    return 0


def _print_json(value: object) -> None:
    print(json.dumps(value))


def _print_fields(fields: dict[str, Any]) -> None:
    """Print one line a field; text of others cannot steer the terminal."""
    width = max(map(len, fields))
    for name, value in fields.items():
        if name == "events":
            for event in value:
                shown_event = f"{event['id']:>6}  {event['at']}  {event['kind']}  {json.dumps(event['detail'])}"
                print(f"{shown_event}  {_printable(event['actor'])}".rstrip())
            continue
        text = "-" if value in (None, "", [], {}) else value if isinstance(value, str) else json.dumps(value)
        print(f"{name:<{width}}  {_printable(text)}")


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)


def _pair(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise InvalidInputError(f"{option} {shown(text)}: write NAME=VALUE")
    return name, value


def _measures(texts: Sequence[str], option: str) -> list[tuple[str, float]]:
    measures = []
    for text in texts:
        name, value = _pair(text, option)
        try:
            measures.append((name, float(value)))
        except ValueError:
            raise InvalidInputError(f"{option} {shown(text)}: {shown(value)} is no number") from None
    return measures
