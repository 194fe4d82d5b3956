"""A family is a row of one table: what a row says is enough for every part of the package."""

from __future__ import annotations

import ast
import itertools
import json
import math
import re
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from drawn_checkpoints import draw, small_tokenizer, write_directory
from lattice_inference import Extension, load_encoder, load_model, memory_report
from lattice_inference.backends.cpu import CpuBackend
from lattice_inference.capabilities import runs_model_type
from lattice_inference.checkpoint.formats import open_weights
from lattice_inference.checkpoint.gguf_writer import TensorToWrite, write_gguf
from lattice_inference.cli import main
from lattice_inference.errors import CheckpointError, ModelConfigError, UnsupportedError
from lattice_inference.graph.builder import GraphBuilder
from lattice_inference.memory.fit import estimate_memory
from lattice_inference.models import families
from lattice_inference.models.config_fields import ConfigFields
from lattice_inference.models.family import Family, GgufModel, StoredWeights
from lattice_inference.models.opened_model import open_model
from lattice_inference.quantize import Calibrator, quantize_int8
from lattice_inference.tokenizer.gguf_export import wordpiece_metadata

DATA = Path(__file__).parents[1] / "data"
DECODERS = json.loads((DATA / "decoders" / "cases.json").read_text())["cases"]


# A made-up family of encoders: words, and layers that each mix them once. Nothing of it stands elsewhere.


@dataclass(frozen=True)
class MixerConfig:
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    longest_input: int = 64
    has_token_types: bool = False
    classifies: bool = False
    label_count: int = 1
    class_name: str = "MixerModel"

    def with_one_layer(self):
        return replace(self, num_hidden_layers=1)

    def position_ids(self, token_ids, cu_seqlens):
        return None


def read_config(mapping, source):
    fields = ConfigFields(mapping.get("text_config", mapping), source)
    return MixerConfig(
        fields.integer("vocab_size", 1, 4000), fields.integer("width", 2, 512), fields.integer("depth", 1, 8)
    )


def read_weights(checkpoint, config, head):
    def build(config):
        g, width = GraphBuilder(), config.hidden_size
        x = g.embed_rows(g.weight("words", (config.vocab_size, width), use="rows"), ids="token_ids")
        for layer in range(config.num_hidden_layers):
            query = g.linear(x, g.weight(f"mix.{layer}.matrix", (width, width)))
            x = g.add(g.attention(query, x, x, heads=1, kv_heads=1, head_dim=width, scale=1 / math.sqrt(width)), x)
        pooled = g.pool(x, mode=head.pooling)
        return g.build({"pooled": pooled, "normalized": g.l2_normalize(pooled)})

    return StoredWeights(build, "mix.0.", "depth", idle=re.compile(r"spare"))


def read_gguf(checkpoint):
    config = read_config({key.removeprefix("mixer."): value for key, value in checkpoint.metadata.items()}, "the file")
    return GgufModel(config, partial(read_weights, checkpoint, config))


MIXER = Family(
    "mixer",
    ("mixer",),
    read_config,
    read_weights,
    text_model_types=("mixer_text",),
    gguf_architectures=("mixer",),
    read_gguf=read_gguf,
)


@pytest.fixture
def table(monkeypatch):
    monkeypatch.setattr(families, "FAMILIES", (*families.FAMILIES, MIXER))


@pytest.fixture
def mixer(tmp_path, table):
    return write_mixer(tmp_path / "m")


def write_mixer(directory, config=None, **tensors):
    from safetensors.numpy import save_file

    tokenizer = small_tokenizer("bert")
    size, width = len(tokenizer["model"]["vocab"]), 32
    shapes = {"words": (size, width), "mix.0.matrix": (width, width), "mix.1.matrix": (width, width), "spare": (1,)}
    directory.mkdir()
    config = config or {"model_type": "mixer"}
    config.get("text_config", config).update(vocab_size=size, width=width, depth=2)
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    save_file({name: draw(name, shape) for name, shape in shapes.items()} | tensors, directory / "model.safetensors")
    return directory


def expected(ids, bounds, directory):
    """The vectors by NumPy."""
    from safetensors.numpy import load_file

    arrays, vectors = load_file(directory / "model.safetensors"), []
    for start, end in itertools.pairwise(bounds):
        x = arrays["words"][ids[start:end]].astype(np.float64)
        for layer in range(2):
            scores = np.exp((x @ arrays[f"mix.{layer}.matrix"].T) @ x.T / math.sqrt(x.shape[1]))
            x = scores / scores.sum(axis=1, keepdims=True) @ x + x
        mean = x.mean(axis=0)
        vectors.append(mean / np.linalg.norm(mean))
    return np.array(vectors)


TEXTS = ["the cat sat on the mat", "dogs"]


def test_a_made_up_family_encodes(mixer):
    with load_encoder(mixer, pooling="mean") as encoder:
        packed = encoder.tokenizer.encode_packed(TEXTS, max_tokens=None)
        got = encoder.encode(TEXTS).vectors
        assert encoder.max_tokens == 64
        assert encoder.fingerprint
    assert np.abs(got - expected(packed.token_ids, packed.cu_seqlens, mixer)).max() < 1e-6
    assert runs_model_type("mixer")


def test_a_made_up_family_is_calibrated_and_written_as_int8(mixer, tmp_path):
    with load_encoder(mixer, pooling="mean", precision="int8") as encoder:
        want = encoder.encode(TEXTS).vectors
    quantize_int8(mixer, tmp_path / "int8")
    with load_encoder(tmp_path / "int8", pooling="mean", precision="int8") as encoder:
        assert encoder.encode(TEXTS).vectors.tobytes() == want.tobytes()
    with Calibrator(mixer) as calibrator:
        calibrator.observe(TEXTS)
        quantize_int8(mixer, tmp_path / "calibrated", calibration=calibrator.calibration())
    with load_encoder(tmp_path / "calibrated", pooling="mean", precision="int8") as encoder:
        assert (encoder.encode(TEXTS).vectors * want).sum(axis=1).min() > 0.99


def test_a_made_up_family_is_weighed_and_described(mixer, capsys):
    need = estimate_memory(mixer)
    assert need.weights_bytes == sum(weight.nbytes for weight in need.weights)
    assert main(["doctor", str(mixer), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["memory"]["weights_bytes"] == need.weights_bytes
    assert main(["inspect", str(mixer), "--tensors"]) == 0
    assert "mix.1.matrix" in capsys.readouterr().out


def test_a_made_up_family_is_checked_against_its_file(table, tmp_path):
    extra = write_mixer(tmp_path / "extra", other=np.zeros(2, np.float32))
    with pytest.raises(CheckpointError, match=r"does not read.*other"):
        load_encoder(extra, pooling="mean")
    config = json.loads((extra / "config.json").read_text()) | {"depth": 5}
    (extra / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"no tensor 'mix\.2\.matrix' of the 5 layers that depth promises"):
        load_encoder(extra, pooling="mean")


def test_a_family_is_found_by_the_type_of_its_text_config(table, tmp_path):
    config = {"model_type": "mixer-and-images", "text_config": {"model_type": "mixer_text"}}
    with load_encoder(write_mixer(tmp_path / "m", config), pooling="mean") as encoder:
        assert encoder.dimension == 32
    for inner in (None, "mixer_text", ["mixer_text"], {"model_type": ["mixer_text"]}, {"model_type": "other"}, {}):
        with pytest.raises(UnsupportedError, match="model_type is 'mixer-and-images'; built are 'bert'"):
            families.family_of_config(config | {"text_config": inner}, "config.json")
    with pytest.raises(ModelConfigError, match="model_type: is missing"):
        families.family_of_config({"text_config": {}}, "config.json")


def test_a_made_up_family_encodes_from_a_gguf_file(mixer, tmp_path):
    config = json.loads((mixer / "config.json").read_text())
    with load_encoder(mixer, pooling="mean") as encoder, open_weights(mixer) as checkpoint:
        keys = {"general.architecture": "mixer", **{f"mixer.{key}": config[key] for key in config}}
        write_gguf(
            path := tmp_path / "mixer.gguf",
            keys | wordpiece_metadata(encoder.tokenizer, 1),
            [
                TensorToWrite(name, checkpoint.info(name).shape, "F32", partial(lambda array: [array.tobytes()], array))
                for name, array in ((name, checkpoint.array(name)) for name in checkpoint.names())
            ],
        )
        want = encoder.encode(TEXTS).vectors
    with load_encoder(path, pooling="mean") as encoder:
        assert encoder.encode(TEXTS).vectors.tobytes() == want.tobytes()
    with Calibrator(path) as calibrator:
        calibrator.observe(TEXTS)
        assert calibrator.calibration().ranges.keys() == {"mix.0.matrix", "mix.1.matrix"}
    with pytest.raises(
        UnsupportedError, match=r"of decoders in GGUF files, 'llama', 'qwen2', .*'qwen35moe', .* are built"
    ):
        load_model(path)


def test_the_program_of_a_made_up_family_needs_no_loader(mixer):
    with open_model(mixer) as model:
        head = model.whole_head()
        model.check(head)
        program = CpuBackend().compile(model.program(head), model.tensors(head))
        assert set(program.program.outputs) == {"pooled", "normalized"}
        assert model.family is MIXER


def test_a_made_up_name_for_a_decoder_loads_and_is_weighed(tmp_path, monkeypatch):
    def read(mapping, source):
        return llama.read_config(mapping | {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, source)

    llama = next(family for family in families.FAMILIES if family.is_causal)
    own = replace(
        llama, name="alpaca", model_types=("alpaca",), read_config=read, gguf_architectures=(), read_gguf=None
    )
    monkeypatch.setattr(families, "FAMILIES", (*families.FAMILIES, own))
    directory = write_directory(tmp_path / "m", DECODERS["llama"])
    with load_model(directory) as model:
        weights = memory_report(model).weights
    config = json.loads((directory / "config.json").read_text()) | {"model_type": "alpaca"}
    (directory / "config.json").write_text(json.dumps(config))
    with load_model(directory) as model:
        assert memory_report(model).weights == weights
        with model.open_cache(tokens=32, page_tokens=32) as cache, cache.sequence() as sequence:
            model.forward([Extension(sequence, [1])])
            page = cache.used_bytes
    need = estimate_memory(directory, context=32)
    assert (need.context, need.kv_bytes) == (32, page)
    quantize_int8(directory, tmp_path / "int8")
    with load_model(tmp_path / "int8", precision="int8") as model:
        assert model.vocab_size == config["vocab_size"]


@pytest.mark.parametrize("change", [{"num_hidden_layers": 9}, {"hidden_size": "x"}, {"model_type": "other"}])
def test_a_decoder_that_no_loader_takes_is_weighed_without_a_context(tmp_path, change):
    directory = write_directory(tmp_path / "m", DECODERS["llama"])
    assert (
        estimate_memory(directory).context
        == json.loads((directory / "config.json").read_text())["max_position_embeddings"]
    )
    config = json.loads((directory / "config.json").read_text()) | change
    (directory / "config.json").write_text(json.dumps(config))
    need = estimate_memory(directory)
    assert (need.context, need.kv_bytes) == (None, 0)
    assert need.weights_bytes > 0


@pytest.mark.parametrize("load", [partial(load_encoder, pooling="mean"), load_model, Calibrator])
def test_a_family_that_is_no_row_is_refused(tmp_path, load):
    with pytest.raises(UnsupportedError, match="model_type is 'mixer'; built are"):
        load(write_mixer(tmp_path / "m"))


def test_rows_share_no_name():
    rows = families.FAMILIES
    for names in (
        [row.name for row in rows],
        [name for row in rows for name in row.model_types],
        [name for row in rows for name in row.text_model_types],
        [name for row in rows for name in row.gguf_architectures],
    ):
        assert len(names) == len(set(names))
    assert all(row.read_gguf is not None for row in rows if row.gguf_architectures)


def test_no_module_outside_of_models_imports_a_family():
    packages = Path(__file__).parents[3]
    models = packages / "lattice-inference" / "src" / "lattice_inference" / "models"
    own = {
        f"lattice_inference.models.{path.stem}"
        for path in models.glob("*.py")
        for row in families.FAMILIES
        if path.stem == row.name or path.stem.startswith(f"{row.name}_")
    }
    assert {"lattice_inference.models.bert", "lattice_inference.models.llama_gguf"} <= own
    table = models / "families.py"
    shared = [path for path in models.glob("*.py") if f"lattice_inference.models.{path.stem}" not in own]
    others = [path for path in packages.glob("*/src/**/*.py") if path.parent != models]
    assert len(others) > 100
    found = [
        f"{path.relative_to(packages)}: {name}"
        for path in (*others, *shared)
        if path != table and "models" in (text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        for name in imported(node)
        if name in own
    ]
    assert found == []


def imported(node):
    """The modules that a node of a syntax tree imports, and what may be one."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert not node.level, "a relative import hides what it is of"
        return [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


@pytest.mark.parametrize(
    ("causal", "name", "hint"),
    [
        (True, "bert", ". 'bert' is an encoder, which generates no text: load_encoder and lattice-embed run it"),
        (
            False,
            "llama",
            ". 'llama' is a language model, which gives no vectors: load_model and `lattice generate` run it",
        ),
        (True, "mamba", ""),
        (None, "mamba", ""),
    ],
)
def test_a_model_of_the_other_kind_is_named(causal, name, hint):
    for search, mapping in (
        (families.family_of_config, {"model_type": name}),
        (families.family_of_gguf, {"general.architecture": name}),
    ):
        with pytest.raises(UnsupportedError) as caught:
            search(mapping, "a file", causal=causal)
        message = str(caught.value)
        assert message.endswith(hint)
        assert ("run it" in message) == bool(hint)
