"""Models and adapters with drawn weights, written once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from drawn_adapters import write_adapter
from drawn_checkpoints import draw_ids, write_directory
from lattice_inference import Extension, load_model

DATA = Path(__file__).parents[1] / "data"
BASES = {
    **json.loads((DATA / "decoders" / "cases.json").read_text())["cases"],
    **json.loads((DATA / "architectures" / "cases.json").read_text())["cases"],
}
CASES = json.loads((DATA / "lora" / "cases.json").read_text())["cases"]


@pytest.fixture(scope="session")
def drawn_base(tmp_path_factory):
    """Return the directory of a base, written once. Tests copy it before they change it."""
    written: dict[str, Path] = {}

    def directory(name):
        if name not in written:
            written[name] = write_directory(tmp_path_factory.mktemp("bases") / name, BASES[name])
        return written[name]

    return directory


@pytest.fixture(scope="session")
def drawn_adapter(tmp_path_factory):
    """Return the directory of a case's adapter, written once. Tests copy it before they change it."""
    written: dict[str, Path] = {}

    def directory(name):
        if name not in written:
            written[name] = write_adapter(tmp_path_factory.mktemp("adapters") / name, name, CASES[name])
        return written[name]

    return directory


@pytest.fixture(scope="session")
def logits_of():
    """Return what a decoder gives for the ids of a base, in float32."""

    def logits(directory, base, **options):
        with load_model(directory, **options) as model:
            ids = draw_ids(base, BASES[base]["length"], 128)
            with model.open_cache(tokens=len(ids), dtype="float32") as cache:
                rows = model.forward([Extension(cache.sequence(), ids, "all")])
        return np.asarray(rows)[BASES[base]["rows"]]

    return logits
