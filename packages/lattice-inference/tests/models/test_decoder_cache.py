"""What a cache is for, with a model: beginnings used again, forks, rewinding, files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from drawn_checkpoints import draw_ids, write_directory
from lattice_inference import Extension, load_model
from lattice_inference.errors import CheckpointError

CASES = json.loads((Path(__file__).parents[1] / "data" / "decoders" / "cases.json").read_text())["cases"]
VOCAB = 128
TYPES = ["float32", "float16", "bfloat16", "int8"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    with load_model(write_directory(tmp_path_factory.mktemp("llama"), CASES["llama"])) as opened:
        yield opened


def last_logits(model, ids, **options):
    with model.open_cache(**options) as cache:
        return model.forward([Extension(cache.sequence(), ids)])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shared", [1, 31, 32, 33, 70])
def test_a_prompt_that_begins_like_another_is_the_same_bits_and_less_work(model, dtype, shared):
    first = draw_ids("first", 80, VOCAB)
    second = [*first[:shared], *draw_ids("second", 90 - shared, VOCAB)]
    assert first[shared] != second[shared]
    with model.open_cache(tokens=1024, dtype=dtype, prefix_bytes=1 << 20) as cache:
        with cache.sequence() as sequence:
            model.forward([Extension(sequence, first, "none")])
            cache.remember(sequence)
        with cache.start(second) as sequence:
            assert sequence.length == shared
            got = model.forward([Extension(sequence, second[shared:])])
        with cache.start(first) as sequence:  # what the second one added is not in the first one's pages
            assert sequence.length == len(first) - 1
            again = model.forward([Extension(sequence, first[-1:])])
    assert (got == last_logits(model, second, dtype=dtype)).all()
    assert (again == last_logits(model, first, dtype=dtype)).all()


@pytest.mark.parametrize("dtype", TYPES)
def test_branches_of_a_sequence_go_their_own_ways(model, dtype):
    start = draw_ids("start", 45, VOCAB)
    ends = [draw_ids(f"end {number}", 5 + number, VOCAB) for number in range(4)]
    with model.open_cache(tokens=1024, dtype=dtype) as cache:
        trunk = cache.sequence()
        model.forward([Extension(trunk, start, "none")])
        branches = [trunk.fork() for _ in ends]
        got = model.forward([Extension(branch, end) for branch, end in zip(branches, ends, strict=True)])
        trunk.rewind(40)
        shorter = model.forward([Extension(trunk, [7])])
    for row, end in zip(got, ends, strict=True):
        assert (row == last_logits(model, [*start, *end], dtype=dtype)[0]).all()
    assert (shorter == last_logits(model, [*start[:40], 7], dtype=dtype)).all()


@pytest.mark.parametrize("dtype", TYPES)
def test_another_process_goes_on_from_a_saved_prefix_bit_for_bit(model, tmp_path, dtype):
    ids = draw_ids("saved", 75, VOCAB)
    path = tmp_path / "prompt.kv"
    with model.open_cache(dtype=dtype) as cache, cache.sequence() as sequence:
        model.forward([Extension(sequence, ids[:-1], "none")])
        cache.save(path, sequence)
    with load_model(model.directory) as again, again.open_cache(dtype=dtype, tokens=512) as cache:
        got = again.forward([Extension(cache.restore(path), ids[-1:])])
    assert (got == last_logits(model, ids, dtype=dtype)).all()
    other = model.open_cache(dtype="int8" if dtype != "int8" else "float16")
    with pytest.raises(CheckpointError, match="saved with"):
        other.restore(path)


def test_a_prefix_of_other_weights_is_refused(model, tmp_path):
    path = tmp_path / "prompt.kv"
    with model.open_cache() as cache, cache.sequence() as sequence:
        model.forward([Extension(sequence, [1, 2, 3], "none")])
        cache.save(path, sequence)
    cache = load_model(model.directory, precision="bfloat16").open_cache()
    with pytest.raises(CheckpointError, match="saved with identity"):
        cache.restore(path)


def test_decoding_takes_no_memory_a_token(model):
    """The arena and the pages are there after the first tokens; later ones ask the system for nothing."""
    ids = draw_ids("memory", 40, VOCAB)
    with model.open_cache() as cache, cache.sequence() as sequence:
        model.forward([Extension(sequence, ids)])
        arenas = model._program._program._arenas
        kept = {id(arena) for arena in arenas._idle}
        for token in ids:
            model.forward([Extension(sequence, [token])])
        assert {id(arena) for arena in arenas._idle} == kept


def test_the_cache_is_counted_in_bytes(model):
    page = 3 * 2 * (2 * 16 * 32) * 2  # layers, keys and values, heads x dimensions x tokens, float16
    with model.open_cache(tokens=100) as cache, cache.sequence() as sequence:
        assert cache.storage.page_bytes == page
        assert cache.capacity == 128
        model.forward([Extension(sequence, [1] * 33, "none")])
        assert cache.used_bytes == 2 * page
        assert np.isfinite(model.forward([Extension(sequence, [1])])).all()
