"""Governance of adapters: what a manifest says must hold, and what is revoked does not load."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from lattice_tune import (
    AdapterGovernance,
    AdapterManifest,
    AdapterNotApprovedError,
    InvalidInputError,
    ManifestEntry,
    ModelNotFoundError,
    ModelRegistry,
    RegisteredModel,
    RegistryCorruptError,
    StorageError,
    WeightIntegrityError,
)

from .conftest import live, staged


def adapter_bytes(*, rank: int = 4, metadata: dict[str, str] | None = None, mlx: bool = False, **tensors: Any) -> bytes:
    """Return a file of an adapter, as safetensors itself writes it."""
    prefix = "base_model.model.model.layers.0.self_attn.q_proj."
    shapes = {"lora_A.weight": (rank, 8), "lora_B.weight": (6, rank)}
    if mlx:
        shapes = {"lora_a": (8, rank), "lora_b": (rank, 6)}
    made = {prefix + name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    return save(made | tensors, metadata=metadata)


def entry_fields(content: bytes, **changed: Any) -> dict[str, Any]:
    fields = {
        "id": "style-1",
        "name": "style",
        "owner": "team",
        "uri": "adapters/style.safetensors",
        "integrity_sha256": hashlib.sha256(content).hexdigest(),
        "base_model_rev": "abc",
        "tokenizer_rev": "def",
        "rank": 4,
        "alpha": 8,
        "target_modules": ["q_proj", "v_proj"],
        "dtype": "F32",
        "status": "approved",
    }
    return fields | changed


GOOD = adapter_bytes(metadata={"alpha": "8"})


def written(folder: Path, content: bytes = GOOD, **changed: Any) -> AdapterManifest:
    """Write a manifest as the reference does, and its adapter, and read it."""
    (folder / "adapters").mkdir(exist_ok=True)
    (folder / "adapters" / "style.safetensors").write_bytes(content)
    path = folder / "manifest.json"
    path.write_text(json.dumps({"version": 1, "adapters": [entry_fields(content, **changed)]}))
    return AdapterManifest.read(path)


def test_adapter_that_fits_is_loaded(tmp_path: Path) -> None:
    loaded = written(tmp_path).load_verified("style-1", base_model_rev="abc", tokenizer_rev="def")
    assert loaded.content == GOOD
    assert loaded.revisions_match
    assert loaded.entry.governance.target_modules == ("q_proj", "v_proj")


def test_names_and_shapes_of_mlx_are_read(tmp_path: Path) -> None:
    content = adapter_bytes(mlx=True)
    assert written(tmp_path, content, alpha=4).load_verified("style-1").content == content


@pytest.mark.parametrize("status", ["quarantined", "revoked"])
def test_adapter_that_is_not_approved_does_not_load(tmp_path: Path, status: str) -> None:
    manifest = written(tmp_path, status=status)
    (tmp_path / "adapters" / "style.safetensors").unlink()  # it is not even looked for
    with pytest.raises(AdapterNotApprovedError, match=status) as caught:
        manifest.load_verified("style-1", permissive=True)
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("content", "changed", "reason"),
    [
        (GOOD, {"rank": 8}, "rank is 4"),
        (GOOD, {"alpha": 8.001}, "alpha is 8"),
        (adapter_bytes(), {}, "alpha is 4"),
        (adapter_bytes(metadata={"alpha": "nan"}), {}, "alpha is nan"),
        (adapter_bytes(metadata={"alpha": "eight"}), {}, "alpha is nan"),
        (GOOD, {"target_modules": ["v_proj"]}, "changes q_proj"),
        (adapter_bytes(metadata={"alpha": "8", "adapter_id": "other"}), {}, "says that it is 'other'"),
        (b"not safetensors", {}, "safetensors"),
        (b"", {}, "too few"),
        (GOOD[:-4], {}, "it is truncated"),
        (save({"unrelated": np.ones(3, np.float32)}), {}, "0 ranks"),
        (adapter_bytes(**{"x.k_proj.lora_A": np.ones(3, np.float32)}), {}, "1 dimensions"),
        (adapter_bytes(**{"x.q_proj.lora_A": np.ones((2, 3), np.float32)}), {}, "2 ranks"),
    ],
)
def test_adapter_that_does_not_fit_is_refused(
    tmp_path: Path, content: bytes, changed: dict[str, Any], reason: str
) -> None:
    with pytest.raises(RegistryCorruptError, match=reason):
        written(tmp_path, content, **changed).load_verified("style-1")


def test_changed_missing_and_outside_files_are_refused(tmp_path: Path) -> None:
    manifest = written(tmp_path)
    path = tmp_path / "adapters" / "style.safetensors"
    path.write_bytes(GOOD[:-1] + b"\1")
    with pytest.raises(WeightIntegrityError):
        manifest.load_verified("style-1")
    path.unlink()
    with pytest.raises(StorageError):
        manifest.load_verified("style-1")
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.write_bytes(GOOD)
    path.symlink_to(outside)
    with pytest.raises(InvalidInputError, match="leads out of"):
        manifest.load_verified("style-1")
    with pytest.raises(ModelNotFoundError):
        manifest.load_verified("style-2")


def test_other_revisions_are_refused_or_told(tmp_path: Path) -> None:
    manifest = written(tmp_path)
    for wrong in ({"base_model_rev": "abd"}, {"tokenizer_rev": "deg"}):
        with pytest.raises(InvalidInputError, match="permissive=True"):
            manifest.load_verified("style-1", **wrong)  # type: ignore[arg-type]
        assert not manifest.load_verified("style-1", permissive=True, **wrong).revisions_match  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changed",
    [
        {"uri": "../style.safetensors"},
        {"uri": "/etc/passwd"},
        {"uri": "a\0b"},
        {"integrity_sha256": "ABC"},
        {"rank": 0},
        {"rank": 4.5},
        {"rank": True},
        {"alpha": "8"},
        {"alpha": 10**400},
        {"status": "fine"},
        {"target_modules": "q_proj"},
        {"id": ""},
        {"id": None},
        {"more": 1},
    ],
    ids=str,
)
def test_manifest_with_a_wrong_field_is_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    with pytest.raises(RegistryCorruptError):
        written(tmp_path, **changed)


NO_MANIFESTS = [
    '{"version": 2, "adapters": []}',
    '{"version": true, "adapters": []}',
    '{"adapters": []}',
    '{"version": 1}',
]
NO_MANIFESTS += [
    '{"version": 1, "adapters": [1]}',
    '{"version": 1, "adapters": [], "adapters": []}',
    "[]",
    "{",
    "",
    "[" * 100_000,
]


@pytest.mark.parametrize("text", NO_MANIFESTS, ids=lambda text: text[:30])
def test_what_is_no_manifest_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(RegistryCorruptError):
        AdapterManifest.read(tmp_path / "m.json")


def test_ids_stand_once(tmp_path: Path) -> None:
    entry = ManifestEntry.from_fields(entry_fields(GOOD))
    with pytest.raises(InvalidInputError, match="two adapters"):
        AdapterManifest((entry, entry))


def test_manifest_is_written_as_it_was_read(tmp_path: Path) -> None:
    manifest = written(tmp_path)
    before = json.loads((tmp_path / "manifest.json").read_text())
    manifest.write(tmp_path / "again.json")
    assert json.loads((tmp_path / "again.json").read_text()) == before
    assert AdapterManifest.read(tmp_path / "again.json") == manifest


def test_registry_governs_adapters_and_writes_their_manifest(registry: ModelRegistry, tmp_path: Path) -> None:
    entry = written(tmp_path).entry("style-1")
    model = registry.register(
        "style", "1.0.0", tmp_path / "adapters" / entry.uri.split("/")[1], kind="adapter", governance=entry.governance
    )
    assert registry.get("style", "1.0.0").governance == entry.governance
    (tmp_path / "out").mkdir()
    registry.copy_to(model, tmp_path / "out" / "style.safetensors")
    manifest = AdapterManifest((ManifestEntry.of(model, uri="style.safetensors"),), tmp_path / "out")
    manifest.write(tmp_path / "out" / "manifest.json")
    read = AdapterManifest.read(tmp_path / "out" / "manifest.json")
    assert read.load_verified("style@1.0.0", base_model_rev="abc").content == GOOD
    with pytest.raises(InvalidInputError, match="no adapter of one file"):
        ManifestEntry.of(registry.register("plain", "1.0.0", b"x"), uri="x")


def test_revoked_adapter_does_not_load_and_does_not_go_live(registry: ModelRegistry, tmp_path: Path) -> None:
    governance = AdapterGovernance(owner="team", rank=4)
    model = staged(registry, "style", "1.0.0", GOOD, governance=governance)
    registry.set_adapter_status(model, "quarantined", reason="a complaint")
    with pytest.raises(AdapterNotApprovedError, match="quarantined"):
        registry.promote(model)
    registry.set_adapter_status(model, "approved")
    registry.promote(model)
    revoked = registry.set_adapter_status(model, "revoked", actor="me", reason="it leaks")
    assert revoked.governance is not None
    assert revoked.governance.status.value == "revoked"
    for call in (
        lambda: registry.load_weights_verified(model),  # a record from before it was revoked
        lambda: registry.copy_to(model, tmp_path / "x"),
    ):
        with pytest.raises(AdapterNotApprovedError, match="revoked"):
            call()
    assert not (tmp_path / "x").exists()
    event = registry.events("style", kind="governance")[-1]
    assert (event.actor, event.detail) == ("me", {"from": "approved", "to": "revoked", "reason": "it leaks"})
    with pytest.raises(InvalidInputError, match="no governance"):
        registry.set_adapter_status(live(registry, "intent", "1.0.0"), "revoked")
    assert registry.verify().is_clean


def test_adapter_that_is_revoked_while_gates_decide_does_not_go_live(registry: ModelRegistry) -> None:
    model = staged(registry, "style", "1.0.0", GOOD, governance=AdapterGovernance(rank=4))

    class Revoking:
        gate_name = "slow"

        def refusal(self, registry: ModelRegistry, candidate: RegisteredModel, live: RegisteredModel | None) -> None:
            registry.set_adapter_status(candidate, "revoked")

    with pytest.raises(AdapterNotApprovedError):
        registry.promote(model, gates=[Revoking()])
    assert registry.get_production("style") is None
