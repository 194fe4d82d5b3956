"""The models that are measured, for the tests that need them."""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from lattice_inference.errors import ModelNotFoundError
from lattice_inference.files.hub import find_model

DRAWING = Path(__file__).resolve().parents[2] / "tools" / "models" / "random_llama.py"


@pytest.fixture(scope="session")
def random_llama() -> ModuleType:
    spec = importlib.util.spec_from_file_location("random_llama", DRAWING)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def tiny_drawn_model(random_llama: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("drawn") / "tiny.gguf"
    random_llama.write_random_llama(path, random_llama.SHAPES["tiny"], "Q8_0")
    return path


@pytest.fixture(scope="session")
def minilm_directory() -> Path:
    try:
        return find_model("all-minilm-l6-v2", offline=True).directory
    except ModelNotFoundError as error:
        if os.environ.get("LATTICE_REQUIRE_MODELS") == "1":
            pytest.fail(f"LATTICE_REQUIRE_MODELS=1, but: {error}")
        pytest.skip(str(error))
