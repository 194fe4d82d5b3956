"""``lattice-embed download``: a model's files, before they are needed."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from lattice_embed.errors import InvalidInputError, UnsupportedModelError
from lattice_embed.model_source import default_model, resolve_model
from lattice_inference.files.hub import find_model

__all__ = ["run"]


def run(options: argparse.Namespace) -> int:
    """Find or download the model's files, check them, and print where they are."""
    source = resolve_model(default_model() if options.model is None else options.model)
    if source.model is not None and source.model.is_remote:
        raise UnsupportedModelError(f"{source.name} runs at its provider and has no files to download")
    if os.path.isabs(source.location):
        raise InvalidInputError(f"{source.location} is a directory, so there is nothing to download: name a model")
    found = find_model(source.location, revision=options.revision)
    size = _bytes_in(found.directory)
    if options.json:
        report = {
            "model": source.name,
            "id": found.repo_id,
            "downloaded": found.source == "hub",
            "source": found.source,
            "directory": str(found.directory),
            "revision": found.revision,
            "bytes": size,
        }
        print(json.dumps(report))
        return 0
    how = "downloaded" if found.source == "hub" else f"already here ({found.source})"
    at = f" at {found.revision}" if found.revision else ""
    print(f"{source.name}: {how}, {size / 1e6:,.1f} MB{at}")
    print(found.directory)
    return 0


def _bytes_in(directory: Path) -> int:
    """Add up the sizes of the files below a directory, links followed."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
