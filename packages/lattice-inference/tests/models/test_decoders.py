"""Every kind of decoder, with drawn weights, against transformers; and what a call may be."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

from drawn_checkpoints import draw_ids, write_directory
from lattice_inference import Extension, load_model
from lattice_inference.backends.cpu import CpuBackend, _cpu
from lattice_inference.checkpoint.computed_tensors import ComputedTensors
from lattice_inference.checkpoint.safetensors import open_checkpoint
from lattice_inference.errors import (
    CacheFullError,
    CheckpointError,
    InvalidInputError,
    NonFiniteError,
    TextTooLongError,
    UnsupportedError,
)
from lattice_inference.graph.batch import Batch
from lattice_inference.models.llama import ROPE_FREQUENCIES, build_llama
from lattice_inference.models.llama_config import LlamaConfig
from lattice_inference.runtime import cpu_info, get_num_threads, set_num_threads

FOLDER = Path(__file__).parents[1] / "data" / "decoders"
CASES = json.loads((FOLDER / "cases.json").read_text())["cases"]
SHORT = [name for name in CASES if not name.startswith("long")]
TYPES = ["float32", "float16", "bfloat16", "int8"]
VOCAB = 128


@pytest.fixture(scope="module")
def outputs():
    with np.load(FOLDER / "outputs.npz") as stored:
        return dict(stored)


@pytest.fixture(scope="session")
def drawn(tmp_path_factory):
    """Return the directory of a case, written once."""
    written: dict[str, Path] = {}

    def directory(name):
        if name not in written:
            written[name] = write_directory(tmp_path_factory.mktemp("decoders") / name, CASES[name])
        return written[name]

    return directory


@pytest.fixture
def threads():
    before = get_num_threads()
    yield set_num_threads
    set_num_threads(before)


def ids_of(name):
    return draw_ids(name, CASES[name]["length"], VOCAB)


def all_logits(model, ids, chunks=None, **options):
    """Run ``ids`` in chunks of these lengths, the last of which is as long as it must be; return every row."""
    rows, start = [], 0
    with model.open_cache(tokens=len(ids), **options) as cache:
        sequence = cache.sequence()
        for count in [*(chunks or []), len(ids)]:
            if start < len(ids):
                rows.append(model.forward([Extension(sequence, ids[start : start + count], "all")]))
                start += count
        assert sequence.length == len(ids)
        assert sequence.token_ids == tuple(ids)
    return np.concatenate(rows)


@pytest.mark.parametrize("name", SHORT)
def test_logits_equal_those_of_transformers(drawn, outputs, name):
    with load_model(drawn(name)) as model:
        got = all_logits(model, ids_of(name), dtype="float32")[CASES[name]["rows"]]
    assert np.abs(got - outputs[name]).max() <= 1e-5


@pytest.mark.parametrize(("dtype", "limit"), [("float16", 3e-3), ("bfloat16", 2e-2), ("int8", 1e-1)])
@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_logits_with_a_rounded_cache_are_near_those_of_transformers(drawn, outputs, name, dtype, limit):
    with load_model(drawn(name)) as model:
        got = all_logits(model, ids_of(name), dtype=dtype)[CASES[name]["rows"]]
    assert 0 < np.abs(got - outputs[name]).max() <= limit


@pytest.mark.parametrize("name", ["llama", "llama-wide-heads", "mistral", "qwen2-with-windows", "qwen3-with-windows"])
@pytest.mark.parametrize(("dtype", "precision"), [*((kind, "float32") for kind in TYPES), ("float16", "bfloat16")])
def test_prefill_in_any_chunks_is_token_by_token_bit_for_bit(drawn, name, dtype, precision):
    ids = ids_of(name)
    with load_model(drawn(name), precision=precision) as model:
        at_once = all_logits(model, ids, dtype=dtype)
        for chunks in ([1] * len(ids), [3, 1, 29, 40], [64, 1], [17] * 6):
            assert (all_logits(model, ids, chunks, dtype=dtype) == at_once).all(), chunks


@pytest.mark.parametrize("page_tokens", [16, 64])
def test_the_size_of_pages_shows_in_no_bit(drawn, page_tokens):
    ids = ids_of("llama")
    with load_model(drawn("llama")) as model:
        assert (all_logits(model, ids, page_tokens=page_tokens) == all_logits(model, ids)).all()


@pytest.mark.slow
def test_a_context_of_32768_tokens_works(drawn, outputs):  # H10
    name = "long-llama"
    ids = ids_of(name)
    with load_model(drawn(name)) as model, model.open_cache(tokens=len(ids) + 32, dtype="float32") as cache:
        sequence = cache.sequence()
        model.forward([Extension(sequence, ids[:-2], "none")])
        before_last = sequence.fork()
        together = model.forward([Extension(sequence, ids[-2:], "all")])
        alone = [model.forward([Extension(before_last, [token])])[0] for token in ids[-2:]]
        assert (together == alone).all()
        assert np.abs(together - outputs[name]).max() <= 1e-5
        with pytest.raises(TextTooLongError, match="32769 tokens and the model takes 32768"):
            model.forward([Extension(sequence, [1])])


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3"])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_bits_depend_on_neither_company_nor_place_nor_threads(drawn, threads, name, count):
    """Prompts, single tokens and runs of a few, of sequences at different lengths, all in one call."""
    rng = np.random.default_rng(count)
    contexts = [0, 1, 40, 200, 3, 90, 0]
    added = [100, 1, 1, 5, 40, 2, 1]
    prompts = [rng.integers(0, VOCAB, context + more).tolist() for context, more in zip(contexts, added, strict=True)]
    with load_model(drawn(name)) as model:
        threads(1)
        alone = [all_logits(model, ids)[context:] for ids, context in zip(prompts, contexts, strict=True)]
        threads(count)
        with model.open_cache(tokens=4096) as cache:
            for order in (range(7), reversed(range(7)), [3, 0, 6, 1, 5, 2, 4]):
                extensions, wanted = [], []
                for index in order:
                    sequence = cache.sequence()
                    if contexts[index]:
                        model.forward([Extension(sequence, prompts[index][: contexts[index]], "none")])
                    extensions.append(Extension(sequence, prompts[index][contexts[index] :], "all"))
                    wanted.append(alone[index])
                got = model.forward(extensions)
                assert (got == np.concatenate(wanted)).all()
                for extension in extensions:
                    extension.sequence.close()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("isa", _cpu.available_isas())
@pytest.mark.parametrize("name", ["llama-tied", "llama-wide-heads", "qwen2"])
def test_fusion_changes_no_bit(drawn, isa, name, precision):
    config = LlamaConfig.from_directory(drawn(name))
    program = build_llama(config)
    ids = ids_of(name)
    batch = Batch(
        np.array(ids, np.int32),
        np.array([0, len(ids)], np.int32),
        context_lengths=np.zeros(1, np.int32),
        block_table=(np.arange(6, dtype=np.int32),),
        logit_rows=np.arange(0, len(ids), 7, dtype=np.int32),
    )
    results = []
    for fused in (True, False):
        with open_checkpoint(drawn(name)) as checkpoint:
            source = ComputedTensors(checkpoint, {ROPE_FREQUENCIES: config.rope.frequencies(config.rotary_dim)})
            ready = CpuBackend(isa=isa, fused=fused, precision=precision).compile(program, source)
        state = CpuBackend.open_state(program.kv_specs, page_tokens=16, pages=6)
        results.append(ready.run(batch, state=state)["logits"])
        kinds = [op.kind for op in ready.program.ops]
        assert ("silu_mul" in kinds) == fused
        assert kinds.count("linear") + kinds.count("linear_add") == 1 + config.num_hidden_layers * (4 if fused else 7)
    assert results[0].tobytes() == results[1].tobytes()


def test_only_the_rows_that_are_wanted_are_computed(drawn):
    first, second = ids_of("llama")[:40], ids_of("mistral")[:7]
    with load_model(drawn("llama")) as model, model.open_cache() as cache:
        want = [all_logits(model, first), all_logits(model, second)]
        for kinds, rows in {
            ("last", "last"): [want[0][-1:], want[1][-1:]],
            ("all", "none"): [want[0]],
            ("none", "last"): [want[1][-1:]],
            ("none", "none"): [],
        }.items():
            with cache.sequence() as a, cache.sequence() as b:
                got = model.forward([Extension(a, first, kinds[0]), Extension(b, second, kinds[1])])
                assert got.dtype == np.float32
                assert got.shape == (sum(map(len, rows)), VOCAB)
                assert (got == np.concatenate([np.empty((0, VOCAB)), *rows])).all()


def test_a_call_beyond_one_step_is_the_same(drawn, monkeypatch):
    ids = ids_of("llama")
    with load_model(drawn("llama")) as model:
        want = all_logits(model, ids)
        monkeypatch.setattr(model._program._program, "step_tokens", 32)
        monkeypatch.setattr(type(model._program), "STEP_LOGITS", 20 * VOCAB)
        with model.open_cache() as cache:
            a, b, c = (cache.sequence() for _ in range(3))
            got = model.forward([Extension(a, ids, "all"), Extension(b, ids[:50]), Extension(c, ids[:9], "all")])
    assert (got == np.concatenate([want, want[49:50], want[:9]])).all()


@pytest.mark.parametrize(
    ("ids", "problem"),
    [
        ([], "at least one"),
        ([1.5], "1.5 at 0"),
        ([[1]], r"\[1\] at 0"),
        ([0, VOCAB], "token id 128 is outside"),
        ([-1], "holds -1"),
    ],
)
def test_ids_that_are_none_are_refused(drawn, ids, problem):
    with load_model(drawn("llama")) as model, model.open_cache() as cache, cache.sequence() as sequence:
        with pytest.raises(InvalidInputError, match=problem):
            model.forward([Extension(sequence, ids)])
        assert sequence.length == 0


def test_positions_beyond_the_context_are_refused_before_anything_runs(drawn):
    with load_model(drawn("llama")) as model, model.open_cache(tokens=1000) as cache, cache.sequence() as sequence:
        with pytest.raises(TextTooLongError, match="257 tokens and the model takes 256"):
            model.forward([Extension(sequence, [1] * 257)])
        assert sequence.length == 0
        assert cache.used_bytes == 0
        assert model.forward([Extension(sequence, [1] * 256)]).shape == (1, VOCAB)


def test_a_call_that_fails_leaves_every_sequence_as_it_was(drawn):
    with load_model(drawn("llama")) as model, model.open_cache(tokens=128) as cache:
        a, b = cache.sequence(), cache.sequence()
        model.forward([Extension(a, [5, 6, 7])])
        used = cache.used_bytes
        with pytest.raises(CacheFullError, match="128 tokens"):
            model.forward([Extension(a, [1] * 60), Extension(b, [2] * 70)])
        assert (a.length, b.length, cache.used_bytes) == (3, 0, used)
        logits = model.forward([Extension(a, [1] * 60)])
        b.close()
        a.rewind(3)
        assert (model.forward([Extension(a, [1] * 60)]) == logits).all()


def test_a_cache_beyond_the_address_space_is_refused(drawn):
    with (
        load_model(drawn("llama")) as model,
        pytest.raises(CacheFullError, match=r"no address space for a cache of 1,099,511,627,776 tokens: give fewer"),
    ):
        model.open_cache(tokens=2**40)


def test_sequences_that_cannot_be_run_together_are_refused(drawn):
    with load_model(drawn("llama")) as model, load_model(drawn("llama-tied")) as other:
        with model.open_cache() as cache, model.open_cache() as second, other.open_cache() as foreign:
            a = cache.sequence()
            with pytest.raises(InvalidInputError, match="once in a call"):
                model.forward([Extension(a, [1]), Extension(a, [2])])
            with pytest.raises(InvalidInputError, match="one cache"):
                model.forward([Extension(a, [1]), Extension(second.sequence(), [2])])
            with pytest.raises(InvalidInputError, match="another program"):
                model.forward([Extension(foreign.sequence(), [1])])
            a.close()
            with pytest.raises(InvalidInputError, match="sequence is closed"):
                model.forward([Extension(a, [1])])
            open_one = cache.sequence()
        with pytest.raises(InvalidInputError, match="cache is closed"):
            model.forward([Extension(open_one, [1])])
        assert model.forward([]).shape == (0, VOCAB)


@pytest.mark.parametrize("options", [{"dtype": "float64"}, {"page_tokens": 48}, {"tokens": 0}, {"prefix_bytes": -1}])
def test_caches_that_cannot_be_are_refused(drawn, options):
    with load_model(drawn("llama")) as model, pytest.raises(InvalidInputError):
        model.open_cache(**options)


def test_a_cache_that_overflows_gives_an_error_that_names_the_row_and_changes_nothing(drawn, tmp_path):
    from safetensors.numpy import load_file, save_file

    directory = tmp_path / "overflowing"
    directory.mkdir()
    for path in drawn("llama").iterdir():
        (directory / path.name).write_bytes(path.read_bytes())
    tensors = load_file(directory / "model.safetensors")
    tensors["model.embed_tokens.weight"][:, 0] = 0
    tensors["model.embed_tokens.weight"][77] = np.eye(64)[0]
    tensors["model.layers.0.self_attn.v_proj.weight"][:, 0] = 1e5  # times 8 for token 77: beyond float16
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    with load_model(directory) as model, model.open_cache() as cache:
        good, bad = cache.sequence(), cache.sequence()
        with pytest.raises(NonFiniteError) as caught:
            model.forward([Extension(good, [1, 2, 3]), Extension(bad, [4, 77])])
        assert caught.value.rows == (1,)
        assert good.length == bad.length == 0
        assert np.isfinite(all_logits(model, [4, 77], dtype="bfloat16")).all()
        # the pages that it wrote to are dealt out again, and nothing of what lies there shows
        clean = all_logits(model, [1, 2, 3])
        assert cache.capacity == 256
        taken = [cache.sequence() for _ in range(7)]
        for sequence in [bad, *taken]:
            assert (model.forward([Extension(sequence, [1, 2, 3], "all")]) == clean).all()


def test_a_closed_model_says_so_and_pickling_loads_it_again(drawn):
    model = load_model(drawn("llama"), precision="float16")
    again = pickle.loads(pickle.dumps(model))
    assert again.precision == "float16"
    assert (all_logits(again, [3, 4, 5]) == all_logits(model, [3, 4, 5])).all()
    cache = model.open_cache()
    sequence = cache.sequence()
    model.close()
    model.close()
    with pytest.raises(InvalidInputError, match="closed"):
        model.forward([Extension(sequence, [1])])
    with pytest.raises(InvalidInputError, match="closed"):
        model.open_cache()


def test_the_model_says_what_generation_needs(drawn, tmp_path):
    directory = tmp_path / "with-generation-config"
    directory.mkdir()
    for path in drawn("llama").iterdir():
        (directory / path.name).write_bytes(path.read_bytes())
    (directory / "generation_config.json").write_text('{"eos_token_id": [7, 2], "temperature": 0.6}')
    with load_model(directory) as model:
        assert (model.vocab_size, model.context_length, model.bos_token_id) == (VOCAB, 256, 1)
        assert model.eos_token_ids == (2, 7)  # config.json's and generation_config.json's together
        assert model.generation_config["temperature"] == 0.6
        assert len(model.tokenizer.encode("the cat").ids) == 4
        assert model.fingerprint.endswith(":stored:int8:n1")


def test_a_checkpoint_that_is_not_the_configs_is_refused(drawn, tmp_path):
    directory = tmp_path / "other"
    directory.mkdir()
    for path in drawn("llama").iterdir():
        (directory / path.name).write_bytes(path.read_bytes())
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "intermediate_size": 100}))
    with pytest.raises(CheckpointError, match=r"needs a tensor of shape \(100, 64\)"):
        load_model(directory)
    (directory / "config.json").write_text(json.dumps({**config, "hidden_act": "gelu"}))
    with pytest.raises(UnsupportedError, match="hidden_act"):
        load_model(directory)


def test_recorded_bits_have_not_moved(drawn):
    """Hashes made on one machine hold on every other one with FMA; a change here must raise NUMERICS_VERSION."""
    if cpu_info()["isa"] == "baseline":
        pytest.skip("the promise of equal bits is for levels with FMA")
    recorded = json.loads((FOLDER / "bits.json").read_text())
    found = {}
    for name in ("llama3-rope", "mistral", "qwen2", "qwen3"):
        with load_model(drawn(name)) as model:
            for dtype in TYPES:
                logits = all_logits(model, ids_of(name), dtype=dtype)
                found[f"{name}/{dtype}"] = hashlib.sha256(logits.tobytes()).hexdigest()[:16]
    assert found == recorded


@pytest.mark.parametrize(
    ("stored", "kept"),
    [
        (("F32",), {"float32"}),
        (("BF16",), {"bfloat16"}),
        (("F16",), {"float16"}),
        (("BF16", "F16"), {"bfloat16", "float16"}),
    ],
)
def test_weights_stay_what_they_are_stored_in(drawn, tmp_path, stored, kept):
    from safetensors.numpy import load_file

    directory = tmp_path / "stored"
    directory.mkdir()
    for path in drawn("llama").iterdir():
        (directory / path.name).write_bytes(path.read_bytes())
    write = {
        "F32": lambda tensor: tensor.tobytes(),
        "F16": lambda tensor: tensor.astype(np.float16).tobytes(),
        "BF16": lambda tensor: (tensor.view(np.uint32) >> 16).astype(np.uint16).tobytes(),
    }
    header, data = {}, b""
    for index, (name, tensor) in enumerate(load_file(directory / "model.safetensors").items()):
        dtype = stored[index % len(stored)]
        content = write[dtype](tensor)
        header[name] = {
            "dtype": dtype,
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(content)],
        }
        data += content
    text = json.dumps(header).encode()
    (directory / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    ids = ids_of("llama")
    exact = load_model(directory, activations="float32")
    with exact as model, load_model(directory, precision="float32") as wide:
        assert {weight.dtype for weight in model.weight_sizes if not re.search("norm|rope", weight.name)} == kept
        assert (all_logits(model, ids) == all_logits(wide, ids)).all()  # widening is exact
