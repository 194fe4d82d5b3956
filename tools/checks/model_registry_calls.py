"""Valid calls of the public callables of lattice_tune's model registry."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import lattice_tune

from .call_registry import Call, call, calls


def _load(registry: lattice_tune.ModelRegistry, model: lattice_tune.RegisteredModel) -> int:
    return model.size


def _registry() -> lattice_tune.ModelRegistry:
    """Return a new registry with a version in production, and one that is staged."""
    registry = lattice_tune.ModelRegistry(tempfile.mkdtemp(prefix="registry-", dir="."))
    for version in ("1.0.0", "1.1.0"):
        if version == "1.1.0":
            registry.promote(registry.get("intent", "1.0.0"))
        model = registry.register("intent", version, version.encode(), governance=lattice_tune.AdapterGovernance())
        for status in ("validated", "staged"):
            registry.set_status(model, status)
    return registry


def _of_registry(method: str, arguments: dict[str, Any], *, version: str = "1.1.0", with_model: bool = True) -> None:
    """Register a call of a registry's method; ``model`` is a version in that registry."""

    def build() -> Call:
        registry = _registry()
        model = {"model": registry.get("intent", version)} if with_model else {}
        return getattr(registry, method), model | arguments

    call(f"lattice_tune.ModelRegistry.{method}")(build)


for _method, _arguments in {
    "add_parent": {"parent": "intent@1.0.0"},
    "ancestors": {},
    "check_files": {},
    "copy_to": {"target": "out.bin"},
    "delete": {},
    "descendants": {},
    "export": {"path": "out.zip"},
    "lineage_dot": {},
    "load_weights_verified": {},
    "promote": {"gates": [lattice_tune.HashVerified()]},
    "set_adapter_status": {"status": "revoked"},
    "set_alias": {"alias": "canary"},
    "set_status": {"status": "archived"},
}.items():
    _of_registry(_method, _arguments)
for _method, _arguments in {
    "events": {},
    "gc": {},
    "get": {"name": "intent", "version": "1.0.0"},
    "get_latest": {"name": "intent"},
    "get_production": {"name": "intent"},
    "list": {},
    "query": {"query": lattice_tune.ModelQuery()},
    "register": {"name": "intent", "version": "2.0.0", "source": b"x"},
    "verify": {},
}.items():
    _of_registry(_method, _arguments, with_model=False)


@call("lattice_tune.ModelRegistry.get_by_id")
def _get_by_id() -> Call:
    registry = _registry()
    return registry.get_by_id, {"model_id": registry.get("intent", "1.0.0").id}


@call("lattice_tune.ModelRegistry.remove_alias")
def _remove_alias() -> Call:
    registry = _registry()
    registry.set_alias(registry.get("intent", "1.0.0"), "canary")
    return registry.remove_alias, {"name": "intent", "alias": "canary"}


@call("lattice_tune.ModelRegistry.import_")
def _import() -> Call:
    registry = _registry()
    model = registry.get("intent", "1.1.0")
    registry.export(model, "out.zip")
    registry.delete(model)
    return registry.import_, {"path": "out.zip"}


def _session() -> lattice_tune.ShadowSession:
    registry = _registry()
    return lattice_tune.ShadowSession.start(registry, registry.get("intent", "1.1.0"))


@call("lattice_tune.ShadowSession")
def _open_session() -> Call:
    session = _session()
    return lattice_tune.ShadowSession, {"registry": session._registry, "session": session.session}


@call("lattice_tune.ShadowSession.start")
def _start_session() -> Call:
    registry = _registry()
    return lattice_tune.ShadowSession.start, {"registry": registry, "candidate": registry.get("intent", "1.1.0")}


@call("lattice_tune.ShadowSession.resume")
def _resume_session() -> Call:
    registry = _session()._registry
    return lattice_tune.ShadowSession.resume, {"registry": registry, "candidate": registry.get("intent", "1.1.0")}


calls(
    "lattice_tune.ShadowSession",
    _session,
    {
        "wants": {"sample": "x"},
        "record": {"sample": "x", "agreed": True, "live_ms": 1.0, "candidate_ms": 1.0},
        "record_many": {"samples": [("x", True, 1.0, 1.0)]},
        "evaluate": {},
        "cancel": {},
    },
)


def _rolled_back() -> lattice_tune.RollbackController:
    """Return the controller of a registry in which a rollback was made, and another can be."""
    registry = _registry()
    registry.promote(registry.get("intent", "1.1.0"))
    return lattice_tune.RollbackController(registry)


@call("lattice_tune.RollbackController.involving")
def _involving() -> Call:
    controller = _rolled_back()
    return controller.involving, {"model": controller._registry.get("intent", "1.0.0")}


calls(
    "lattice_tune.RollbackController",
    _rolled_back,
    {"rollback": {"name": "intent", "reason": "x"}, "history": {}, "last": {"name": "intent"}},
)


def _entry() -> lattice_tune.ManifestEntry:
    return lattice_tune.ManifestEntry("a", "a", "out.bin", "0" * 64, lattice_tune.AdapterGovernance())


@call("lattice_tune.ManifestEntry.of")
def _entry_of() -> Call:
    return lattice_tune.ManifestEntry.of, {"model": _registry().get("intent", "1.0.0"), "uri": "out.bin"}


@call("lattice_tune.AdapterManifest.load_verified")
def _load_verified() -> Call:
    import hashlib

    import numpy as np
    from safetensors.numpy import save

    content = save({"x.q_proj.lora_A.weight": np.ones((1, 2), np.float32)})
    Path("out.bin").write_bytes(content)
    governance = lattice_tune.AdapterGovernance(target_modules=("q_proj",))
    entry = lattice_tune.ManifestEntry("a", "a", "out.bin", hashlib.sha256(content).hexdigest(), governance)
    return lattice_tune.AdapterManifest((entry,)).load_verified, {"adapter_id": "a"}


@call("lattice_tune.AdapterManifest.read")
def _read_manifest() -> Call:
    lattice_tune.AdapterManifest((_entry(),)).write("out.json")
    return lattice_tune.AdapterManifest.read, {"path": "out.json"}


calls(
    "lattice_tune.AdapterManifest",
    lambda: lattice_tune.AdapterManifest((_entry(),)),
    {"write": {"path": "out.json"}, "entry": {"adapter_id": "a"}},
)
calls(
    "lattice_tune",
    lambda: lattice_tune,
    {
        "AdapterGovernance": {},
        "AdapterManifest": {"adapters": lambda: [_entry()]},
        "Lineage": {},
        "LiveModel": {"registry": _registry, "name": "intent", "load": lambda: _load, "poll_seconds": None},
        "ManifestEntry": {
            "id": "a",
            "name": "a",
            "uri": "x",
            "integrity_sha256": "0" * 64,
            "governance": lambda: lattice_tune.AdapterGovernance(),
        },
        "MetricThreshold": {"metric": "f1", "at_least": 0.5},
        "ModelMetadata": {},
        "ModelQuery": {},
        "ModelRegistry": {"path": "out-registry"},
        "NotWorseThanLive": {"metric": "f1"},
        "RollbackController": {"registry": _registry},
        "SemanticVersion": {"major": 1, "minor": 2, "patch": 3},
        "ShadowConfig": {},
        "wilson_interval": {"successes": 1, "trials": 2},
    },
)
calls("lattice_tune.SemanticVersion", lambda: lattice_tune.SemanticVersion, {"parse": {"text": "1.0.0"}})
for _kind, _value in {"ModelStatus": "staged", "ModelKind": "student", "AdapterStatus": "approved"}.items():
    calls(f"lattice_tune.{_kind}", lambda kind=_kind: getattr(lattice_tune, kind), {"of": {"value": _value}})
calls("lattice_tune.ModelMetadata", lattice_tune.ModelMetadata, {"metric": {"name": "f1"}})
calls(
    "lattice_tune.AdapterGovernance",
    lattice_tune.AdapterGovernance,
    {
        "check_approved": {"adapter": "a"},
        "from_fields": {"fields": lambda: lattice_tune.AdapterGovernance().to_fields()},
    },
)
calls(
    "lattice_tune.ManifestEntry",
    lambda: lattice_tune.ManifestEntry,
    {"from_fields": {"fields": lambda: _entry().to_fields()}},
)
