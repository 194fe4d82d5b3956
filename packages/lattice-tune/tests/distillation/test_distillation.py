"""The pipeline from texts to a stored student, its stages, and what a student refuses."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from word_encoder import LABELS, WordEncoder, questions

from lattice_fann import Activation, NetworkBuilder
from lattice_tune import (
    CallableTeacher,
    ConfigError,
    Dataset,
    DatasetError,
    DistillationConfig,
    DistillationPipeline,
    DuplicateModelError,
    EncoderMismatchError,
    EncoderRecord,
    InvalidInputError,
    LabelingTask,
    LabelSet,
    LabelStore,
    ModelRegistry,
    RecordedTeacher,
    StudentFileError,
    StudentModel,
    TeacherAnswerError,
    TeacherFunction,
    TrainingConfig,
    TrainingExample,
    fit_temperature,
    load_student,
)
from lattice_tune.distillation.student_trainer import held_out

QUICK = DistillationConfig(hidden=(16,), training=TrainingConfig(epochs=30, seed=1))


class NoisyTeacher:
    """Right four times in five, soft; counts the texts that it was asked."""

    fingerprint = "noisy-1"

    def __init__(self, data: Dataset, right: float = 0.8) -> None:
        self.known = {example.text: example.label for example in data}
        self.right, self.asked = right, 0

    def __call__(self, texts: Sequence[str]) -> list[dict[str, float] | None]:
        self.asked += len(texts)
        answers: list[dict[str, float] | None] = []
        for text in texts:
            draws = np.random.RandomState(sum(text.encode()) % 2**31)
            label = self.known[text]
            if draws.uniform() > self.right:
                label = str(draws.choice([name for name in LABELS if name != label]))
            answers.append({name: 0.8 if name == label else 0.1 for name in LABELS})
        return answers


def test_the_plot_shows_each_count(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result = DistillationPipeline(WordEncoder(), LabelSet(LABELS), None, config=QUICK).run(questions(60, seed=1))
    figure = result.report.plot(tmp_path / "x.svg")
    assert (tmp_path / "x.svg").read_bytes().startswith(b"<?xml")
    losses, confusion = figure.axes
    assert len(losses.lines[0].get_xdata()) == len(result.report.training.history)
    shown = [int(text.get_text()) for text in confusion.texts]
    evaluation = result.report.held_out_gold or result.report.held_out_teacher
    assert shown == [count for row in evaluation.confusion for count in row]
    with pytest.raises(InvalidInputError, match=r"pictures are \.png, \.svg, \.pdf files"):
        result.report.plot(tmp_path / "x.gif")


def unlabelled(data: Dataset) -> Dataset:
    return Dataset([TrainingExample(text=example.text) for example in data])


def test_a_student_beats_the_teacher_that_it_learned_from(tmp_path: Path) -> None:
    data, test = questions(600), questions(200, seed=9)
    pipeline = DistillationPipeline(WordEncoder(), LabelSet(LABELS), NoisyTeacher(data), config=QUICK)
    result = pipeline.run(unlabelled(data), test=test, output=tmp_path / "student.safetensors")
    report = result.report
    assert report.test_gold is not None
    assert report.test_gold.accuracy > 0.87
    assert report.test_teacher is None
    assert report.held_out_gold is None
    assert report.examples == 600
    assert report.trained + report.held_out_teacher.count == 600
    assert report.calibrated_log_loss <= report.uncalibrated_log_loss
    assert report.pass_back.measured_on == ("test", "gold")
    student = load_student(tmp_path / "student.safetensors", encoder=WordEncoder())
    found = student.predict(test.texts())
    truth = [example.label for example in test]
    accuracy = np.mean([a == b for a, b in zip(found.labels, truth, strict=True)])
    assert accuracy == pytest.approx(report.test_gold.accuracy)
    assert student.report["test_gold"]["accuracy"] == pytest.approx(report.test_gold.accuracy)
    np.testing.assert_array_equal(
        found.probabilities,
        result.student.predict_vectors(
            WordEncoder().encode(test.texts()).vectors, encoder_fingerprint="words-1"
        ).probabilities,
    )


def test_gold_labels_tell_how_good_the_teacher_is() -> None:
    data = questions(300)
    report = DistillationPipeline(WordEncoder(), LabelSet(LABELS), NoisyTeacher(data), config=QUICK).run(data).report
    assert report.teacher_accuracy == pytest.approx(0.8, abs=0.1)
    assert report.held_out_gold is not None
    assert report.pass_back.measured_on == ("held_out", "gold")


@pytest.mark.parametrize("gold_in", [1, 2, 1000])
def test_enough_gold_labels_decide_the_calibration(gold_in: int) -> None:
    data = questions(900)
    some = Dataset(
        [TrainingExample(text=e.text, label=e.label if i % gold_in == 0 else None) for i, e in enumerate(data)]
    )
    teacher = NoisyTeacher(data, right=0.6)
    result = DistillationPipeline(WordEncoder(), LabelSet(LABELS), teacher, config=QUICK).run(some)
    out = held_out([text.encode() for text in data.texts()], 0.1, 1)
    expected = Dataset(
        [{"text": t, "labels": a} for t, a in zip(data.texts(), teacher(data.texts()), strict=True)]
    ).targets(LabelSet(LABELS))
    gold = some.gold(LabelSet(LABELS))
    known = out & np.isfinite(gold[:, 0])
    if gold_in == 1000:
        known = out
    else:
        expected = gold
    vectors = WordEncoder().encode(data.texts()).vectors
    wanted = fit_temperature(result.student.network.forward_batch(vectors)[known], expected[known])
    assert known.sum() >= 30
    assert result.report.temperature == pytest.approx(wanted, rel=1e-3)


def test_stages_with_known_inputs_are_skipped(tmp_path: Path) -> None:
    data, test = questions(200), questions(50, seed=5)
    encoder, teacher = WordEncoder(), NoisyTeacher(data)

    def run(config: DistillationConfig = QUICK, **options: object) -> dict[str, bool]:
        pipeline = DistillationPipeline(
            encoder,
            LabelSet(LABELS),
            options.pop("teacher", teacher),
            config=config,
            folder=tmp_path / "stages",  # type: ignore[arg-type]
        )
        result = pipeline.run(unlabelled(data), test=test)
        parameters.append(result.student.network.parameter_vector())
        evaluations.append(result.report.test_gold)
        return {stage.name: stage.skipped for stage in result.report.stages}

    parameters: list[np.ndarray] = []
    evaluations: list[object] = []
    assert not any(run().values())
    asked, texts = teacher.asked, encoder.texts
    again = run()
    assert {name for name, skipped in again.items() if skipped} == {"labels", "vectors", "student", "test vectors"}
    assert (teacher.asked, encoder.texts) == (asked, texts)
    assert (parameters[0] == parameters[1]).all()
    assert evaluations[0] == evaluations[1]
    other = DistillationConfig(hidden=(8,), training=QUICK.training)
    assert run(other) == {"labels": True, "vectors": True, "student": False, "test vectors": True, "evaluation": False}
    for path in (tmp_path / "stages").iterdir():  # what is damaged is made anew
        path.write_bytes(path.read_bytes()[:50])
    assert not any(run().values())
    assert (parameters[0] == parameters[-1]).all()
    nameless = run(teacher=lambda texts: NoisyTeacher(data)(texts))
    assert not nameless["labels"]
    assert nameless["student"]  # it gave the same labels


def test_texts_without_an_answer_and_unsure_ones_are_left_out() -> None:
    data = questions(200)
    known = {example.text: example.label for example in data}

    def teacher(texts: Sequence[str]) -> list[object]:
        answers: list[object] = []
        for text in texts:
            kind = sum(text.encode()) % 4
            row = [0.4, 0.3, 0.3] if kind == 1 else [float(name == known[text]) for name in LABELS]
            answers.append(None if kind == 0 else known[text] if kind == 2 else row)
        return answers

    config = DistillationConfig(hidden=(), min_confidence=0.5, training=QUICK.training)
    report = DistillationPipeline(WordEncoder(), LabelSet(LABELS), teacher, config=config).run(unlabelled(data)).report
    kinds = [sum(example.text.encode()) % 4 for example in data]  # type: ignore[union-attr]
    assert (report.unanswered, report.left_out) == (kinds.count(0), kinds.count(1))
    assert report.trained + report.held_out_teacher.count == kinds.count(2) + kinds.count(3)


def test_a_missing_answer_is_asked_for_again(tmp_path: Path) -> None:
    """Failures are no answers: a run that a budget ended goes on in the next one."""
    data = questions(60)
    teacher = NoisyTeacher(data)
    asked: list[int] = []

    def limited(texts: Sequence[str]) -> list[dict[str, float] | None]:
        asked.append(len(texts))
        answers = teacher(texts)
        return [answer if i < 40 or len(asked) > 1 else None for i, answer in enumerate(answers)]

    limited.fingerprint = "limited-1"  # type: ignore[attr-defined]
    pipeline = DistillationPipeline(WordEncoder(), LabelSet(LABELS), limited, config=QUICK, folder=tmp_path)
    assert pipeline.run(unlabelled(data)).report.unanswered == 20
    assert pipeline.run(unlabelled(data)).report.unanswered == 0
    assert pipeline.run(unlabelled(data)).report.stages[0].skipped
    assert asked == [60, 60]


@pytest.mark.parametrize(
    "answer",
    [
        "cat",
        {"cat": 1.0},
        {"person": 0.5},
        [0.5, 0.5],
        [0.5, 0.6, 0.1],
        [np.nan, 0.5, 0.5],
        [-0.5, 1.0, 0.5],
        ["a", "b", "c"],
        3,
        {"person": "1"},
        object(),
    ],
)
def test_answers_that_are_none_are_named(answer: object) -> None:
    pipeline = DistillationPipeline(WordEncoder(), LabelSet(LABELS), lambda texts: [answer] * len(texts), config=QUICK)
    with pytest.raises(TeacherAnswerError, match="text 0"):
        pipeline.run(unlabelled(questions(20)))


@pytest.mark.parametrize("given", [None, "person", [], {"person": 1.0}, 7])
def test_another_number_of_answers_is_an_error(given: object) -> None:
    pipeline = DistillationPipeline(WordEncoder(), LabelSet(LABELS), lambda texts: given, config=QUICK)  # type: ignore[arg-type,return-value]
    with pytest.raises(TeacherAnswerError):
        pipeline.run(unlabelled(questions(20)))


def test_labels_that_are_there_already_are_a_teacher() -> None:
    data = questions(200)
    teacher = RecordedTeacher(data)
    assert teacher(["nothing like this"]) == [None]
    assert teacher.fingerprint == RecordedTeacher(data).fingerprint != RecordedTeacher(questions(3)).fingerprint
    result = DistillationPipeline(WordEncoder(), LabelSet(LABELS), teacher, config=QUICK).run(unlabelled(data))
    alone = DistillationPipeline(WordEncoder(), LabelSet(LABELS), config=QUICK).run(data)
    assert (result.student.network.parameter_vector() == alone.student.network.parameter_vector()).all()
    with pytest.raises(InvalidInputError):
        RecordedTeacher(unlabelled(data))


def test_low_confidence_is_passed_back() -> None:
    config = DistillationConfig(hidden=(16,), confidence=0.9, training=QUICK.training)
    result = DistillationPipeline(WordEncoder(), LabelSet(LABELS), config=config).run(questions(300))
    pass_back = result.report.pass_back
    assert pass_back.threshold == 0.9
    assert len(pass_back.least_confident) == 10
    at = next(row for row in pass_back.table if row.threshold == 0.9)
    assert 0 < at.passed_back < 1
    student = result.student
    student.use_encoder(WordEncoder())
    found = student.predict([*pass_back.least_confident])
    assert found.passed_back.all()
    assert (found.confidence[:-1] <= found.confidence[1:]).all()


def test_the_test_set_is_told_to_overlap() -> None:
    data = questions(200)
    test = Dataset(list(data)[:5] + list(questions(20, seed=3)))
    report = DistillationPipeline(WordEncoder(), LabelSet(LABELS), config=QUICK).run(data, test=test).report
    assert report.overlap >= 5


def test_rare_labels_count_more_when_balanced() -> None:
    data = Dataset([e for i, e in enumerate(questions(900)) if e.label != "place" or i % 20 == 0])
    recalls = []
    for balance in (False, True):
        config = DistillationConfig(hidden=(), balance=balance, training=TrainingConfig(epochs=12, seed=1))
        result = DistillationPipeline(WordEncoder(), LabelSet(LABELS), config=config).run(
            data, test=questions(300, seed=4)
        )
        recalls.append(result.report.test_gold.by_label["place"].recall)  # type: ignore[union-attr]
    assert recalls[1] > recalls[0] + 0.05


def trained() -> StudentModel:
    network = NetworkBuilder().input(32).output(3, Activation.SOFTMAX).build(seed=0)
    record = EncoderRecord(fingerprint="words-1", source="", dimension=32, prompt="query: ")
    return StudentModel(network, LabelSet(LABELS), record, temperature=2.0, threshold=0.5, report={"x": [1, None]})


def test_a_stored_student_is_the_same(tmp_path: Path) -> None:
    student = trained()
    student.save(tmp_path / "s.safetensors")
    assert os.listdir(tmp_path) == ["s.safetensors"]
    back = load_student(tmp_path / "s.safetensors", encoder=WordEncoder())
    assert (back.labels, back.encoder_record, back.temperature) == (student.labels, student.encoder_record, 2.0)
    assert (back.threshold, back.report) == (0.5, {"x": [1, None]})
    texts = ["who wrote", "where"]
    vectors = WordEncoder().encode(texts, prompt="query: ").vectors
    wanted = student.predict_vectors(vectors, encoder_fingerprint="words-1")
    found = back.predict(texts)
    assert (found.probabilities == wanted.probabilities).all()
    assert found.labels == wanted.labels
    assert back.predict([]).labels == []


def test_another_encoders_vectors_are_refused(tmp_path: Path) -> None:
    student = trained()
    student.save(tmp_path / "s.safetensors")
    with pytest.raises(EncoderMismatchError, match="words-2") as refused:
        load_student(tmp_path / "s.safetensors", encoder=WordEncoder(fingerprint="words-2"))
    assert (refused.value.expected, refused.value.actual) == ("words-1", "words-2")
    with pytest.raises(EncoderMismatchError):
        student.predict_vectors(np.ones((1, 32)), encoder_fingerprint="words-2")
    with pytest.raises(InvalidInputError, match="31 dimensions"):
        student.predict_vectors(np.ones((1, 31)), encoder_fingerprint="words-1")
    with pytest.raises(InvalidInputError, match="not finite"):
        student.predict_vectors(np.full((1, 32), np.nan), encoder_fingerprint="words-1")
    with pytest.raises(InvalidInputError, match="where its encoder is"):
        student.predict(["a"])
    with pytest.raises(InvalidInputError):
        student.use_encoder(3)  # type: ignore[arg-type]
    student.use_encoder(WordEncoder())
    for wrong in ("text", None, [1], ["a", None]):
        with pytest.raises(InvalidInputError):
            student.predict(wrong)  # type: ignore[arg-type]


def test_damaged_students_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    trained().save(path)
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    for change in (
        {"version": 2},
        {"labels": ["a"]},
        {"labels": ["a", "a", "b"]},
        {"labels": 3},
        {"temperature": 0},
        {"temperature": "hot"},
        {"threshold": None},
        {"encoder": None},
        {"encoder": {"fingerprint": "x", "source": "", "dimension": 5, "prompt": ""}},
        {"report": []},
    ):
        fields = json.loads(header["__metadata__"]["lattice_tune_student"]) | change
        told = {"__metadata__": {"lattice_tune_student": json.dumps(fields)}, "network": header["network"]}
        encoded = json.dumps(told).encode()
        path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + content[8 + size :])
        with pytest.raises(StudentFileError, match=r"s\.safetensors"):
            load_student(path)
    for damaged in (
        b"",
        b"x" * 100,
        content[:40],
        content[:-10],
        content[:-10] + bytes(10),
        (2**60).to_bytes(8, "little"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(StudentFileError, match=r"s\.safetensors"):
            load_student(path)
    save_file({"network": np.zeros(4, np.float32)}, path)
    with pytest.raises(StudentFileError, match="without a student"):
        load_student(path)
    for wrong in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(StudentFileError):
            load_student(wrong)
    with pytest.raises(StudentFileError):
        trained().save(tmp_path / "no" / "folder")


def test_runs_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    labels = LabelSet(LABELS)
    data = questions(50)
    pipeline = DistillationPipeline(WordEncoder(), labels, config=QUICK)
    for options in ({"name": "x"}, {"name": "x", "version": "1.0.0"}, {"test": [1]}, {"output": 3}):
        with pytest.raises(InvalidInputError):
            pipeline.run(data, **options)  # type: ignore[arg-type]
    with pytest.raises(DatasetError, match="no text"):
        pipeline.run(Dataset([{"vector": [1.0], "label": "person"}]))
    with pytest.raises(InvalidInputError, match="0 have labels"):
        pipeline.run(unlabelled(data))
    with pytest.raises(InvalidInputError, match="'cat'"):
        pipeline.run(Dataset([("a", "cat")]))
    with pytest.raises(InvalidInputError, match="no examples"):
        pipeline.run(Dataset([]))
    with pytest.raises(InvalidInputError, match="test set"):
        pipeline.run(data, test=unlabelled(data))
    (tmp_path / "file").write_text("x", encoding="utf-8")
    for arguments in (
        {"encoder": 3},
        {"labels": LabelSet(["one"])},
        {"labels": ["a", "b"]},
        {"teacher": 3},
        {"registry": 3},
        {"progress": 3},
        {"config": {}},
    ):
        with pytest.raises(InvalidInputError):
            DistillationPipeline(**({"encoder": WordEncoder(), "labels": labels} | arguments))  # type: ignore[arg-type]
    with pytest.raises(OSError, match="file"):
        DistillationPipeline(WordEncoder(), labels, folder=tmp_path / "file" / "x")


@pytest.mark.parametrize(
    "wrong",
    [
        {"hidden": (0,)},
        {"hidden": 3},
        {"temperature": 0},
        {"hard_share": float("nan")},
        {"confidence": 1.5},
        {"min_confidence": -0.1},
        {"balance": 1},
        {"prompt": "\0"},
        {"batch_size": 0},
        {"training": None},
        {"training": TrainingConfig(val_split=0, early_stopping=None)},
    ],
)
def test_configurations_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        DistillationConfig(**wrong)  # type: ignore[arg-type]


def test_a_student_is_registered(tmp_path: Path) -> None:
    data = questions(100)
    with ModelRegistry(tmp_path / "registry") as registry:
        pipeline = DistillationPipeline(
            WordEncoder(), LabelSet(LABELS), RecordedTeacher(data), config=QUICK, registry=registry
        )
        made = pipeline.run(data, test=questions(30, seed=4), name="router", version="1.0.0").registered
        assert made is not None
        assert (str(made.version), made.kind.value, made.status.value) == ("1.0.0", "student", "pending")
        assert made.metadata.num_training_examples == pytest.approx(90, abs=10)
        assert made.metadata.test_accuracy is not None
        assert made.lineage.base_model == "words-1"
        assert made.lineage.dataset_digest == data.digest()
        assert made.lineage.teacher == RecordedTeacher(data).fingerprint
        (tmp_path / "back.safetensors").write_bytes(registry.load_weights_verified(registry.get("router", "1.0.0")))
        with pytest.raises(DuplicateModelError):
            pipeline.run(data, name="router", version="1.0.0")
    assert load_student(tmp_path / "back.safetensors").report["examples"] == 100


def test_a_teacher_with_a_store_is_a_teacher(tmp_path: Path) -> None:
    """A function over a label store: what was answered is not asked again, with the stages' folder or without."""
    data = questions(60)
    known = {example.text: example.label for example in data}
    asked: list[str] = []

    def rule(text: str) -> str:
        asked.append(text)
        return str(known[text])

    task = LabelingTask(LABELS)
    with LabelStore(tmp_path / "labels.db") as store:
        for folder in (None, tmp_path / "work", tmp_path / "work"):
            teacher = TeacherFunction(CallableTeacher(rule, name="rule"), task, store=store)
            pipeline = DistillationPipeline(WordEncoder(), LabelSet(LABELS), teacher, config=QUICK, folder=folder)
            stages = pipeline.run(unlabelled(data)).report.stages
    assert stages[0].skipped
    assert len(asked) == len(set(data.texts()))


def test_progress_tells_of_each_stage() -> None:
    told: list[tuple[str, int, int]] = []
    data = questions(100)
    pipeline = DistillationPipeline(
        WordEncoder(),
        LabelSet(LABELS),
        NoisyTeacher(data),
        config=DistillationConfig(hidden=(), batch_size=30, training=TrainingConfig(epochs=2, seed=1)),
        progress=lambda *what: told.append(what),
    )
    pipeline.run(unlabelled(data))
    assert [entry for entry in told if entry[0] == "labels"] == [("labels", n, 100) for n in (30, 60, 90, 100)]
    assert told[-1] == ("student", 2, 2)
