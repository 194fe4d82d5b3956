"""The leaf packages stay leaves: their requirements, and that they work alone.

The hub's client drags in compiled helpers of more megabytes than all of ours; it comes with lattice-embed only.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import pytest

from .conftest import ROOT

LEAVES = ["lattice-inference", "lattice-fann", "lattice-transport"]
SIBLINGS = {"lattice_inference", "lattice_embed", "lattice_fann", "lattice_transport", "lattice_tune"}

# Imports every module of a package where nothing but the standard library, NumPy and the package itself exists, then runs
# some code. An import of anything else fails as it would in such an environment.
_ALONE = """
import importlib, importlib.abc, pkgutil, sys
import numpy
package, code = sys.argv[1:]
allowed = {*sys.stdlib_module_names, "numpy", package}
for name in list(sys.modules):
    if name.partition(".")[0] not in allowed | {"__main__", "__mp_main__"} and not name.startswith("_"):
        del sys.modules[name]
class NothingElse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] not in allowed:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, NothingElse())
whole = importlib.import_module(package)
refused = {f"{package}.serve"}  # its import says which extra is missing
try:
    importlib.import_module(f"{package}.serve")
except ModuleNotFoundError:
    assert package != "lattice_inference"
except whole.UnsupportedError as error:
    assert "lattice-inference[serve]" in str(error)
else:
    raise AssertionError("serve was imported without its extra")
for module in pkgutil.walk_packages(whole.__path__, f"{package}.", onerror=lambda name: None):
    if not module.name.endswith("__main__") and module.name not in refused:
        importlib.import_module(module.name)
exec(code)
"""

WORK = {
    "lattice-inference": (
        "from lattice_inference import VectorCache, load_encoder\n"
        "import tempfile\n"
        "folder = 'packages/lattice-inference/tests/data/tiny_bert'\n"
        "with tempfile.TemporaryDirectory() as cache, load_encoder(folder, cache=cache) as encoder:\n"
        "    print(encoder.encode(['the cat', 'the cat']).vectors.shape)\n"
    ),
    "lattice-fann": (
        "from lattice_fann import Activation, NetworkBuilder\n"
        "network = NetworkBuilder().input(3).output(2, Activation.SOFTMAX).build(seed=0)\n"
        "print(network.forward(numpy.ones(3, 'f')).shape)\n"
    ),
    "lattice-transport": (
        "from lattice_transport import solve\n"
        "half = numpy.full(2, 0.5)\n"
        "print(solve(half, half, numpy.ones((2, 2))).plan().shape)\n"
    ),
}


def declared(package: str) -> dict[str, object]:
    project = tomllib.loads((ROOT / "packages" / package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert isinstance(project, dict)
    return project


def names(requirements: object) -> set[str]:
    assert isinstance(requirements, list)
    return {re.split(r"[<>=!~;\s]", line, maxsplit=1)[0] for line in requirements}


@pytest.mark.parametrize("package", LEAVES)
def test_a_leaf_requires_nothing_heavy(package: str) -> None:
    project = declared(package)
    templates = {"jinja2"} if package == "lattice-inference" else set()  # of chats; imported where one is rendered
    assert names(project["dependencies"]) == {"numpy"} | templates


def test_the_hub_client_is_an_extra() -> None:
    for package in LEAVES:
        extras = declared(package).get("optional-dependencies", {})
        assert isinstance(extras, dict)
        with_hub = {
            name for name, lines in extras.items() if any("huggingface" in line or "hf" in line for line in lines)
        }
        assert with_hub == ({"hub"} if package == "lattice-inference" else set())
    embed = declared("lattice-embed")
    assert "lattice-inference" in names(embed["dependencies"])
    assert embed["optional-dependencies"]["hub"] == ["lattice-inference[hub]"]


@pytest.mark.slow
@pytest.mark.parametrize("package", LEAVES)
def test_a_leaf_imports_and_works_alone(package: str) -> None:
    command = [sys.executable, "-W", "error", "-c", _ALONE, package.replace("-", "_"), WORK[package]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\(\d+(, ?\d*)*\)\n", done.stdout)
