"""Every op of the reverse pass on every level of this CPU, against the float64 reference."""

from __future__ import annotations

import numpy as np
import pytest

from lattice_inference.graph.training_batch import Dropout, Noise

from .programs import EMULATED
from .reverse_programs import ReverseCase, check

EPSILON = float(np.finfo(np.float32).eps)
WIDTHS = (1, 3, 16, 17, 48, 100)


def _drawn(rng, *shape, scale=1.0):
    return (rng.standard_normal(shape) * scale).astype(np.float32)


@pytest.mark.parametrize(("n", "k", "rows"), [(17, 33, 5), (64, 48, 70), (16, 16, 1), (1, 1, 3), (130, 300, 90)])
def test_the_gradient_of_a_linears_input(n, k, rows):
    rng = np.random.default_rng(n)
    case = ReverseCase([rows])
    dy, weight = _drawn(rng, rows, n), _drawn(rng, n, k)
    view = case.rows("dy", dy)
    (case.outputs["y"],) = case.writer.append("linear_input_grad", (view,), {"weight": case.weight("w", weight)}, {})
    check(case, case.batch(), {"y": EPSILON * (n + 1) * (np.abs(dy) @ np.abs(weight))})


@pytest.mark.slow
def test_the_gradient_of_a_linears_input_over_several_stretches_of_outputs():
    rng = np.random.default_rng(0)
    case = ReverseCase([9])
    dy, weight = _drawn(rng, 9, 2100), _drawn(rng, 2100, 40)
    view = case.rows("dy", dy)
    (case.outputs["y"],) = case.writer.append("linear_input_grad", (view,), {"weight": case.weight("w", weight)}, {})
    check(case, case.batch(), {"y": EPSILON * 100 * np.sqrt(dy**2 @ weight**2)})


ACTIVATIONS = {"gelu_erf": {"form": "erf"}, "gelu_tanh": {"form": "tanh"}, "relu": {}, "silu": {}, "tanh": {}}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name):
    rng = np.random.default_rng(3)
    for width in WIDTHS:
        case = ReverseCase([37])
        x, dy = _drawn(rng, 37, width, scale=4), _drawn(rng, 37, width)
        x[:4, 0] = 60.0, -60.0, 0.0, 1e-20
        x = np.tanh(x) if name == "tanh" else x
        kind = f"{name.partition('_')[0]}_grad"
        (case.outputs["y"],) = case.writer.append(kind, (case.rows("x", x), case.rows("dy", dy)), {}, ACTIVATIONS[name])
        check(case, case.batch(), {"y": 8 * EPSILON * np.abs(dy) * np.maximum(1, np.abs(x))})


@pytest.mark.parametrize("width", [2, *WIDTHS[1:]])
def test_layer_norm(width):
    rng = np.random.default_rng(width)
    case = ReverseCase([9])
    x, dy, weight = _drawn(rng, 9, width, scale=3) + 5, _drawn(rng, 9, width), _drawn(rng, width)
    inputs = (case.rows("x", x), case.rows("dy", dy))
    attributes = {"epsilon": 1e-5}
    (case.outputs["y"],) = case.writer.append(
        "layer_norm_grad", inputs, {"weight": case.weight("w", weight)}, attributes
    )
    spread = np.sqrt(x.var(axis=1, keepdims=True) + 1e-5)
    largest = np.abs(dy * weight).max(axis=1, keepdims=True)
    normal = np.abs(x - x.mean(axis=1, keepdims=True)).max(axis=1, keepdims=True) / spread
    tolerance = 16 * EPSILON * (np.abs(x).max(axis=1, keepdims=True) / spread + 3) * largest * (2 + normal**2) / spread
    check(case, case.batch(), {"y": tolerance})


@pytest.mark.parametrize(
    ("width", "heads", "offset"), [(3, 1, 0.0), (17, 1, 1.0), (96, 4, 0.0), (100, 5, 1.0), (48, 1, 0.0)]
)
def test_rms_norm(width, heads, offset):
    rng = np.random.default_rng(width)
    case = ReverseCase([9])
    x, dy, weight = _drawn(rng, 9, width, scale=3), _drawn(rng, 9, width), _drawn(rng, width // heads)
    inputs = (case.rows("x", x), case.rows("dy", dy))
    attributes = {"epsilon": 1e-6, "heads": heads, "offset": offset}
    (case.outputs["y"],) = case.writer.append("rms_norm_grad", inputs, {"weight": case.weight("w", weight)}, attributes)
    split = x.reshape(9, heads, -1)
    size = np.sqrt((split**2).mean(axis=2, keepdims=True) + 1e-6)
    largest = np.abs(dy.reshape(split.shape) * (weight + offset)).max(axis=2, keepdims=True)
    tolerance = 16 * EPSILON * largest * (2 + (np.abs(split).max(axis=2, keepdims=True) / size) ** 2) / size
    check(case, case.batch(), {"y": np.broadcast_to(tolerance, split.shape).reshape(9, width)})


@pytest.mark.parametrize("width", WIDTHS)
def test_l2_normalize(width):
    rng = np.random.default_rng(width)
    case = ReverseCase([6])
    x, dy = _drawn(rng, 6, width), _drawn(rng, 6, width)
    x[3] = 0.0  # the length is never below 1e-12
    (case.outputs["y"],) = case.writer.append("l2_normalize_grad", (case.rows("x", x), case.rows("dy", dy)), {}, {})
    length = np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    tolerance = 8 * EPSILON * np.linalg.norm(dy, axis=1, keepdims=True) / length
    check(case, case.batch(), {"y": tolerance})


@pytest.mark.parametrize("mode", ["cls", "mean", "last"])
def test_pool(mode):
    rng = np.random.default_rng(1)
    for width in WIDTHS:
        case = ReverseCase([1, 2, 7, 30])
        dy = _drawn(rng, 4, width)
        attributes = {"name": "gradient", "rows": "sequences", "width": width}
        (view,) = case.writer.append("input_rows", (), {}, attributes)
        (case.outputs["y"],) = case.writer.append("pool_grad", (view,), {}, {"mode": mode})
        check(case, case.batch(inputs={"gradient": dy}), {"y": EPSILON * np.abs(dy).max()})


@pytest.mark.parametrize(
    ("heads", "head_dim", "pairs", "pairing"), [(2, 8, 4, "half"), (3, 34, 17, "half"), (2, 40, 9, "interleaved")]
)
def test_rope_turned_back(heads, head_dim, pairs, pairing):
    rng = np.random.default_rng(head_dim)
    case = ReverseCase([11, 5])
    dy, angles = _drawn(rng, 16, heads * head_dim), _drawn(rng, 16, 2 * pairs)
    attributes = {"heads": heads, "head_dim": head_dim, "pairing": pairing}
    (case.outputs["y"],) = case.writer.append(
        "rope_grad", (case.rows("dy", dy), case.rows("a", angles)), {}, attributes
    )
    check(case, case.batch(), {"y": 4 * EPSILON * np.abs(dy).max() * np.abs(angles).max()})


def test_rows_that_are_scattered_add_up_where_they_were_gathered_twice():
    rng = np.random.default_rng(2)
    for width in (1, 17, 48):
        case = ReverseCase([20, 20])
        dy = _drawn(rng, 5, width)
        attributes = {"name": "d", "rows": "logit_rows", "width": width}
        (view,) = case.writer.append("input_rows", (), {}, attributes)
        (case.outputs["y"],) = case.writer.append("scatter_rows", (view,), {}, {})
        rows = np.array([3, 39, 3, 0, 21], np.int32)
        check(case, case.batch(inputs={"d": dy}, logit_rows=rows), {"y": 2 * EPSILON * np.abs(dy).max()})


def test_noise_is_that_of_numpys_philox():
    rng = np.random.default_rng(4)
    for width in (1, 7, 8, 33):
        case = ReverseCase([3, 40])
        x = _drawn(rng, 43, width)
        (case.outputs["y"],) = case.writer.append("add_noise", (case.rows("x", x),), {}, {})
        check(case, case.batch(noise=Noise(5.0, 2**63 + 5, 7)), {"y": 2 * EPSILON * (np.abs(x) + 5)})
        check(case, case.batch(), {"y": 0.0})


FACTORS = [(1, 5, 3), (8, 40, 70), (16, 33, 130), (20, 600, 17)]  # rank, inputs, outputs


@pytest.mark.parametrize("dropout", [None, Dropout(0.25, 11, 3)])
@pytest.mark.parametrize("site", FACTORS)
def test_factors_forward_and_their_gradients(site, dropout):
    rng = np.random.default_rng(site[0])
    rank, inputs, outputs = site
    case = ReverseCase([60, 7, 33], site=site)
    x, y, dx, dy = (_drawn(rng, 100, width) for width in (inputs, outputs, inputs, outputs))
    views = {name: case.rows(name, array) for name, array in {"x": x, "y": y, "dx": dx, "dy": dy}.items()}
    names = {"site": "s", "number": 3, "rank": rank}
    scaled = names | {"scale": 1.5}
    (u,) = case.writer.append("low_rank_inner", (views["x"],), {}, names)
    case.writer.in_place("low_rank_outer", (views["y"], u), scaled)
    (du,) = case.writer.append("low_rank_inner_grad", (views["dy"],), {}, scaled)
    case.writer.state_only("low_rank_grad", (views["dy"], u, du, views["x"]), scaled)
    case.writer.in_place("low_rank_input_grad", (views["dx"], du), names)
    case.outputs |= {"u": u, "y": views["y"], "du": du, "dx": views["dx"]}
    given = case.factors()
    a, b, x, dy = np.abs(given.a), np.abs(given.b), np.abs(x) / 0.75, np.abs(dy)
    sums, gradients = x @ a.T, 1.5 * dy @ b
    tolerances = {
        "u": EPSILON * (inputs + 2) * sums,
        "y": EPSILON * (inputs + rank + 4) * (1.5 * sums @ b.T + np.abs(y)),
        "du": EPSILON * (outputs + 2) * gradients,
        "dx": EPSILON * (outputs + rank + 4) * (gradients @ a / 0.75 + np.abs(dx)),
        "da": EPSILON * (outputs + 104) * (gradients.T @ x + np.abs(given.da)),
        "db": EPSILON * (inputs + 104) * (1.5 * dy.T @ sums + np.abs(given.db)),
    }
    check(case, case.batch(dropout=dropout), tolerances)


ATTENTIONS = [  # heads, key heads, dimensions, mask, window
    (2, 2, 8, "bidirectional", 0),
    (3, 1, 20, "bidirectional", 0),
    (4, 2, 32, "causal", 0),
    (2, 1, 16, "causal", 5),
    (6, 2, 48, "causal", 100),
]


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "mask", "window"), ATTENTIONS)
def test_attention(heads, kv_heads, head_dim, mask, window):
    rng = np.random.default_rng(head_dim)
    lengths = [1, 15, 17, 70, 190] if not EMULATED else [1, 15, 70]
    case = ReverseCase(lengths)
    rows = sum(lengths)
    widths = {"q": heads, "k": kv_heads, "v": kv_heads, "dy": heads}
    q, k, v, dy = (case.rows(name, _drawn(rng, rows, width * head_dim)) for name, width in widths.items())
    attributes = {
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "scale": head_dim**-0.5,
        "mask": mask,
        "window": window,
    }
    y, sums = case.writer.append("attention_with_sums", (q, k, v), {}, attributes)
    dq, dk, dv = case.writer.append("attention_grad", (q, k, v, y, sums, dy), {}, attributes)
    case.outputs |= {"y": y, "sums": sums, "dq": dq, "dk": dk, "dv": dv}
    expected = case.expected(case.batch())
    largest = {name: np.abs(array).max() for name, array in expected.items()}
    check(
        case, case.batch(), {name: 100 * EPSILON * max(1.0, largest[name]) for name in ("y", "sums", "dq", "dk", "dv")}
    )


def test_attention_over_several_segments_of_keys():
    rng = np.random.default_rng(9)
    case = ReverseCase([600])
    q, k, v, dy = (case.rows(name, _drawn(rng, 600, 16)) for name in ("q", "k", "v", "dy"))
    for mask in ("bidirectional", "causal"):
        attributes = {"heads": 1, "kv_heads": 1, "head_dim": 16, "scale": 0.5, "mask": mask, "window": 0}
        y, sums = case.writer.append("attention_with_sums", (q, k, v), {}, attributes)
        gradients = case.writer.append("attention_grad", (q, k, v, y, sums, dy), {}, attributes)
        case.outputs |= zip((f"{mask}.dq", f"{mask}.dk", f"{mask}.dv"), gradients, strict=True)
    check(case, case.batch(), dict.fromkeys(case.outputs, 3e-5))


@pytest.mark.parametrize(("width", "outputs", "rows"), [(5, 3, 2), (33, 300, 9), (64, 1000, 150), (16, 256, 70)])
@pytest.mark.parametrize("gradient", [False, True])
def test_the_loss_of_a_linears_outputs(width, outputs, rows, gradient):
    rng = np.random.default_rng(width)
    case = ReverseCase([rows, rows])
    weight, x = _drawn(rng, outputs, width), _drawn(rng, 2 * rows, width)
    weight[outputs // 2 :] *= 3  # the maximum moves between stretches of outputs
    (gathered,) = case.writer.append("gather_rows", (case.rows("x", x),), {}, {})
    (sums, *dx) = case.writer.append(
        "linear_cross_entropy", (gathered,), {"weight": case.weight("w", weight)}, {"gradient": gradient}
    )
    case.outputs |= {"sums": sums} | ({"dx": dx[0]} if gradient else {})
    batch = case.batch(
        logit_rows=rng.permutation(2 * rows)[:rows].astype(np.int32),
        targets=rng.integers(0, outputs, rows).astype(np.int32),
        target_weights=rng.random(rows).astype(np.float32),
    )
    logits = np.abs(x[batch.logit_rows]) @ np.abs(weight).T
    bound = EPSILON * (width + 8) * logits.max(axis=1, keepdims=True)
    total = np.maximum(1, case.expected(batch)["sums"][:, 1:2])
    exact = np.full_like(bound, np.inf)  # what l is above its float32: l is checked by the loss
    tolerances = {"sums": np.concatenate([bound, bound * total, exact, bound], axis=1)}
    if gradient:
        tolerances["dx"] = (4 * bound + EPSILON * 64) * np.abs(weight).max()
    check(case, batch, tolerances)
