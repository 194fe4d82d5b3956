"""Calibration: what observers find, and that what they found is applied, kept in the file, and honoured at load."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from drawn_checkpoints import write_directory
from lattice_inference import Extension, load_cross_encoder, load_encoder, load_model
from lattice_inference.backends import reference
from lattice_inference.backends.reference_state import ReferenceState
from lattice_inference.calibration import Calibration, InputRange
from lattice_inference.cli import main
from lattice_inference.errors import BusyError, CheckpointError, InvalidInputError, UnsupportedError
from lattice_inference.graph.batch import Batch
from lattice_inference.models.llama import ROPE_FREQUENCIES, build_llama
from lattice_inference.models.llama_config import LlamaConfig
from lattice_inference.quantize import Calibrator, quantize_gguf, quantize_int8
from lattice_inference.quantize.observers import EmaObserver, MaxAbsObserver, PercentileObserver
from tiny_decoders import write_drawn_model

TEXTS = ["a cat sat", "the quick brown fox jumps over the lazy dog " * 3, "you and me"]
METHODS = [{"method": "max-abs"}, {"method": "ema", "momentum": 0.5}, {"method": "percentile", "percentile": 99.0}]


@pytest.fixture
def bert(data_directory):
    return data_directory / "tiny_bert"


@pytest.fixture
def llama(tmp_path):
    return write_drawn_model(tmp_path / "llama")


def calibrated(path, **options):
    with Calibrator(path, **options) as calibrator:
        calibrator.observe(TEXTS)
        return calibrator.calibration()


def logits_of(model, ids=range(40)):
    with model.open_cache() as cache:
        return model.forward([Extension(cache.sequence(), list(ids), "all")])


def draws(seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((7, 50)).astype(np.float32) * scale + 0.3 for scale in (1, 0.01, 12, 3)]


def test_the_largest_magnitudes_are_kept():
    observer, steps = MaxAbsObserver(), draws()
    for step in steps:
        observer.observe(step)
    assert observer.range() == InputRange(min(s.min() for s in steps), max(s.max() for s in steps))
    positive = MaxAbsObserver()
    positive.observe(np.full((2, 2), 5, np.float32))
    assert positive.range() == InputRange(0, 5)


def test_the_moving_average_is_that_of_numpy():
    observer, steps = EmaObserver(0.75), draws()
    low, high = min(steps[0].min(), 0), steps[0].max()
    for step in steps:
        observer.observe(step)
    for step in steps[1:]:
        low, high = 0.75 * low + 0.25 * min(step.min(), 0), 0.75 * high + 0.25 * step.max()
    assert observer.range().low == pytest.approx(low, rel=1e-6)
    assert observer.range().high == pytest.approx(high, rel=1e-6)


@pytest.mark.parametrize("percentile", [60.3, 90.3, 99.1, 100])
def test_the_percentile_is_that_of_numpy_to_a_bin_and_in_any_order(percentile):
    steps = draws()
    values = np.concatenate([step.reshape(-1) for step in steps])
    found = []
    for order in (steps, steps[::-1]):
        observer = PercentileObserver(percentile)
        for step in order:
            observer.observe(step)
        found.append(observer.range())
    assert found[0] == found[1]
    share = (100 - percentile) / 200  # of 1,400 values no whole number
    want = np.quantile(values, [share, 1 - share], method="inverted_cdf")
    width = 2.0 ** (np.frexp(np.abs(values).max())[1] - 11)
    assert abs(found[0].low - want[0]) <= 1.01 * width
    assert abs(found[0].high - want[1]) <= 1.01 * width
    inside = ((values >= found[0].low) & (values <= found[0].high)).mean()
    assert inside >= percentile / 100 - 2 / len(values)


def test_the_percentile_cuts_outliers_off_and_the_maximum_does_not():
    values = np.concatenate([np.linspace(-1, 1, 100_000), [1000]]).astype(np.float32)
    narrow, wide = PercentileObserver(99.9), MaxAbsObserver()
    for observer in (narrow, wide):
        observer.observe(values)
    assert narrow.range().high < 1.6
    assert wide.range().high == 1000


def test_zeros_and_nothing_are_a_flat_range():
    for observer in (MaxAbsObserver(), EmaObserver(0.9), PercentileObserver(99)):
        observer.observe(np.zeros((0, 4), np.float32))
        observer.observe(np.zeros((2, 4), np.float32))
        assert observer.range().low == 0
        assert observer.range().high <= 2.0**-100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "entropy"}, "method must be one of max-abs, ema, percentile"),
        ({"percentile": 50}, "percentile must be above 50"),
        ({"percentile": float("nan")}, "percentile must be above 50"),
        ({"method": "ema", "momentum": 1.0}, "momentum must be at least 0 and below 1"),
    ],
)
def test_options_out_of_range_are_refused(llama, options, message):
    with pytest.raises(InvalidInputError, match=message):
        Calibrator(llama, **options)


def test_a_calibrator_wants_text_and_to_be_open(llama):
    with Calibrator(llama) as calibrator:
        with pytest.raises(InvalidInputError, match="nothing was observed"):
            calibrator.calibration()
        with pytest.raises(InvalidInputError, match="of type list; expected str"):
            calibrator.observe(["a text", [1, 2]])
        with pytest.raises(InvalidInputError, match="no text to calibrate with"):
            calibrator.observe(["", "  "])
    with pytest.raises(InvalidInputError, match="closed"):
        calibrator.observe("a")


def test_a_decoder_is_seen_as_the_reference_backend_sees_it(llama):
    """The ranges of every linear's input, from the program run op by op in float64."""
    text = "The quick brown fox."
    with Calibrator(llama, method="max-abs") as calibrator:
        calibrator.observe(text)
        assert calibrator.tokens == len(text)
        found = calibrator.calibration().ranges
    config = LlamaConfig.from_directory(llama)
    program = build_llama(config)
    linears = [op for op in program.ops if op.kind == "linear"]
    watched = type(program)(
        program.ops, {str(index): op.inputs[0] for index, op in enumerate(linears)}, program.kv_specs
    )
    tensors = load_file(llama / "model.safetensors")
    tensors[ROPE_FREQUENCIES] = config.rope.frequencies(config.rotary_dim)
    ids = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
    batch = Batch(
        ids,
        np.array([0, len(ids)], np.int32),
        context_lengths=np.zeros(1, np.int32),
        block_table=(np.arange(2, dtype=np.int32),),
        logit_rows=np.arange(len(ids), dtype=np.int32),
    )
    state = ReferenceState(program.kv_specs, page_tokens=32, pages=2)
    seen = reference.run(watched, tensors, batch, state=state)
    names = [op.weights["weight"].sources[0] for op in linears]
    assert set(found) == set(names)
    for index, name in enumerate(names):
        assert found[name].low == pytest.approx(min(seen[str(index)].min(), 0), rel=1e-4, abs=1e-4), name
        assert found[name].high == pytest.approx(seen[str(index)].max(), rel=1e-4, abs=1e-4), name


@pytest.mark.parametrize("options", METHODS)
def test_a_calibrated_decoder_is_the_same_from_its_file_and_at_load(llama, tmp_path, options):
    calibration = calibrated(llama, **options)
    quantize_int8(llama, tmp_path / "int8", calibration=calibration)
    with (
        load_model(llama, precision="int8", calibration=calibration) as made,
        load_model(tmp_path / "int8", precision="int8") as loaded,
        load_model(tmp_path / "int8") as stored,
        load_model(llama, precision="int8") as dynamic,
        load_model(llama) as exact,
    ):
        want = logits_of(made)
        assert logits_of(loaded).tobytes() == logits_of(stored).tobytes() == want.tobytes()
        assert (want != logits_of(dynamic)).any()
        correlation = np.corrcoef(want.ravel(), logits_of(exact).ravel())[0, 1]
        assert correlation > 0.9
        assert made.fingerprint != dynamic.fingerprint
        assert logits_of(pickle.loads(pickle.dumps(made))).tobytes() == want.tobytes()


def test_a_calibrated_decoder_gives_the_same_bits_in_any_chunks(llama):
    with load_model(llama, precision="int8", calibration=calibrated(llama)) as model:
        ids = list(range(60))
        at_once = logits_of(model, ids)
        with model.open_cache() as cache:
            sequence = cache.sequence()
            rows = [model.forward([Extension(sequence, [token])])[0] for token in ids]
        assert (np.stack(rows) == at_once).all()


def test_the_file_says_how_it_came_about(llama, tmp_path):
    calibration = calibrated(llama, method="max-abs")
    quantize_int8(llama, tmp_path / "int8", calibration=calibration)
    tensors = load_file(tmp_path / "int8" / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj.weight"
    limits = calibration.range(name)
    assert tensors[name + "_input_range"].tolist() == [limits.low, limits.high]
    assert tensors[name + "_input_range"].dtype == np.float32
    assert sum(key.endswith("_input_range") for key in tensors) == 2 * 7 + 1
    head = (tmp_path / "int8" / "model.safetensors").read_bytes()
    metadata = json.loads(head[8 : 8 + int.from_bytes(head[:8], "little")])["__metadata__"]
    assert json.loads(metadata["lattice.calibration"]) == {"method": "max-abs", "tokens": calibration.tokens}


def test_a_narrow_range_cuts_off_what_a_wide_one_keeps(llama):
    """Applied, not only kept: with every input cut to a hundredth of its range little of the logits is left."""
    wide = calibrated(llama, method="max-abs")
    cut = {name: InputRange(limits.low / 100, limits.high / 100) for name, limits in wide.ranges.items()}
    narrow = Calibration("by hand", 1, cut)
    with (
        load_model(llama) as exact,
        load_model(llama, precision="int8", calibration=wide) as near,
        load_model(llama, precision="int8", calibration=narrow) as far,
    ):
        want = logits_of(exact)
        errors = [np.abs(logits_of(model) - want).mean() for model in (near, far)]
    assert errors[1] > 5 * errors[0]
    assert np.abs(want).mean() > 2 * errors[0]


def test_an_encoder_and_a_cross_encoder_keep_their_calibration(bert, data_directory, tmp_path):
    calibration = calibrated(bert)
    quantize_int8(bert, tmp_path / "encoder", calibration=calibration)
    with (
        load_encoder(bert, precision="int8", calibration=calibration) as made,
        load_encoder(tmp_path / "encoder", precision="int8") as loaded,
        load_encoder(bert, precision="int8") as dynamic,
        load_encoder(bert) as exact,
    ):
        want = made.encode(TEXTS).vectors
        assert loaded.encode(TEXTS).vectors.tobytes() == want.tobytes() != dynamic.encode(TEXTS).vectors.tobytes()
        assert ((exact.encode(TEXTS).vectors * want).sum(axis=1) > 0.98).all()
        assert made.fingerprint != dynamic.fingerprint
    cases = json.loads((data_directory / "architectures" / "cases.json").read_text())["cases"]
    source = write_directory(tmp_path / "source", cases["cross-encoder-bert"])
    calibration = calibrated(source, method="max-abs")
    quantize_int8(source, tmp_path / "cross", calibration=calibration)
    pairs = [("a cat", "the dog sat"), ("they", "animal")]
    with (
        load_cross_encoder(source, precision="int8", calibration=calibration) as made,
        load_cross_encoder(tmp_path / "cross", precision="int8") as got,
        load_cross_encoder(source, precision="int8") as dynamic,
    ):
        assert got.score_pairs(pairs).tobytes() == made.score_pairs(pairs).tobytes()
        assert made.fingerprint != dynamic.fingerprint


def test_a_gguf_file_of_floats_takes_a_calibration_at_load(bert, tmp_path):
    from lattice_inference.quantize import export_bert_gguf

    export_bert_gguf(bert, tmp_path / "bert.gguf", "F32")
    options = {"pooling": "mean", "precision": "int8"}
    calibration = calibrated(tmp_path / "bert.gguf", method="max-abs")
    with (
        load_encoder(tmp_path / "bert.gguf", calibration=calibration, **options) as got,
        load_encoder(tmp_path / "bert.gguf", **options) as dynamic,
    ):
        assert got.encode(TEXTS).vectors.tobytes() != dynamic.encode(TEXTS).vectors.tobytes()
    with pytest.raises(UnsupportedError, match="a GGUF file has Q8_0 for that"):
        quantize_int8(tmp_path / "bert.gguf", tmp_path / "out")
    assert quantize_gguf(tmp_path / "bert.gguf", tmp_path / "q8.gguf", "F16")


def test_a_calibration_that_nothing_would_use_is_refused(llama, bert):
    calibration = Calibration("by hand", 1, {})
    for options in ({"precision": "int8", "activations": "float32"}, {"precision": "stored"}, {}):
        with pytest.raises(UnsupportedError, match="needs precision='int8' and int8 activations"):
            load_model(llama, calibration=calibration, **options)
    with pytest.raises(UnsupportedError, match="needs precision='int8'"):
        load_encoder(bert, calibration=calibration)
    with pytest.raises(UnsupportedError, match="needs precision='int8'"):
        load_cross_encoder(bert, calibration=calibration)


def test_another_models_calibration_is_refused(llama, bert, tmp_path):
    with pytest.raises(InvalidInputError, match=r"no range for .*: it was made with another model"):
        quantize_int8(llama, tmp_path / "int8", calibration=calibrated(bert))
    assert not (tmp_path / "int8").exists()


@pytest.mark.parametrize("ends", [[1.0, 2.0], [-1.0], [[-1.0, 1.0]], [-3e38, 3e38]])
def test_damaged_ranges_in_a_file_are_refused(llama, tmp_path, ends):
    quantize_int8(llama, tmp_path / "int8", calibration=calibrated(llama))
    path = tmp_path / "int8" / "model.safetensors"
    tensors = load_file(path)
    tensors["model.layers.1.self_attn.o_proj.weight_input_range"] = np.array(ends, np.float32)
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match=r"o_proj\.weight_input_range"):
        load_model(tmp_path / "int8", precision="int8")


def test_the_command_calibrates(llama, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("\n".join(TEXTS))
    target = tmp_path / "int8"
    command = ["quantize", str(llama), str(target), "--precision", "int8", "--calibrate", str(tmp_path / "text.txt")]
    assert main([*command, "--method", "percentile", "--percentile", "99.5", "--max-tokens", "50", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["calibration"]["method"] == "percentile 99.5"
    assert report["calibration"]["tokens"] >= 50
    with load_model(target) as got, load_model(llama, precision="int8") as dynamic:
        assert (logits_of(got) != logits_of(dynamic)).any()
    (tmp_path / "empty.txt").write_text("")
    for wrong, message in (
        (["--type", "Q8_0", "--calibrate", "text.txt"], "needs --precision int8"),
        (["--precision", "int8", "--method", "ema"], "--method: is about --calibrate"),
        ([*command[3:], "--method", "ema", "--percentile", "99"], "--percentile: is about --method percentile"),
        ([*command[3:], "--max-tokens", "0"], "--max-tokens: must be at least 1"),
        (["--precision", "int8", "--calibrate", str(tmp_path / "empty.txt")], "no text to calibrate with"),
    ):
        assert main(["quantize", str(llama), str(tmp_path / "other"), *wrong]) == 2
        assert message in capsys.readouterr().err


def test_a_call_beside_an_observation_is_refused(bert):
    """Its numbers would be those of both, in an order that chance decides."""
    expected, ends = calibrated(bert), []

    def beside(_):
        for call in (lambda: calibrator.observe(TEXTS), calibrator.calibration):
            try:
                call()
            except BusyError as error:
                ends.append(error)

    with Calibrator(bert) as calibrator:
        calibrator.observe(TEXTS, on_step=beside)
        assert calibrator.calibration() == expected
    assert len(ends) == 2
    assert "this calibrator is at work for another call" in str(ends[0])
