"""The real all-MiniLM-L6-v2 against transformers in float32."""

from __future__ import annotations

import json

import numpy as np
import pytest

from lattice_inference import load_encoder
from lattice_inference.backends.cpu import _cpu
from lattice_inference.quantize import export_bert_gguf

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def fifty(data_directory):
    texts = json.loads((data_directory / "minilm_50.json").read_text())["texts"]
    return texts, np.load(data_directory / "minilm_50.npy")


@pytest.fixture(scope="module")
def encoder(minilm_directory):
    with load_encoder(minilm_directory) as made:
        yield made


@pytest.mark.slow
def test_fifty_texts_equal_transformers_to_a_millionth(encoder, fifty):
    texts, want = fifty
    got = encoder.encode(texts).vectors
    assert np.abs(got - want).max() <= 1e-6
    assert ((got.astype(np.float64) * want).sum(axis=1) >= 0.9999999).all()


@pytest.mark.slow
def test_the_bits_of_fifty_texts_are_on_record(encoder, fifty, data_directory):
    """A release that changes a bit of these vectors must raise NUMERICS_VERSION."""
    if _cpu.select_isa() == "baseline":
        pytest.skip("the promise of equal bits is for levels with FMA")
    recorded = json.loads((data_directory / "minilm_50_bits.json").read_text())["sha256"]
    import hashlib

    got = [hashlib.sha256(vector.tobytes()).hexdigest()[:16] for vector in encoder.encode(fifty[0]).vectors]
    assert got == recorded


@pytest.mark.slow
def test_a_text_alone_has_the_bits_it_has_among_fifty(encoder, fifty):
    texts, _ = fifty
    together = encoder.encode(texts).vectors
    for index in range(0, 50, 7):
        assert (encoder.encode([texts[index]]).vectors[0] == together[index]).all()


def test_the_model_says_how_it_wants_to_be_used(encoder):
    assert (encoder.dimension, encoder.max_tokens, encoder.pooling, encoder.normalize) == (384, 256, "mean", True)


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "least"), [("bfloat16", 0.9999), ("float16", 0.999999)])
def test_weights_of_sixteen_bits_keep_the_direction(minilm_directory, encoder, fifty, precision, least):
    texts, want = fifty
    with load_encoder(minilm_directory, precision=precision) as half:
        assert half.precision == precision
        assert half.fingerprint != encoder.fingerprint
        got = half.encode(texts).vectors
        assert ((got.astype(np.float64) * want).sum(axis=1) >= least).all()
        assert np.abs(got - want).max() > 1e-6, "float32 weights in use"
        assert (half.encode([texts[7]]).vectors[0] == got[7]).all()


@pytest.mark.slow
def test_int8_keeps_the_direction_nearly(minilm_directory, encoder, fifty):
    texts, want = fifty
    with load_encoder(minilm_directory, precision="int8") as small:
        assert small.fingerprint != encoder.fingerprint
        got = small.encode(texts).vectors
        cosines = (got.astype(np.float64) * want).sum(axis=1)
        assert cosines.mean() >= 0.998
        assert cosines.min() >= 0.99
        assert cosines.max() < 0.99999, "float32 weights in use"
        for index in range(0, 50, 7):
            assert (small.encode([texts[index]]).vectors[0] == got[index]).all()


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "least"), [("Q8_0", 0.998), ("Q4_1", 0.997), ("F16", 0.999999)])
def test_a_gguf_file_may_stay_as_it_is_stored(minilm_directory, fifty, tmp_path, dtype, least):
    """Block-quantized weights by int8 activations give nearly what the same weights give in float32."""
    path = export_bert_gguf(minilm_directory, tmp_path / "minilm.gguf", dtype).path
    with load_encoder(path, precision="stored") as stored, load_encoder(path) as expanded:
        got, want = stored.encode(fifty[0]).vectors, expanded.encode(fifty[0]).vectors
        cosines = (got.astype(np.float64) * want).sum(axis=1)
        assert cosines.min() >= least
        assert (stored.encode(fifty[0][7:8]).vectors[0] == got[7]).all()
