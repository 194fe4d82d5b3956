"""What doctor says that a precision would take is what a model that is loaded in it takes."""

import json
import warnings

import numpy as np
import pytest

from lattice_inference import load_model
from lattice_inference.checkpoint.gguf_writer import TensorToWrite, write_gguf
from lattice_inference.cli import main
from lattice_inference.memory.fit import estimate_memory
from lattice_inference.quantize import quantize_gguf

LAYERS, HIDDEN, HEADS, INNER, VOCABULARY = 2, 64, 4, 160, 256


@pytest.fixture(params=["tied", "untied"])
def llama(request, tmp_path):
    """A GGUF file of architecture llama in float32."""
    shapes = {"token_embd.weight": (VOCABULARY, HIDDEN), "output_norm.weight": (HIDDEN,)}
    if request.param == "untied":
        shapes["output.weight"] = (VOCABULARY, HIDDEN)
    for layer in range(LAYERS):
        at = f"blk.{layer}."
        shapes |= {f"{at}{name}_norm.weight": (HIDDEN,) for name in ("attn", "ffn")}
        shapes |= {f"{at}attn_{name}.weight": (HIDDEN, HIDDEN) for name in ("q", "k", "v", "output")}
        shapes |= {f"{at}ffn_{name}.weight": (INNER, HIDDEN) for name in ("gate", "up")}
        shapes[f"{at}ffn_down.weight"] = (HIDDEN, INNER)
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": LAYERS,
        "llama.context_length": 128,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
    }
    rng = np.random.default_rng(0)

    def drawn(shape):
        return lambda: [rng.standard_normal(shape, np.float32).tobytes()]

    path = tmp_path / "drawn.gguf"
    write_gguf(path, metadata, [TensorToWrite(name, shape, "F32", drawn(shape)) for name, shape in shapes.items()])
    return path


@pytest.mark.parametrize("precision", ["stored", "float32", "bfloat16", "int8"])
def test_a_precision_takes_what_was_told(llama, precision):
    told = {each.precision: each for each in estimate_memory(llama).precisions}[precision]
    with load_model(llama, precision=precision, threads=1) as model:
        taken = sum(weight.nbytes for weight in model.weight_sizes)
        layers = {name: size for name, size in _by_layer(model).items() if name is not None}
    assert (told.weights_bytes, told.layer_bytes) == (taken, max(layers.values()))


@pytest.mark.parametrize("precision", ["stored", "int8"])
def test_blocks_take_what_was_told(llama, precision, tmp_path):
    path = tmp_path / "blocks.gguf"
    quantize_gguf(llama, path, "Q8_0")
    told = {each.precision: each for each in estimate_memory(path).precisions}[precision]
    with load_model(path, precision=precision, threads=1) as model:
        assert told.weights_bytes == sum(weight.nbytes for weight in model.weight_sizes)


def test_a_format_without_a_kernel_is_weighed_as_what_it_becomes_and_without_a_notice(tmp_path):
    path = tmp_path / "blocks.gguf"
    tensor = TensorToWrite("output.weight", (32, 256), "Q2_K", lambda: [bytes(32 * 84)])
    write_gguf(path, {"general.architecture": "unknown"}, [tensor])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        told = estimate_memory(path).precisions
    assert (told[0].precision, told[0].weights_bytes) == ("stored", 32 * 8 * 34)


def _by_layer(model):
    from lattice_inference import memory_report

    report = memory_report(model, cache_bytes=0, cache_token_bytes=0)
    return {layer: sum(sizes.values()) for layer, sizes in report.by_layer().items()}


def test_doctor_says_what_fits(llama, capsys, monkeypatch):
    need = estimate_memory(llama, context=128)
    by_name = {each.precision: each for each in need.precisions}
    between = (by_name["int8"].weights_bytes + by_name["float32"].weights_bytes) // 2 + need.kv_bytes
    monkeypatch.setattr("lattice_inference.memory.fit.available_memory", lambda: between)
    assert main(["doctor", str(llama), "--context", "128", "--json"]) == 0
    rows = {each["precision"]: each for each in json.loads(capsys.readouterr().out)["precisions"]}
    assert (rows["float32"]["fits"], rows["int8"]["fits"]) == (False, True)
    assert rows["int8"]["needed_bytes"] == by_name["int8"].weights_bytes + need.kv_bytes
    assert main(["doctor", str(llama), "--context", "128"]) == 0
    table = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()[-4:]}
    assert table["float32"][-1] == "no"
    assert table["int8"][-1] == "yes"
