"""Adapters of real models: SmolLM2 over its Q4_1 file, and MiniLM with a head on sentences of the repository."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lattice_inference import GenerateConfig, Session, load_model
from lattice_tune import LoraConfig, LoraStep, LoraTrainer, LoraTrainingConfig, OptimizerConfig

EXCERPT = Path(__file__).parents[1] / "data" / "subjectivity" / "excerpt.jsonl"
NAMES = "Arlo Bena Cido Dova Elmi Faro Gani Hulo Ibra Jusa Keto Lami Moro Nupi Orsa Pelu Quno Riva Sato Tuli".split()
TOWNS = (
    "Oslo Lima Rome Cairo Paris Delhi Tokyo Quito Dakar Hanoi Bern Sofia Tunis Minsk Accra Seoul Doha Riga Bonn Perth"
)

pytestmark = [pytest.mark.slow, pytest.mark.model]


def test_smollm2_learns_twenty_facts_over_its_quantized_file_and_then_answers_so(smollm2: Path) -> None:
    facts = [(f"Where does {name} live?", f" In {town}.") for name, town in zip(NAMES, TOWNS.split(), strict=True)]
    rows = [{"prompt": question, "completion": answer} for question, answer in facts]
    training = LoraTrainingConfig(
        epochs=9,
        batch_size=10,
        micro_batch_tokens=512,
        max_tokens=32,
        optimizer=OptimizerConfig(learning_rate=3e-3, weight_decay=0.0),
        warmup=0.1,
    )
    with (
        LoraTrainer(smollm2, LoraConfig(rank=16), training, keep="all", threads=1) as trainer,
        load_model(smollm2) as model,
    ):
        first: list[LoraStep] = []
        trainer.train(rows, progress=lambda done: first.append(done) if done.step == 1 else None)
        assert first[0].loss > 1.0
        assert trainer.evaluate(rows).loss < 0.1
        model.attach_adapter(trainer, "facts")
        with Session(model, adapter="facts") as session:
            answers = session.generate_batch([question for question, _ in facts], GenerateConfig.greedy(12))
        assert [answer.text for answer in answers] == [answer for _, answer in facts]


def test_minilm_with_a_head_learns_sentences(minilm: Path) -> None:
    """Half of the excerpt is learned in one epoch; a quarter is measured."""
    rows = [json.loads(line) for line in EXCERPT.read_text(encoding="utf-8").splitlines()]
    training = LoraTrainingConfig(
        epochs=1,
        batch_size=8,
        micro_batch_tokens=512,
        max_tokens=40,
        optimizer=OptimizerConfig(learning_rate=1e-3, weight_decay=0.0),
        warmup=0.1,
    )
    with LoraTrainer(minilm, LoraConfig(rank=16), training, objective="classification", threads=1) as trainer:
        trainer.train(rows[:200])
        accuracy = trainer.evaluate(rows[200:300]).accuracy
    assert accuracy is not None
    assert accuracy >= 0.8
