"""The sizes that work is cut by: kernels/tile_table.h is well-formed, every size is used, and none shows in a bit."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from lattice_inference.backends.cpu import CpuBackend, _cpu
from lattice_inference.encode.text_program import TextProgram
from lattice_inference.models.bert_config import BertConfig
from lattice_inference.tokenizer import PackedEncoding

from .programs import Tensors, random_batch, random_bert

KERNELS = Path(__file__).parents[2] / "src" / "lattice_inference" / "backends" / "cpu" / "kernels"
LENGTHS = [1, 2, 17, 33, 64, 100, 130, 200, 256, 300]

# Each as small and as large as the table allows, and one that divides nothing.
ODD = {"step_tokens": 333, "row_task_rows": 7, "query_block_rows": 37, "score_rows": 5, "linear_few_rows": 9}


@pytest.fixture(scope="module")
def bert():
    """Wide enough that rows are packed and panels are cut, with heads that matrix tiles take."""
    return random_bert(np.random.default_rng(3), layers=1, hidden=64, heads=2, inner=512)


@pytest.fixture
def threads():
    before = _cpu.get_num_threads()
    yield _cpu.set_num_threads
    _cpu.set_num_threads(before)


def test_table_is_within_its_bounds_on_every_level():
    for isa in _cpu.available_isas():
        sizes = _cpu.tile_sizes(isa)
        assert list(sizes) == list(_cpu.TILE_BOUNDS)
        for name, size in sizes.items():
            least, most = _cpu.TILE_BOUNDS[name]
            assert 0 < least <= size <= most, (isa, name)


def test_every_size_is_explained_and_read_by_a_kernel():
    table = (KERNELS / "tile_table.h").read_text()
    rest = "".join(path.read_text() for path in KERNELS.rglob("*.[ch]") if path.name != "tile_table.h")
    for name in _cpu.TILE_BOUNDS:
        assert re.search(rf"^ \*   {name}  +\S", table, re.MULTILINE), f"{name} is not explained"
        if name != "step_tokens":  # of the caller's steps: see test_text_program
            assert re.search(rf"sizes->{name}\b", rest), f"no kernel reads {name}"


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("isa", _cpu.available_isas())
def test_no_size_changes_a_bit(isa, precision, bert, threads):
    program, tensors = bert
    batch = random_batch(np.random.default_rng(4), LENGTHS)
    threads(2)

    def run(sizes):
        ready = CpuBackend(isa=isa, precision=precision, tile_sizes=sizes).compile(program, Tensors(tensors))
        return ready.run(batch)["normalized"].tobytes()

    usual = run({})
    assert run({name: least for name, (least, _) in _cpu.TILE_BOUNDS.items()}) == usual
    assert run({name: most for name, (_, most) in _cpu.TILE_BOUNDS.items()}) == usual
    assert run(ODD) == usual


def test_sizes_reach_the_kernels(bert):
    """The scratch of attention holds the rows of a block and their scores, and that of a linear the rows of a task."""
    program, tensors = bert

    def arena_bytes(**sizes):
        ready = CpuBackend(tile_sizes=sizes, threads=1).compile(program, Tensors(tensors))
        ready.run(random_batch(np.random.default_rng(4), [256]))
        return ready.arena_bytes

    usual = arena_bytes()
    assert arena_bytes(query_block_rows=1024, score_rows=64) >= usual
    assert arena_bytes(linear_block_bytes=8 << 20) > usual + (4 << 20)


def test_step_tokens_is_what_texts_are_cut_by(bert):
    program, tensors = bert
    assert (
        CpuBackend().compile(program, Tensors(tensors)).step_tokens == _cpu.tile_sizes(CpuBackend().isa)["step_tokens"]
    )
    assert CpuBackend(tile_sizes={"step_tokens": 333}).compile(program, Tensors(tensors)).step_tokens == 333


@pytest.mark.parametrize(
    ("sizes", "problem"),
    [
        ({"score_rows": 65}, "score_rows must be from 1 to 64, not 65"),
        ({"row_task_rows": 0}, "row_task_rows must be from 1 to 4096, not 0"),
        ({"rows": 1}, "there is no size 'rows'"),
    ],
)
def test_sizes_outside_the_table_are_refused(sizes, problem, bert):
    program, tensors = bert
    with pytest.raises(ValueError, match=problem):
        CpuBackend(tile_sizes=sizes).compile(program, Tensors(tensors))


def test_texts_go_through_in_steps_of_that_many_tokens(bert, tmp_path):
    program, tensors = bert
    ready = CpuBackend(tile_sizes={"step_tokens": 64}).compile(program, Tensors(tensors))
    tokens, submit = [], ready.submit

    def counting_submit(batch, **options):
        tokens.append(batch.tokens)
        return submit(batch, **options)

    ready.submit = counting_submit
    config = {"model_type": "bert", "architectures": ["BertModel"], "vocab_size": 97, "hidden_size": 64}
    config |= {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 512, "hidden_act": "gelu"}
    config |= {"max_position_embeddings": 2048, "type_vocab_size": 2, "layer_norm_eps": 1e-12}
    bounds = np.array([0, 30, 60, 130, 150], np.int32)
    types = np.zeros(150, np.int32)
    packed = PackedEncoding(np.arange(150, dtype=np.int32) % 97, bounds, types, np.diff(bounds), np.zeros(4, bool))
    TextProgram(ready, BertConfig.from_mapping(config), tmp_path).run(packed, "normalized")
    assert tokens == [70, 60, 20]
