"""The ops of recurrent layers: a short convolution and the gated delta rule.

Every row is final when it is made, so a sequence has the same bits token by token and in any chunks. The rule works in
blocks of :data:`DELTA_BLOCK` tokens that begin at multiples of it. The state at a block's beginning is multiplied, and the
block's rows are added to the results one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lattice_inference.errors import InvalidInputError
from lattice_inference.graph.op_definition import OpDefinition, Shape, integer, require
from lattice_inference.graph.program import Op, RecurrentSpec, Rows

__all__ = ["DELTA_BLOCK", "GROUPINGS", "MOST_TAPS", "RECURRENT_OPS", "check_recurrent_specs", "recurrent_spec"]

DELTA_BLOCK = 32
"""The tokens of a block of the gated delta rule; blocks begin at multiples of it."""

MOST_TAPS = 16
"""The longest kernel of a short convolution."""

GROUPINGS = ("blocks", "interleaved")
"""Which key head a value head uses: ``h // (value_heads / key_heads)`` or ``h % key_heads``."""


def _short_conv(op: Op) -> Shape:
    x, weight, taps = op.inputs[0], op.weights["weight"], integer(op, "taps")
    require(x.rows is Rows.TOKENS, op, "only rows of tokens have rows before them")
    require(2 <= taps <= MOST_TAPS, op, f"taps must be from 2 to {MOST_TAPS}, got {taps}")
    shapes = ((x.width, taps), (x.width, 1, taps))
    require(weight.shape in shapes, op, f"the weight must be of shape {shapes[0]} or {shapes[1]}, got {weight.shape}")
    require(integer(op, "layer") >= 0, op, "layer must not be negative")
    return x.rows, x.width


def _gated_delta_rule(op: Op) -> Shape:
    x, a, b = op.inputs
    names = ("layer", "key_heads", "value_heads", "key_dim", "value_dim")
    layer, key_heads, value_heads, key_dim, value_dim = (integer(op, name) for name in names)
    require(layer >= 0, op, "layer must not be negative")
    require(min(key_heads, value_heads, key_dim, value_dim) > 0, op, "heads and their widths must be positive")
    require(value_heads % key_heads == 0, op, f"{value_heads} value heads cannot share {key_heads} key heads evenly")
    width = 2 * key_heads * key_dim + value_heads * value_dim
    require(x.width == width, op, f"queries, keys and values have {x.width} columns, not {width}")
    require(a.width == b.width == value_heads, op, f"a and b must have a column for each of {value_heads} value heads")
    require(x.rows is a.rows is b.rows is Rows.TOKENS, op, "every input must have a row a token")
    for name in ("dt_bias", "decay"):
        require(op.weights[name].shape == (value_heads,), op, f"{name} must have {value_heads} entries")
    require(op.attributes["grouping"] in GROUPINGS, op, f"grouping must be one of {', '.join(GROUPINGS)}")
    return Rows.TOKENS, value_heads * value_dim


RECURRENT_OPS: Mapping[str, OpDefinition] = {
    "short_conv": OpDefinition(
        1,
        ("weight",),
        {"layer": int, "taps": int},
        _short_conv,
        "A convolution over the last rows of the sequence, for each column: y[t] is one chain over i from 0 to taps - 1, "
        "y = fma(x[t - taps + 1 + i], weight[i], y), starting at 0. Rows before the sequence are 0; those before the step "
        "come from the state, which keeps the rows that later steps need.",
    ),
    "gated_delta_rule": OpDefinition(
        3,
        ("dt_bias", "decay"),
        {
            "layer": int,
            "key_heads": int,
            "value_heads": int,
            "key_dim": int,
            "value_dim": int,
            "grouping": str,
        },
        _gated_delta_rule,
        "Inputs: queries, keys and values side by side, then a and b. Value head h uses key head h // (value_heads / "
        "key_heads) for 'blocks' and h % key_heads for 'interleaved'. "
        "n(x) = x * (1 / sqrt(fold16(x * x, by fma) + 1e-6)); k = n(key); q = n(query) * (1 / sqrt(key_dim)); "
        "alpha = exp(decay * softplus(a + dt_bias)); beta = 1 / (1 + exp(-b)); softplus(x) = max(x, 0) + "
        "log1p(exp(-|x|)). decay is -exp(A_log), worked out in float64. "
        f"Blocks of {DELTA_BLOCK} tokens begin at multiples of {DELTA_BLOCK} of the position; S is the state at the "
        "block's beginning, 0 at first. In a block, rows t from 1: d[t][t] = 1; d[t][j] = d[t - 1][j] * alpha[t]; "
        "D[t] = D[t - 1] * alpha[t], D[0] = 1; alpha, d and D below 2^-126 are 0. "
        "u = D[t] * (S^T k[t]); for j < t in order u = fma(d[t][j] * (k[j] . k[t]), r[j], u); r[t] = beta * (v[t] - u). "
        "y = D[t] * (S^T q[t]); for j <= t in order y = fma(d[t][j] * (k[j] . q[t]), r[j], y). "
        "After the last row C: S = D[C] * S; for j in order S = fma(d[C][j] * k[j], r[j], S). "
        "Products with S and of keys are one fma chain over key_dim from 0.",
    ),
}
"""The recurrent ops of :data:`~lattice_inference.graph.ops.OPS`."""


def recurrent_spec(op: Op) -> RecurrentSpec | None:
    """Return what a layer keeps for ``op``, or None for an op that keeps no recurrent state.

    The shape of ``"short_conv"`` is (columns, taps). That of ``"gated_delta_rule"`` is (value_heads, key_dim, value_dim).
    """
    if op.kind == "short_conv":
        return RecurrentSpec(integer(op, "layer"), op.kind, (op.inputs[0].width, integer(op, "taps")))
    if op.kind == "gated_delta_rule":
        sizes = tuple(integer(op, name) for name in ("value_heads", "key_dim", "value_dim"))
        return RecurrentSpec(integer(op, "layer"), op.kind, sizes)
    return None


def check_recurrent_specs(ops: Iterable[Op], specs: Iterable[RecurrentSpec]) -> None:
    """Raise InvalidInputError unless ``specs`` are what the recurrent ops keep."""
    needed = [spec for op in ops if op.kind in RECURRENT_OPS and (spec := recurrent_spec(op)) is not None]
    given = list(specs)
    if len(set(needed)) < len(needed):
        raise InvalidInputError("two recurrent ops of one kind have the same layer")
    for spec in (*needed, *given):
        if spec not in needed or spec not in given:
            raise InvalidInputError(
                f"recurrent_specs must hold what the ops keep: {spec} is {'missing' if spec in needed else 'kept by none'}"
            )
