"""Tiny mixtures, recurrent models and adapters on a GPU: the logits of transformers and PEFT, and the CPU's tokens."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import qwen3_files
import qwen3_moe_files
import qwen35_files
from drawn_adapters import write_adapter
from drawn_checkpoints import draw_ids, write_directory
from lattice_inference import Extension, GenerateConfig, Session, SessionConfig, load_cross_encoder, load_model
from lattice_inference.cli import main
from lattice_inference.state.hidden_rows import HiddenRows
from qwen3_converted import directory_of, write_converted
from qwen35_gguf import write_gguf_py

from .bodies import DEVICE, GPU_BODIES

if not GPU_BODIES:
    pytest.skip("no GPU, nor one that is emulated", allow_module_level=True)

pytestmark = pytest.mark.slow

DATA = Path(__file__).parents[1] / "data"
BASES = {
    name: case
    for folder in ("decoders", "architectures")
    for name, case in json.loads((DATA / folder / "cases.json").read_text())["cases"].items()
}
ADAPTERS = json.loads((DATA / "lora" / "cases.json").read_text())["cases"]


def stored(folder):
    with np.load(DATA / folder / "outputs.npz") as arrays:
        return dict(arrays)


def all_logits(model, ids, chunks=()):
    rows, start = [], 0
    with model.open_cache(tokens=len(ids), dtype="float32") as cache:
        sequence = cache.sequence()
        for count in [*chunks, len(ids)]:
            if start < len(ids):
                rows.append(model.forward([Extension(sequence, ids[start : start + count], "all")]))
                start += count
    return np.concatenate(rows)


@pytest.mark.parametrize("name", list(qwen3_moe_files.CASES))
def test_a_mixture_has_the_logits_of_transformers(tmp_path, name):
    directory = qwen3_moe_files.write(tmp_path / "m", qwen3_moe_files.CASES[name])
    ids = draw_ids(f"qwen3:{name}", 1000, 64)[:130]
    with load_model(directory, device=DEVICE) as model:
        got = all_logits(model, ids, (1, 7, 33))
    assert np.abs(got - stored("qwen3")[f"logits-{name}"][:130]).max() <= 2e-5


@pytest.mark.parametrize("name", ["tied", "moe", "tied-q8_0", "moe-q8_0"])
def test_files_of_llama_cpps_converter_have_the_logits_of_the_cpu(tmp_path, name):
    path = write_converted(tmp_path / f"{name}.gguf", name, directory_of(name, tmp_path))
    found, ids = [], draw_ids(f"qwen3:{name}", 60, 64)
    for device in ("cpu", DEVICE):
        with load_model(path, activations="float32", device=device) as model:
            found.append(all_logits(model, ids, (1, 7, 33)))
    assert np.abs(found[0] - found[1]).max() <= 2e-5 * np.abs(found[0]).max()


@pytest.mark.parametrize(("name", "form"), [("double", "text"), ("triple", "gguf"), ("experts", "text")])
def test_recurrent_layers_have_the_logits_of_transformers(tmp_path, name, form):
    path = qwen35_files.write(tmp_path / "m", qwen35_files.CASES[name])
    if form == "gguf":
        path = write_gguf_py(tmp_path / "m.gguf", path, with_tokenizer=False)
    ids = draw_ids(f"qwen3.5:{name}", 5000, qwen35_files.VOCAB)[:130]
    with load_model(path, device=DEVICE) as model:
        got = all_logits(model, ids, (1, 30, 2, 40))
    assert np.abs(got - stored("qwen35")[f"logits-{name}"][:130]).max() <= 1e-4


def test_the_layer_for_further_tokens_has_the_logits_of_transformers(tmp_path):
    path = qwen35_files.write(tmp_path / "m", qwen35_files.CASES["double"], with_mtp=True)
    ids = np.array(draw_ids("qwen3.5:double", 100, qwen35_files.VOCAB), np.int32)
    outputs = stored("qwen35")
    hidden, wanted = outputs["hidden-double"], outputs["mtp-double"]
    with (
        load_model(path, mtp=True, device=DEVICE) as model,
        model.open_cache(tokens=128, dtype="float32") as cache,
    ):
        sequence = cache.sequence()
        sequence.hidden = HiddenRows()
        model.forward([Extension(sequence, ids, "none")])
        assert np.abs(sequence.hidden.between(0, 99) - hidden).max() <= 1e-4
        for first, end in ((0, 1), (1, 33), (33, 99)):
            rows, _ = model.predict(sequence, first, ids[first + 1 : end + 1], hidden[first:end])
            assert np.abs(rows[0] - wanted[end - 1]).max() <= 2e-5


def test_a_conversation_with_recurrent_layers_has_the_tokens_of_the_cpu(tmp_path):
    """Turns, rewinds within a block, and sequences side by side."""
    changes = {"vocab_size": qwen3_files.SMALL_VOCAB}
    path = qwen35_files.write(tmp_path / "m", qwen35_files.CASES["double"] | changes)
    config = GenerateConfig(max_new_tokens=10, temperature=0.0, ignore_stop_tokens=True)
    found = []
    for device in ("cpu", DEVICE):
        with (
            load_model(path, precision="float32", device=device) as model,
            Session(model, config=SessionConfig(max_tokens=160)) as session,
        ):
            found.append(
                [session.extend(draw_ids(f"turn {turn}", 9 + 13 * turn, 64), config).token_ids for turn in (0, 1)]
            )
            session.rewind(45)  # within the last block
            found[-1].append(session.extend(draw_ids("again", 4, 64), config).token_ids)
            prompts = [draw_ids(f"batch {number}", 3 + 14 * number, 64) for number in range(3)]
            found[-1] += [result.token_ids for result in session.generate_batch(prompts, config)]
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["llama-all-linear", "qwen3-expression"])
def test_attached_adapters_give_the_logits_of_peft(tmp_path, name):
    base = ADAPTERS[name]["base"]
    directory = write_directory(tmp_path / "base", BASES[base])
    path = write_adapter(tmp_path / "adapter", name, ADAPTERS[name])
    ids = draw_ids(base, BASES[base]["length"], 128)
    with load_model(directory, precision="float32", device=DEVICE) as model:
        with model.open_cache(tokens=len(ids), dtype="float32") as cache:
            before = model.forward([Extension(cache.sequence(), ids, "all")])
        adapter = model.load_adapter(path).name
        with model.open_cache(tokens=2 * len(ids) + 64, dtype="float32") as cache:
            sequences = [cache.sequence(adapter=adapter), cache.sequence()]
            rows = np.asarray(model.forward([Extension(sequence, ids, "all") for sequence in sequences]))
    assert np.abs(rows[: len(ids)][BASES[base]["rows"]] - stored("lora")[f"{name} attached"]).max() <= 2e-5
    assert rows[len(ids) :].tobytes() == before.tobytes()


def test_an_attached_adapter_of_a_classifier_gives_the_scores_of_peft(tmp_path):
    base = ADAPTERS["bert-plain"]["base"]
    pairs = BASES[base]["pairs"][:2]
    directory = write_directory(tmp_path / "base", BASES[base])
    path = write_adapter(tmp_path / "adapter", "bert-plain", ADAPTERS["bert-plain"])
    with load_cross_encoder(directory, device=DEVICE) as scorer:
        before = scorer.score_pairs(pairs, activation="identity")
        scorer.load_adapter(path, "mine")
        got = scorer.score_pairs(pairs, activation="identity", adapter="mine")
        assert np.abs(np.ravel(got) - np.ravel(stored("lora")["bert-plain attached"])).max() <= 1e-5
        assert (scorer.score_pairs(pairs, activation="identity") == before).all()


def test_doctor_weighs_a_model_for_the_device(tmp_path, capsys):
    path = qwen3_moe_files.write(tmp_path / "m", qwen3_moe_files.CASES["moe"])
    assert main(["doctor", str(path), "--device", DEVICE, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    with load_model(path, device=DEVICE, precision="float32") as model:
        kept = sum(size.nbytes for size in model.weight_sizes)
        assert report["device"]["name"] == model.device_name
    sizes = {each["precision"]: each["weights_bytes"] for each in report["precisions"]}
    assert sizes["float32"] == kept
    assert set(sizes) == {"stored", "float32", "bfloat16"}
    assert report["device"]["runs"] == "yes"
    assert report["device"]["largest_weight_parts"] == 1
    assert {each["fits"] for each in report["precisions"]} == {None}
