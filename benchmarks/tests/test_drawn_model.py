"""The drawn models that decode.py measures: files that load, in every type, with the sizes of their shape."""

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from lattice_inference import Extension, load_model


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ("tiny", "Q8_0"),
        ("tiny", "Q4_0"),
        ("tiny", "F16"),
        ("tiny-moe", "Q4_0"),
        ("tiny-moe", "F16"),
        ("tiny-qwen3.5", "Q8_0"),
        ("tiny-qwen3.5", "Q4_0"),
    ],
)
def test_a_drawn_model_computes(random_llama: ModuleType, tmp_path: Path, shape: str, kind: str) -> None:
    path = tmp_path / "tiny.gguf"
    random_llama.write_random_llama(path, random_llama.SHAPES[shape], kind)
    again = tmp_path / "again.gguf"
    random_llama.write_random_llama(again, random_llama.SHAPES[shape], kind)
    assert path.read_bytes() == again.read_bytes()
    with load_model(path) as model, model.open_cache() as cache:
        logits = model.forward([Extension(cache.sequence(), [1, 2, 3], "all")])
    assert logits.shape == (3, 320)
    assert np.isfinite(logits).all()
    assert logits.std() > 0.1
