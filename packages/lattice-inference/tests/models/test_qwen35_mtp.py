"""The layer of Qwen3.5 that predicts further tokens: against transformers, and as a source of drafts."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import qwen3_files
import qwen35_files as files
from drawn_checkpoints import draw_ids
from lattice_inference import Engine, EngineConfig, Extension, GenerateConfig, Session, SessionConfig, load_model
from lattice_inference.cli import main
from lattice_inference.errors import InvalidInputError, UnsupportedError
from lattice_inference.generate.generation import Generation
from lattice_inference.graph.recurrent_ops import DELTA_BLOCK
from lattice_inference.state.hidden_rows import HiddenRows
from qwen35_gguf import write_gguf_py

OUTPUTS = Path(__file__).parents[1] / "data" / "qwen35" / "outputs.npz"
TEXT = {"vocab_size": qwen3_files.SMALL_VOCAB}


def directory_of(path, name="double", **changes):
    return files.write(path, files.CASES[name] | TEXT | changes, with_mtp=True)


def foretelling(path, layers=1):
    """A model whose layer predicts what the model will say: both only know the last token.

    No attention, rule or feed-forward block adds anything, the output matrix names the successor of a token, and the
    layer passes on the embedding of the token that it reads. Twelve tokens repeat themselves.
    """
    directory = directory_of(path, tie_word_embeddings=False, mtp_num_hidden_layers=layers)
    tensors = load_file(directory / "model.safetensors")
    vocabulary, hidden = tensors["model.embed_tokens.weight"].shape
    nothing = ("o_proj.weight", "out_proj.weight", "down_proj.weight", "model.norm.weight", "mtp.norm.weight")
    for name in tensors:
        if name.endswith(nothing) or "pre_fc_norm" in name:
            tensors[name][:] = 0
    tensors["mtp.fc.weight"] = np.concatenate([np.eye(hidden), np.zeros((hidden, hidden))], axis=1).astype(np.float32)
    embedding = tensors["model.embed_tokens.weight"]
    embedding /= np.linalg.norm(embedding, axis=1, keepdims=True)
    circles = np.random.default_rng(5).permutation(vocabulary).reshape(-1, 12)
    tensors["lm_head.weight"] = np.zeros_like(embedding)
    tensors["lm_head.weight"][np.roll(circles, -1, axis=1).ravel()] = 4 * embedding[circles.ravel()]
    save_file(tensors, directory / "model.safetensors")
    return directory


@pytest.fixture(scope="module")
def outputs():
    with np.load(OUTPUTS) as stored:
        return dict(stored)


@pytest.mark.parametrize("form", ["directory", "gguf"])
@pytest.mark.parametrize("name", ["double", "wide", "experts"])
def test_logits_equal_those_of_transformers(tmp_path, outputs, name, form):
    path = files.write(tmp_path / "m", files.CASES[name], with_mtp=True)
    if form == "gguf":
        path = write_gguf_py(tmp_path / "m.gguf", path, with_tokenizer=False)
    ids = np.array(draw_ids(f"qwen3.5:{name}", 100, files.VOCAB), np.int32)
    hidden, wanted = outputs[f"hidden-{name}"], outputs[f"mtp-{name}"]
    with load_model(path, mtp=True) as model, model.open_cache(tokens=128, dtype="float32") as cache:
        sequence = cache.sequence()
        sequence.hidden = HiddenRows()
        model.forward([Extension(sequence, ids[:40], "none")])
        model.forward([Extension(sequence, ids[40:], "none")])
        assert np.abs(sequence.hidden.between(0, 99) - hidden).max() <= 1e-4
        for first, end in ((0, 1), (1, 33), (33, 99)):
            logits, _ = model.predict(sequence, first, ids[first + 1 : end + 1], hidden[first:end])
            assert np.abs(logits[0] - wanted[end - 1]).max() <= 1e-5


@pytest.mark.parametrize("form", ["directory", "gguf"])
def test_chained_layers_give_what_they_give_in_transformers(tmp_path, outputs, form):
    """Row t of the second layer reads row t of the first, and token t + 2."""
    path = files.write(tmp_path / "m", files.CASES["double"] | {"mtp_num_hidden_layers": 2}, with_mtp=True)
    if form == "gguf":
        path = write_gguf_py(tmp_path / "m.gguf", path, with_tokenizer=False)
    ids = np.array(draw_ids("qwen3.5:double", 100, files.VOCAB), np.int32)
    rows, wanted = outputs["hidden-double"], (outputs["mtp-double"], outputs["chained-double"])
    with load_model(path, mtp=True) as model, model.open_cache(tokens=128, dtype="float32") as cache:
        assert model.mtp_layers == 2
        sequence = cache.sequence()
        model.forward([Extension(sequence, ids, "none")])
        for first, end in ((0, 33), (33, 98)):
            given = rows[first:end]
            for layer in range(2):
                read = ids[first + 1 + layer : end + 1 + layer]
                logits, given = model.predict(sequence, first, read, given, layer=layer)
                assert np.abs(logits[0] - wanted[layer][end - 1]).max() <= 1e-5
        with pytest.raises(InvalidInputError, match="layer must be from 0 to 1"):
            model.predict(sequence, 0, ids[1:2], rows[:1], layer=2)


def test_chained_layers_with_experts_are_the_same_in_both_forms(tmp_path):
    path = files.write(tmp_path / "m", files.CASES["experts"] | {"mtp_num_hidden_layers": 2}, with_mtp=True)
    ids = np.array(draw_ids("qwen3.5:experts", 20, files.VOCAB), np.int32)
    found = []
    for form in (path, write_gguf_py(tmp_path / "m.gguf", path, with_tokenizer=False)):
        with load_model(form, mtp=True) as model, model.open_cache(tokens=64, dtype="float32") as cache:
            sequence = cache.sequence()
            sequence.hidden = HiddenRows()
            model.forward([Extension(sequence, ids, "none")])
            first, rows = model.predict(sequence, 0, ids[1:19], sequence.hidden.between(0, 18))
            second, _ = model.predict(sequence, 0, ids[2:20], rows, layer=1)
            found.append(np.concatenate([first, second]))
    assert np.abs(found[0] - found[1]).max() <= 1e-5
    assert np.abs(found[0][0] - found[0][1]).max() > 0.01


@pytest.mark.parametrize("precision", ["float32", "int8", "bfloat16"])
def test_the_model_has_the_same_bits_with_the_layer_and_shares_its_weights(tmp_path, precision):
    path, ids = directory_of(tmp_path / "m", tie_word_embeddings=False), draw_ids("bits", 70, 64)
    with load_model(path, precision=precision) as plain, load_model(path, precision=precision, mtp=True) as model:
        assert (plain.mtp_layers, model.mtp_layers) == (0, 1)
        found = []
        for one in (plain, model):
            with one.open_cache(tokens=128) as cache:
                found.append(one.forward([Extension(cache.sequence(), ids, "all")]))
        if precision == "bfloat16":  # the last layer's rows are rounded if it computes all of them
            assert np.abs(found[0] - found[1]).max() < 0.02
        else:
            assert found[0].tobytes() == found[1].tobytes()
        assert plain.fingerprint != model.fingerprint
        assert 0 < model.mtp_share < 1
        own = {weight.name for weight in model._program._layers[0].weight_sizes}
        assert "mtp.fc.weight" in own
        assert not own & {"model.embed_tokens.weight", "lm_head.weight"}


SETTINGS = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 1.0, "seed": 3, "repetition_penalty": 1.2, "frequency_penalty": 0.3},
}
#: 20 prompts that end before, at and after a block boundary.
PROMPTS = [draw_ids(f"prompt {length}", length, 256) for length in range(17, 57, 2)]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Models by kind: drawn weights, and those whose one or two layers predict what they will say."""
    folder = tmp_path_factory.mktemp("mtp")
    paths = {
        "drawn": directory_of(folder / "drawn"),
        "foretelling": foretelling(folder / "foretelling"),
        "chained": foretelling(folder / "chained", layers=2),
    }
    with ExitStack() as stack:
        yield {kind: stack.enter_context(load_model(path, mtp=True)) for kind, path in paths.items()}


@pytest.fixture
def drafted(monkeypatch):
    """The position of each step's first token and the end of its drafts."""
    places = []
    draft = Generation.draft

    def noting(self, company):
        ids = draft(self, company)
        if ids:
            first = len(self.context()) - len(self.pending)
            places.append((first, first + len(self.pending) + len(ids)))
        return ids

    monkeypatch.setattr(Generation, "draft", noting)
    return places


def generated(model, prompts, **options):
    config = GenerateConfig(max_new_tokens=45, ignore_stop_tokens=True, logprobs=2, **options)
    with Session(model, config=SessionConfig(max_tokens=160)) as session:
        found = []
        for prompt in prompts:
            session.reset()
            found.append(session.generate(prompt, config))
        return found


@pytest.mark.slow
@pytest.mark.parametrize("source", ["mtp", "ngram"])
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("kind", ["drawn", "foretelling", "chained"])
def test_drafts_change_no_text(models, drafted, kind, settings, source):
    plain = generated(models[kind], PROMPTS, **SETTINGS[settings])
    told = generated(models[kind], PROMPTS, speculate=source, **SETTINGS[settings])
    for one, other in zip(plain, told, strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs == other.logprobs
    count, right = (sum(getattr(result, f"{name}_tokens") for result in told) for name in ("drafted", "accepted"))
    if source == "mtp":
        assert all(result.drafted_tokens > 0 for result in told)
        if kind == "drawn":
            assert right <= 0.2 * count
    if source == "mtp" and kind != "drawn" and settings == "greedy":
        assert right == count > 400
        if kind == "chained":
            assert {end - first for first, end in drafted} <= {2, 3}
    if kind != "drawn" and settings == "greedy":
        ends = {end % DELTA_BLOCK for _, end in drafted}
        assert {DELTA_BLOCK - 1, 0, 1} <= ends
        assert any(first // DELTA_BLOCK < (end - 1) // DELTA_BLOCK for first, end in drafted)


def test_a_drafted_text_beside_the_plain_one(models):
    """One prompt of the long test, for every run."""
    for kind, model in models.items():
        for source in ("mtp", "ngram"):
            for settings in SETTINGS.values():
                (plain,) = generated(model, PROMPTS[8:9], **settings)
                (told,) = generated(model, PROMPTS[8:9], speculate=source, **settings)
                assert (plain.token_ids, plain.logprobs) == (told.token_ids, told.logprobs), kind


def test_a_conversation_keeps_what_the_layer_has_read(tmp_path):
    path = foretelling(tmp_path / "m")
    turns = [draw_ids(f"turn {number}", 9 + number, 256) for number in range(4)]
    config = GenerateConfig(max_new_tokens=20, temperature=0.0, ignore_stop_tokens=True)
    found = []
    with load_model(path, mtp=True) as model:
        for speculate in (None, "mtp"):
            with Session(model, config=SessionConfig(max_tokens=512, prefix_bytes=1 << 20)) as session:
                settings = replace(config, speculate=speculate)
                for number, turn in enumerate(turns):
                    result = session.extend(turn, settings)
                    if speculate and number:
                        assert result.accepted_tokens == result.drafted_tokens > 5
                    found.append(result.token_ids)
                session.rewind(30)
                found.append(session.extend(turns[0], settings).token_ids)
    assert found[: len(found) // 2] == found[len(found) // 2 :]


@pytest.mark.parametrize("kind", ["foretelling", "chained"])
def test_a_prompt_is_remembered_once_the_layers_have_read_it(models, kind):
    """Before that its pages would be copied, because the layers still write to them."""
    config = GenerateConfig(max_new_tokens=30, temperature=0.0, ignore_stop_tokens=True, speculate="mtp")
    settings = SessionConfig(max_tokens=160, cache_tokens=480, prefix_bytes=1 << 20)
    with Session(models[kind], config=settings) as session:
        stream = session.stream(PROMPTS[-1], config)
        next(stream)
        pages = session._sequence.pages[0]
        next(stream)
        with session._cache.start(PROMPTS[-1]) as found:
            assert found.length == DELTA_BLOCK
        assert session._sequence.pages[0] == pages
        assert stream.finish().accepted_tokens > 5


@pytest.mark.parametrize("source", ["mtp", "ngram"])
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("kind", ["foretelling", "chained"])
def test_a_batch_of_eight_speculates_with_the_same_texts(models, kind, settings, source):
    config = GenerateConfig(max_new_tokens=30, ignore_stop_tokens=True, **SETTINGS[settings])
    with Session(models[kind], config=SessionConfig(max_tokens=96)) as session:
        plain, drafted = (
            session.generate_batch(PROMPTS[4:12], replace(config, speculate=speculate)) for speculate in (None, source)
        )
    assert [result.token_ids for result in plain] == [result.token_ids for result in drafted]
    if settings == "greedy":
        assert sum(result.accepted_tokens for result in drafted) > 30


def test_an_engine_speculates_with_the_same_texts(tmp_path):
    beginning = draw_ids("engine", 40, 256)
    prompts = [[*beginning, *draw_ids(f"engine {number}", 3 + 5 * number, 256)] for number in range(6)]
    config = GenerateConfig(max_new_tokens=40, temperature=0.0, ignore_stop_tokens=True)
    with load_model(foretelling(tmp_path / "m"), mtp=True) as model:
        with Session(model, config=SessionConfig(max_tokens=128)) as session:
            plain = [session.generate(prompt, config).token_ids for prompt in prompts]
        # the pages are too few for all, so some texts are run again, and the layer reads them anew
        with Engine(model, EngineConfig(max_tokens=128, cache_tokens=320, page_tokens=16)) as engine:
            streams = [engine.submit(prompt, replace(config, speculate="mtp")) for prompt in prompts]
            drafted = [stream.finish() for stream in streams]
            assert engine.stats().used_pages == engine.stats().remembered_pages
    assert [result.token_ids for result in drafted] == plain
    assert sum(result.accepted_tokens for result in drafted) > 0


def test_without_the_layer_it_is_refused_by_name(tmp_path):
    path = files.write(tmp_path / "without", TEXT)
    with pytest.raises(UnsupportedError, match="and the files hold none"):
        load_model(path, mtp=True)
    with load_model(directory_of(tmp_path / "m")) as model:
        with model.open_cache(tokens=64) as cache, pytest.raises(InvalidInputError, match="pass mtp=True"):
            model.predict(cache.sequence(), 0, np.zeros(1, np.int32), np.zeros((1, 40), np.float32))
        with (
            Session(model, config=SessionConfig(max_tokens=64)) as session,
            pytest.raises(UnsupportedError, match="mtp=True"),
        ):
            session.generate([1, 2], GenerateConfig(speculate="mtp"))
    with (
        load_model(directory_of(tmp_path / "m"), mtp=True) as model,
        model.open_cache(tokens=64) as cache,
        pytest.raises(InvalidInputError, match="reads inputs of the shapes"),
    ):
        model.predict(cache.sequence(), 0, np.zeros(1, np.int32), np.zeros((1, 39), np.float32))
    config = json.loads((path / "config.json").read_text())
    assert config["mtp_num_hidden_layers"] == 1


def test_the_reference_runs_the_layer(tmp_path, outputs):
    path = files.write(tmp_path / "m", files.CASES["double"], with_mtp=True)
    ids = np.array(draw_ids("qwen3.5:double", 40, files.VOCAB), np.int32)
    hidden = outputs["hidden-double"][:39]
    with (
        load_model(path, backend="reference", mtp=True) as model,
        model.open_cache(tokens=64, dtype="float32") as cache,
    ):
        sequence = cache.sequence()
        sequence.hidden = HiddenRows()
        model.forward([Extension(sequence, ids, "none")])
        assert np.abs(sequence.hidden.between(0, 39) - hidden).max() <= 1e-4
        logits, _ = model.predict(sequence, 0, ids[1:], hidden)
    assert np.abs(logits[0] - outputs["mtp-double"][38]).max() <= 1e-5


def test_the_command_line_drafts_by_the_layer(tmp_path, capsys):
    command = ["generate", "--model", str(foretelling(tmp_path / "m")), "--json", "--max-tokens", "30", "--seed", "1"]
    found = []
    for more in ([], ["--speculate", "mtp"], ["--speculate", "self"]):
        assert main([*command, "--temperature", "0", *more, "some text"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0]["token_ids"] == found[1]["token_ids"] == found[2]["token_ids"]
    assert found[1]["drafted_tokens"] == found[1]["accepted_tokens"]
    assert (
        main([*command[:2], str(directory_of(tmp_path / "n", mtp_num_hidden_layers=0)), "--speculate", "mtp", "x"]) == 1
    )
    assert "the files hold none" in capsys.readouterr().err


def test_rows_are_replaced_from_a_position_on_and_dropped_before_one():
    rows = HiddenRows()
    numbers = np.arange(20, dtype=np.float32).reshape(10, 2)
    rows.put(0, numbers[:4])
    rows.put(4, numbers[4:7])
    rows.put(2, numbers[7:9])
    assert (rows.first, rows.end) == (0, 4)
    assert rows.between(1, 4).tolist() == [[2, 3], [14, 15], [16, 17]]
    rows.drop_before(3)
    assert (rows.first, rows.end) == (2, 4)
    assert rows.between(0, 3).tolist() == [[0, 0], [0, 0], [14, 15]]
    rows.put(9, numbers[:1])
    assert (rows.first, rows.end) == (9, 10)
