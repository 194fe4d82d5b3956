"""The ops of decoders on every body of this machine (levels of the CPU, WGPU), against the float64 reference."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from lattice_inference.backends import reference
from lattice_inference.backends.cpu import CpuBackend, _cpu
from lattice_inference.backends.reference_state import ReferenceState
from lattice_inference.errors import InvalidInputError
from lattice_inference.graph.batch import Batch
from lattice_inference.graph.builder import GraphBuilder
from lattice_inference.graph.program import KvSpec, Program

from .bodies import BODIES, CPU_BODIES, Body
from .programs import Tensors, batch_of, one_op

ISAS = _cpu.available_isas()
FMA_ISAS = [isa for isa in ISAS if isa != "baseline"]
FMA_BODIES = [body for body in CPU_BODIES if body.name != "baseline"]
DEFAULT = Body("cpu", CpuBackend)
EPSILON = float(np.finfo(np.float32).eps)
WIDTHS = (1, 3, 15, 16, 17, 33, 64, 100, 384)
TYPES = ("float32", "float16", "bfloat16", "int8")
Int32 = np.int32


def run_both(body, inputs, write, *, batch, tensors=None, state=None):
    program, weights = one_op(inputs, write)
    weights |= tensors or {}
    got = body.backend().compile(program, Tensors(weights)).run(batch)["y"]
    return got, reference.run(program, weights, batch)["y"]


@pytest.mark.parametrize("body", BODIES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_mul_and_silu_mul(body, width):
    rng = np.random.default_rng(width)
    a, b = ((rng.standard_normal((37, width)) * 4).astype(np.float32) for _ in range(2))
    a[0, 0], a[1, 0] = 60.0, -60.0
    for write in (lambda g, v: g.mul(v["a"], v["b"]), lambda g, v: g.mul(g.silu(v["a"]), v["b"])):
        got, want = run_both(body, {"a": a, "b": b}, write, batch=batch_of([37]))
        assert (np.abs(got - want) <= 4 * EPSILON * np.maximum(np.abs(a * b), 1e-3)).all()


@pytest.mark.parametrize("body", BODIES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm(body, width):
    rng = np.random.default_rng(width)
    x = (rng.standard_normal((9, width)) * 3 + 1).astype(np.float32)
    x[4] = 0.0
    w = rng.standard_normal(width).astype(np.float32)
    got, want = run_both(
        body,
        {"x": x},
        lambda g, v: g.rms_norm(v["x"], g.weight("w", w.shape, use="vector"), epsilon=1e-6),
        batch=batch_of([9]),
        tensors={"w": w},
    )
    assert (np.abs(got - want) <= 8 * EPSILON * (np.abs(want) + 1e-6)).all()


@pytest.mark.parametrize("body", BODIES, ids=str)
def test_cosines_and_sines_are_right_to_the_last_bit_at_any_position(body):
    frequencies = np.array([1.0, 0.7498942, 0.1, 1e-3, 3.3e-5, 0.0], np.float32)
    # The many large ones are for the last part of pi: without it a few of them are rounded the other way.
    large = np.random.default_rng(0).integers(2**22, 2**24, 10_000)
    positions = np.unique(np.concatenate([np.arange(70), 2 ** np.arange(24), 2 ** np.arange(24) - 1, [99_991], large]))
    g = GraphBuilder()
    angles = g.rope_angles(g.weight("f", frequencies.shape, use="vector"), scale=1.25)
    program = g.build({"y": angles})
    batch = Batch(
        np.zeros(len(positions), Int32), np.array([0, len(positions)], Int32), positions=positions.astype(Int32)
    )
    got = body.backend().compile(program, Tensors({"f": frequencies})).run(batch)["y"]
    exact = (positions.astype(np.float32)[:, None] * frequencies).astype(np.longdouble)
    want = np.concatenate([np.cos(exact), np.sin(exact)], axis=1).astype(np.float32) * np.float32(1.25)
    assert (got == want).all()


@pytest.mark.parametrize("body", BODIES, ids=str)
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize(
    ("heads", "head_dim", "pairs"), [(1, 2, 1), (3, 16, 8), (2, 20, 10), (4, 64, 32), (2, 128, 64), (2, 40, 12)]
)
def test_rope(body, pairing, heads, head_dim, pairs):
    rng = np.random.default_rng(head_dim)
    x = rng.standard_normal((13, heads * head_dim)).astype(np.float32)
    frequencies = (1 / 10_000 ** (np.arange(pairs) / pairs)).astype(np.float32)
    program, weights = one_op(
        {"x": x},
        lambda g, v: g.rope(
            v["x"],
            g.rope_angles(g.weight("f", (pairs,), use="vector")),
            heads=heads,
            head_dim=head_dim,
            pairing=pairing,
        ),
    )
    weights["f"] = frequencies
    batch = dataclasses.replace(batch_of([6, 7]), positions=rng.integers(0, 5000, 13).astype(Int32))
    got = body.backend().compile(program, Tensors(weights)).run(batch)["y"]
    want = reference.run(program, weights, batch)["y"]
    assert np.abs(got - want).max() <= 4 * EPSILON * np.abs(x).max()
    kept = got.reshape(13, heads, head_dim)[:, :, 2 * pairs :]
    assert (kept == x.reshape(13, heads, head_dim)[:, :, 2 * pairs :]).all()
    # a rotation keeps lengths
    assert np.allclose(np.linalg.norm(got, axis=1), np.linalg.norm(x, axis=1), rtol=1e-5)


def test_pairings_are_the_same_rotation_of_permuted_dimensions():
    rng = np.random.default_rng(3)
    x = rng.standard_normal((5, 2 * 32)).astype(np.float32)
    interleaved = x.reshape(5, 2, 2, 16).transpose(0, 1, 3, 2).reshape(5, -1)
    results = {}
    for pairing, rows in (("half", x), ("interleaved", interleaved)):
        got, _ = run_both(
            DEFAULT,
            {"x": rows},
            lambda g, v, pairing=pairing: g.rope(
                v["x"], g.rope_angles(g.weight("f", (16,), use="vector")), heads=2, head_dim=32, pairing=pairing
            ),
            batch=dataclasses.replace(batch_of([5]), positions=np.arange(100, 105, dtype=Int32)),
            tensors={"f": np.linspace(0, 1, 16, dtype=np.float32)},
        )
        results[pairing] = got
    assert (results["half"].reshape(5, 2, 2, 16).transpose(0, 1, 3, 2).reshape(5, -1) == results["interleaved"]).all()


def paged_program(inputs, *, heads, kv_heads, head_dim, window, gather=False):
    """Writes keys and values of one layer, attends, and keeps the rows wanted."""
    spec = KvSpec(0, kv_heads, head_dim, "float16", window or None)
    g = GraphBuilder()
    views = {
        name: g.embed_rows(g.weight(name, array.shape, use="rows"), ids="token_ids") for name, array in inputs.items()
    }
    g.kv_write(views["k"], views["v"], layer=0, kv_heads=kv_heads, head_dim=head_dim)
    y = g.paged_attention(
        views["q"],
        layer=0,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        window=window,
    )
    return g.build({"y": g.gather_rows(y) if gather else y}, kv_specs=[spec])


class Sequences:
    """Rows of several sequences that are run in steps, on the CPU and on the reference, in pages dealt at random."""

    def __init__(
        self, rng, lengths, *, body=DEFAULT, heads, kv_heads, head_dim, window=0, dtype="float16", page_tokens=16
    ):
        self.bounds = np.concatenate([[0], np.cumsum(lengths)])
        self.page_tokens = page_tokens
        rows = int(self.bounds[-1])
        self.inputs = {
            "q": rng.standard_normal((rows, heads * head_dim)).astype(np.float32) * 2,
            "k": rng.standard_normal((rows, kv_heads * head_dim)).astype(np.float32) * 2,
            "v": rng.standard_normal((rows, kv_heads * head_dim)).astype(np.float32),
        }
        sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
        self.program = paged_program(self.inputs, **sizes, window=window)
        self.backend = body.backend()
        self.ready = self.backend.compile(self.program, Tensors(self.inputs))
        counts = [-(-length // page_tokens) for length in lengths]
        numbers = rng.permutation(sum(counts) + 3).astype(Int32)
        self.tables = np.split(numbers[: sum(counts)], np.cumsum(counts)[:-1])
        self.specs = [dataclasses.replace(spec, dtype=dtype) for spec in self.program.kv_specs]
        self.pages = len(numbers)
        self.states = (self.open_cpu(), ReferenceState(self.specs, page_tokens=page_tokens, pages=self.pages))

    def open_cpu(self):
        state = self.backend.open_state(self.specs, page_tokens=self.page_tokens, pages=self.pages)
        # what an earlier user left: NaN in every float
        for page in range(self.pages):
            state.import_(page, b"\xff" * state.page_bytes)
        return state

    def batch(self, which, begins, ends):
        """Rows ``begins`` to ``ends`` of the sequences ``which``."""
        ids = [np.arange(self.bounds[i] + a, self.bounds[i] + b) for i, a, b in zip(which, begins, ends, strict=True)]
        lengths = [len(part) for part in ids]
        return Batch(
            np.concatenate(ids).astype(Int32),
            np.concatenate([[0], np.cumsum(lengths)]).astype(Int32),
            context_lengths=np.array(begins, Int32),
            block_table=tuple(self.tables[i] for i in which),
        )

    def run(self, batch):
        cpu, twin = self.states
        got = self.ready.run(batch, state=cpu)["y"]
        return got, reference.run(self.program, self.inputs, batch, state=twin)["y"]


def grid(names, *axes):
    """Parametrize a test by a grid: quick ones have each pair of values at least once, the others are slow."""
    shortest = min(map(len, axes))
    cases = []
    for indices in itertools.product(*(range(len(axis)) for axis in axes)):
        case = [axis[index] for axis, index in zip(axes, indices, strict=True)]
        marks = [pytest.mark.slow] if sum(indices) % shortest else []
        cases.append(pytest.param(*case, id="-".join(map(str, case)), marks=marks))
    return pytest.mark.parametrize(names, cases)


SHAPES = [(1, 1, 1), (2, 2, 8), (3, 1, 20), (4, 2, 32), (6, 2, 48), (9, 3, 64), (2, 1, 128), (30, 1, 16)]


@grid("body, shape, dtype", BODIES, SHAPES, TYPES)
def test_paged_attention(body, shape, dtype):
    """A prompt, single tokens and a few at a time of sequences side by side; the reference keeps the same rounded values."""
    heads, kv_heads, head_dim = shape
    rng = np.random.default_rng(heads * 100 + head_dim)
    lengths = [1, 2, 15, 16, 17, 49, 100]
    sequences = Sequences(
        rng, lengths, body=body, heads=heads, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype, page_tokens=16
    )
    steps = [
        ([6, 1], [0, 0], [60, 1]),
        ([0, 6, 5, 1], [0, 60, 0, 1], [1, 61, 49, 2]),
        ([2, 3, 4, 6], [0, 0, 0, 61], [15, 16, 17, 100]),
    ]
    for step in steps:
        got, want = sequences.run(sequences.batch(*step))
        assert np.abs(got - want).max() <= 1e-5


@grid("body, window, page_tokens", BODIES, [0, 1, 7, 16, 100, 511, 512, 600], [16, 32, 64])
def test_paged_attention_over_several_segments_of_keys(body, window, page_tokens):
    rng = np.random.default_rng(window)
    sequences = Sequences(
        rng, [1300], body=body, heads=2, kv_heads=1, head_dim=8, window=window, page_tokens=page_tokens
    )
    sequences.inputs["k"][:512] *= 2  # the running maximum moves between segments
    sequences.ready = sequences.backend.compile(sequences.program, Tensors(sequences.inputs))
    bounds = [0, 500, 511, 512, 513, 1020, 1028, 1299, 1300]
    for begin, end in itertools.pairwise(bounds):
        got, want = sequences.run(sequences.batch([0], [begin], [end]))
        assert np.abs(got - want).max() <= 1e-5, (begin, end)


@grid("body, window, dtype", BODIES, [0, 1, 9], TYPES)
def test_no_score_is_so_low_that_a_masked_key_counts(body, window, dtype):
    """Case H8: all scores are about -20000, and each key that is masked would have a higher one, or -10000, or 0."""
    rng = np.random.default_rng(8)
    sequences = Sequences(rng, [600, 40], body=body, heads=3, kv_heads=1, head_dim=16, window=window, dtype=dtype)
    sequences.inputs["q"][:] = np.tile(
        np.repeat([4, 0], [2, 14]), 3
    )  # with the scale, the sum of two elements of a key
    sequences.inputs["k"][:, :2] = [-20_000, 0]
    sequences.inputs["k"][:, 1] += 0.5 * np.arange(640)
    sequences.ready = sequences.backend.compile(sequences.program, Tensors(sequences.inputs))
    for step in (([0, 1], [0, 0], [530, 1]), ([1, 0], [1, 530], [5, 531]), ([0, 1], [531, 5], [600, 40])):
        got, want = sequences.run(sequences.batch(*step))
        assert np.abs(got - want).max() <= 1e-5


@pytest.mark.parametrize("body", BODIES, ids=str)
def test_a_window_reads_no_key_before_it(body):
    """Keys and values before the window are made NaN, and their pages too: they are not even read."""
    rng = np.random.default_rng(0)
    sequences = Sequences(rng, [1100], body=body, heads=2, kv_heads=1, head_dim=16, window=33)
    sequences.run(sequences.batch([0], [0], [1099]))
    want = sequences.ready.run(sequences.batch([0], [1099], [1100]), state=sequences.states[0])["y"]
    for page in sequences.tables[0][: 1066 // 16]:
        sequences.states[0].import_(int(page), b"\xff" * sequences.states[0].page_bytes)
    got = sequences.ready.run(sequences.batch([0], [1099], [1100]), state=sequences.states[0])["y"]
    assert (got == want).all()


@pytest.mark.parametrize("dtype", TYPES)
def test_what_is_kept_is_rounded_to_nearest_even(dtype):
    """Bit for bit what NumPy rounds to, in the layout that backends exchange pages in."""
    rng = np.random.default_rng(1)
    scales = np.float32(2.0) ** rng.integers(-26, 15, (40, 48))
    keys = (rng.standard_normal((40, 48)) * scales).astype(np.float32)
    values = keys[::-1].copy()
    # halfway cases, subnormals of float16 and the ends of its range
    keys[0, :8] = [1 + 2**-11, 1 + 3 * 2**-11, 2**-24, 2**-25, 1.5 * 2**-24, 65504, 65519, 0]
    keys[1, :4] = [1 + 2**-8, 1 + 3 * 2**-8, 2**-14 - 2**-25, -0.0]
    keys[2] = 0
    inputs = {"q": keys, "k": keys, "v": values}
    program = paged_program(inputs, heads=2, kv_heads=2, head_dim=24, window=0)
    specs = [dataclasses.replace(spec, dtype=dtype) for spec in program.kv_specs]
    batch = Batch(
        np.arange(40, dtype=Int32),
        np.array([0, 40], Int32),
        context_lengths=np.zeros(1, Int32),
        block_table=(np.array([4, 1, 3], Int32),),
    )
    twin = ReferenceState(specs, page_tokens=16, pages=5)
    reference.run(program, inputs, batch, state=twin)
    want_keys, want_values = twin.read(0, batch.block_table[0], 40, np.float32)
    for isa in ISAS:
        state = CpuBackend.open_state(specs, page_tokens=16, pages=5)
        CpuBackend(isa=isa).compile(program, Tensors(inputs)).run(batch, state=state)
        got_keys, got_values = stored(state, specs[0], batch.block_table[0], 40)
        assert got_keys.tobytes() == want_keys.tobytes(), isa
        assert got_values.tobytes() == want_values.tobytes(), isa


def stored(state, spec, pages, length):
    """What a CPU state holds of a sequence, as float32 (length, kv_heads, head_dim), from its exported pages."""
    width = -(-spec.head_dim // 16) * 16
    kind = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16, "int8": np.int8}[spec.dtype]
    heads, tokens = spec.kv_heads, state.page_tokens
    keys, values = [], []
    for page in pages:
        content = state.export(int(page))
        first = heads * spec.head_dim * tokens * np.dtype(kind).itemsize
        second = first + heads * width * tokens * np.dtype(kind).itemsize
        key = np.frombuffer(content[:first], kind).reshape(heads, spec.head_dim, tokens).transpose(2, 0, 1)
        value = np.frombuffer(content[first:second], kind).reshape(heads, tokens, width).transpose(1, 0, 2)
        if spec.dtype == "bfloat16":
            key, value = ((part.astype(np.uint32) << 16).view(np.float32) for part in (key.copy(), value.copy()))
        key, value = key.astype(np.float32), value.astype(np.float32)
        if spec.dtype == "int8":
            scales = np.frombuffer(content[second:], np.float32).reshape(2, heads, tokens).transpose(0, 2, 1)
            key, value = key * scales[0][:, :, None], value * scales[1][:, :, None]
        keys.append(key)
        values.append(value[:, :, : spec.head_dim])
    return (np.ascontiguousarray(np.concatenate(parts)[:length]) for parts in (keys, values))


@pytest.mark.parametrize("body", CPU_BODIES, ids=str)
@pytest.mark.parametrize("dtype", TYPES)
def test_attention_keeps_new_keys_as_an_op_of_its_own_does(body, dtype):
    """Few new rows are written by attention, across the end of a segment too, many by the op: the same bytes."""
    rng = np.random.default_rng(8)
    sequences = Sequences(rng, [530, 40, 5], body=body, heads=4, kv_heads=2, head_dim=24, dtype=dtype, page_tokens=32)
    unfused = body.backend(fused=False).compile(sequences.program, Tensors(sequences.inputs))
    steps = [
        ([0, 2], [0, 0], [505, 2]),
        ([0, 1, 2], [505, 0, 2], [517, 40, 5]),  # 12 rows from segment 0 into 1, 40 rows, 3 rows
        ([0], [517], [518]),
        ([0], [518], [530]),
    ]
    states = sequences.open_cpu(), sequences.open_cpu()
    for step in steps:
        batch = sequences.batch(*step)
        got, want = (
            program.run(batch, state=state)["y"]
            for program, state in zip((sequences.ready, unfused), states, strict=True)
        )
        assert got.tobytes() == want.tobytes()
    for page in range(sequences.pages):
        assert states[0].export(page) == states[1].export(page)


@grid("body, window, dtype", CPU_BODIES, [0, 40], TYPES)
def test_attention_over_pages_is_the_same_bits_in_any_chunks_and_company(body, window, dtype):
    rng = np.random.default_rng(5)
    lengths = [560, 90, 3]
    sequences = Sequences(rng, lengths, body=body, heads=6, kv_heads=2, head_dim=16, window=window, dtype=dtype)

    def rows_of(*steps):
        """Run steps on fresh pages; return what each row of each sequence became."""
        state = sequences.open_cpu()
        found = [np.full((length, 96), np.nan, np.float32) for length in lengths]
        for which, begins, ends in steps:
            y = sequences.ready.run(sequences.batch(which, begins, ends), state=state)["y"]
            start = 0
            for i, a, b in zip(which, begins, ends, strict=True):
                found[i][a:b] = y[start : start + b - a]
                start += b - a
        return np.concatenate(found).tobytes()

    before = _cpu.get_num_threads()
    try:
        _cpu.set_num_threads(1)
        together = rows_of(([0, 1, 2], [0, 0, 0], lengths))
        for threads in (1, 3):
            _cpu.set_num_threads(threads)
            assert rows_of(([0, 1, 2], [0, 0, 0], lengths)) == together
            assert rows_of(([2], [0], [3]), ([1], [0], [90]), ([0], [0], [560])) == together
            assert rows_of(*[([0], [i], [i + 1]) for i in range(560)], ([2, 1], [0, 0], [3, 90])) == together
            assert (
                rows_of(
                    ([0, 1], [0, 0], [512, 1]),
                    ([1, 0], [1, 512], [4, 515]),
                    ([0, 2, 1], [515, 0, 4], [559, 2, 90]),
                    ([2, 0], [2, 559], [3, 560]),
                )
                == together
            )
    finally:
        _cpu.set_num_threads(before)


def test_levels_with_fma_agree_bit_for_bit():
    if len(FMA_BODIES) < 2:
        pytest.skip("this CPU has one level with FMA: the emulated sessions compare the others with it")
    results = set()
    for body in FMA_BODIES:
        sequences = Sequences(np.random.default_rng(9), [600, 20], body=body, heads=6, kv_heads=2, head_dim=40)
        batch = sequences.batch([0, 1], [0, 0], [600, 20])
        results.add(sequences.ready.run(batch, state=sequences.states[0])["y"].tobytes())
    assert len(results) == 1


def test_gather_rows_keeps_what_is_wanted_and_nothing_is_allowed():
    rng = np.random.default_rng(2)
    inputs = {name: rng.standard_normal((9, 16)).astype(np.float32) for name in "qkv"}
    weight = rng.standard_normal((5, 16)).astype(np.float32)
    program = paged_program(inputs, heads=1, kv_heads=1, head_dim=16, window=0, gather=True)
    g = GraphBuilder()
    y = g.linear(program.outputs["y"], g.weight("w", (5, 16)))
    program = Program((*program.ops, *g._ops), {"y": y}, program.kv_specs)
    for rows in ([8, 0, 0, 3], [], [5]):
        batch = Batch(
            np.arange(9, dtype=Int32),
            np.array([0, 4, 9], Int32),
            context_lengths=np.zeros(2, Int32),
            block_table=(np.array([1], Int32), np.array([0], Int32)),
            logit_rows=np.array(rows, Int32),
        )
        state = CpuBackend.open_state(program.kv_specs, page_tokens=16, pages=2)
        twin = ReferenceState(program.kv_specs, page_tokens=16, pages=2)
        tensors = {**inputs, "w": weight}
        got = CpuBackend().compile(program, Tensors(tensors)).run(batch, state=state)["y"]
        assert got.shape == (len(rows), 5)
        want = reference.run(program, tensors, batch, state=twin)["y"]
        assert np.abs(got - want).max(initial=0) <= 1e-5


@pytest.mark.parametrize(
    "change",
    [
        {"context_lengths": None},
        {"block_table": None},
        {"block_table": (np.array([9], Int32),)},
        {"block_table": (np.array([-1], Int32),)},
        {"context_lengths": np.array([14], Int32)},
    ],
)
def test_a_batch_without_the_pages_it_needs_is_refused(change):
    inputs = {name: np.ones((4, 16), np.float32) for name in "qkv"}
    program = paged_program(inputs, heads=1, kv_heads=1, head_dim=16, window=0)
    ready = CpuBackend().compile(program, Tensors(inputs))
    state = CpuBackend.open_state(program.kv_specs, page_tokens=16, pages=2)
    batch = Batch(
        np.arange(4, dtype=Int32),
        np.array([0, 4], Int32),
        context_lengths=np.array([3], Int32),
        block_table=(np.array([1], Int32),),
    )
    assert ready.run(batch, state=state)["y"].shape == (4, 16)
    with pytest.raises(InvalidInputError):
        ready.run(dataclasses.replace(batch, **change), state=state)
    with pytest.raises(InvalidInputError, match="state"):
        ready.run(batch)


@pytest.mark.parametrize(
    "fields",
    [
        {"context_lengths": [0, 0]},
        {"context_lengths": [-1]},
        {"logit_rows": [4]},
        {"logit_rows": [-1]},
        {"context_lengths": [0], "block_table": ()},
    ],
)
def test_a_batch_that_contradicts_itself_is_refused(fields):
    arrays = {name: value if name == "block_table" else np.array(value, Int32) for name, value in fields.items()}
    with pytest.raises(InvalidInputError):
        Batch(np.arange(4, dtype=Int32), np.array([0, 4], Int32), **arrays)


def test_positions_count_on_from_the_context():
    batch = Batch(np.arange(5, dtype=Int32), np.array([0, 2, 5], Int32), context_lengths=np.array([7, 100], Int32))
    assert batch.positions.tolist() == [7, 8, 100, 101, 102]
