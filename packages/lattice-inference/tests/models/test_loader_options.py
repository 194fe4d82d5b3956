"""An option that would not count, or whose value is none, is refused by name before the model is loaded."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from changed_checkpoints import change_gguf
from drawn_checkpoints import write_directory
from lattice_inference import load_cross_encoder, load_encoder, load_model, load_tokenizer
from lattice_inference.errors import InvalidInputError, ModelConfigError, UnsupportedError
from lattice_inference.files.hub import find_model
from lattice_inference.quantize import Calibrator, export_bert_gguf, quantize_gguf, quantize_int8
from tiny_decoders import write_drawn_model

DATA = Path(__file__).parents[1] / "data"
TINY = DATA / "tiny_bert"
CASES = json.loads((DATA / "architectures" / "cases.json").read_text())["cases"]


@pytest.fixture(scope="module")
def gguf(tmp_path_factory):
    return export_bert_gguf(TINY, tmp_path_factory.mktemp("gguf") / "m.gguf", "F32").path


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    return write_drawn_model(tmp_path_factory.mktemp("decoder") / "m")


@pytest.fixture
def scorer(tmp_path):
    return write_directory(tmp_path, CASES["cross-encoder-bert-logits"])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"pooling": "cls"}, "pooling is 'mean', so pooling='cls'"),
        ({"normalize": False}, "normalize is True, so normalize=False"),
        ({"max_tokens": 16}, "max_tokens is 32, so max_tokens=16"),
        ({"pooling": "last", "normalize": True, "max_tokens": 64}, "so pooling='last', max_tokens=64 would not count"),
    ],
)
def test_what_modules_json_decides_is_not_the_callers(options, named):
    with pytest.raises(InvalidInputError, match=rf"modules\.json decides that .*{named}"):
        load_encoder(TINY, **options)
    load_encoder(TINY, pooling="mean", normalize=True, max_tokens=32).close()  # the same in other words


def test_pooling_that_a_gguf_file_names_is_not_the_callers(gguf, tmp_path):
    with pytest.raises(InvalidInputError, match="decides that pooling is 'mean', so pooling='cls' would not count"):
        load_encoder(gguf, pooling="cls")
    silent = tmp_path / "silent.gguf"
    silent.write_bytes(gguf.read_bytes())
    with load_encoder(change_gguf(silent, bert__pooling_type=None), pooling="last", normalize=False) as encoder:
        assert (encoder.pooling, encoder.normalize) == ("last", False)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"max_tokens": 0}, "max_tokens is 0: it must leave room"),
        ({"max_tokens": 2}, "max_tokens is 2: it must leave room"),
        ({"max_tokens": -1}, "max_tokens must be from 0"),
        ({"max_tokens": 65}, "max_tokens is 65 and the model takes 64 tokens"),
        ({"max_tokens": 10**400}, "max_tokens must be from 0 .* not 1000"),
        ({"max_tokens": 16.0}, "max_tokens must be an int, not 16.0"),
        ({"max_tokens": True}, "max_tokens must be an int, not True"),
        ({"max_tokens": "16"}, "max_tokens must be an int, not '16'"),
        ({"max_tokens": np.array([16])}, "max_tokens must be an int"),
        ({"normalize": "no"}, "normalize must be True or False, not 'no'"),
        ({"normalize": 0}, "normalize must be True or False, not 0"),
        ({"pooling": "max"}, "pooling must be 'cls', 'mean', 'last' or None, not 'max'"),
        ({"pooling": ["cls"]}, "pooling must be"),
        ({"cache": 7}, "cache is 7"),
        ({"cache": ""}, "cache is ''"),
        ({"offline": "no"}, "offline must be True or False"),
        ({"calibration": "ranges", "precision": "int8"}, "calibration is a str"),
        ({"precision": "int4"}, "precision must be one of"),
        ({"precision": np.array(["int8", "float32"])}, "precision must be one of"),
    ],
)
def test_a_value_that_is_none_is_refused(gguf, options, problem):
    with load_encoder(gguf) as encoder:
        assert encoder.max_tokens == 64
    with pytest.raises((InvalidInputError, UnsupportedError), match=problem):
        load_encoder(gguf, **options)


def test_numbers_and_flags_of_numpy_are_as_good(gguf):
    with load_encoder(gguf, max_tokens=np.int64(16), normalize=np.bool_(False)) as encoder:
        assert (encoder.max_tokens, encoder.normalize) == (16, False)
        assert encoder.encode(["a cat"], normalize=np.True_).vectors.shape == (1, encoder.dimension)


@pytest.mark.parametrize(
    ("options", "problem"), [({"normalize": "no"}, "normalize must be"), ({"prompt": 3}, "prompt is 3")]
)
def test_options_of_a_call_are_looked_at_too(gguf, options, problem):
    with load_encoder(gguf) as encoder, pytest.raises(InvalidInputError, match=problem):
        encoder.encode(["a cat"], **options)


@pytest.mark.parametrize("value", [0, -5, 3, 41, 1.5, "9", True, None])
def test_the_limit_of_a_cross_encoder_is_within_its_own(scorer, value):
    (scorer / "tokenizer_config.json").write_text('{"model_max_length": 40}')
    if value is None:
        with load_cross_encoder(scorer, max_tokens=40) as made:
            assert made.max_tokens == 40
        return
    with pytest.raises(InvalidInputError, match="max_tokens"):
        load_cross_encoder(scorer, max_tokens=value)


def test_a_limit_that_the_files_state_and_that_no_text_fits_is_the_files_fault(tmp_path, scorer):
    encoder = write_directory(tmp_path / "e", CASES["roberta"])
    (encoder / "sentence_bert_config.json").write_text('{"max_seq_length": 2}')
    with pytest.raises(ModelConfigError, match="the files allow 2 tokens"):
        load_encoder(encoder)
    (scorer / "tokenizer_config.json").write_text('{"model_max_length": 3}')
    with pytest.raises(ModelConfigError, match="the files allow 3 tokens"):
        load_cross_encoder(scorer)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"activations": "float16"}, "activations must be one of"),
        ({"precision": None}, "precision must be one of"),
        ({"calibration": 1, "precision": "int8"}, "calibration is a int"),
        ({"offline": 1}, "offline must be True or False"),
    ],
)
def test_options_of_a_decoder(decoder, options, problem):
    with pytest.raises((InvalidInputError, UnsupportedError), match=problem):
        load_model(decoder, **options)


@pytest.mark.parametrize(
    "options", [{"tokens": 2.5}, {"tokens": "9"}, {"tokens": True}, {"prefix_bytes": 1.5}, {"prefix_bytes": "0"}]
)
def test_options_of_a_cache(decoder, options):
    with load_model(decoder) as model, pytest.raises(InvalidInputError, match=f"{next(iter(options))} must be an int"):
        model.open_cache(**options)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            {"method": "max-abs", "percentile": 99.0},
            "percentile is for method 'percentile', and the method is 'max-abs'",
        ),
        ({"method": "percentile", "momentum": 0.5}, "momentum is for method 'ema', and the method is 'percentile'"),
        ({"method": "ema", "momentum": "0.5"}, "momentum must be a number"),
        ({"method": ["ema"]}, "method must be one of"),
    ],
)
def test_options_of_a_calibrator(decoder, options, problem):
    with pytest.raises(InvalidInputError, match=problem):
        Calibrator(decoder, **options)


@pytest.mark.parametrize("value", [0, -1, 2.5, "9"])
def test_a_calibrator_sees_at_least_one_token(decoder, value):
    with Calibrator(decoder) as calibrator, pytest.raises(InvalidInputError, match="max_tokens must be"):
        calibrator.observe(["a text"], max_tokens=value)


@pytest.mark.parametrize("dtype", ["Q9_9", None, ["Q8_0"]])
def test_a_type_that_is_none_is_refused(gguf, tmp_path, dtype):
    for write, source in ((quantize_gguf, gguf), (export_bert_gguf, TINY)):
        with pytest.raises(InvalidInputError, match=re.escape(f"there is no type {dtype!r}")):
            write(source, tmp_path / "out.gguf", dtype)


def test_a_calibration_that_is_none_is_refused_before_a_file_is_read(tmp_path):
    with pytest.raises(InvalidInputError, match="calibration is a dict"):
        quantize_int8(TINY, tmp_path / "int8", calibration={})


def test_limits_are_those_of_a_tokenizer_json(gguf, tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat"]))
    for path in (tmp_path, tmp_path / "vocab.txt", gguf):
        load_tokenizer(path)
        with pytest.raises(InvalidInputError, match="apply_file_limits is for a tokenizer"):
            load_tokenizer(path, apply_file_limits=True)
    with pytest.raises(InvalidInputError, match="apply_file_limits must be True or False"):
        load_tokenizer(TINY, apply_file_limits="yes")


def test_flags_of_the_search_are_flags():
    for name in ("offline", "verify", "progress"):
        with pytest.raises(InvalidInputError, match=f"{name} must be True or False"):
            find_model(TINY, **{name: "no"})
