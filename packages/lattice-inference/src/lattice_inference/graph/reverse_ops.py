"""The ops that only programs for training have.

They are the reverse of each op, and what feeds and ends such a program.
As in :mod:`~lattice_inference.graph.ops`, the meaning is what each backend must compute. ``fold16`` and ``fma`` are as
there. A chain is a sum that starts at 0 and takes its terms in the order that is stated, each by ``fma``. In these ops,
``d`` before a name is the gradient of the loss by it.

The factors A (rank, inputs) and B (outputs, rank) of a site, and the sums of their gradients dA and dB, are memory of the
backend, named by the attribute ``site``.
"""

from __future__ import annotations

from collections.abc import Mapping

from lattice_inference.errors import InvalidInputError
from lattice_inference.graph.op_definition import OpDefinition, Shape
from lattice_inference.graph.ops import OPS
from lattice_inference.graph.program import Op, Rows

__all__ = ["REVERSE_OPS", "TRAINING_OPS"]

_SITE = {"site": str, "number": int, "rank": int}
_HEADS = {"heads": int, "kv_heads": int, "head_dim": int, "scale": float, "mask": str, "window": int}

_DROPOUT = (
    "x~[t, k] = x[t, k] * f[t, k]. Without dropout in the batch, f is 1. With a rate p, f is 0 if w < floor(p * 2^32), "
    "else 1 / (1 - p) in float32. w is one of the eight words of 32 bits of a block of Philox4x64-10: word k % 8, the lower "
    "half of each 64 bits first. The block has the key (seed, 1) and the counter (t * ceil(n / 8) + k / 8 + 1, number, "
    "step, 0). n is the number of columns of x, and t counts the rows of x in the batch."
)


def _require(condition: bool, op: Op, problem: str) -> None:
    if not condition:
        raise InvalidInputError(f"{op.kind}: {problem}")


def _first(op: Op) -> Shape:
    return op.inputs[0].rows, op.inputs[0].width


def _pair(op: Op) -> Shape:
    x, dy = op.inputs
    _require((x.rows, x.width) == (dy.rows, dy.width), op, f"a gradient {dy.width} wide for {x.width} columns")
    return _first(op)


def _linear_input_grad(op: Op) -> Shape:
    weight, dy = op.weights["weight"], op.inputs[0]
    _require(
        len(weight.shape) == 2 and weight.shape[0] == dy.width,
        op,
        f"a weight {weight.shape} has not {dy.width} outputs",
    )
    return dy.rows, weight.shape[1]


def _site(op: Op) -> None:
    _require(int(op.attributes["rank"]) > 0, op, "rank must be positive")
    _require(int(op.attributes["number"]) >= 0, op, "number must not be negative")


def _low_rank_inner(op: Op) -> Shape:
    _site(op)
    return op.inputs[0].rows, int(op.attributes["rank"])


def _low_rank_outer(op: Op) -> Shape:
    y, u = op.inputs
    _site(op)
    _require(u.width == op.attributes["rank"] and u.rows is y.rows, op, "the second input must have a column a rank")
    return _first(op)


def _low_rank_grad(op: Op) -> Shape:
    dy, u, du, x = op.inputs
    _site(op)
    _require(u.width == du.width == op.attributes["rank"], op, "u and du must have a column a rank")
    _require(dy.rows is u.rows is du.rows is x.rows, op, "the inputs must have the same rows")
    return dy.rows, 0


def _attention_with_sums(op: Op) -> Shape:
    return OPS["attention"].shape(op)


def _sums(op: Op) -> tuple[Shape, ...]:
    return ((op.inputs[0].rows, 2 * int(op.attributes["heads"])),)


def _attention_grad(op: Op) -> Shape:
    query, key, value, y, sums, dy = op.inputs
    OPS["attention"].shape(Op(op.kind, (query, key, value), {}, (), op.attributes))
    _require(query.width == y.width == dy.width, op, "outputs and their gradient must be as wide as the queries")
    _require(sums.width == 2 * int(op.attributes["heads"]), op, "there must be two sums a head")
    return query.rows, query.width


def _key_and_value(op: Op) -> tuple[Shape, ...]:
    key, value = op.inputs[1:3]
    return (key.rows, key.width), (value.rows, value.width)


def _norm_grad(op: Op) -> Shape:
    width = op.inputs[0].width // int(op.attributes.get("heads", 1))
    _require(op.weights["weight"].shape == (width,), op, f"the weight must have {width} entries")
    return _pair(op)


def _rope_grad(op: Op) -> Shape:
    return OPS["rope"].shape(op)


def _pool_grad(op: Op) -> Shape:
    _require(op.inputs[0].rows is Rows.SEQUENCES, op, "only rows of sequences come from a pooling")
    _require(op.attributes["mode"] in {"cls", "mean", "last"}, op, "mode must be 'cls', 'mean' or 'last'")
    return Rows.TOKENS, op.inputs[0].width


def _scatter_rows(op: Op) -> Shape:
    _require(op.inputs[0].rows is Rows.LOGIT_ROWS, op, "only rows of logits come from a gathering")
    return Rows.TOKENS, op.inputs[0].width


def _linear_cross_entropy(op: Op) -> Shape:
    weight, x = op.weights["weight"], op.inputs[0]
    _require(x.rows is Rows.LOGIT_ROWS, op, "only rows of logits have targets")
    _require(
        len(weight.shape) == 2 and weight.shape[1] == x.width,
        op,
        f"a weight {weight.shape} cannot take {x.width} columns",
    )
    return Rows.LOGIT_ROWS, 4


def _gradient_of_rows(op: Op) -> tuple[Shape, ...]:
    return (_first(op),) if op.attributes["gradient"] else ()


REVERSE_OPS: Mapping[str, OpDefinition] = {
    "add_noise": OpDefinition(
        1,
        (),
        {},
        _first,
        "NEFTune. Without noise in the batch, y = x. Else y[t, k] = x[t, k] + (2 * (w >> 8) * 2^-24 - 1) * m, with "
        "m = alpha / sqrt(L * n), computed in float64 and rounded to float32, L the tokens of the sequence and n the "
        "columns; each product and each sum rounds. w is a word of Philox4x64-10, as for the dropout of "
        "low_rank_inner, with the key (seed, 2) and the counter (t * ceil(n / 8) + k / 8 + 1, 0, step, 0).",
    ),
    "low_rank_inner": OpDefinition(
        1,
        (),
        _SITE,
        _low_rank_inner,
        "u[t, j] = one chain over k of x~[t, k] * A[j, k]. " + _DROPOUT,
    ),
    "low_rank_outer": OpDefinition(
        2,
        (),
        {**_SITE, "scale": float},
        _low_rank_outer,
        "Inputs y and u; y is changed in place. v[j] = u[t, j] * scale, and y[t, n] continues from its value in one chain "
        "over j of v[j] * B[n, j]. After low_rank_inner without dropout, the result is that of low_rank.",
    ),
    "low_rank_inner_grad": OpDefinition(
        1,
        (),
        {**_SITE, "scale": float},
        _low_rank_inner,
        "Input dy. du[t, j] = c * scale, with c one chain over n of dy[t, n] * B[n, j].",
    ),
    "low_rank_grad": OpDefinition(
        4,
        (),
        {**_SITE, "scale": float},
        _low_rank_grad,
        "Inputs dy, u, du and x. dB[n, j] = fma(scale, c, dB[n, j]), with c one chain over rows t of dy[t, n] * u[t, j]. "
        "dA[j, k] = dA[j, k] + c, with c one chain over rows t of du[t, j] * x~[t, k], with x~ of low_rank_inner. "
        "No output.",
    ),
    "low_rank_input_grad": OpDefinition(
        2,
        (),
        _SITE,
        _low_rank_outer,
        "Inputs dx and du; dx is changed in place. dx[t, k] = fma(c, f[t, k], dx[t, k]), with c one chain over j of "
        "du[t, j] * A[j, k], and f of low_rank_inner.",
    ),
    "linear_input_grad": OpDefinition(
        1,
        ("weight",),
        {},
        _linear_input_grad,
        "Input dy, of a linear with this weight. dx[t, k] adds up stretches of 1024 n in order, each one chain over n of "
        "dy[t, n] * weight[n, k], with the weight's values widened to float32. Where linears multiply bfloat16, dy is "
        "rounded as their inputs are.",
    ),
    "attention_with_sums": OpDefinition(
        3,
        (),
        _HEADS,
        _attention_with_sums,
        "attention, with a second output: for row t and head h the M and l of its merged segments, M in column h and l in "
        "column heads + h. The first output has the bits of attention.",
        _sums,
    ),
    "attention_grad": OpDefinition(
        6,
        (),
        _HEADS,
        _attention_grad,
        "Inputs q, k, v, y, sums (of attention_with_sums) and dy; outputs dq, dk and dv. Row i and head h with key head g "
        "have, for each key j that the row sees: s[j] = scale * c as in attention; p[j] = exp(s[j] - M) * (1 / l); "
        "e[j] = one chain over d of dy[i, d] * v[j, d]. D = fold16(dy * y, by fma) over the head's dimensions. "
        "z[j] = p[j] * (e[j] - D). dq[i, d] = scale * c, with c one chain over j ascending of z[j] * k[j, d]. "
        "dk[j, d] = scale * c, with c one chain over the heads of g ascending, in each over the rows i ascending that see "
        "j, of z[j] * q[i, d]. dv[j, d] = the same chain of p[j] * dy[i, d].",
        _key_and_value,
    ),
    "gelu_grad": OpDefinition(
        2,
        (),
        {"form": str},
        _pair,
        "Inputs x and dy; dx = dy * g. 'erf': h = fma(0.5, erf(x * 0.70710678), 0.5); "
        "g = fma(x * exp((x * x) * -0.5), 0.39894228, h). 'tanh': u = x * 0.79788456; w = (x * x) * 0.044715; "
        "a = tanh(fma(u, w, u)); h = fma(0.5, a, 0.5); b = fma(w * 3, 0.79788456, 0.79788456); "
        "g = fma((x * 0.5) * fma(-a, a, 1), b, h).",
    ),
    "relu_grad": OpDefinition(2, (), {}, _pair, "Inputs x and dy; dx = x > 0 ? dy : 0."),
    "silu_grad": OpDefinition(
        2,
        (),
        {},
        _pair,
        "Inputs x and dy; s = 1 / (1 + exp(-x)); dx = dy * fma(x * s, 1 - s, s).",
    ),
    "tanh_grad": OpDefinition(2, (), {}, _pair, "Inputs y = tanh(x) and dy; dx = dy * fma(-y, y, 1)."),
    "layer_norm_grad": OpDefinition(
        2,
        ("weight",),
        {"epsilon": float},
        _norm_grad,
        "Inputs x and dy. mean, d and r as in layer_norm; e = d * r; g = dy * weight; a = fold16(g) / n; "
        "b = fold16(g * e, by fma) / n; dx = r * fma(-e, b, g - a).",
    ),
    "rms_norm_grad": OpDefinition(
        2,
        ("weight",),
        {"epsilon": float, "heads": int, "offset": float},
        _norm_grad,
        "Inputs x and dy. In each head r and w as in rms_norm; e = x * r; g = dy * w; b = fold16(g * e, by fma) / n; "
        "dx = r * fma(-e, b, g).",
    ),
    "rope_grad": OpDefinition(
        2,
        (),
        {"heads": int, "head_dim": int, "pairing": str},
        _rope_grad,
        "Inputs dy and angles: rope turned back. With a, b, c and s as in rope, a pair becomes "
        "(fma(a, c, b * s), fma(b, c, -(a * s))). Dimensions from 2 n on stay as they are.",
    ),
    "pool_grad": OpDefinition(
        1,
        (),
        {"mode": str},
        _pool_grad,
        "Input dy, a row a sequence; a row a token. 'mean': dx[t] = dy / n, n the rows of the sequence. 'cls' and 'last': "
        "dy in the first or last row of the sequence, 0 in the others.",
    ),
    "l2_normalize_grad": OpDefinition(
        2,
        (),
        {},
        _pair,
        "Inputs x and dy. s = max(sqrt(fold16(x * x, by fma)), 1e-12); y = x / s; b = fold16(y * dy, by fma), or 0 if s is "
        "1e-12; dx = fma(-y, b, dy) / s.",
    ),
    "scatter_rows": OpDefinition(
        1,
        (),
        {},
        _scatter_rows,
        "Input dy, a row for each of logit_rows. dx[t] = the sum of the rows r with logit_rows[r] = t in ascending order, "
        "starting at 0.",
    ),
    "linear_cross_entropy": OpDefinition(
        1,
        ("weight",),
        {"gradient": bool},
        _linear_cross_entropy,
        "Logits, loss and gradient of rows x; rows times the vocabulary never exist, as outputs are taken in "
        "stretches of 256. With the batch's target t[r] and target weight w[r]: z = linear(x, weight) of float rows; "
        "m = max(z) of the stretches so far; p[n] = exp(z[n] - m); l adds up p in float64. Where a stretch moves m, l"
        " and the sums s of those before it are multiplied by exp(old m - new m). Output sums, four columns: m, l "
        "rounded to float32, what l is above it rounded to float32, z[t]. The row's loss is w * (log(l) + m - z[t]), "
        "which the caller computes in float64. With gradient, a second output: s[k] adds up the stretches' chains "
        "over n of p[n] * weight[n, k]; dx[k] = w * (s[k] * (1 / l) - weight[t, k]), with 1 / l of the rounded l.",
        _gradient_of_rows,
    ),
}
"""The ops of the reverse pass."""

TRAINING_OPS: Mapping[str, OpDefinition] = {**OPS, **REVERSE_OPS}
"""Every op that a program for training may have."""
