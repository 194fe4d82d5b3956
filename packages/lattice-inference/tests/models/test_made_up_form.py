"""A form that this test makes up: loaders, memory, doctor and quantizer take it, and nothing else had to change."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from drawn_checkpoints import write_directory
from lattice_inference import load_encoder, load_model, memory_report
from lattice_inference.backends.cpu.forms.float import FloatForm
from lattice_inference.backends.cpu.forms.registry import known_forms, register_form, registered_form
from lattice_inference.checkpoint.safetensors_writer import StoredTensor
from lattice_inference.cli import main
from lattice_inference.memory.fit import estimate_memory
from lattice_inference.quantize import quantize_int8
from test_architectures import CASES
from tiny_decoders import write_drawn_model

TEXTS = ["the cat sat on the mat", "dogs", "query : zebra words again ?"]


def coarse(values):
    return np.rint(values * np.float32(32)) / np.float32(32)


class Coarse(FloatForm):
    """The weights of linears in steps of 1/32, by the kernel of floats; tables take the forms that they always take."""

    def __init__(self):
        super().__init__("coarse", 4)
        self.weight_type = "float32"

    def serves(self, terms):
        return terms.precision in ("float32", "int8")

    def suits(self, use):
        return use.ref.use == "linear"

    def rounded(self, values, name):
        return coarse(values)

    def file_tensors(self, name, shape):
        return [StoredTensor(name, "F32", shape)]

    def file_arrays(self, weight, name):
        yield coarse(weight)


@pytest.fixture
def form():
    with registered_form(Coarse()):
        yield
    assert "coarse" not in {each.name for each in known_forms()}


def vectors(path, precision="float32"):
    with load_encoder(path, precision=precision) as encoder:
        return encoder.encode(TEXTS).vectors.tobytes()


def rounded_copy(path, target):
    """Copy a model with the weights of its linears rounded beforehand."""
    shutil.copytree(path, target)
    tensors = load_file(path / "model.safetensors")
    linears = {name for name, value in tensors.items() if value.ndim == 2 and "embed" not in name}
    tensors = {name: coarse(value) if name in linears else value for name, value in tensors.items()}
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


def test_an_encoder_gives_the_vectors_of_weights_that_were_rounded_before(tmp_path):
    path = write_directory(tmp_path / "model", CASES["roberta"])
    want = vectors(rounded_copy(path, tmp_path / "rounded"))
    plain = vectors(path)
    with registered_form(Coarse()):
        assert vectors(path) == want != plain
    assert vectors(path) == plain


def test_a_decoder_and_its_reports_know_it(form, tmp_path, capsys):
    path = write_drawn_model(tmp_path / "model")
    with load_model(path, precision="float32") as model:
        sizes = memory_report(model).by_dtype()
    assert sizes["coarse"] > 0
    told = estimate_memory(path).precisions
    assert next(each.weights_bytes for each in told if each.precision == "float32") == sum(sizes.values())
    assert main(["doctor", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["precisions"][1]["weights_bytes"] == sum(sizes.values())


def test_a_quantized_directory_holds_it(form, tmp_path):
    path = write_directory(tmp_path / "model", CASES["roberta"])
    quantize_int8(path, tmp_path / "small")
    assert vectors(tmp_path / "small", "int8") == vectors(path, "int8")
    stored = load_file(tmp_path / "small" / "model.safetensors")
    assert {value.dtype.name for value in stored.values()} == {"float32", "float16"}


def test_two_forms_of_one_name_are_refused(form):
    with pytest.raises(ValueError, match="there is a form 'coarse' already: give it another name"):
        register_form(Coarse())
