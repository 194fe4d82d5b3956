"""Qwen3 files of llama.cpp's converter: the numbers of transformers and sentence-transformers, and blocks that run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import qwen3_files as files
from drawn_checkpoints import draw_ids
from lattice_inference import Extension, load_cross_encoder, load_encoder, load_model
from qwen3_converted import CONVERTED, directory_of, write_converted

with np.load(Path(__file__).parents[1] / "data" / "qwen3" / "outputs.npz") as stored:
    OUTPUTS = dict(stored)


def converted(name, folder):
    """The converter's file, and a directory with its tensors."""
    directory = directory_of("moe" if name == "moe-fused" else name, folder)
    return write_converted(folder / f"{name}.gguf", name, directory), directory


def logits(path, ids, **options):
    with load_model(path, **options) as model, model.open_cache(tokens=len(ids), dtype="float32") as cache:
        return np.array(model.forward([Extension(cache.sequence(), ids, "all")]))


@pytest.mark.parametrize("name", ["tied", "moe", "moe-fused"])
def test_logits_are_those_of_transformers(tmp_path, name):
    path, directory = converted(name, tmp_path)
    case = name.removesuffix("-fused")
    got = logits(path, draw_ids(f"qwen3:{case}", 1000, 64)[:130])
    assert np.abs(got - OUTPUTS[f"logits-{case}"][:130]).max() <= 1e-5
    assert got.tobytes() == logits(directory, draw_ids(f"qwen3:{case}", 1000, 64)[:130]).tobytes()


@pytest.mark.parametrize("name", [name for name in CONVERTED if name.endswith("q8_0")])
def test_files_of_blocks_run_as_they_are(tmp_path, name):
    path, directory = converted(name, tmp_path)
    ids = draw_ids(name, 60, 64)
    with load_model(path) as model:
        assert "Q8_0" in {weight.dtype for weight in model.weight_sizes}
    exact, blocks = logits(directory, ids), logits(path, ids, activations="float32")
    assert 0 < np.abs(blocks - exact).mean() < 0.1 * np.abs(exact).mean()
    assert np.abs(logits(path, ids, precision="float32") - blocks).max() < 1e-4


def test_vectors_are_those_of_sentence_transformers(tmp_path):
    path, _ = converted("embedder", tmp_path)
    with load_encoder(path) as encoder:
        assert (encoder.pooling, encoder.dimension) == ("last", 48)
        assert np.abs(encoder.encode(files.TEXTS).vectors - OUTPUTS["vectors-plain"]).max() <= 1e-6


def test_scores_are_those_of_the_model_card(tmp_path):
    path, _ = converted("qwen3-reranker", tmp_path)
    with load_cross_encoder(path) as model:
        got = [model.score(query, [document], instruction=text)[0] for text, query, document in files.PAIRS]
    assert np.abs(np.array(got) - OUTPUTS["scores-small"]).max() <= 1e-5
