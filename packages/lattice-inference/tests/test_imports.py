"""What an import costs: no optional dependency, no connection, no event loop, and nothing done ahead of use."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

HEAVY = {
    "huggingface_hub", "jinja2", "safetensors", "tqdm", "asyncio", "multiprocessing", "http.client", "urllib.request",
    "socket", "ssl", "starlette", "uvicorn", "subprocess", "scipy", "torch",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "statement",
    [
        "import lattice_inference",
        "from lattice_inference import load_encoder",
        "from lattice_inference import Session, GenerateConfig, Chat, load_model, perplexity, memory_report",
        "import lattice_inference.tokenizer, lattice_inference.backends.cpu, lattice_inference.runtime",
    ],
)
def test_import_loads_no_optional_or_heavy_module(statement: str) -> None:
    code = f"import numpy, sys; before = set(sys.modules); {statement}; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "lattice_inference" in loaded
    assert sorted(loaded & HEAVY) == []


def test_no_public_name_is_a_module_of_the_package() -> None:
    # importing the module would put it where the name was
    import lattice_inference

    modules = {module.name for module in pkgutil.iter_modules(lattice_inference.__path__)}
    assert sorted(modules & set(lattice_inference.__all__)) == []
