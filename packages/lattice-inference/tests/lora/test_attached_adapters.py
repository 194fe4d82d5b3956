"""Adapters run beside their models: against PEFT, against merged models, by name, and swapped while others run."""

from __future__ import annotations

import pickle
import shutil
import threading
import time

import numpy as np
import pytest

from gguf_models import write_decoder_gguf
from lattice_inference import (
    Extension,
    GenerateConfig,
    LoraAdapter,
    Session,
    SessionConfig,
    compare_logits,
    load_adapter_file,
    load_cross_encoder,
    load_encoder,
    load_model,
    perplexity,
    set_num_threads,
)
from lattice_inference.errors import InvalidInputError, UnsupportedError
from lattice_inference.lora import LoraHook, LoraSite, merge_adapter, save_gguf, save_peft_safetensors
from lattice_inference.quantize import quantize_gguf, quantize_int8
from lattice_inference.runtime import get_num_threads
from tiny_decoders import write_drawn_model

from .conftest import BASES, CASES, DATA

DECODERS = ("llama", "llama-all-linear", "qwen2-plain", "qwen3", "qwen3-expression")
GREEDY = GenerateConfig.greedy(6)
TEXTS = ["the cat sat on the mat", "dogs and cats", "a"]


@pytest.fixture(scope="module")
def outputs():
    with np.load(DATA / "lora" / "outputs.npz") as stored:
        return dict(stored)


@pytest.fixture
def threads():
    before = get_num_threads()
    yield set_num_threads
    set_num_threads(before)


def drawn_adapter_of(model, seed, rank=4, share=1.0):
    """An adapter of all, or some, linears of a model."""
    rng = np.random.default_rng(seed)
    sites = {
        name: LoraSite(rng.normal(size=(rank, inputs)), 0.3 * rng.normal(size=(outputs, rank)), 0.5)
        for name, (outputs, inputs) in model.adapter_sites.items()
        if rng.random() < share
    }
    return LoraAdapter(sites)


@pytest.fixture(scope="module")
def drawn_directory(tmp_path_factory):
    return write_drawn_model(tmp_path_factory.mktemp("models") / "drawn", context=128)


@pytest.fixture(scope="module")
def model(drawn_directory):
    """A small model with three adapters."""
    with load_model(drawn_directory) as loaded:
        for seed, name in enumerate("abc"):
            loaded.attach_adapter(drawn_adapter_of(loaded, seed, rank=3 + 14 * (seed == 2)), name)
        yield loaded


def attached_logits(directory, base, path, **options):
    from drawn_checkpoints import draw_ids

    with load_model(directory, **options) as loaded:
        name = loaded.load_adapter(path).name
        ids = draw_ids(base, BASES[base]["length"], 128)
        with loaded.open_cache(tokens=2 * len(ids) + 64, dtype="float32") as cache:
            sequences = [cache.sequence(adapter=name), cache.sequence()]
            rows = np.asarray(loaded.forward([Extension(sequence, ids, "all") for sequence in sequences]))
    return rows[: len(ids)][BASES[base]["rows"]], rows[len(ids) :][BASES[base]["rows"]]


@pytest.mark.parametrize(("name", "backend"), [*((name, "cpu") for name in DECODERS), ("llama", "reference")])
def test_attached_adapters_give_the_logits_of_peft(drawn_base, drawn_adapter, logits_of, outputs, name, backend):
    base = CASES[name]["base"]
    options = {"precision": "float32", "backend": backend}
    got, plain = attached_logits(drawn_base(base), base, drawn_adapter(name), **options)
    assert np.abs(got - outputs[f"{name} attached"]).max() <= 1e-5
    assert np.abs(got - outputs[name]).max() <= 1e-4  # merged
    assert plain.tobytes() == logits_of(drawn_base(base), base, **options).tobytes()


def test_an_attached_adapter_of_a_classifier_gives_the_logits_of_peft(drawn_base, drawn_adapter, outputs):
    base = CASES["bert-plain"]["base"]
    with load_cross_encoder(drawn_base(base)) as loaded:
        pairs = BASES[base]["pairs"][:2]
        before = loaded.score_pairs(pairs, activation="identity")
        loaded.load_adapter(drawn_adapter("bert-plain"), "mine")
        got = loaded.score_pairs(pairs, activation="identity", adapter="mine")
        assert np.abs(np.ravel(got) - np.ravel(outputs["bert-plain attached"])).max() <= 1e-5
        assert (loaded.score_pairs(pairs, activation="identity") == before).all()
        assert loaded.score(*_query_and_documents(pairs), adapter="mine").shape == (1,)
        assert loaded.fingerprint_with("mine") != loaded.fingerprint


def _query_and_documents(pairs):
    return pairs[0][0], [pairs[0][1]]


def test_rows_of_gguf_files_of_llama_are_interleaved(drawn_base, drawn_adapter, outputs, tmp_path):
    base = write_decoder_gguf(tmp_path / "llama.gguf", drawn_base("llama"))
    adapter = load_adapter_file(drawn_adapter("llama-all-linear"))
    save_gguf(adapter, tmp_path / "mine.gguf", base=base)
    for place in (drawn_adapter("llama-all-linear"), tmp_path / "mine.gguf"):
        got, _ = attached_logits(base, "llama", place)
        assert np.abs(got - outputs["llama-all-linear attached"]).max() <= 2e-5
    got, _ = attached_logits(drawn_base("llama"), "llama", tmp_path / "mine.gguf")
    assert np.abs(got - outputs["llama-all-linear attached"]).max() <= 2e-5


@pytest.mark.parametrize("form", ["Q8_0", "Q4_1", "int8", "bfloat16"])
def test_any_form_of_weights_has_the_bits_of_today_without_and_the_update_with_an_adapter(
    drawn_base, drawn_adapter, logits_of, tmp_path, form
):
    options = {}
    if form == "int8":
        quantize_int8(drawn_base("llama"), tmp_path / "model")
        directory = tmp_path / "model"
    elif form == "bfloat16":
        directory, options = drawn_base("llama"), {"precision": "bfloat16"}
    else:
        plain = write_decoder_gguf(tmp_path / "plain.gguf", drawn_base("llama"))
        directory = tmp_path / "model.gguf"
        quantize_gguf(plain, directory, form)
    before = logits_of(directory, "llama", **options)
    got, without = attached_logits(directory, "llama", drawn_adapter("llama-all-linear"), **options)
    assert without.tobytes() == before.tobytes()
    merged, _ = attached_logits(drawn_base("llama"), "llama", drawn_adapter("llama-all-linear"), precision="float32")
    float32 = logits_of(drawn_base("llama"), "llama", precision="float32")
    rounding = np.abs(before - float32).max()
    assert np.abs(got - merged).max() <= 6 * rounding + 1e-4
    assert np.abs(got - without).max() > 0.3


def test_a_sequence_has_the_same_bits_in_any_company_chunks_and_threads(model, threads):
    rng = np.random.default_rng(1)
    prompts = [rng.integers(1, 250, 23).tolist() for _ in range(6)]
    names = ["a", None, "b", "c", "a", "b"]
    results = []
    for count in (1, 2):
        threads(count)
        with model.open_cache(tokens=1024) as cache:
            together = [cache.sequence(adapter=name) for name in names]
            results.append(model.forward([Extension(each, ids) for each, ids in zip(together, prompts, strict=True)]))
            alone = []
            for name, ids in zip(names, prompts, strict=True):
                sequence = cache.sequence(adapter=name)
                for start, end in ((0, 1), (1, 9), (9, 23)):
                    row = model.forward([Extension(sequence, ids[start:end])])
                alone.append(row[0])
            results.append(np.stack(alone))
    assert len({np.asarray(result).tobytes() for result in results}) == 1
    assert len({row.tobytes() for row in np.asarray(results[0])}) == 6


def test_texts_of_a_batch_equal_those_of_sessions(model):
    prompts, names = ["one", "two", "three", "one"], ["a", None, "c", "b"]
    with Session(model) as session:
        together = session.generate_batch(prompts, GREEDY, adapter=names)
    for prompt, name, result in zip(prompts, names, together, strict=True):
        with Session(model, adapter=name) as session:
            assert (session.adapter is None) == (name is None)
            assert session.generate(prompt, GREEDY).token_ids == result.token_ids
            with session.fork() as fork:
                assert fork.generate(prompt, GREEDY).token_ids == result.token_ids
            assert session.generate_batch([prompt], GREEDY)[0].token_ids == result.token_ids
    assert together[0].token_ids != together[3].token_ids
    with Session(model) as session:
        for wrong in ("a", ["a"], ["a"] * 5, [3] * 4, ["nobody"] * 4):
            with pytest.raises(InvalidInputError, match="adapter"):
                session.generate_batch(prompts, GREEDY, adapter=wrong)


def test_a_remembered_prompt_belongs_to_the_content_of_an_adapter(drawn_directory):
    prompt = "a prompt that is longer than one page of the cache, and then some"
    config = SessionConfig(prefix_bytes=1 << 20, cache_tokens=600, page_tokens=16)
    with load_model(drawn_directory) as loaded:
        first, second = (drawn_adapter_of(loaded, seed) for seed in (1, 2))
        loaded.attach_adapter(first, "x")
        loaded.attach_adapter(second, "y")
        cold = {}
        for name in (None, "x", "y"):
            with Session(loaded, adapter=name) as session:
                cold[name] = session.generate(prompt, GREEDY)
        with Session(loaded, config=config) as session:

            def run(name):
                return session.generate_batch([prompt], GREEDY, adapter=[name])[0]

            for name in (None, "x", "y", "x", None):
                warm = run(name)
                assert warm.token_ids == cold[name].token_ids
            assert warm.reused_tokens > 0
            loaded.remove_adapter("x")
            loaded.attach_adapter(first, "renamed")
            assert run("renamed").reused_tokens > 0
            loaded.attach_adapter(drawn_adapter_of(loaded, 3), "y", replace=True)
            other = run("y")
            assert other.reused_tokens == 0
            assert other.token_ids != cold["y"].token_ids


def test_a_saved_prefix_is_restored_under_the_same_content_only(model, tmp_path):
    from lattice_inference.errors import CheckpointError

    ids = list(range(1, 40))
    with model.open_cache(tokens=512) as cache:
        sequence = cache.sequence(adapter="a")
        model.forward([Extension(sequence, ids)])
        cache.save(tmp_path / "prefix", sequence)
        assert sequence.fork().adapter is sequence.adapter
        for wrong in (None, "b"):
            with pytest.raises(CheckpointError, match="saved with adapter"):
                cache.restore(tmp_path / "prefix", adapter=wrong)
        restored = cache.restore(tmp_path / "prefix", adapter="a")
        rows = [model.forward([Extension(each, [5])]) for each in (restored, sequence)]
        assert rows[0].tobytes() == rows[1].tobytes()


def test_names_are_taken_replaced_and_removed(drawn_directory, tmp_path):
    with load_model(drawn_directory) as loaded:
        assert dict(loaded.adapters) == {}
        first, second = (drawn_adapter_of(loaded, seed, share=0.5) for seed in (1, 2))
        save_peft_safetensors(first, tmp_path / "first")
        attached = loaded.load_adapter(tmp_path / "first")
        assert (attached.name, attached.sha256, attached.ranks) == ("first", first.sha256, (4,))
        assert loaded.load_adapter(tmp_path / "first", "again").sha256 == attached.sha256
        with pytest.raises(InvalidInputError, match="'first' is attached already"):
            loaded.load_adapter(tmp_path / "first")
        with Session(loaded, adapter="first") as session, Session(loaded) as plain:
            before = session.generate("text", GREEDY).token_ids
            loaded.attach_adapter(second, "first", replace=True)
            assert session.generate("text", GREEDY).token_ids == before  # it ends with what it began with
            with Session(loaded, adapter="first") as other:
                assert other.generate("text", GREEDY).token_ids != before
            loaded.remove_adapter("first")
            assert session.generate("text", GREEDY).token_ids == before
            assert plain.generate("text", GREEDY).token_ids != before
        assert set(loaded.adapters) == {"again"}
        for wrong in ("first", "", 3):
            with pytest.raises(InvalidInputError):
                loaded.remove_adapter(wrong)
        with pytest.raises(InvalidInputError, match=r"no adapter 'first'.*attached are: 'again'"):
            Session(loaded, adapter="first")
        for name in ("", 3):
            with pytest.raises(InvalidInputError, match="name is"):
                loaded.load_adapter(tmp_path / "first", name)
        with load_model(drawn_directory) as other_model, pytest.raises(InvalidInputError, match="another model"):
            other_model.open_cache(tokens=64).sequence(adapter=loaded.adapters["again"])
        assert dict(pickle.loads(pickle.dumps(loaded)).adapters) == {}
    with pytest.raises(InvalidInputError, match="closed"):
        loaded.load_adapter(tmp_path / "first", "late")


class Trainer:
    """A live adapter: its matrices change between the times that it is attached."""

    def __init__(self, sites):
        self.arrays = {name: (np.array(site.a), np.array(site.b)) for name, site in sites.items()}
        self.refusal = None

    @property
    def sites(self):
        return list(self.arrays)

    def factors(self, site):
        a, b = self.arrays[site]
        return LoraSite(a, b, 2.0)

    def validate_against(self, linears):
        assert set(self.arrays) <= set(linears)
        if self.refusal is not None:
            raise InvalidInputError(self.refusal)


def test_the_live_adapter_of_a_trainer_is_attached_as_it_is_then(drawn_directory):
    with load_model(drawn_directory) as loaded:
        trainer = Trainer(drawn_adapter_of(loaded, 1).sites)
        assert isinstance(trainer, LoraHook)
        assert isinstance(drawn_adapter_of(loaded, 1), LoraHook)
        for _, b in trainer.arrays.values():
            b[:] = 0  # where training begins
        first = loaded.attach_adapter(trainer, "live")
        with Session(loaded) as plain, Session(loaded, adapter="live") as session:
            expected = plain.generate("text", GREEDY).token_ids
            for _, b in trainer.arrays.values():
                b += 0.4
            assert session.generate("text", GREEDY).token_ids == expected
            second = loaded.attach_adapter(trainer, "live", replace=True)
            with Session(loaded, adapter="live") as trained:
                assert trained.generate("text", GREEDY).token_ids != expected
        assert first.sha256 != second.sha256
        next(iter(trainer.arrays.values()))[0][0, 0] = np.nan
        with pytest.raises(InvalidInputError, match="NaN"):
            loaded.attach_adapter(trainer, "live", replace=True)
        assert loaded.adapters["live"] is second
        trainer.refusal = "not this one"
        with pytest.raises(InvalidInputError, match="not this one"):
            loaded.attach_adapter(trainer, "live", replace=True)
        for wrong in (object(), None, 3, "path"):
            with pytest.raises(InvalidInputError, match="LoraHook"):
                loaded.attach_adapter(wrong, "wrong")


def test_what_does_not_fit_is_listed_and_nothing_is_attached(drawn_base, drawn_adapter, tmp_path):
    def refused(loaded, adapter, error, message):
        with pytest.raises(error, match=message):
            loaded.attach_adapter(adapter, "mine")
        assert not loaded.adapters

    ones = LoraSite(np.ones((1, 64)), np.ones((64, 1)), 1.0)
    with load_model(drawn_base("llama")) as loaded:
        for name in ("llama-dora", "qwen2"):
            refused(loaded, load_adapter_file(drawn_adapter(name)), UnsupportedError, "merge_adapter|not have")
        deep = LoraAdapter({"model.layers.3.self_attn.q_proj": ones, "model.layers.0.self_attn.q_proj": ones})
        refused(
            loaded, deep, InvalidInputError, r"\(1 of 2\): model\.layers\.3\.self_attn\.q_proj\. Its linears: .*q_proj"
        )
        narrow = LoraAdapter({"layers.0.self_attn.q_proj": LoraSite(np.ones((1, 3)), np.ones((64, 1)), 1.0)})
        refused(loaded, narrow, InvalidInputError, r"another base: shapes differ \(1 of 1\).*q_proj \(64, 3\)")
        gate = LoraAdapter({"model.layers.0.mlp.gate": ones, "model.layers.0.mlp.experts.0.up_proj": ones})
        refused(loaded, gate, InvalidInputError, r"\(2 of 2\): .*experts\.0\.up_proj, .*mlp\.gate")
        foreign = LoraAdapter({"model.layers.0.self_attn.q_proj": ones}, architecture="qwen3")
        refused(loaded, foreign, InvalidInputError, "is an adapter of qwen3")
    with load_model(drawn_base("qwen2")) as loaded:
        head = LoraAdapter({"lm_head": LoraSite(np.ones((1, 64)), np.ones((128, 1)), 1.0)})
        refused(loaded, head, UnsupportedError, "tie_word_embeddings")
    base = tmp_path / "base"
    shutil.copytree(drawn_base("llama"), base)
    shutil.copy(drawn_adapter("llama") / "adapter_config.json", base)
    with pytest.raises(UnsupportedError, match=r"to its own folder, .* model\.load_adapter\(folder\)"):
        load_model(base)


def test_vectors_with_an_adapter_equal_those_of_a_merged_encoder_and_have_their_own_keys(drawn_base, tmp_path):
    base = drawn_base("all-minilm-l6-v2")
    with load_encoder(base, cache=tmp_path / "cache") as encoder:
        adapters = [drawn_adapter_of(encoder, seed, share=0.6) for seed in (1, 2)]
        plain = encoder.encode(TEXTS).vectors
        encoder.attach_adapter(adapters[0], "mine")
        mine = encoder.encode(TEXTS, adapter="mine").vectors
        assert (encoder.encode(TEXTS, adapter="mine").vectors == mine).all()  # out of the cache
        assert (encoder.encode(TEXTS[1:2], adapter="mine").vectors[0] == mine[1]).all()
        assert (encoder.encode(TEXTS).vectors == plain).all()
        prints = {encoder.fingerprint, encoder.fingerprint_with("mine")}
        encoder.attach_adapter(adapters[1], "mine", replace=True)
        other = encoder.encode(TEXTS, adapter="mine").vectors
        prints.add(encoder.fingerprint_with("mine"))
        assert len(prints) == 3
        with pytest.raises(InvalidInputError, match="no adapter"):
            encoder.encode(TEXTS, adapter="nobody")
    merge_adapter(base, adapters[0], tmp_path / "merged")
    with load_encoder(tmp_path / "merged") as merged, load_encoder(base) as alone:
        assert np.abs(merged.encode(TEXTS).vectors - mine).max() <= 1e-5
        alone.attach_adapter(adapters[1], "y")
        assert (alone.encode(TEXTS, adapter="y").vectors == other).all()
    assert np.abs(plain - mine).max() > 1e-3 < np.abs(other - mine).max()


def test_evaluations_run_with_an_adapter(model):
    ids = np.random.default_rng(0).integers(1, 250, 40).tolist()
    with_it, without = (perplexity(model, ids, window=16, stride=8, adapter=name) for name in ("a", None))
    assert with_it.nll != without.nll
    compared = compare_logits(model, model, ids, window=16, stride=8, adapter="a")
    assert compared.max_kl > 0
    assert compared.perplexity == pytest.approx(with_it.perplexity)
    assert compared.reference_perplexity == pytest.approx(without.perplexity)


@pytest.mark.slow
def test_threads_generate_while_adapters_come_and_go(drawn_directory):
    """Each text equals its text alone, whichever contents the names had meanwhile."""
    with load_model(drawn_directory) as loaded:
        contents = [drawn_adapter_of(loaded, seed) for seed in range(4)]
        expected = {}
        for adapter in contents:
            name = loaded.attach_adapter(adapter, "alone", replace=True).name
            with Session(loaded, adapter=name) as session:
                expected[adapter.sha256] = session.generate("a text", GREEDY).token_ids
        with Session(loaded) as session:
            expected[""] = session.generate("a text", GREEDY).token_ids
        assert len(set(expected.values())) == 5
        ended, wrong, done = threading.Event(), [], []

        def generate(seed):
            rng = np.random.default_rng(seed)
            while not ended.is_set():
                name = ["alone", "other", None][int(rng.integers(3))]
                try:
                    session = Session(loaded, adapter=name)
                except InvalidInputError:  # it was just removed
                    continue
                with session:
                    sha256 = "" if session.adapter is None else session.adapter.sha256
                    if session.generate("a text", GREEDY).token_ids != expected[sha256]:
                        wrong.append(sha256)
                    done.append(sha256)

        workers = [threading.Thread(target=generate, args=(seed,)) for seed in range(8)]
        for worker in workers:
            worker.start()
        rng = np.random.default_rng(99)
        while len(done) < 400 or len(set(done)) < 5:  # however long this takes
            name = ["alone", "other"][int(rng.integers(2))]
            loaded.attach_adapter(contents[int(rng.integers(4))], name, replace=True)
            if rng.random() < 0.3:
                loaded.remove_adapter(name)
            time.sleep(0.002)
        ended.set()
        for worker in workers:
            worker.join()
        assert not wrong
