"""Static models, beside the vectors of model2vec."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lattice_inference import load_encoder, load_model
from lattice_inference.errors import CheckpointError, InvalidInputError, ModelConfigError, UnsupportedError
from lattice_inference.quantize import Calibrator, export_bert_gguf, quantize_int8
from static_models import CASES, TEXTS, WIDTH, write_static

VECTORS = np.load(Path(__file__).parents[1] / "data" / "static" / "vectors.npz")


@pytest.mark.parametrize("name", CASES)
def test_vectors_are_those_of_model2vec(name: str, tmp_path: Path) -> None:
    with load_encoder(write_static(tmp_path, name)) as encoder:
        got = encoder.encode(TEXTS)
        alone = [encoder.encode([text]).vectors[0].tobytes() for text in TEXTS]
    limit = 1e-3 if name == "float16" else 1e-6 * max(1, float(np.abs(VECTORS[name]).max()))
    assert np.abs(got.vectors - VECTORS[name]).max() < limit
    assert alone == [vector.tobytes() for vector in got.vectors]
    with load_encoder(tmp_path, backend="reference") as slow:
        assert np.abs(slow.encode(TEXTS).vectors - got.vectors).max() < limit
    longest = {"mapping": 8, "unlimited": 700}.get(name, 512)
    assert got.token_counts.max() == longest
    assert got.truncated.tolist() == [False] * 6 + [longest < 700]
    assert encoder.normalize is CASES[name].get("normalize", False)
    assert encoder.dimension == WIDTH


def test_texts_without_a_known_token_have_the_zero_vector(tmp_path: Path) -> None:
    with load_encoder(write_static(tmp_path, "plain"), cache=tmp_path / "cache") as encoder:
        for texts in (["", "日本"], ["", "cat", "日本"]) * 2:
            vectors = encoder.encode(texts).vectors
            assert [bool(vector.any()) for vector in vectors] == [text == "cat" for text in texts]
        assert encoder.count_tokens(["", "日本", "cat"]).tolist() == [0, 2, 1]
        assert encoder.encode([]).vectors.shape == (0, WIDTH)


@pytest.mark.parametrize("precision", ["stored", "bfloat16", "float16", "int8"])
@pytest.mark.parametrize("name", ["plain", "mapping"])
def test_every_precision_is_near(name: str, precision: str, tmp_path: Path) -> None:
    with load_encoder(write_static(tmp_path, name), precision=precision) as encoder:  # type: ignore[arg-type]
        assert np.abs(encoder.encode(TEXTS).vectors - VECTORS[name]).max() < 5e-3


def test_a_lower_limit_may_be_asked_for_and_no_other_pooling(tmp_path: Path) -> None:
    write_static(tmp_path, "plain")
    with load_encoder(tmp_path, max_tokens=4) as encoder:
        assert encoder.encode(TEXTS[:1]).token_counts.tolist() == [4]
    with pytest.raises(InvalidInputError, match=r"config\.json decides that pooling is 'mean'"):
        load_encoder(tmp_path, pooling="cls")
    with pytest.raises(InvalidInputError, match=r"config\.json decides that normalize is True"):
        load_encoder(tmp_path, normalize=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embeddings": None, "other": np.zeros((3, 2), np.float32)}, "no tensor 'embeddings'"),
        ({"embeddings": np.zeros(20, np.float32)}, r"embeddings has the shape \(20,\), not 2 dimensions"),
        ({"embeddings": np.zeros((0, 4), np.float32), "mapping": None}, "embeddings is 0 x 4"),
        ({"mapping": np.zeros(3, np.int64)}, "disagree about the number of tokens: mapping has 3, weights has"),
        ({"weights": None, "mapping": None, "more": np.zeros(2, np.float32)}, "does not read.*more"),
        ({"mapping": np.full(110, 20, np.int64)}, "mapping names the rows 20 to 20 of 20"),
        ({"mapping": np.full(110, -1, np.int64)}, "mapping names the rows -1 to -1 of 20"),
        ({"mapping": np.zeros(110, np.float32)}, "mapping is of type F32"),
        ({"weights": np.full(110, 1e38), "embeddings": np.full((20, 4), 1e30, np.float32)}, "is not finite"),
        ({"weights": np.full(110, np.nan)}, "weights"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(change: dict[str, np.ndarray], message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_encoder(write_static(tmp_path, "mapping", **change))


@pytest.mark.parametrize("change", [{"normalize": 1}, {"max_length": 0}, {"max_length": 2**40}, {"max_length": "512"}])
def test_a_malformed_configuration_is_refused(change: dict[str, object], tmp_path: Path) -> None:
    path = write_static(tmp_path, "plain") / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ModelConfigError, match=next(iter(change))):
        load_encoder(tmp_path)


def test_what_has_no_linears_is_not_calibrated_nor_quantized(tmp_path: Path) -> None:
    model = write_static(tmp_path / "model", "plain")
    with pytest.raises(UnsupportedError, match="no linear layers"):
        quantize_int8(model, tmp_path / "int8")
    with pytest.raises(UnsupportedError, match="no linear layers"):
        Calibrator(model)
    with pytest.raises(UnsupportedError, match="are not written as GGUF"):
        export_bert_gguf(model, tmp_path / "model.gguf")
    with pytest.raises(UnsupportedError, match="model_type is 'model2vec'"):
        load_model(model)
    assert {path.name for path in tmp_path.iterdir()} == {"model"}
