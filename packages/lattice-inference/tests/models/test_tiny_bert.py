"""A tiny BERT directory against transformers: every activation and pooling, batches, limits, and bits on record."""

from __future__ import annotations

import json
import pickle
import shutil

import numpy as np
import pytest

from lattice_inference import load_encoder
from lattice_inference.backends.cpu import _cpu
from lattice_inference.errors import CheckpointError, InvalidInputError, NonFiniteError, TextTooLongError


@pytest.fixture(scope="module")
def golden(data_directory):
    return json.loads((data_directory / "tiny_bert" / "expected.json").read_text())


@pytest.fixture
def directory(data_directory, tmp_path):
    target = tmp_path / "tiny_bert"
    shutil.copytree(data_directory / "tiny_bert", target)
    return target


def edit(path, **changes):
    content = json.loads(path.read_text())
    content.update(changes)
    path.write_text(json.dumps(content))


def pool_by(directory, mode):
    flags = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens", "last": "pooling_mode_lasttoken"}
    edit(directory / "1_Pooling" / "config.json", **{flag: name == mode for name, flag in flags.items()})


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu", "silu"])
@pytest.mark.parametrize("pooling", ["cls", "mean", "last"])
def test_vectors_equal_those_of_transformers(directory, golden, activation, pooling):
    edit(directory / "config.json", hidden_act=activation)
    pool_by(directory, pooling)
    with load_encoder(directory) as encoder:
        assert encoder.pooling == pooling
        raw = encoder.encode(golden["texts"], normalize=False)
        unit = encoder.encode(golden["texts"])
    want = np.array(golden["vectors"][activation][pooling])
    assert raw.token_counts.tolist() == [len(ids) for ids in golden["ids"]]
    np.testing.assert_allclose(raw.vectors, want, atol=4e-6, rtol=0)
    np.testing.assert_allclose(unit.vectors, want / np.linalg.norm(want, axis=1, keepdims=True), atol=1e-6, rtol=0)


def test_the_bits_of_a_real_directory_are_on_record(data_directory, golden, recorded):
    """The same digits on AVX2, AVX-512 and NEON: a change here must raise NUMERICS_VERSION."""
    if _cpu.select_isa() == "baseline":
        pytest.skip("the promise of equal bits is for levels with FMA")
    with load_encoder(data_directory / "tiny_bert") as encoder:
        vectors = encoder.encode(golden["texts"]).vectors
    assert [vector.tobytes().hex()[:32] for vector in vectors] == recorded


@pytest.fixture
def recorded(data_directory):
    return json.loads((data_directory / "tiny_bert_bits.json").read_text())["first_bytes"]


def test_vector_does_not_depend_on_company_or_place(data_directory, golden):
    with load_encoder(data_directory / "tiny_bert") as encoder:
        alone = [encoder.encode([text]).vectors[0] for text in golden["texts"]]
        rng = np.random.default_rng(0)
        order = rng.integers(0, len(alone), 300)
        together = encoder.encode([golden["texts"][i] for i in order]).vectors
        for place, index in enumerate(order):
            assert (together[place] == alone[index]).all()


def test_weights_with_a_prefix_load_alike(directory, golden):
    from safetensors.numpy import load_file, save_file

    plain = load_encoder(directory).encode(golden["texts"]).vectors
    tensors = load_file(directory / "model.safetensors")
    save_file({f"bert.{name}": tensor for name, tensor in tensors.items()}, directory / "model.safetensors")
    assert (load_encoder(directory).encode(golden["texts"]).vectors == plain).all()


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 2e-3), ("float64", 1e-6)])
def test_half_and_double_checkpoints(directory, golden, dtype, tolerance):
    from safetensors.numpy import load_file, save_file

    plain = load_encoder(directory).encode(golden["texts"]).vectors
    tensors = load_file(directory / "model.safetensors")
    save_file({name: tensor.astype(dtype) for name, tensor in tensors.items()}, directory / "model.safetensors")
    other = load_encoder(directory).encode(golden["texts"]).vectors
    assert np.abs(other - plain).max() <= tolerance


def test_a_bfloat16_checkpoint_gives_the_vectors_of_its_rounded_weights(directory, golden):
    """NumPy has no bfloat16: the file is written as 16-bit integers and renamed, its twin from the same values."""
    from safetensors.numpy import load_file, save_file

    path = directory / "model.safetensors"
    upper = {name: (tensor.view(np.uint32) >> 16).astype(np.uint16) for name, tensor in load_file(path).items()}
    save_file({name: (half.astype(np.uint32) << 16).view(np.float32) for name, half in upper.items()}, path)
    want = load_encoder(directory).encode(golden["texts"]).vectors
    save_file(upper, path)
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + length].replace(b'"U16"', b'"BF16"')
    path.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + length :])
    assert (load_encoder(directory).encode(golden["texts"]).vectors == want).all()


def test_long_texts_are_cut_and_said_to_be(data_directory):
    long = " ".join(["cat"] * 100)
    with load_encoder(data_directory / "tiny_bert") as encoder:
        assert encoder.max_tokens == 32
        encoded = encoder.encode([long, "cat"])
        assert encoded.truncated.tolist() == [True, False]
        assert encoded.token_counts.tolist() == [32, 3]
        assert encoder.count_tokens([long]).tolist() == [102]
        assert (encoded.vectors[0] == encoder.encode([" ".join(["cat"] * 30)]).vectors[0]).all()
        with pytest.raises(TextTooLongError, match="text 1 has 102 tokens and the model takes 32"):
            encoder.encode(["cat", long], truncate="error")


def test_prompts_go_before_the_text(data_directory):
    with load_encoder(data_directory / "tiny_bert") as encoder:
        assert dict(encoder.prompts) == {"query": "find : "}
        prompted = encoder.encode(["the cat"], prompt=encoder.prompts["query"]).vectors
        assert (prompted == encoder.encode(["find : the cat"]).vectors).all()
        assert encoder.count_tokens(["the cat"], prompt="a ").tolist() == [5]


def test_no_texts_give_no_vectors(data_directory):
    with load_encoder(data_directory / "tiny_bert") as encoder:
        assert encoder.encode([]).vectors.shape == (0, 48)


def test_bad_texts_are_refused(data_directory):
    with load_encoder(data_directory / "tiny_bert") as encoder:
        for texts, message in [
            ("one string", "not one string"),
            (["fine", 3], "text 1 is of type int"),
            (["fine", "bad \ud800"], "text 1 has a lone surrogate"),
            ([None], "text 0"),
        ]:
            with pytest.raises(InvalidInputError, match=message):
                encoder.encode(texts)
            with pytest.raises(InvalidInputError, match=message):
                encoder.encode(texts, prompt="x")


def test_a_token_that_the_model_has_no_row_for_is_refused_by_its_text(directory):
    """Case I11: a tokenizer with more tokens than the model."""
    edit(directory / "config.json", vocab_size=512)
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    tokenizer["added_tokens"].append({"id": 512, "content": "<new>", **flags})
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    with load_encoder(directory) as encoder:
        known = encoder.encode(["hello"]).vectors
        with pytest.raises(InvalidInputError, match="of sequence 1 holds 512, which the model's table has no row for"):
            encoder.encode(["hello", "a <new> one"])
        assert (encoder.encode(["hello"]).vectors == known).all()


def test_a_closed_encoder_says_so(data_directory):
    encoder = load_encoder(data_directory / "tiny_bert")
    encoder.close()
    encoder.close()
    with pytest.raises(InvalidInputError, match="closed"):
        encoder.encode(["cat"])


def test_pickling_reloads_by_reference(data_directory):
    encoder = load_encoder(data_directory / "tiny_bert")
    data = pickle.dumps(encoder)
    assert len(data) < 1000
    assert (pickle.loads(data).encode(["cat"]).vectors == encoder.encode(["cat"]).vectors).all()


def test_fingerprint_names_what_a_vector_depends_on(data_directory, directory, golden):
    first = load_encoder(data_directory / "tiny_bert").fingerprint
    assert first == load_encoder(directory).fingerprint
    pool_by(directory, "cls")
    assert load_encoder(directory).fingerprint != first
    pool_by(directory, "mean")
    edit(directory / "sentence_bert_config.json", max_seq_length=20)
    assert load_encoder(directory).fingerprint != first


def test_fingerprint_names_what_multiplies_bfloat16(data_directory, monkeypatch):
    """Kinds of instruction round in different places, and the others give the bits of every machine."""
    prints = {}
    for isa in _cpu.available_isas():
        monkeypatch.setenv("LATTICE_ISA", isa)
        for precision in ("float32", "bfloat16"):
            prints[isa, precision] = load_encoder(data_directory / "tiny_bert", precision=precision).fingerprint
        present = _cpu.bfloat16_products(isa)
        named = f":{isa}-{present[-1]}" if len(present) > 1 else ""
        assert prints[isa, "bfloat16"] == prints["baseline", "bfloat16"] + named
        assert prints[isa, "float32"] == prints["baseline", "float32"]


def test_without_modules_the_caller_must_say_how_to_pool(directory, golden):
    (directory / "modules.json").unlink()
    with pytest.raises(InvalidInputError, match="pooling='cls', 'mean' or 'last'"):
        load_encoder(directory)
    with load_encoder(directory, pooling="cls", max_tokens=10) as encoder:
        assert (encoder.pooling, encoder.max_tokens, encoder.normalize) == ("cls", 10, True)


def damage(directory, change):
    from safetensors.numpy import load_file, save_file

    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


def test_weights_that_hold_nan_are_refused_by_name(directory):
    def poison(tensors):
        tensors["encoder.layer.1.output.dense.weight"][3, 4] = np.nan

    damage(directory, poison)
    with pytest.raises(CheckpointError, match=r"encoder\.layer\.1\.output\.dense\.weight"):
        load_encoder(directory)


def test_weights_that_overflow_give_an_error_that_names_the_text(directory):
    def inflate(tensors):
        tensors["embeddings.LayerNorm.weight"][:] = 3e38
        tensors["encoder.layer.0.attention.self.value.weight"][:] = 3e38

    damage(directory, inflate)
    with pytest.raises(NonFiniteError, match="the result for text") as caught:
        load_encoder(directory).encode(["cat", "dog"])
    assert set(caught.value.rows) <= {0, 1}


def test_missing_and_misshapen_tensors_are_refused_by_name(directory):
    damage(directory, lambda tensors: tensors.pop("encoder.layer.0.output.dense.bias"))
    with pytest.raises(CheckpointError, match=r"encoder\.layer\.0\.output\.dense\.bias"):
        load_encoder(directory)

    def widen(tensors):
        tensors["encoder.layer.0.output.dense.bias"] = np.zeros(49, np.float32)

    damage(directory, widen)
    with pytest.raises(CheckpointError, match=r"shape \(48,\).*\(49,\)"):
        load_encoder(directory)
    damage(directory, lambda tensors: tensors.pop("embeddings.word_embeddings.weight"))
    with pytest.raises(CheckpointError, match="not a BERT encoder"):
        load_encoder(directory)
