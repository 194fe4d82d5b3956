"""Fixtures: a registry in a new folder, and files that are left to the system instead of forced to the disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lattice_tune import ModelRegistry, RegisteredModel
from lattice_tune.registry import database


@pytest.fixture(autouse=True)
def no_sync(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leave writes to the system, but for the tests of durability. What else a test can see of them is the same."""
    if "test_durability" in request.node.path.name:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "SYNCHRONOUS", "OFF")
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[ModelRegistry]:
    with ModelRegistry(tmp_path / "registry") as made:
        yield made


def staged(
    registry: ModelRegistry, name: str, version: str, content: bytes | None = None, **more: object
) -> RegisteredModel:
    """Register a version and bring it up to promotion."""
    text = f"{name} {version}".encode() if content is None else content
    model = registry.register(name, version, text, **more)  # type: ignore[arg-type]
    registry.set_status(model, "validated")
    return registry.set_status(model, "staged")


def live(registry: ModelRegistry, name: str, version: str, **more: object) -> RegisteredModel:
    """Register a version and put it into production."""
    return registry.promote(staged(registry, name, version, **more))
