"""The model that is measured, for the tests that need it."""

import os
from pathlib import Path

import pytest

from lattice_inference.errors import ModelNotFoundError
from lattice_inference.hub import find_model


@pytest.fixture(scope="session")
def minilm_directory() -> Path:
    try:
        return find_model("all-minilm-l6-v2", offline=True).directory
    except ModelNotFoundError as error:
        if os.environ.get("LATTICE_REQUIRE_MODELS") == "1":
            pytest.fail(f"LATTICE_REQUIRE_MODELS=1, but: {error}")
        pytest.skip(str(error))
