"""What a differentiated program has: no gradient below the lowest site, no op twice without need, refusals by name."""

from __future__ import annotations

from collections import Counter

import pytest

import qwen35_files
from lattice_inference import UnsupportedError
from lattice_inference.graph.backward import Site, differentiate, forward_program
from lattice_inference.graph.builder import GraphBuilder
from lattice_inference.graph.memory import pack_memory, plan_memory
from lattice_inference.graph.ops import validate
from lattice_inference.graph.program import KvSpec, Rows
from lattice_inference.graph.reverse_ops import TRAINING_OPS
from lattice_inference.training import open_training_program

COUNTS = {Rows.TOKENS: 64, Rows.SEQUENCES: 1, Rows.LOGIT_ROWS: 64}


def decoder(layers=3, middle=None):
    """Return a decoder of small layers; ``middle`` may add an op after the first layer."""
    g = GraphBuilder()
    x = g.embed_rows(g.weight("embedding", (50, 32), use="rows"), ids="token_ids")
    angles = g.rope_angles(g.weight("frequencies", (4,), use="vector"))
    for layer in range(layers):
        normal = g.rms_norm(x, g.weight(f"{layer}.norm", (32,), use="vector"), epsilon=1e-5)
        query, key, value = (
            g.linear(normal, g.weight(f"{layer}.{n}", (w, 32))) for n, w in (("q", 32), ("k", 16), ("v", 16))
        )
        query = g.rope(query, angles, heads=4, head_dim=8, pairing="half")
        key = g.rope(key, angles, heads=2, head_dim=8, pairing="half")
        g.kv_write(key, value, layer=layer, kv_heads=2, head_dim=8)
        context = g.paged_attention(query, layer=layer, heads=4, kv_heads=2, head_dim=8, scale=0.3)
        x = g.add(g.linear(context, g.weight(f"{layer}.o", (32, 32))), x)
        wide = g.silu(g.linear(x, g.weight(f"{layer}.up", (48, 32))))
        x = g.add(g.linear(wide, g.weight(f"{layer}.down", (32, 48))), x)
        if layer == 0 and middle is not None:
            x = middle(g, x)
    logits = g.linear(g.gather_rows(x), g.weight("head", (50, 32)))
    return g.build({"logits": logits}, kv_specs=[KvSpec(layer, 2, 8, "float32") for layer in range(layers)])


def sites(*names):
    return {name: Site(number, 4, 1.0) for number, name in enumerate(names)}


def mixture(g, x):
    gate = g.stack([f"gate{i}" for i in range(2)], (2, 16, 32))
    up, down = g.stack(["up0", "up1"], (2, 16, 32)), g.stack(["down0", "down1"], (2, 32, 16))
    return g.moe(x, router=g.weight("router", (2, 32)), gate=gate, up=up, down=down, chosen=1, normalized=True)


@pytest.mark.parametrize("keep", ["all", "products", "layers"])
def test_layers_below_the_lowest_site_have_no_gradient(keep):
    program = differentiate(decoder(), sites("1.v"), keep, output="logits")
    products = [op.weights["weight"].sources[0] for op in program.ops if op.kind == "linear_input_grad"]
    # from the top: layer 2 whole, in layer 1 what lies above the values; the queries and keys of layer 1 depend on no site
    assert products == ["2.down", "2.up", "2.o", "2.v", "2.k", "2.q", "1.down", "1.up", "1.o"]
    kinds = Counter(op.kind for op in program.ops)
    assert kinds["attention_grad"] == 2
    assert kinds["low_rank_grad"] == 1
    assert kinds["low_rank_input_grad"] == 0
    assert kinds["kv_write"] == kinds["paged_attention"] == 0
    assert not program.kv_specs
    for op in program.ops:
        validate(op, TRAINING_OPS)


def test_what_is_kept_decides_what_is_computed_again():
    def count(keep):
        return Counter(op.kind for op in differentiate(decoder(), sites("0.q", "2.down"), keep, output="logits").ops)

    everything, products, layers = count("all"), count("products"), count("layers")
    assert everything["rope"] == everything["silu"] + 3 == 6
    assert everything["linear"] == products["linear"] == 18
    assert products["rope"] == 12
    assert products["silu"] == 4  # that of the last down is read again
    # each layer but the last has its queries, keys, values, output and up computed again
    assert layers["linear"] == 18 + 2 * 5
    assert layers["attention_with_sums"] == 3 + 2


def test_memory_falls_with_what_is_kept():
    def floats(keep):
        every = sites(*(f"{layer}.{name}" for layer in range(8) for name in ("q", "k", "v", "o", "up", "down")))
        program = differentiate(decoder(layers=8), every, keep, output="logits")
        return plan_memory(program, {"add": 0}).offsets(COUNTS)[1]

    assert floats("all") > 1.2 * floats("products") > 2.4 * floats("layers")


@pytest.mark.parametrize("keep", ["all", "products", "layers"])
@pytest.mark.parametrize("planner", [plan_memory, pack_memory])
def test_buffers_that_live_together_share_no_place(keep, planner):
    in_place = {"add": 0, "rms_norm": 0, "silu": 0, "silu_grad": 1, "rope_grad": 0, "add_noise": 0, "mul": 0}
    program = differentiate(decoder(), sites("0.q", "0.down", "1.v", "2.up"), keep, output="logits")
    memory = planner(program, in_place)
    last_read = {view.buffer: index for index, op in enumerate(program.ops) for view in op.inputs}
    last_read |= {view.buffer: len(program.ops) for view in program.outputs.values()}
    held = {}  # the buffer in each slot
    for index, op in enumerate(program.ops):
        for view in op.inputs:
            assert held[memory.placement[view.buffer]] == view.buffer
        for position, view in enumerate(op.outputs):
            slot = memory.placement[view.buffer]
            before = held.get(slot)
            if before is not None and before != view.buffer:
                ends = last_read.get(before, -1)
                taken_over = position == 0 and op.kind in in_place and op.inputs[in_place[op.kind]].buffer == before
                assert ends < index or (ends == index and taken_over)
            held[slot] = view.buffer
            assert (memory.slots[slot].rows, memory.slots[slot].width >= view.buffer.width) == (view.rows, True)


def test_packing_takes_less_memory():
    every = sites(*(f"{layer}.{name}" for layer in range(8) for name in ("q", "k", "v", "o", "up", "down")))
    for keep, share in (("all", 1.0), ("products", 0.95), ("layers", 0.8)):
        program = differentiate(decoder(layers=8), every, keep, output="logits")
        planned, packed = (planner(program, {"add": 0}).offsets(COUNTS)[1] for planner in (plan_memory, pack_memory))
        assert packed <= share * planned


def test_outputs_that_nothing_reads_take_no_memory_for_long():
    program = differentiate(decoder(layers=1), sites("0.k"), "all", output="logits")  # the gradient of q is not read
    assert plan_memory(program, {}).slots


def test_a_mixture_of_experts_is_refused_only_where_a_gradient_passes_it():
    model = decoder(middle=mixture)
    assert differentiate(model, sites("1.q"), "all", output="logits").ops
    with pytest.raises(UnsupportedError, match="the op 'moe' has no reverse"):
        differentiate(model, sites("0.q"), "all", output="logits")


@pytest.mark.parametrize("sites", ["all-linear", ["layers.3.mlp.up_proj"], ["layers.0.linear_attn.in_proj_qkv"]])
def test_a_model_with_recurrent_layers_is_refused_wherever_its_sites_are(tmp_path, sites):
    model = qwen35_files.write(tmp_path / "model", qwen35_files.CASES["double"])
    with pytest.raises(UnsupportedError, match=r"the op 'short_conv' .*recurrent layers cannot be trained"):
        open_training_program(model, sites=sites, rank=4, scaling=1.0, loss="tokens")


def test_programs_without_a_loss_are_refused():
    with pytest.raises(UnsupportedError, match="head is the output matrix"):
        differentiate(decoder(), sites("head"), "all", output="logits")
    with pytest.raises(UnsupportedError, match="no site lies between"):
        forward_program(decoder(), {}, "logits")
    with pytest.raises(UnsupportedError, match="has no output 'vectors'; it has logits"):
        differentiate(decoder(), sites("0.q"), "all", output="vectors")
    g = GraphBuilder()
    x = g.linear(g.embed_rows(g.weight("x", (9, 8), use="rows"), ids="token_ids"), g.weight("w", (8, 8)))
    with pytest.raises(UnsupportedError, match="only logits of a linear without bias"):
        differentiate(g.build({"logits": g.gather_rows(x)}), sites("w"), "all", output="logits")
