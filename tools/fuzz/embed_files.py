"""Other inputs of lattice-embed: drift baselines and reports, provenances, document lists."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
from mutation import damage_file, mutated_document
from target import Target

from lattice_embed import DriftBaseline
from lattice_embed.cli.store_command import _read_documents
from lattice_embed.migration.drift_verdict import read_verdict
from lattice_embed.provenance import VectorProvenance
from lattice_inference import LatticeError

__all__ = ["TARGETS"]


def make_files(folder: Path) -> None:
    """Write one of each kind."""
    texts = ("one two", "", "naïve\ncafé \u2028 😀", 'quotes " and \\ marks')
    vectors = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
    for name in ("baseline", "report", "provenance", "documents"):
        (folder / name).mkdir()
    baseline = DriftBaseline(model="model", texts=texts, vectors=vectors, fingerprint="f" * 32, numerics_version=1)
    baseline.save(folder / "baseline" / "baseline.json")
    verdict = {"decision": "reindex", "reasons": ["shift"], "p_value": 0.005}
    report = {"verdict": verdict, "reference_model": "a", "current_model": "b"}
    (folder / "report" / "report.json").write_text(json.dumps(report))
    (folder / "provenance" / "provenance.json").write_text(VectorProvenance(model="model", dimensions=8).to_json())
    lines = [json.dumps({"id": f"d{number}", "text": text}) for number, text in enumerate(texts)]
    (folder / "documents" / "documents.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def damage(folder: Path, draw: random.Random) -> None:
    """Damage the file, of documents one line."""
    (path,) = folder.iterdir()
    if path.suffix == ".jsonl" and draw.random() < 0.8:
        lines = path.read_bytes().split(b"\n")
        place = draw.randrange(len(lines) - 1)
        lines[place] = mutated_document(lines[place], draw)
        path.write_bytes(b"\n".join(lines))
    else:
        damage_file(path, draw)


def use(folder: Path) -> None:
    """Read the file as what its name says."""
    (path,) = folder.iterdir()
    if path.name == "baseline.json":
        DriftBaseline.load(path)
    elif path.name == "report.json":
        read_verdict(path)
    elif path.name == "provenance.json":
        VectorProvenance.from_json(path.read_bytes().decode("utf-8", "replace"))
    else:
        _read_documents(str(path))


TARGETS = [Target("embedding-files", make_files, damage, use, (LatticeError,))]
