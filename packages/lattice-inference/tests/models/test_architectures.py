"""Every encoder of the catalogue and every kind of head, with drawn weights, against sentence-transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drawn_checkpoints import write_directory
from lattice_inference import load_cross_encoder, load_encoder
from lattice_inference.backends import reference
from lattice_inference.backends.cpu import CpuBackend
from lattice_inference.checkpoint.checkpoint_group import open_checkpoint_group
from lattice_inference.errors import (
    CheckpointError,
    InvalidInputError,
    ModelConfigError,
    ModelNotFoundError,
    UnsupportedError,
)
from lattice_inference.graph.batch import Batch
from lattice_inference.models.bert import build_bert_classifier, build_bert_encoder, find_names
from lattice_inference.models.bert_config import BertConfig
from lattice_inference.models.sentence_modules import read_sentence_modules
from lattice_inference.runtime import get_num_threads, set_num_threads

FOLDER = Path(__file__).parents[1] / "data" / "architectures"
CASES = json.loads((FOLDER / "cases.json").read_text())["cases"]
ENCODERS = [name for name, case in CASES.items() if "texts" in case]
CROSS_ENCODERS = [name for name, case in CASES.items() if "pairs" in case]
CATALOGUE = [
    "bge-small-en-v1.5",
    "bge-base-en-v1.5",
    "bge-large-en-v1.5",
    "multilingual-e5-small",
    "multilingual-e5-base",
    "all-minilm-l6-v2",
    "paraphrase-multilingual-minilm-l12-v2",
]


@pytest.fixture(scope="module")
def outputs():
    with np.load(FOLDER / "outputs.npz") as stored:
        return dict(stored)


@pytest.fixture(scope="session")
def drawn(tmp_path_factory):
    """Return the directory of a case, written once. Tests copy it before they change it."""
    written: dict[str, Path] = {}

    def directory(name):
        if name not in written:
            written[name] = write_directory(tmp_path_factory.mktemp("drawn") / name, CASES[name])
        return written[name]

    return directory


def inputs_of(name):
    case = CASES[name]
    return case["texts"] if "texts" in case else [tuple(pair) for pair in case["pairs"]]


def load(directory, name):
    return load_encoder(directory) if name in ENCODERS else load_cross_encoder(directory)


def run(model, inputs):
    return model.encode(inputs).vectors if hasattr(model, "encode") else model.score_pairs(inputs)


def test_every_encoder_of_the_catalogue_has_its_case():
    assert set(CATALOGUE) <= set(ENCODERS)


@pytest.mark.parametrize("name", CASES)
def test_results_equal_those_of_sentence_transformers_to_a_millionth(drawn, outputs, name):
    inputs = inputs_of(name)
    with load(drawn(name), name) as model:
        packed = model.tokenizer.encode_packed(inputs, max_tokens=model.max_tokens)
        got = run(model, inputs)
    assert np.diff(packed.cu_seqlens).tolist() == outputs[f"{name}/lengths"].tolist()
    assert packed.token_ids.tolist() == outputs[f"{name}/ids"].tolist()
    want = outputs[f"{name}/output"]
    assert got.shape == want.shape
    rows = want.reshape(len(want), -1)
    scale = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1)  # of vectors that are not of length 1
    assert (np.abs(got.reshape(rows.shape).astype(np.float64) - rows) / scale).max() <= 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_bits_depend_on_neither_company_nor_place_nor_threads(drawn, name):
    inputs = inputs_of(name)
    order = np.random.default_rng(7).integers(0, len(inputs), 60)
    before = get_num_threads()
    try:
        with load(drawn(name), name) as model:
            set_num_threads(1)
            alone = [run(model, [one])[0].tobytes() for one in inputs]
            for threads in (1, 2, 3):
                set_num_threads(threads)
                together = run(model, [inputs[index] for index in order])
                assert [row.tobytes() for row in together] == [alone[index] for index in order]
    finally:
        set_num_threads(before)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_fusion_changes_no_bit_and_the_program_means_what_the_reference_computes(drawn, outputs, name):
    directory = drawn(name)
    config = BertConfig.from_directory(directory)
    lengths = outputs[f"{name}/lengths"]
    bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    ids = outputs[f"{name}/ids"]
    batch = Batch(ids, bounds, positions=config.position_ids(ids, bounds))
    modules = read_sentence_modules(directory)
    folders = [layer.folder for layer in modules.layers if hasattr(layer, "folder")] if modules else []
    with open_checkpoint_group(directory, folders) as weights:
        names = find_names(weights.main.names())
        if modules is None:
            program = build_bert_classifier(config, names=names)
        else:
            program = build_bert_encoder(config, pooling=modules.pooling.value, names=names, layers=modules.layers)
        fused, unfused = (CpuBackend(fused=choice).compile(program, weights).run(batch) for choice in (True, False))
        sources = {source for op in program.ops for ref in op.weights.values() for source in ref.sources}
        expected = reference.run(program, {source: weights.float32(source) for source in sources}, batch)
    for output, values in fused.items():
        assert values.tobytes() == unfused[output].tobytes()
        scale = np.maximum(np.linalg.norm(expected[output], axis=1, keepdims=True), 1)
        assert (np.abs(values - expected[output]) / scale).max() <= 3e-6  # float32 against float64, 24 layers deep


@pytest.mark.parametrize("name", ["multilingual-e5-base", "dense-chain"])
def test_a_sharded_checkpoint_gives_the_same_bits(drawn, tmp_path, name):
    from safetensors.numpy import load_file, save_file

    directory = tmp_path / name
    shutil.copytree(drawn(name), directory)
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    weight_map = {}
    for shard in range(3):
        file = f"model-{shard + 1:05}-of-00003.safetensors"
        part = dict(list(tensors.items())[shard::3])
        save_file(part, directory / file)
        weight_map |= dict.fromkeys(part, file)
    (directory / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map})
    )
    with load_encoder(drawn(name)) as whole, load_encoder(directory) as sharded:
        assert run(whole, inputs_of(name)).tobytes() == run(sharded, inputs_of(name)).tobytes()
    (directory / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ModelNotFoundError, match="model-00002-of-00003"):
        load_encoder(directory)


@pytest.mark.parametrize("prefix", ["", "roberta."])
def test_names_of_other_writers_are_understood(drawn, tmp_path, prefix):
    """A head on top puts the family's prefix before the names; TensorFlow's LayerNorm has gamma and beta."""
    from safetensors.numpy import load_file, save_file

    directory = tmp_path / "renamed"
    shutil.copytree(drawn("roberta"), directory)
    tensors = load_file(directory / "model.safetensors")
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for tensor in list(tensors):
        name = tensor
        for new_part, old_part in old.items():
            name = name.replace(new_part, old_part)
        tensors[prefix + name] = tensors.pop(tensor)
    save_file(tensors, directory / "model.safetensors")
    with load_encoder(drawn("roberta")) as plain, load_encoder(directory) as renamed:
        assert run(plain, ["a cat"]).tobytes() == run(renamed, ["a cat"]).tobytes()


def test_positions_decide_the_vector_of_an_xlm_roberta(drawn, tmp_path):
    """Positions from 0, which the reference system gave this family, are another vector: the offset is really there."""
    directory = tmp_path / "as-bert"
    shutil.copytree(drawn("multilingual-e5-base"), directory)
    config = json.loads((directory / "config.json").read_text())
    config |= {"model_type": "bert", "architectures": ["BertModel"], "pad_token_id": None}
    (directory / "config.json").write_text(json.dumps(config))
    with load_encoder(drawn("multilingual-e5-base")) as right, load_encoder(directory) as wrong:
        assert right.max_tokens == 512
        assert np.abs(run(right, ["a cat"]) - run(wrong, ["a cat"])).max() > 0.01


@given(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=9), min_size=1, max_size=6), st.integers(0, 3))
@settings(max_examples=100, deadline=None)
def test_positions_count_what_is_not_padding(sequences, padding):
    config = BertConfig.from_mapping(
        CASES["roberta"]["files"]["config.json"] | {"pad_token_id": padding, "max_position_embeddings": 20}
    )
    expected = []
    for sequence in sequences:
        number = padding
        for token in sequence:
            number += token != padding
            expected.append(number if token != padding else padding)
    ids = np.array([token for sequence in sequences for token in sequence], np.int32)
    bounds = np.cumsum([0, *map(len, sequences)]).astype(np.int32)
    got = config.position_ids(ids, bounds)
    assert got.dtype == np.int32
    assert got.tolist() == expected


@pytest.mark.parametrize(
    ("name", "positions"), [("bge-small-en-v1.5", 512), ("roberta", 512), ("xlm-roberta-padding-7", 32)]
)
@pytest.mark.parametrize("by_file", [True, False])
def test_no_setting_lets_a_text_beyond_the_table_of_positions(drawn, tmp_path, name, positions, by_file):
    """Case H10: the last position is used, and the one after it is not, whatever a file or the caller asks for."""
    directory = tmp_path / "model"
    shutil.copytree(drawn(name), directory)
    (directory / "sentence_bert_config.json").write_text('{"max_seq_length": 1000000, "do_lower_case": false}')
    options = {}
    if not by_file:
        (directory / "modules.json").unlink()
        options = {"pooling": "mean", "max_tokens": positions}
        with pytest.raises(InvalidInputError, match=f"the model takes {positions} tokens"):
            load_encoder(directory, pooling="mean", max_tokens=10**6)
    with load_encoder(directory, **options) as encoder:
        length = positions - encoder.tokenizer.special_token_count()
        encoded = encoder.encode([" ".join(["cat"] * (length + more)) for more in (0, 1, 2000)])
    assert encoded.token_counts.tolist() == [positions] * 3
    assert encoded.truncated.tolist() == [False, True, True]
    assert (encoded.vectors[1:] == encoded.vectors[0]).all()


def test_a_text_fills_every_position_and_no_more(drawn):
    with load_encoder(drawn("multilingual-e5-base")) as encoder:
        encoded = encoder.encode([" ".join(["cat"] * 2000), " ".join(["cat"] * 510)])
    assert encoded.token_counts.tolist() == [512, 512]
    assert encoded.truncated.tolist() == [True, False]
    assert encoded.vectors[0].tobytes() == encoded.vectors[1].tobytes()


def test_an_empty_text_has_the_vector_of_its_special_tokens(drawn):
    with load_encoder(drawn("multilingual-e5-base")) as encoder:
        assert encoder.tokenizer.encode("").ids.tolist() == [0, 2]
        encoded = encoder.encode(["", " \u200b ", "\t\n"])
    assert np.isfinite(encoded.vectors).all()
    assert len({vector.tobytes() for vector in encoded.vectors}) == 1


class TestModules:
    @pytest.fixture
    def directory(self, drawn, tmp_path):
        target = tmp_path / "dense"
        shutil.copytree(drawn("dense-tanh"), target)
        return target

    @staticmethod
    def edit(path, **changes):
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    def test_the_dimension_is_that_of_the_last_module(self, directory):
        with load_encoder(directory) as encoder:
            assert encoder.dimension == 48
            assert encoder.encode(["a", "b"]).vectors.shape == (2, 48)
            assert np.allclose(np.linalg.norm(encoder.encode(["a cat"]).vectors, axis=1), 1)
            raw = encoder.encode(["a cat"], normalize=False).vectors
            assert np.abs(raw).max() <= 1  # of tanh, and not yet scaled
            assert abs(np.linalg.norm(raw) - 1) > 0.01

    def test_the_fingerprint_covers_the_modules(self, drawn, directory):
        from safetensors.numpy import load_file, save_file

        first = load_encoder(drawn("dense-tanh")).fingerprint
        assert load_encoder(directory).fingerprint == first
        path = directory / "2_Dense" / "model.safetensors"
        tensors = load_file(path)
        tensors["linear.bias"][0] += 1
        save_file(tensors, path)
        assert load_encoder(directory).fingerprint != first

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"activation_function": "torch.nn.modules.activation.Sigmoid"}, "Sigmoid'; built are"),
            ({"activation_function": "my_code.Swish"}, "my_code.Swish"),
            ({"module_input_name": "token_embeddings"}, "'token_embeddings'; only 'sentence_embedding'"),
            ({"module_output_name": "scores"}, "'scores'"),
        ],
    )
    def test_options_that_are_not_built_are_refused_by_name(self, directory, changes, message):
        self.edit(directory / "2_Dense" / "config.json", **changes)
        with pytest.raises(UnsupportedError, match=message):
            load_encoder(directory)

    @pytest.mark.parametrize(
        ("changes", "field"),
        [
            ({"in_features": 0}, "in_features"),
            ({"out_features": "48"}, "out_features"),
            ({"bias": 1}, "bias"),
            ({"activation_function": 3}, "activation_function"),
        ],
    )
    def test_a_malformed_config_is_an_error_that_names_the_field(self, directory, changes, field):
        self.edit(directory / "2_Dense" / "config.json", **changes)
        with pytest.raises(ModelConfigError, match=f"2_Dense.*{field}"):
            load_encoder(directory)

    def test_a_module_of_another_width_is_refused(self, directory):
        self.edit(directory / "2_Dense" / "config.json", in_features=32)
        with pytest.raises(ModelConfigError, match="'2_Dense' takes vectors of 32 dimensions and is given 64"):
            load_encoder(directory)

    def test_a_pooling_of_another_width_is_refused(self, directory):
        self.edit(directory / "1_Pooling" / "config.json", word_embedding_dimension=32)
        with pytest.raises(ModelConfigError, match="the pooling takes vectors of 32 dimensions"):
            load_encoder(directory)

    def test_tensors_that_do_not_fit_the_config_are_refused(self, directory):
        self.edit(directory / "2_Dense" / "config.json", out_features=47)
        with pytest.raises(CheckpointError, match=r"\(47, 64\).*2_Dense/linear\.weight \(48, 64\)"):
            load_encoder(directory)

    def test_weights_in_a_pickle_are_refused_by_name(self, directory):
        (directory / "2_Dense" / "model.safetensors").rename(directory / "2_Dense" / "pytorch_model.bin")
        with pytest.raises(
            ModelNotFoundError, match=r"2_Dense/model\.safetensors \(there is a pytorch_model\.bin, a pickle"
        ):
            load_encoder(directory)

    def test_missing_weights_are_named(self, directory):
        (directory / "2_Dense" / "model.safetensors").unlink()
        with pytest.raises(ModelNotFoundError, match="2_Dense"):
            load_encoder(directory)

    def test_texts_are_lowered_letter_by_letter_where_the_model_says_so(self, drawn, directory):
        tokenizer = json.loads((directory / "tokenizer.json").read_text())
        tokenizer["normalizer"]["lowercase"] = False
        (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
        with load_encoder(directory) as cased:
            assert run(cased, ["THE CAT"]).tobytes() != run(cased, ["the cat"]).tobytes()
        self.edit(directory / "sentence_bert_config.json", do_lower_case=True)
        with load_encoder(directory) as lowered, load_encoder(drawn("dense-tanh")) as plain:
            assert run(lowered, ["THE CAT"]).tobytes() == run(plain, ["the cat"]).tobytes()
            assert lowered.encode(["CAT"], prompt="THE ").vectors.tobytes() == run(plain, ["the cat"]).tobytes()
            assert lowered.fingerprint.endswith(":lower")
