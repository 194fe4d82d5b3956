"""The recipes of ``docs/integrations.md``, each with the real library that it names."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[4] / "docs" / "integrations.md").read_text(encoding="utf-8")
LIBRARIES = {"LanceDB": "lancedb", "DSPy": "dspy", "mem0": "mem0", "txtai": "txtai", "Haystack": "haystack"}


def _block(title: str) -> str:
    found = re.search(rf"^##+ {title}$.*?^```python no-run\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None, title
    return found[1]


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("title", LIBRARIES)
def test_a_recipe_finds_what_is_near(title: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(LIBRARIES[title]) is None:
        pytest.skip(f"{title} is not installed")
    code = _block(title).replace("multilingual-e5-small", "all-minilm-l6-v2")
    environment = {
        **os.environ,
        "MEM0_TELEMETRY": "False",
        "HAYSTACK_TELEMETRY_ENABLED": "False",
        "HOME": str(tmp_path),
    }
    environment["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # txtai's and DSPy's library for servers would fetch a list
    environment["PYTHONPATH"] = os.pathsep.join(path and os.path.abspath(path) for path in sys.path)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    stated = re.search(r"\)  # (.*)$", code, re.MULTILINE)
    assert done.stdout.strip().splitlines()[-1] == (stated[1] if stated else "Cats sleep all day.")


def test_every_recipe_of_the_page_is_run() -> None:
    recipes = PAGE[PAGE.index("## Recipes") :].partition("\n## ")[0]
    assert set(re.findall(r"^### (.*)$", recipes, re.MULTILINE)) == set(LIBRARIES) - {"Haystack"}
