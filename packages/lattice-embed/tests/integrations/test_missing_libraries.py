"""A door without its library says which extra brings it; the package without any of them is whole."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("door", "library", "extra"),
    [
        ("langchain", "langchain_core", "langchain"),
        ("llama_index", "llama_index", "llama-index"),
        ("chroma", "chromadb", "chroma"),
        ("sentence_transformers_module", "torch", "sentence-transformers"),
        ("scikit_learn", "sklearn", "scikit-learn"),
        ("haystack", "haystack", "haystack"),
    ],
)
def test_missing_library_is_named_with_its_extra(door: str, library: str, extra: str) -> None:
    code = (
        f"import sys; sys.modules[{library!r}] = None\n"
        f"try: import lattice_embed.integrations.{door}\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert f"pip install 'lattice-embed[{extra}]'" in done.stdout, done.stdout + done.stderr


def test_package_imports_none_of_the_libraries() -> None:
    code = (
        "import sys, lattice_embed, lattice_embed.integrations, lattice_embed.integrations.sentence_transformers\n"
        "names = {'langchain_core', 'llama_index', 'chromadb', 'sentence_transformers', 'torch', 'httpx2', 'httpx'}\n"
        "print(sorted(names & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
