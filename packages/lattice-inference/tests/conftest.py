"""Where the tests find the real model and the committed data."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def minilm_directory() -> Path:
    """The real all-MiniLM-L6-v2, from the installed model package (tests that use it carry the marker ``model``)."""
    from lattice_inference.errors import ModelNotFoundError
    from lattice_inference.hub import find_model

    try:
        return find_model("all-minilm-l6-v2", offline=True).directory
    except ModelNotFoundError as error:
        if os.environ.get("LATTICE_REQUIRE_MODELS") == "1":
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def data_directory() -> Path:
    """The folder of committed test data."""
    return Path(__file__).parent / "data"
