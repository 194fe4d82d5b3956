"""The model registry's files: its database, one exported version, manifests of adapters."""

from __future__ import annotations

import hashlib
import random
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
from mutation import damage_file
from safetensors.numpy import save
from target import Target, add_tests

from lattice_tune import (
    AdapterGovernance,
    AdapterManifest,
    ManifestEntry,
    ModelMetadata,
    ModelRegistry,
    RollbackController,
    ShadowConfig,
    ShadowSession,
    TuneError,
)

__all__ = ["TARGETS"]

add_tests("inference", "damage")

from mutated_files import mutate_database, mutate_file  # noqa: E402

ERRORS = (TuneError,)


def fill(registry: ModelRegistry) -> None:
    """Make versions of every status, with parents, an alias, a folder, governance and a session.

    The session is a shadow session.
    """
    parents: list[str] = []
    for number in range(4):
        metadata = ModelMetadata(validation_accuracy=0.5, metrics={"f1": 0.5}, tags=("a",))
        governance = AdapterGovernance() if number == 2 else None
        model = registry.register(
            "intent", f"1.{number}.0", b"%d" % number, metadata=metadata, parents=parents, governance=governance
        )
        parents = [model.reference]
        if number < 3:
            registry.set_status(model, "validated")
            registry.set_status(model, "staged")
        if number < 2:
            registry.promote(model)
    registry.set_alias(registry.get("intent", "1.2.0"), "canary")
    session = ShadowSession.start(registry, registry.get("intent", "1.2.0"), ShadowConfig(sample_rate=1.0))
    session.record("x", agreed=True, live_ms=1.0, candidate_ms=1.0)


def make_registry(folder: Path) -> None:
    """Write a registry."""
    with ModelRegistry(folder / "registry" / "r") as registry:
        fill(registry)


def use_registry(folder: Path) -> None:
    """Call everything once; a call that is refused does not keep the next from being made."""
    with ModelRegistry(folder, create=False) as registry:
        found = []
        with suppress(TuneError):
            found = registry.list()
        calls: list[Callable[[], object]] = [
            registry.verify,
            registry.names,
            registry.events,
            lambda: registry.get_latest("intent", prereleases=True, active=True),
            lambda: registry.get("intent", "canary"),
            lambda: registry.get_production("intent"),
            RollbackController(registry).history,
            lambda: registry.register("intent", "9.0.0", b"new"),
            lambda: registry.gc(grace_seconds=0),
        ]
        for model in found:
            calls += [
                lambda model=model: registry.load_weights_verified(model),
                lambda model=model: registry.lineage_dot(model),
                lambda model=model: registry.set_status(model, "archived"),
                lambda model=model: ShadowSession.resume(registry, model).evaluate(),
                lambda model=model: registry.export(model, folder.parent / "out.zip"),
                lambda model=model: registry.delete(model),
            ]
        calls += [lambda: RollbackController(registry).rollback("intent", reason="x"), registry.verify]
        for call in calls:
            with suppress(TuneError):
                call()


def make_bundle(folder: Path) -> None:
    """Write an exported version of several files."""
    place = folder / "bundle"
    place.mkdir()
    with tempfile.TemporaryDirectory() as other, ModelRegistry(Path(other) / "r") as registry:
        source = Path(other) / "source"
        source.mkdir()
        for name in ("a.bin", "b.bin"):
            (source / name).write_bytes(name.encode() * 50)
        model = registry.register("intent", "1.0.0", source, governance=AdapterGovernance())
        registry.export(model, place / "x.zip")


def use_bundle(folder: Path) -> None:
    """Import what is there, into a registry that must be sound whatever comes of it."""
    with ModelRegistry(folder / "r") as registry:
        try:
            registry.import_(folder / "x.zip")
        finally:
            report = registry.verify()
            assert report.is_clean, report.problems


def make_manifest(folder: Path) -> None:
    """Write a manifest and its adapter."""
    place = folder / "manifest"
    place.mkdir()
    content = save({"x.q_proj.lora_A.weight": np.ones((2, 3), np.float32)}, metadata={"alpha": "2"})
    (place / "a.safetensors").write_bytes(content)
    governance = AdapterGovernance(owner="o", rank=2, alpha=2.0, target_modules=("q_proj",))
    entry = ManifestEntry("a", "a", "a.safetensors", hashlib.sha256(content).hexdigest(), governance)
    AdapterManifest((entry,)).write(place / "m.json")


def damage_manifest(folder: Path, draw: random.Random) -> None:
    """Change the manifest, or the adapter.

    A changed adapter gets a manifest with its digest, so that the file itself is read.
    """
    if draw.random() < 0.5:
        return damage_file(folder / "m.json", draw)
    path = folder / "a.safetensors"
    mutate_file(path, draw)
    text = (folder / "m.json").read_text()
    digest = AdapterManifest.read(folder / "m.json").entry("a").integrity_sha256
    (folder / "m.json").write_text(text.replace(digest, hashlib.sha256(path.read_bytes()).hexdigest()))
    return None


TARGETS = [
    Target(
        "model-registry",
        make_registry,
        lambda folder, draw: draw.choice((mutate_file, mutate_database))(folder / "r" / "registry.db", draw),
        lambda folder: use_registry(folder / "r"),
        ERRORS,
        is_changed=True,
    ),
    Target(
        "version-bundle",
        make_bundle,
        lambda folder, draw: mutate_file(folder / "x.zip", draw),
        use_bundle,
        ERRORS,
        is_changed=True,
    ),
    Target(
        "adapter-manifest",
        make_manifest,
        damage_manifest,
        lambda folder: AdapterManifest.read(folder / "m.json").load_verified("a"),
        ERRORS,
    ),
]
