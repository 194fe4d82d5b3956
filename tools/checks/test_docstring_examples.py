"""Examples in docstrings run and give the values that they show."""

from __future__ import annotations

import doctest
import importlib
import re

import pytest

from .conftest import ROOT

EXAMPLES = {
    "lattice_inference": ["Encoder", "Encoding", "Tokenizer", "VectorCache"],
    "lattice_embed": [
        "CachedEmbeddingService",
        "EmbeddingKey",
        "EmbeddingModel",
        "EmbeddingResult",
        "ModelConfig",
        "NativeEmbeddingService",
    ],
    "lattice_embed.stores": ["NumpyVectorStore"],
    "lattice_embed.vectors": ["Int8Matrix"],
    "lattice_fann": [
        "Activation",
        "BackpropTrainer",
        "MLPClassifier",
        "MLPRegressor",
        "Network",
        "NetworkBuilder",
        "TrainingConfig",
    ],
    "lattice_transport": ["OnlineDriftDetector", "PointClouds", "SinkhornConfig", "SinkhornResult"],
    "lattice_tune": ["Dataset", "LabelSet", "ModelRegistry", "SplitRule", "TrainingExample"],
}
CLASSES = [f"{module}.{name}" for module, names in EXAMPLES.items() for name in names]
LISTED = re.compile(r"^ *>>> (?!.*\+SKIP)", re.MULTILINE)
OTHERS = sorted(
    ".".join(path.relative_to(root).with_suffix("").parts)
    for root in ROOT.glob("packages/*/src")
    for path in root.rglob("*.py")
    if path.name != "__init__.py" and LISTED.search(path.read_text(encoding="utf-8"))
)


def _run(test: doctest.DocTest) -> list[str]:
    output: list[str] = []
    doctest.DocTestRunner().run(test, out=output.append)
    return output


@pytest.mark.model
@pytest.mark.parametrize("name", CLASSES)
def test_class_has_an_example_that_is_right(name, monkeypatch):
    monkeypatch.setenv("LATTICE_OFFLINE", "1")
    module, _, attribute = name.rpartition(".")
    value = getattr(importlib.import_module(module), attribute)
    (test,) = doctest.DocTestFinder(recurse=False).find(value, attribute, globs={attribute: value})
    assert len(test.examples) > 0
    assert _run(test) == []


@pytest.mark.model
@pytest.mark.parametrize("name", OTHERS)
def test_other_examples_of_a_module_are_right(name, monkeypatch):
    monkeypatch.setenv("LATTICE_OFFLINE", "1")
    module = importlib.import_module(name)
    listed = {each.rpartition(".")[2] for each in CLASSES}
    for test in doctest.DocTestFinder().find(module):
        if test.name.rpartition(".")[2] not in listed:
            assert _run(test) == []
