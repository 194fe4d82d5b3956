"""Each op of the reverse pass in NumPy, against differences of the op that it belongs to, in float64."""

from __future__ import annotations

import numpy as np
import pytest

from lattice_inference import InvalidInputError
from lattice_inference.backends.philox_draws import dropout_factors, noise_of_rows
from lattice_inference.backends.reference_reverse import REVERSE_KERNELS
from lattice_inference.backends.reference_training import run_training
from lattice_inference.graph.ops import rows_text
from lattice_inference.graph.program import Op, Program, Rows, WeightRef
from lattice_inference.graph.program_writer import ProgramWriter
from lattice_inference.graph.reverse_ops import REVERSE_OPS
from lattice_inference.graph.training_batch import Dropout, Noise, TrainingBatch

BOUNDS = np.array([0, 4, 5, 11], np.int32)
LOGIT_ROWS = np.array([1, 4, 4, 9], np.int32)
COUNTS = {Rows.TOKENS: 11, Rows.SEQUENCES: 3, Rows.LOGIT_ROWS: 4}
STEP = 2.0**-9
LIMIT = 1e-5
WEIGHTS = {
    "matrix": np.random.default_rng(1).normal(0, 0.4, (7, 12)),
    "scale": np.random.default_rng(2).normal(1, 0.2, 12),
    "shift": np.random.default_rng(3).normal(0, 0.2, 12),
    "part": np.random.default_rng(4).normal(1, 0.2, 4),
    "vocabulary": np.random.default_rng(5).normal(0, 0.5, (20, 12)),
    "frequencies": np.array([1.0, 0.3]),
}
MATRIX = WeightRef(("matrix",), (7, 12), "linear")
SCALE, SHIFT = WeightRef(("scale",), (12,), "vector"), WeightRef(("shift",), (12,), "vector")
PART = WeightRef(("part",), (4,), "vector")
HEADS = {"heads": 3, "kv_heads": 1, "head_dim": 4, "scale": 0.5}
ROPE = {"heads": 2, "head_dim": 6}


def from_input(kind, attributes=None, weights=None):
    """Return how an op is written, and its reverse given the input and the gradient."""
    weights, attributes = weights or {}, attributes or {}

    def forward(w, inputs):
        return w.append(kind, inputs, weights, attributes)

    def reverse(w, inputs, outputs, dy):
        kept = {"weight": weights["weight"]} if "weight" in weights else {}
        return w.append(f"{kind}_grad", (inputs[0], dy), kept, attributes)

    return [12], Rows.TOKENS, forward, reverse


def attention(mask, window, heads=3, kv_heads=1):
    attributes = {**HEADS, "heads": heads, "kv_heads": kv_heads, "mask": mask, "window": window}
    return (
        [4 * heads, 4 * kv_heads, 4 * kv_heads],
        Rows.TOKENS,
        lambda w, inputs: w.append("attention_with_sums", inputs, {}, attributes),
        lambda w, inputs, outputs, dy: w.append("attention_grad", (*inputs, *outputs, dy), {}, attributes),
    )


def rope(pairing):
    attributes = {**ROPE, "pairing": pairing}

    def angles(w):
        frequencies = WeightRef(("frequencies",), (2,), "vector")
        return w.append("rope_angles", (), {"frequencies": frequencies}, {"scale": 1.25})

    return (
        [12],
        Rows.TOKENS,
        lambda w, inputs: w.append("rope", (*inputs, *angles(w)), {}, attributes),
        lambda w, inputs, outputs, dy: w.append("rope_grad", (dy, *angles(w)), {}, attributes),
    )


def pool(mode):
    return (
        [12],
        Rows.TOKENS,
        lambda w, inputs: w.append("pool", inputs, {}, {"mode": mode}),
        lambda w, inputs, outputs, dy: w.append("pool_grad", (dy,), {}, {"mode": mode}),
    )


CASES = {
    "linear": (
        [12],
        Rows.TOKENS,
        lambda w, inputs: w.append("linear", inputs, {"weight": MATRIX}, {}),
        lambda w, inputs, outputs, dy: w.append("linear_input_grad", (dy,), {"weight": MATRIX}, {}),
    ),
    "mul": (
        [12, 12],
        Rows.TOKENS,
        lambda w, inputs: w.append("mul", inputs, {}, {}),
        lambda w, inputs, outputs, dy: [w.append("mul", (dy, other), {}, {})[0] for other in inputs[::-1]],
    ),
    "tanh": (
        [12],
        Rows.TOKENS,
        lambda w, inputs: w.append("tanh", inputs, {}, {}),
        lambda w, inputs, outputs, dy: w.append("tanh_grad", (outputs[0], dy), {}, {}),
    ),
    "gather_rows": (
        [12],
        Rows.TOKENS,
        lambda w, inputs: w.append("gather_rows", inputs, {}, {}),
        lambda w, inputs, outputs, dy: w.append("scatter_rows", (dy,), {}, {}),
    ),
    "gelu-erf": from_input("gelu", {"form": "erf"}),
    "gelu-tanh": from_input("gelu", {"form": "tanh"}),
    "relu": from_input("relu"),
    "silu": from_input("silu"),
    "layer_norm": from_input("layer_norm", {"epsilon": 1e-3}, {"weight": SCALE, "bias": SHIFT}),
    "rms_norm": from_input("rms_norm", {"epsilon": 1e-3, "heads": 1, "offset": 0.0}, {"weight": SCALE}),
    "rms_norm-heads": from_input("rms_norm", {"epsilon": 1e-3, "heads": 3, "offset": 1.0}, {"weight": PART}),
    "l2_normalize": from_input("l2_normalize"),
    "rope-half": rope("half"),
    "rope-interleaved": rope("interleaved"),
    "pool-mean": pool("mean"),
    "pool-cls": pool("cls"),
    "pool-last": pool("last"),
    "attention": attention("bidirectional", 0),
    "attention-causal": attention("causal", 0),
    "attention-window": attention("causal", 3),
    "attention-own-keys": attention("causal", 0, heads=2, kv_heads=2),
}


def rows_of(shape, seed, spread=1.0):
    """Draw rows that float32 holds, as it does their differences."""
    return np.round(np.random.default_rng(seed).normal(0, spread, shape) * 512 + 0.5) / 512


def slopes(value, x):
    """Return the slope of ``value`` at numbers of ``x``, which it reads; NaN for those that are left out."""
    found = np.full(x.shape, np.nan)
    for place in list(np.ndindex(x.shape))[:: max(1, x.size // 16)]:
        at = x[place]
        terms = []
        for steps, factor in ((1, 8.0), (-1, -8.0), (2, -1.0), (-2, 1.0)):
            x[place] = at + steps * STEP
            terms.append(factor * value())
        x[place] = at
        found[place] = sum(terms) / (12 * STEP)
    return found


def batch_of(inputs, **given):
    return TrainingBatch(np.zeros(11, np.int32), BOUNDS, logit_rows=LOGIT_ROWS, inputs=inputs, **given)


@pytest.mark.parametrize("name", CASES)
def test_the_reverse_of_an_op_is_its_slope(name):
    widths, rows, forward, reverse = CASES[name]
    writer = ProgramWriter()

    def given(label, kind, width):
        return writer.append("input_rows", (), {}, {"name": label, "rows": rows_text(kind), "width": width})[0]

    inputs = tuple(given(f"x{index}", rows, width) for index, width in enumerate(widths))
    outputs = forward(writer, inputs)
    dy = given("dy", outputs[0].rows, outputs[0].width)
    gradients = reverse(writer, inputs, outputs, dy)
    program = Program(tuple(writer.ops), {"y": outputs[0], **{f"d{i}": view for i, view in enumerate(gradients)}})
    arrays = {f"x{index}": rows_of((COUNTS[rows], width), index) for index, width in enumerate(widths)}
    cotangent = rows_of((COUNTS[outputs[0].rows], outputs[0].width), 9)

    def run():
        return run_training(program, WEIGHTS, batch_of({**arrays, "dy": cotangent}), {})[0]

    found = run()
    for index, _ in enumerate(widths):
        expected = slopes(lambda: float((run()["y"] * cotangent).sum()), arrays[f"x{index}"])
        assert np.nanmax(np.abs(found[f"d{index}"] - expected)) <= LIMIT


def test_cross_entropy_gives_the_loss_and_its_slope():
    writer = ProgramWriter()
    (x,) = writer.append("input_rows", (), {}, {"name": "x", "rows": "logit_rows", "width": 12})
    vocabulary = WeightRef(("vocabulary",), (20, 12), "linear")
    sums, dx = writer.append("linear_cross_entropy", (x,), {"weight": vocabulary}, {"gradient": True})
    program = Program(tuple(writer.ops), {"sums": sums, "dx": dx})
    rows, targets = rows_of((4, 12), 0), np.array([3, 0, 19, 3])
    weights = np.array([1, 0.5, 2, 0.25])

    def run():
        batch = batch_of({"x": rows}, targets=targets, target_weights=weights)
        found = run_training(program, WEIGHTS, batch, {})[0]
        most, high, low, logit = found["sums"].T
        return weights @ (np.log(high + low) + most - logit), found["dx"]

    logits = rows @ WEIGHTS["vocabulary"].T
    expected = weights @ (np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(4), targets])
    loss, gradient = run()
    assert loss == pytest.approx(expected, rel=1e-12)
    assert np.nanmax(np.abs(gradient - slopes(lambda: run()[0], rows))) <= LIMIT


def test_every_reverse_op_has_a_reference():
    by_site = {name for name, definition in REVERSE_OPS.items() if "site" in definition.attributes}
    assert by_site == {
        "low_rank_inner",
        "low_rank_outer",
        "low_rank_inner_grad",
        "low_rank_input_grad",
        "low_rank_grad",
    }
    assert set(REVERSE_KERNELS) == set(REVERSE_OPS) - by_site


def test_a_vector_of_length_zero_has_a_gradient():
    op = Op("l2_normalize_grad", (), {}, ())
    (gradient,) = REVERSE_KERNELS["l2_normalize_grad"](op, [np.zeros((1, 3)), np.ones((1, 3))], {}, batch_of({}))
    assert np.array_equal(gradient, np.full((1, 3), 1e12))


def test_dropout_is_a_function_of_the_place():
    # words of Philox4x64-10 with the key (5, 1) and the counter (row * 2 + k / 8 + 1, 3, 9, 0), by NumPy's own generator
    dropout = Dropout(0.4, 5, 9)
    factors = dropout_factors(dropout, 3, 4, 11)
    for row in range(4):
        for column in range(11):
            counter = np.array([row * 2 + column // 8, 3, 9, 0], np.uint64)
            raw = np.random.Philox(key=np.array([5, 1], np.uint64), counter=counter).random_raw(4)
            word = int(raw[column % 8 // 2]) >> (32 * (column % 2)) & 0xFFFFFFFF
            assert factors[row, column] == (0 if word < int(0.4 * 2**32) else np.float32(1 / 0.6))
    many = dropout_factors(dropout, 0, 300, 100)
    assert abs(float((many == 0).mean()) - 0.4) < 0.02
    assert abs(float(many.mean()) - 1) < 0.03


def test_noise_fills_its_range():
    noise = noise_of_rows(Noise(5.0, 1, 2), np.array([0, 100, 400], np.int32), 64)
    for rows, tokens in ((noise[:100], 100), (noise[100:], 300)):
        limit = 5 / np.sqrt(tokens * 64)
        assert 0.99 * limit < rows.max() <= limit
        assert -limit <= rows.min() < -0.99 * limit
        assert abs(float(rows.mean())) < limit / 30


@pytest.mark.parametrize(
    ("kind", "inputs", "attributes", "message"),
    [
        (
            "input_rows",
            [],
            {"name": "x", "rows": "pages", "width": 4},
            "rows must be one of tokens, sequences, logit_rows",
        ),
        ("input_rows", [], {"name": "x", "rows": "tokens", "width": 0}, "width must be positive"),
        ("silu_grad", [12, 4], {}, "a gradient 4 wide for 12 columns"),
        ("pool_grad", [12], {"mode": "mean"}, "only rows of sequences come from a pooling"),
        ("scatter_rows", [12], {}, "only rows of logits come from a gathering"),
        ("low_rank_outer", [12, 4], {"site": "s", "number": 0, "rank": 3, "scale": 1.0}, "must have a column a rank"),
        ("low_rank_inner", [12], {"site": "s", "number": 0, "rank": 0}, "rank must be positive"),
        ("no_such_op", [12], {}, "there is no op named 'no_such_op'"),
    ],
)
def test_ops_that_do_not_fit_are_refused(kind, inputs, attributes, message):
    writer = ProgramWriter()
    views = tuple(
        writer.append("input_rows", (), {}, {"name": "x", "rows": "tokens", "width": width})[0] for width in inputs
    )
    with pytest.raises(InvalidInputError, match=message):
        writer.append(kind, views, {}, attributes)
