"""The excerpt of WikiText-2 that the manual measures with: what it is, and that the commands take it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from lattice_inference import load_model, perplexity
from lattice_inference.cli import main

FOLDER = Path(__file__).parents[1] / "data" / "wikitext2"
EXCERPT = FOLDER / "wiki.test.excerpt.raw"
WINDOWS = ["--window", "32", "--stride", "16", "--max-tokens", "64"]
ROOT = Path(__file__).parents[4]


def test_the_excerpt_is_what_its_licence_says():
    content = EXCERPT.read_bytes()
    licence = (FOLDER / "LICENSE.md").read_text(encoding="utf-8")
    assert len(content.decode("utf-8")) == 12_000
    assert hashlib.sha256(content).hexdigest() in licence
    assert content.startswith(b" \n = Robert Boulter = \n")
    assert "CC BY-SA 3.0" in licence
    assert "Wikipedia" in licence


def test_the_excerpt_begins_the_whole_split():
    whole = ROOT.parent / "shared" / "data" / "text" / "wikitext2" / "wiki.test.raw"
    if not whole.exists():
        pytest.skip("the whole test split is not here")
    assert whole.read_bytes().startswith(EXCERPT.read_bytes())


@pytest.mark.parametrize("page", ["docs/generation.md", "docs/lattice-command.md"])
def test_the_manual_names_the_excerpt(page):
    if not (ROOT / "docs").is_dir():
        pytest.skip("the manual is not here")
    assert "wiki.test.excerpt.raw" in (ROOT / page).read_text(encoding="utf-8")


def test_the_commands_measure_on_the_excerpt(drawn_directory, capsys):
    directory = str(drawn_directory)
    assert main(["perplexity", "--model", directory, "--json", *WINDOWS, str(EXCERPT)]) == 0
    told = json.loads(capsys.readouterr().out)
    with load_model(directory) as model:
        text = EXCERPT.read_text(encoding="utf-8")
        assert told["perplexity"] == perplexity(model, text, window=32, stride=16, max_tokens=64).perplexity
    command = ["compare-logits", "--model", directory, "--other", directory, "--json", *WINDOWS, str(EXCERPT)]
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["agreement"] == 1.0
