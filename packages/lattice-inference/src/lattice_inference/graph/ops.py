"""The primitive ops: inputs, weights, attributes, shapes, and the exact meaning of each.

The meaning is what each backend must compute, down to the order of additions. ``fold16`` is a sum over sixteen virtual
lanes. Element ``i`` is accumulated into lane ``i % 16`` in ascending order. Then the lanes are added as ``i + (i + 8)``,
``i + (i + 4)``, ``i + (i + 2)``, ``i + (i + 1)``. ``fma`` rounds once. Every value is float32.
"""

from __future__ import annotations

from collections.abc import Mapping

from lattice_inference.errors import InvalidInputError
from lattice_inference.graph.op_definition import OpDefinition, Shape, integer, require
from lattice_inference.graph.program import AttributeValue, Op, Rows
from lattice_inference.graph.recurrent_ops import RECURRENT_OPS

__all__ = ["KEY_SEGMENT", "OPS", "SHARED_EXPERT", "OpDefinition", "rows_text", "validate"]

KEY_SEGMENT = 512
"""Attention processes keys in segments of this length, from position 0."""

SHARED_EXPERT = ("shared_router", "shared_gate", "shared_up", "shared_down")
"""The weights of the shared expert, which every row goes through; an op has all of them or none."""


def _same(op: Op) -> Shape:
    return op.inputs[0].rows, op.inputs[0].width


def _embed_rows(op: Op) -> Shape:
    require(len(op.weights["table"].shape) == 2, op, "the table must have two dimensions")
    require(op.attributes["ids"] in {"token_ids", "token_type_ids", "positions"}, op, "ids names no input of a batch")
    return Rows.TOKENS, op.weights["table"].shape[1]


def _linear(op: Op) -> Shape:
    weight, x = op.weights["weight"], op.inputs[0]
    require(
        len(weight.shape) == 2 and weight.shape[1] == x.width,
        op,
        f"a weight {weight.shape} cannot take {x.width} columns",
    )
    bias = op.weights.get("bias")
    require(bias is None or bias.shape == (weight.shape[0],), op, "the bias must have one entry an output")
    return x.rows, weight.shape[0]


def _alike(op: Op) -> Shape:
    a, b = op.inputs
    require(
        (a.rows, a.width) == (b.rows, b.width),
        op,
        f"cannot {op.kind} {b.rows} x {b.width} to {a.rows} x {a.width}",
    )
    return a.rows, a.width


def _layer_norm(op: Op) -> Shape:
    width = op.inputs[0].width
    require(all(ref.shape == (width,) for ref in op.weights.values()), op, f"weights must have {width} entries")
    return _same(op)


def _rms_norm(op: Op) -> Shape:
    width, heads = op.inputs[0].width, integer(op, "heads")
    require(heads > 0 and width % heads == 0, op, f"{width} columns cannot be cut into {heads} heads evenly")
    require(op.weights["weight"].shape == (width // heads,), op, f"the weight must have {width // heads} entries")
    require(op.attributes["offset"] in {0.0, 1.0}, op, "offset must be 0 or 1")
    return _same(op)


def _rope_angles(op: Op) -> Shape:
    require(len(op.weights["frequencies"].shape) == 1, op, "frequencies must be a vector")
    return Rows.TOKENS, 2 * op.weights["frequencies"].shape[0]


def _rope(op: Op) -> Shape:
    x, angles = op.inputs
    heads, head_dim = integer(op, "heads"), integer(op, "head_dim")
    require(heads > 0 and head_dim > 0, op, "heads and head_dim must be positive")
    require(x.width == heads * head_dim, op, f"the input has {x.width} columns, not {heads} x {head_dim}")
    require(angles.width <= head_dim, op, f"angles for {angles.width} dimensions, and a head has {head_dim}")
    require(x.rows is angles.rows is Rows.TOKENS, op, "only rows of tokens have positions")
    require(op.attributes["pairing"] in {"half", "interleaved"}, op, "pairing must be 'half' or 'interleaved'")
    return _same(op)


def _kv_write(op: Op) -> Shape:
    key, value = op.inputs
    kv_heads, head_dim = integer(op, "kv_heads"), integer(op, "head_dim")
    require(kv_heads > 0 and head_dim > 0, op, "kv_heads and head_dim must be positive")
    require(integer(op, "layer") >= 0, op, "layer must not be negative")
    require(
        key.width == value.width == kv_heads * head_dim and key.rows is value.rows is Rows.TOKENS,
        op,
        f"keys and values must have {kv_heads} x {head_dim} columns and a row a token",
    )
    return Rows.TOKENS, 0


def _paged_attention(op: Op) -> Shape:
    require(integer(op, "window") >= 0, op, "window must not be negative; 0 is the whole context")
    require(integer(op, "layer") >= 0, op, "layer must not be negative")
    query = op.inputs[0]
    require(query.rows is Rows.TOKENS, op, "queries must have a row a token")
    _check_heads(op, query.width)
    return query.rows, query.width


def rows_text(rows: Rows) -> str:
    """Return the value of the attribute ``rows`` of ``input_rows`` for a symbol."""
    return rows.name.lower()


def _input_rows(op: Op) -> Shape:
    width = integer(op, "width")
    require(width > 0, op, "width must be positive")
    known = {rows_text(rows): rows for rows in (Rows.TOKENS, Rows.SEQUENCES, Rows.LOGIT_ROWS)}
    require(op.attributes["rows"] in known, op, f"rows must be one of {', '.join(known)}")
    return known[str(op.attributes["rows"])], width


def _gather_rows(op: Op) -> Shape:
    require(op.inputs[0].rows is Rows.TOKENS, op, "only rows of tokens can be gathered")
    return Rows.LOGIT_ROWS, op.inputs[0].width


def _check_heads(op: Op, query_width: int) -> tuple[int, int]:
    heads, kv_heads, head_dim = (integer(op, name) for name in ("heads", "kv_heads", "head_dim"))
    require(heads > 0 and kv_heads > 0 and head_dim > 0, op, "heads, kv_heads and head_dim must be positive")
    require(heads % kv_heads == 0, op, f"{heads} query heads cannot share {kv_heads} key heads evenly")
    require(query_width == heads * head_dim, op, f"queries have {query_width} columns, not {heads} x {head_dim}")
    return kv_heads, head_dim


def _attention(op: Op) -> Shape:
    query, key, value = op.inputs
    kv_heads, head_dim = _check_heads(op, query.width)
    require(
        key.width == value.width == kv_heads * head_dim,
        op,
        f"keys and values must have {kv_heads} x {head_dim} columns",
    )
    mask, window = op.attributes["mask"], integer(op, "window")
    require(mask in {"bidirectional", "causal"}, op, "mask must be 'bidirectional' or 'causal'")
    require(window >= 0, op, "window must not be negative; 0 is the whole sequence")
    require(mask == "causal" or window == 0, op, "a window is built for the mask 'causal'")
    return query.rows, query.width


def _pool(op: Op) -> Shape:
    require(op.inputs[0].rows is Rows.TOKENS, op, "only rows of tokens can be pooled")
    require(op.attributes["mode"] in {"cls", "mean", "last"}, op, "mode must be 'cls', 'mean' or 'last'")
    return Rows.SEQUENCES, op.inputs[0].width


def _low_rank(op: Op) -> Shape:
    y, x = op.inputs
    require(y.rows is x.rows, op, f"there is a row a {y.rows.value} to change and a row a {x.rows.value} to read")
    return y.rows, y.width


def _gelu(op: Op) -> Shape:
    require(op.attributes["form"] in {"erf", "tanh"}, op, "form must be 'erf' or 'tanh'")
    return _same(op)


def _moe(op: Op) -> Shape:
    x, weights = op.inputs[0], op.weights
    router, gate = weights["router"].shape, weights["gate"].shape
    require(len(router) == 2 and router[1] == x.width, op, f"a router {router} cannot take {x.width} columns")
    require(len(gate) == 3 and (gate[0], gate[2]) == router, op, f"gates {gate} are not one for each row of {router}")
    experts, inner = gate[:2]
    require(weights["up"].shape == gate, op, f"gates {gate} and ups {weights['up'].shape} must be of one shape")
    require(
        weights["down"].shape == (experts, x.width, inner), op, f"downs must be of shape {(experts, x.width, inner)}"
    )
    require(1 <= integer(op, "chosen") <= experts, op, f"chosen must be from 1 to the {experts} experts")
    shared = [weights[name].shape for name in SHARED_EXPERT if name in weights]
    if shared:
        require(len(shared) == len(SHARED_EXPERT), op, f"a shared expert has all of {', '.join(SHARED_EXPERT)}")
        one, inner = (1, x.width), shared[1][0]
        require(
            shared == [one, (inner, x.width), (inner, x.width), (x.width, inner)], op, "the shared expert does not fit"
        )
    return _same(op)


OPS: Mapping[str, OpDefinition] = {
    "embed_rows": OpDefinition(
        0,
        ("table",),
        {"ids": str},
        _embed_rows,
        "y[t] = table[ids[t]], with ids the batch's token_ids, token_type_ids or positions.",
    ),
    "linear": OpDefinition(
        1,
        ("weight", "bias?"),
        {},
        _linear,
        "y[t, n] = c + bias[n], where c is one chain over k from 0: c = fma(x[t, k], weight[n, k], c), starting at 0. "
        "With integer weights and integer activations the CPU computes another c, whose sums of integers are exact. "
        "For int8, c = (float(sum of (q_x - zero[t]) * q_w) * scale_w[n]) * scale_x[t]. "
        "There a row has zero = round(-low * (255 / range)), q_x = min(max(round(x * (255 / range)) + zero, 0), 255) and "
        "scale_x = range / 255 (rows/integer_rows.h). "
        "For block formats, c is one chain over blocks of 32: c = fma(I, d * scale_x, c), then, if the format has "
        "offsets, c = fma(S, m * scale_x, c). "
        "There a block has q_x = round(x * (127 / max|x|)) and scale_x = max|x| / 127 (linear/block_tiles.h). "
        "With blocks, a linear that gives logits adds the c of x and the c of x's rounding error, x - scale_x * q_x.",
    ),
    "add": OpDefinition(2, (), {}, _alike, "y = a + b."),
    "mul": OpDefinition(2, (), {}, _alike, "y = a * b."),
    "gelu": OpDefinition(
        1,
        (),
        {"form": str},
        _gelu,
        "'erf': h = 0.5 x; y = fma(h, erf(x * 0.70710678), h). "
        "'tanh': u = x * 0.79788456; v = (x * x) * 0.044715; y = fma(h, tanh(fma(u, v, u)), h).",
    ),
    "relu": OpDefinition(1, (), {}, _same, "y = 0 > x ? 0 : x (so a NaN stays)."),
    "silu": OpDefinition(1, (), {}, _same, "y = x / (1 + exp(-x))."),
    "tanh": OpDefinition(1, (), {}, _same, "y = tanh(x)."),
    "sigmoid": OpDefinition(1, (), {}, _same, "y = 1 / (1 + exp(-x))."),
    "layer_norm": OpDefinition(
        1,
        ("weight", "bias"),
        {"epsilon": float},
        _layer_norm,
        "mean = fold16(x) / n; d = x - mean; variance = fold16(d * d, by fma) / n; r = 1 / sqrt(variance + epsilon); "
        "y = fma(d * r, weight, bias).",
    ),
    "rms_norm": OpDefinition(
        1,
        ("weight",),
        {"epsilon": float, "heads": int, "offset": float},
        _rms_norm,
        "A row is split into heads of n columns, and each head is normalised separately: "
        "r = 1 / sqrt(fold16(x * x, by fma) / n + epsilon); y = (x * r) * w. "
        "With offset 0, w = weight; with offset 1, w = weight + 1.",
    ),
    "rope_angles": OpDefinition(
        0,
        ("frequencies",),
        {"scale": float},
        _rope_angles,
        "For a token at position p and pair i: a = p * frequencies[i], rounded to float32; y[i] = scale * cos(a), "
        "y[n + i] = scale * sin(a), n the number of frequencies. Cosine and sine are computed in float64 and rounded.",
    ),
    "rope": OpDefinition(
        2,
        (),
        {"heads": int, "head_dim": int, "pairing": str},
        _rope,
        "Inputs x and angles (rope_angles). In each head, pair i of n is (a, b) = (x[i], x[n + i]) for 'half' and "
        "(x[2 i], x[2 i + 1]) for 'interleaved'; with c = angles[i], s = angles[n + i] it becomes "
        "(fma(a, c, -(b * s)), fma(b, c, a * s)). Dimensions from 2 n on stay as they are.",
    ),
    "kv_write": OpDefinition(
        2,
        (),
        {"layer": int, "kv_heads": int, "head_dim": int},
        _kv_write,
        "Writes the keys and values of row i of a sequence to position context_length + i of its pages, rounded to the "
        "type of the state. 16-bit floats are rounded to nearest even. For int8, with m = max(|x|) over a head's vector, "
        "it stores s = m / 127, and q = x * (127 / m) rounded to nearest even; both are 0 where m < 1e-30. No output.",
    ),
    "paged_attention": OpDefinition(
        1,
        (),
        {"layer": int, "heads": int, "kv_heads": int, "head_dim": int, "scale": float, "window": int},
        _paged_attention,
        "Attention over the pages of the sequence, after kv_write. Row i, at position P = context_length + i, sees the "
        "positions j <= P; with a window w > 0 it sees only j > P - w. The rest is as in attention, with key head "
        "g = h // (heads / kv_heads) and segments of KEY_SEGMENT from position 0. Keys that a row does not see have "
        "s = -inf and p = 0, and the chain of o leaves them out. Segments without a key that the row sees are not merged. "
        "Stored keys and values are converted to float32. For int8 the products use q: "
        "s[j] = scale * (c * key_scale[j]), and o is the chain of (p[j] * value_scale[j]) * q[j, d].",
    ),
    "input_rows": OpDefinition(
        0,
        (),
        {"name": str, "rows": str, "width": int},
        _input_rows,
        "y = the batch's input of this name, in float32: a row for each token, sequence or logit row.",
    ),
    "gather_rows": OpDefinition(1, (), {}, _gather_rows, "y[r] = x[logit_rows[r]]: the rows whose results are wanted."),
    "attention": OpDefinition(
        3,
        (),
        {"heads": int, "kv_heads": int, "head_dim": int, "scale": float, "mask": str, "window": int},
        _attention,
        "Within each sequence, for query row i and head h with key head g = h // (heads / kv_heads): keys are taken in "
        "segments of KEY_SEGMENT from position 0. In a segment s[j] = scale * c with c one fma chain over the head's "
        "dimensions; m = max(s); p[j] = exp(s[j] - m); l = fold16(p); o[d] = one fma chain over j of p[j] * v[j, d]. "
        "Segments are merged left to right: M = max(m1, m2), f1 = exp(m1 - M), f2 = exp(m2 - M), "
        "l = fma(l2, f2, l1 * f1), o = fma(o2, f2, o1 * f1). y = o / l. With the mask 'causal' row i sees the keys j <= i; "
        "with a window w > 0 it sees only j > i - w. The result is that of paged_attention over pages of float32.",
    ),
    "pool": OpDefinition(
        1,
        (),
        {"mode": str},
        _pool,
        "For each sequence: 'cls' its first row, 'last' its last row, 'mean' the sum of its rows in order, starting at 0, "
        "divided by their number.",
    ),
    "low_rank": OpDefinition(
        2,
        (),
        {"site": str},
        _low_rank,
        "Inputs y and x; y is changed in place. A row whose sequence has no adapter, or one without factors A, B and scale "
        "for this site, stays as it is. Otherwise u[j] is one chain over k from 0: u[j] = fma(x[k], A[j, k], u[j]). Then "
        "v[j] = u[j] * scale, and y[n] continues from its value in one chain over j: y[n] = fma(v[j], B[n, j], y[n]).",
    ),
    "l2_normalize": OpDefinition(1, (), {}, _same, "y = x / max(sqrt(fold16(x * x, by fma)), 1e-12)."),
    "moe": OpDefinition(
        1,
        ("router", "gate", "up", "down", *(f"{name}?" for name in SHARED_EXPERT)),
        {"chosen": int, "normalized": bool},
        _moe,
        "A mixture of experts. r = linear(x, router), in float32 for every precision of the other weights; m = max(r); "
        "e = exp(r - m); p = e / fold16(e). The experts with the largest p are chosen; of equal ones the lower index wins. "
        "They are processed in ascending order of index. If normalized, p is divided by the sum of the chosen p, "
        "added up in that order from 0. An expert computes d = linear(silu(linear(x, gate)) * linear(x, up), down). y is "
        "one chain over the chosen experts, y = fma(p, d, y), starting at 0. A shared expert with output s then adds "
        "y = fma(1 / (1 + exp(-linear(x, shared_router))), s, y), its router in float32 too.",
    ),
    **RECURRENT_OPS,
}


def validate(op: Op, definitions: Mapping[str, OpDefinition] = OPS) -> Shape:
    """Check ``op`` against its definition and return the rows and width of its first output.

    Raises:
        InvalidInputError: the kind is unknown, an operand or attribute is missing, superfluous or of the wrong type, or
            shapes do not fit.
    """
    definition = definitions.get(op.kind)
    if definition is None:
        raise InvalidInputError(f"there is no op named {op.kind!r}; known: {', '.join(sorted(definitions))}")
    if len(op.inputs) != definition.inputs:
        raise InvalidInputError(f"{op.kind}: takes {definition.inputs} inputs, got {len(op.inputs)}")
    if not definition.required_weights <= op.weights.keys() <= definition.allowed_weights:
        raise InvalidInputError(f"{op.kind}: takes the weights {definition.weights}, got {tuple(op.weights)}")
    if op.attributes.keys() != definition.attributes.keys():
        raise InvalidInputError(
            f"{op.kind}: takes the attributes {tuple(definition.attributes)}, got {tuple(op.attributes)}"
        )
    for name, kind in definition.attributes.items():
        value: AttributeValue = op.attributes[name]
        if type(value) is not kind:
            raise InvalidInputError(f"{op.kind}: attribute {name} must be of type {kind.__name__}, got {value!r}")
    return definition.shape(op)
