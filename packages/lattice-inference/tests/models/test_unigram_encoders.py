"""Encoders with Unigram tokenizers, as multilingual-e5 and paraphrase-multilingual have them: from text to vector."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from drawn_checkpoints import SPECIAL_TOKENS, WORDS, write_directory
from lattice_inference import load_cross_encoder, load_encoder
from lattice_inference.backends.cpu import CpuBackend
from lattice_inference.capabilities import runs_tokenizer_model
from lattice_inference.checkpoint.safetensors import open_checkpoint
from lattice_inference.graph.batch import Batch
from lattice_inference.models.bert import build_bert_encoder
from lattice_inference.models.bert_config import BertConfig

pytestmark = pytest.mark.skipif(not runs_tokenizer_model("Unigram"), reason="Unigram tokenizers are not built")

CASES = json.loads((Path(__file__).parents[1] / "data" / "architectures" / "cases.json").read_text())["cases"]
TEXTS = ["the cat sat on the mat", "", "  dogs and   cats , are they ?  ", "unknownword zebra <pad> the", "☃ 猫"]


def write_unigram(path):
    """Write a small tokenizer of XLM-RoBERTa's make with the library that defines the format, and return it."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

    special = list(SPECIAL_TOKENS["xlmr"].values())
    pieces = [(token, 0.0) for token in special] + [("▁", -3.0)]
    pieces += [(f"▁{word}", -4.0 - index / 100) for index, word in enumerate(dict.fromkeys(WORDS))]
    pieces += [(letter, -8.0) for letter in "abcdefghijklmnopqrstuvwxyz"]
    assert len(pieces) <= 128
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=3, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always", split=True)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    tokenizer.save(str(path))
    return tokenizer


@pytest.mark.parametrize(
    "name", ["multilingual-e5-small", "multilingual-e5-base", "paraphrase-multilingual-minilm-l12-v2"]
)
def test_vectors_are_those_of_the_ids_that_hugging_face_gives(tmp_path, name):
    directory = write_directory(tmp_path, CASES[name])
    original = write_unigram(directory / "tokenizer.json")
    ids = [original.encode(text).ids for text in TEXTS]
    flat = np.concatenate(ids).astype(np.int32)
    bounds = np.cumsum([0, *map(len, ids)]).astype(np.int32)
    config = BertConfig.from_directory(directory)
    with open_checkpoint(directory) as checkpoint:
        program = CpuBackend().compile(build_bert_encoder(config, pooling="mean"), checkpoint)
    want = program.run(Batch(flat, bounds, positions=config.position_ids(flat, bounds)))
    with load_encoder(directory) as encoder:
        got = encoder.encode(TEXTS)
        output = "normalized" if encoder.normalize else "pooled"
    assert got.token_counts.tolist() == [len(tokens) for tokens in ids]
    assert got.vectors.tobytes() == want[output].tobytes()


def test_a_cross_encoder_reads_pairs_of_them(tmp_path):
    directory = write_directory(tmp_path, CASES["cross-encoder-xlm-roberta"])
    original = write_unigram(directory / "tokenizer.json")
    with load_cross_encoder(directory) as scorer:
        pair = ("the cat", "dogs and cats")
        assert scorer.tokenizer.encode(*pair).ids.tolist() == original.encode(*pair).ids
        assert scorer.score_pairs([pair])[0] != scorer.score_pairs([pair[::-1]])[0]
