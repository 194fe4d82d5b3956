"""Fixtures for every test of lattice_inference."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def minilm_directory() -> Path:
    """The real all-MiniLM-L6-v2, from the installed model package."""
    from lattice_inference.errors import ModelNotFoundError
    from lattice_inference.hub import find_model

    try:
        return find_model("all-minilm-l6-v2", offline=True).directory
    except ModelNotFoundError as error:
        if os.environ.get("LATTICE_REQUIRE_MODELS") == "1":
            pytest.fail(str(error))
        pytest.skip(str(error))
