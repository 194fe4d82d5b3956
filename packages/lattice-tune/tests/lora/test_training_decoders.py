"""Training of language models: gradients, learning, resuming, stopping, and bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lattice_inference import GenerateConfig, LoraAdapter, Session, load_adapter_file, load_model, perplexity
from lattice_inference.lora import LoraHook, LoraSite, in_row_order
from lattice_tune import (
    CheckpointError,
    ConfigError,
    DatasetError,
    EarlyStopping,
    InvalidInputError,
    LoraCheckpoint,
    LoraConfig,
    LoraStep,
    LoraTrainer,
    LoraTrainingConfig,
    OptimizerConfig,
    TrainingError,
    adapt_step,
    compute_lora_gradients,
)
from lattice_tune.lora.draws import epoch_order
from lattice_tune.lora.loop import CHECKPOINT_FILE, METRICS_FILE
from lattice_tune.lora.metrics_file import MetricsFile

ROWS = [{"prompt": f"{number} + 1 =", "completion": f" {number + 1}"} for number in range(7)]
RATE = OptimizerConfig(learning_rate=0.02, weight_decay=0.0)
SHORT = LoraTrainingConfig(epochs=3, batch_size=3, micro_batch_tokens=32, max_tokens=32, optimizer=RATE)


def trainer(model: Path, training: LoraTrainingConfig = SHORT, **config: Any) -> LoraTrainer:
    return LoraTrainer(model, LoraConfig(**{"rank": 4} | config), training)


def stop_after(step: int) -> Callable[[LoraStep], bool]:
    return lambda done: done.step == step


def test_gradients_are_those_of_central_differences(decoder: Path) -> None:
    with trainer(decoder, targets=("q_proj", "down_proj")) as made:
        adapt_step(made, ROWS[0], learning_rate=0.05)  # B is no longer zero
        found = compute_lora_gradients(made, ROWS[:2])
        largest = max(float(np.abs(part).max()) for pair in found.sites.values() for part in pair)
        for site, pair in found.sites.items():
            for name, gradient in zip(("a", "b"), pair, strict=True):
                place = np.unravel_index(np.abs(gradient).argmax(), gradient.shape)
                values = made._parameters.view(made._parameters.values, site, name)
                losses, before = [], values[place]
                for step in (1e-3, -1e-3):
                    values[place] = before + step
                    made._link.write()
                    losses.append(made.evaluate(ROWS[:2]).loss)
                values[place] = before
                assert (losses[0] - losses[1]) / 2e-3 == pytest.approx(gradient[place], abs=2e-3 * largest)


def test_parts_of_a_batch_have_the_gradient_of_the_whole(decoder: Path) -> None:
    """The answers have other lengths, so a mean of means would be another one."""
    rows = [{"prompt": "a", "completion": "bc" * (1 + 3 * (n % 3))} for n in range(6)]
    found = []
    for most in (512, 24):
        with trainer(decoder, replace(SHORT, micro_batch_tokens=most, max_tokens=24)) as made:
            adapt_step(made, ROWS[0], learning_rate=0.05)
            found.append(compute_lora_gradients(made, rows))
    assert found[0].weight == found[1].weight == sum(2 * (1 + 3 * (n % 3)) + 1 for n in range(6))
    assert found[0].loss == pytest.approx(found[1].loss, rel=1e-12)
    for site, pair in found[0].sites.items():
        for whole, parts in zip(pair, found[1].sites[site], strict=True):
            np.testing.assert_allclose(parts, whole, atol=1e-6 * np.abs(whole).max())


def test_it_learns_and_then_answers_so(decoder: Path, tmp_path: Path) -> None:
    rows = [
        {"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]} for q, a in ("xa", "yb")
    ]
    config = replace(SHORT, epochs=40, batch_size=2, schedule="cosine")
    with trainer(decoder, config, rank=8) as made, load_model(decoder) as model:
        result = made.train(rows)
        assert result.losses[0] > 5
        assert result.losses[-5:].max() < 0.1
        assert isinstance(made, LoraHook)
        model.attach_adapter(made, "live")
        for question, answer in ("xa", "yb"):
            prompt = f"<s><|user|>{question}<|end|><|assistant|>"
            with Session(model, adapter="live") as session:
                assert session.generate(prompt, GenerateConfig.greedy(3)).text == answer
        made.save(tmp_path / "adapter", gguf=tmp_path / "adapter.gguf")
    for stored in (load_adapter_file(tmp_path / "adapter"), load_adapter_file(tmp_path / "adapter.gguf")):
        assert len(stored.sites) == 14
    assert load_adapter_file(tmp_path / "adapter").sha256 == result.adapter.sha256
    config_file = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (config_file["r"], config_file["lora_alpha"]) == (8, 16)


def test_the_loss_is_that_of_the_model_with_the_adapter(decoder: Path) -> None:
    text = "A text that is measured twice."
    with trainer(decoder) as made, load_model(decoder) as model:
        made.train([{"text": "Some other text."}] * 3)
        model.attach_adapter(made, "live")
        theirs = perplexity(model, text, window=64, stride=32, adapter="live")
        (example,) = made._read([{"text": text}], "examples")[0]
        without_end = replace(example, token_ids=example.token_ids[:-1], trained=example.trained[:-1])
        ours = made._objective([without_end], []).measure([without_end])
    assert ours.weight == theirs.tokens == len(text) - 1
    assert ours.loss == pytest.approx(np.log(theirs.perplexity), rel=1e-3)  # its keys and values are float16


@pytest.mark.parametrize("stopping", [None, EarlyStopping(patience=50)])
def test_a_resumed_training_has_the_bits_of_one_that_never_stopped(
    decoder: Path, tmp_path: Path, stopping: EarlyStopping | None
) -> None:
    config = replace(SHORT, noise=5.0, early_stopping=stopping, eval_interval=2, b_rate_ratio=4.0)
    with trainer(decoder, config, dropout=0.2) as made:
        whole = made.train(ROWS, validation=ROWS[:2], folder=tmp_path / "whole")
    for step in (1, 4, 7):  # inside of an epoch and of a round
        with trainer(decoder, config, dropout=0.2) as made:
            made.train(ROWS, validation=ROWS[:2], folder=tmp_path / "parts", progress=stop_after(step))
    with trainer(decoder, config, dropout=0.2) as made:
        parts = made.train(ROWS, validation=ROWS[:2], folder=tmp_path / "parts")
    assert parts.adapter.sha256 == whole.adapter.sha256
    assert parts.losses.tolist() == whole.losses.tolist()
    seen = [[replace(entry, duration_seconds=0.0) for entry in one.metrics.history] for one in (whole, parts)]
    assert seen[0] == seen[1]
    lines = [(tmp_path / name / METRICS_FILE).read_text().splitlines() for name in ("whole", "parts")]
    rows = [[json.loads(line) for line in one] for one in lines]
    assert [(row["step"], row.get("loss")) for row in rows[0]] == [(row["step"], row.get("loss")) for row in rows[1]]
    with trainer(decoder, config, dropout=0.2) as made:
        again = made.train(ROWS, validation=ROWS[:2], folder=tmp_path / "parts")
    assert again.adapter.sha256 == whole.adapter.sha256


def test_dropout_and_noise_are_drawn_anew_in_each_update_and_by_the_seed(decoder: Path) -> None:
    losses = []
    for seed, dropout, noise in ((1, 0.5, 0.0), (1, 0.0, 20.0), (2, 0.0, 20.0), (1, 0.0, 0.0)):
        config = replace(SHORT, seed=seed, noise=noise, epochs=1, batch_size=7)
        with trainer(decoder, config, dropout=dropout) as made:
            made.load(made.adapter)
            for site in made.sites:  # dropout shows only where B is not zero
                made._parameters.view(made._parameters.values, site, "b")[:] = 0.05
            made._link.write()
            objective = made._objective(made._read(ROWS, "examples")[0], [])
            losses.append([objective.accumulate(range(7), step).total for step in (0, 1)])
    assert losses[3][0] == losses[3][1]
    assert all(first != second for first, second in losses[:3])
    assert len({first for first, _ in losses}) == 4


def test_early_stopping_restores_the_best_round(decoder: Path) -> None:
    stopping = EarlyStopping(patience=2, min_delta=0.0)
    config = replace(SHORT, epochs=30, early_stopping=stopping, schedule="constant")
    with trainer(decoder, config) as made:
        result = made.train(ROWS[:4], validation=[{"prompt": "1 + 1 =", "completion": " 3"}])
        history = result.metrics.history
        assert result.metrics.stopped_early
        assert len(history) < 30
        best = min(history, key=lambda entry: entry.val_loss or 0.0)
        assert result.metrics.restored_epoch == best.epoch == len(history) - 3
        again = made.evaluate([{"prompt": "1 + 1 =", "completion": " 3"}])
    assert again.loss == best.val_loss


@pytest.mark.parametrize("what", ["model", "settings", "examples"])
def test_a_checkpoint_of_another_training_is_refused(decoder: Path, tmp_path: Path, what: str) -> None:
    from tiny_decoders import write_drawn_model

    with trainer(decoder) as made:
        made.train(ROWS, folder=tmp_path / "work", progress=stop_after(2))
    kept = (tmp_path / "work" / CHECKPOINT_FILE).read_bytes()
    model = write_drawn_model(tmp_path / "other", seed=5, context=64) if what == "model" else decoder
    config = replace(SHORT, seed=3) if what == "settings" else SHORT
    rows = ROWS[:-1] if what == "examples" else ROWS
    with trainer(model, config) as made, pytest.raises(CheckpointError, match=f"other {what}|another model"):
        made.train(rows, folder=tmp_path / "work")
    assert (tmp_path / "work" / CHECKPOINT_FILE).read_bytes() == kept


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04junk", b"\x93NUMPY"])
def test_a_damaged_checkpoint_is_refused(decoder: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / CHECKPOINT_FILE).write_bytes(content)
    with trainer(decoder) as made, pytest.raises(CheckpointError, match="no checkpoint"):
        made.train(ROWS, folder=tmp_path)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("history",), 3),
        (("history",), [3]),
        (("history", 0, "train_loss"), "low"),
        (("history", 0, "epoch"), 0.5),
        (("current", "loss"), None),
        (("current",), [1]),
        (("identity",), {"model": 3, "examples": "", "settings": ""}),
        (("stopping",), 3),
        (("stopping", "waited"), "1"),
        (("stopping", "best_epoch"), 0),
        (("labels",), "ab"),
        (("step",), 4.0),
        (("version",), 2),
    ],
)
def test_a_record_that_was_changed_is_refused(decoder: Path, tmp_path: Path, place: Any, value: object) -> None:
    config = replace(SHORT, early_stopping=EarlyStopping(monitor="train_loss"))
    with trainer(decoder, config) as made:
        made.train(ROWS[:3], folder=tmp_path, progress=stop_after(2))
        path = tmp_path / CHECKPOINT_FILE
        with np.load(path) as file:
            arrays = dict(file)
        record = json.loads(arrays["record"].tobytes())
        part = record
        for key in place[:-1]:
            part = part[key]
        part[place[-1]] = value
        if place[-1] == "best_epoch":
            del arrays["best"]
        arrays["record"] = np.frombuffer(json.dumps(record).encode(), np.uint8)
        np.savez(path, **arrays)
        with pytest.raises(CheckpointError, match="no checkpoint"):
            made.train(ROWS[:3], folder=tmp_path)


def test_an_adapter_of_other_settings_is_refused_with_the_remedy(decoder: Path) -> None:
    with trainer(decoder, rank=2) as small, trainer(decoder) as made:
        with pytest.raises(InvalidInputError, match=r"has rank 2 and .* this training 4 .* give the adapter's rank"):
            made.load(small.adapter)
        sites = {name: LoraSite(site.a[:, :-1], site.b, site.scale) for name, site in made.adapter.sites.items()}
        with pytest.raises(InvalidInputError, match=r"the adapter is for .*, the model has "):
            made.load(LoraAdapter(sites))


def test_a_closed_trainer_says_so(decoder: Path, tmp_path: Path) -> None:
    made = trainer(decoder)
    adapter = made.adapter
    for _ in range(2):
        made.close()
    for call in (
        lambda: made.train(ROWS, folder=tmp_path / "work"),
        lambda: made.evaluate(ROWS),
        lambda: made.load(adapter),
        lambda: compute_lora_gradients(made, ROWS),
        lambda: adapt_step(made, ROWS[0], learning_rate=0.1),
    ):
        with pytest.raises(InvalidInputError, match="the trainer is closed"):
            call()
    assert not (tmp_path / "work").exists()
    assert made.adapter.sha256 == adapter.sha256
    made.save(tmp_path / "adapter")


def test_lines_of_metrics_that_are_damaged_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / METRICS_FILE
    kept = [b'{"step": 1}', b'{"step": 2, "loss": 0.5}']
    bad = [b"[" * 100_000, b"\xff", b"3", b'{"step": "x"}', b'{"loss": 1}', b"", b'{"step": 3}', b'{"step": 1}  }']
    path.write_bytes(b"\n".join([bad[0], kept[0], *bad[1:5], kept[1], *bad[5:], b'{"step": 2}']))  # without an end
    with MetricsFile(path, 2) as metrics:
        metrics.write({"step": 3})
    assert path.read_bytes().splitlines() == [*kept, b'{"step": 3}']


def test_a_rate_that_is_too_high_names_the_update_and_keeps_the_checkpoint(decoder: Path, tmp_path: Path) -> None:
    high = OptimizerConfig(learning_rate=1e38, weight_decay=0.0)
    config = replace(SHORT, optimizer=high, warmup=0.0, checkpoint_interval=1)
    with trainer(decoder, config) as made, pytest.raises(TrainingError, match=r"update [12]: .*not finite.*last good"):
        made.train(ROWS, folder=tmp_path)
    left = tmp_path / CHECKPOINT_FILE
    assert not left.exists() or np.isfinite(LoraCheckpoint.load(left).values).all()


def test_what_makes_no_sense_is_refused(decoder: Path, tmp_path: Path) -> None:
    for rate in (0.0, float("inf"), float("nan"), -1.0):
        with pytest.raises(ConfigError, match="learning_rate"):
            OptimizerConfig(learning_rate=rate)
    for wrong in (
        {"rank": 0},
        {"rank": 513},
        {"targets": "everything"},
        {"targets": ()},
        {"targets": ("",)},
        {"layers": (2, 1)},
        {"layers": 3},
        {"dropout": 1.0},
        {"alpha": 0.0},
    ):
        with pytest.raises(ConfigError):
            LoraConfig(**wrong)
    for wrong in (
        {"epochs": 0},
        {"max_tokens": 64, "micro_batch_tokens": 32},
        {"schedule": "step"},
        {"warmup": 2.0},
        {"noise": -1.0},
        {"gradient_clip": 0.0},
    ):
        with pytest.raises(ConfigError):
            LoraTrainingConfig(**wrong)
    with pytest.raises(InvalidInputError, match=r"ends in 'c_attn'.*self_attn\.q_proj"):
        trainer(decoder, targets=("q_proj", "c_attn"))
    with pytest.raises(InvalidInputError, match="choose no linear"):
        trainer(decoder, layers=(7, 9))
    with pytest.raises(InvalidInputError, match="objective"):
        LoraTrainer(decoder, objective="words")  # type: ignore[arg-type]
    with trainer(decoder, replace(SHORT, early_stopping=EarlyStopping())) as made:
        with pytest.raises(ConfigError, match="no validation"):
            made.train(ROWS)
        with pytest.raises(DatasetError, match="row 2: no token"):
            made.evaluate([ROWS[0], {"prompt": "a", "completion": ""}])
        with pytest.raises(InvalidInputError, match="learning_rate"):
            adapt_step(made, ROWS[0], learning_rate=0.0)
        with pytest.raises(InvalidInputError, match="site is"):
            made.factors("lm_head")


def test_a_step_that_would_overflow_changes_nothing(decoder: Path) -> None:
    with trainer(decoder) as made:
        before = made.adapter.sha256
        with pytest.raises(TrainingError, match="lower the learning rate"):
            adapt_step(made, ROWS[0], learning_rate=1e38)
        assert made.adapter.sha256 == before
        first = adapt_step(made, ROWS[0], learning_rate=0.01)
        assert adapt_step(made, ROWS[0], learning_rate=0.01).loss < first.loss


def test_layers_and_targets_choose_the_linears(decoder: Path) -> None:
    with trainer(decoder, targets="attention", layers=(1, 1)) as made:
        assert made.sites == tuple(f"model.layers.1.self_attn.{name}_proj" for name in "koqv")
        assert made.parameter_count == 4 * (32 + 16 + 32 + 32 + 32 + 32 + 32 + 16)


def test_an_adapter_can_be_trained_further(decoder: Path) -> None:
    with trainer(decoder) as made:
        first = made.train(ROWS)
        trained = made.adapter
        order = epoch_order(SHORT.seed, 0, len(ROWS))[: SHORT.batch_size]
        after = made.evaluate([ROWS[place] for place in order]).loss
    with trainer(decoder) as made:
        made.load(trained)
        assert made.adapter.sha256 == trained.sha256
        adapt_step(made, ROWS[0], learning_rate=0.01)
        assert made.adapter.sha256 != trained.sha256
        further = made.train(ROWS)
    assert further.losses[0] < first.losses[0]
    assert further.losses[0] == pytest.approx(after, rel=1e-6)
    with trainer(decoder, rank=2) as made, pytest.raises(InvalidInputError, match="rank 4"):
        made.load(trained)
    with trainer(decoder, targets=("q_proj",)) as made, pytest.raises(InvalidInputError, match="differ in 12 linears"):
        made.load(trained)


def test_an_adapter_of_any_scale_comes_back_from_its_file(decoder: Path, tmp_path: Path) -> None:
    """alpha / rank of the file is one bit off alpha / sqrt(rank)."""
    with trainer(decoder, rank=5, alpha=16, rank_stabilized=True) as made:
        stored = load_adapter_file(made.save(tmp_path / "adapter"))
        assert {site.scale for site in stored.sites.values()} != {made.config.scale}
        prefixed = LoraAdapter({name.removeprefix("model."): site for name, site in stored.sites.items()})
        for adapter in (stored, prefixed):
            made.load(adapter)
            assert made.sites == tuple(stored.sites)
    with trainer(decoder, rank=5, alpha=16.0001) as made, pytest.raises(InvalidInputError, match="and scale 7"):
        made.load(stored)


def test_a_training_from_an_adapter_is_resumed_from_that_adapter_only(decoder: Path, tmp_path: Path) -> None:
    with trainer(decoder) as made:
        trained = made.train(ROWS[:4]).adapter
    with trainer(decoder) as made:
        made.load(trained)
        whole = made.train(ROWS)
        assert made.train(ROWS).adapter.sha256 == whole.adapter.sha256
        made.train(ROWS, folder=tmp_path, progress=stop_after(2))
    with trainer(decoder) as made:
        with pytest.raises(CheckpointError, match="other settings"):
            made.train(ROWS, folder=tmp_path)
        made.load(trained)
        assert made.train(ROWS, folder=tmp_path).adapter.sha256 == whole.adapter.sha256


def test_an_adapter_in_the_rows_of_a_gguf_file_is_refused(decoder: Path) -> None:
    with trainer(decoder) as made:
        turned = in_row_order(made.adapter, decoder, "interleaved")
        with pytest.raises(InvalidInputError, match="order of rows of a GGUF file"):
            made.load(turned)
