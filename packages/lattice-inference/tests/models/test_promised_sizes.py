"""A configuration that promises more than its file holds is refused before a program is built or memory is taken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from changed_checkpoints import change_config, change_gguf
from drawn_checkpoints import write_directory
from lattice_inference import load_cross_encoder, load_encoder, load_model, weight_check
from lattice_inference.errors import CheckpointError
from lattice_inference.quantize import Calibrator, export_bert_gguf, quantize_int8

DATA = Path(__file__).parents[1] / "data"
ENCODERS = json.loads((DATA / "architectures" / "cases.json").read_text())["cases"]
DECODERS = json.loads((DATA / "decoders" / "cases.json").read_text())["cases"]


@pytest.fixture
def built(monkeypatch):
    """Layers of each program that was built."""
    layers: list[int] = []

    def watched(build):
        def instead(config, *arguments, **options):
            layers.append(config.num_hidden_layers)
            return build(config, *arguments, **options)

        return instead

    places = {
        "weight_check": ("build_bert_encoder", "build_bert_classifier", "build_llama"),
        "encoder": ("build_bert_encoder",),
        "cross_encoder": ("build_bert_classifier",),
        "causal_language_model": ("build_llama",),
        "quantize.model_program": ("build_bert_encoder", "build_bert_classifier", "build_llama"),
    }
    for module, names in places.items():
        for name in names:
            monkeypatch.setattr(f"lattice_inference.{module}.{name}", watched(getattr(weight_check, name)))
    return layers


@pytest.mark.parametrize(
    ("name", "load", "count", "missing"),
    [
        ("dense-tanh", load_encoder, 4096, "encoder.layer.2."),
        ("dense-tanh", load_encoder, 3, "encoder.layer.2."),
        ("cross-encoder-bert-logits", load_cross_encoder, 4096, "encoder.layer.2."),
        ("llama", load_model, 1024, "model.layers.3."),
        ("qwen2", load_model, 4, "model.layers.3."),
    ],
)
def test_more_layers_than_the_file_has_are_refused_before_they_are_built(tmp_path, built, name, load, count, missing):
    directory = write_directory(tmp_path / "m", ENCODERS.get(name) or DECODERS[name])
    change_config(directory, num_hidden_layers=count)
    for refuses in (load, Calibrator, lambda path: quantize_int8(path, tmp_path / "int8")):
        with pytest.raises(
            CheckpointError, match=f"{missing}.*of the {count:,} layers that num_hidden_layers promises"
        ):
            refuses(directory)
    assert built == [1, 1, 1]


def test_more_layers_than_a_gguf_file_has_are_refused_before_they_are_built(tmp_path, built):
    from test_decoder_gguf import write

    encoder = export_bert_gguf(DATA / "tiny_bert", tmp_path / "encoder.gguf", "F32").path
    decoder = write(tmp_path / "decoder.gguf", "llama")
    built.clear()
    with pytest.raises(CheckpointError, match=r"of the 4,096 layers that bert\.block_count promises"):
        load_encoder(change_gguf(encoder, bert__block_count=4096))
    with pytest.raises(CheckpointError, match=r"blk\.3\..*of the 1,024 layers that block_count promises"):
        load_model(change_gguf(decoder, llama__block_count=1024))
    assert built == [1, 1]


@pytest.mark.parametrize(
    "changes",
    [
        {"vocab_size": 4_000_000},
        {"intermediate_size": 2**20},
        {"max_position_embeddings": 2**22},
        {"type_vocab_size": 2**16},
        {"hidden_size": 2**16},
    ],
)
def test_a_size_that_the_file_does_not_have_is_refused_before_memory_is_taken(tmp_path, built, changes):
    directory = write_directory(tmp_path / "m", ENCODERS["roberta"])
    if "hidden_size" in changes:
        (directory / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    change_config(directory, **({"num_attention_heads": 64} if "hidden_size" in changes else {}), **changes)
    with pytest.raises(CheckpointError, match="the model needs a tensor of shape"):
        load_encoder(directory)
    assert built == [1]


def test_a_head_of_more_labels_than_the_file_has_is_refused_before_memory_is_taken(tmp_path, built):
    directory = write_directory(tmp_path / "m", ENCODERS["cross-encoder-bert-logits"])
    change_config(directory, id2label=None, num_labels=2**16)
    with pytest.raises(CheckpointError, match=r"the model needs a tensor of shape \(65536, "):
        load_cross_encoder(directory)
    assert built == [1]
