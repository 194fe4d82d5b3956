"""Which modules rely on Python's lock: the page says it.

Embedding without a cache imports none of them.
"""

from __future__ import annotations

import re
import subprocess
import sys

from .conftest import ROOT

SECTION = (ROOT / "docs" / "stability.md").read_text(encoding="utf-8").partition("### Free-threaded Python")[2]


def test_the_page_names_the_modules_that_rely_on_the_lock():
    sources = [
        path for path in ROOT.glob("packages/*/src/**/*.pyx") if "freethreading_compatible=False" in path.read_text()
    ]
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts[3:]) for path in sources}
    assert modules == set(re.findall(r"^\* `([\w.]+)`", SECTION, re.MULTILINE))


def test_embedding_without_a_cache_imports_none_of_them():
    code = (
        "import sys; from lattice_embed import NativeEmbeddingService; NativeEmbeddingService('minilm').embed(['a']);"
        "print(*sorted(set(sys.modules) & set(sys.argv[1:])))"
    )
    names = re.findall(r"^\* `([\w.]+)`", SECTION, re.MULTILINE)
    done = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == ""
