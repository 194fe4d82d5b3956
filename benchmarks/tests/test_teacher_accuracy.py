"""teacher_accuracy.py: what it concludes from a record, and how it reads its data."""

from pathlib import Path

import teacher_accuracy
from harness.record import describe_run


def test_calibration_that_makes_a_teacher_worse_is_a_miss() -> None:
    samples = [
        {"teacher": teacher, "data": "TREC", "texts": 100, "right": right}
        for teacher, right in (("small", 40), ("small, calibrate=False", 30))
    ]
    record = {**describe_run("teacher_accuracy"), "samples": samples}
    assert teacher_accuracy.misses(record) == []
    assert "| small | TREC | 100 | 0.400 |" in teacher_accuracy.render(record)
    samples[0]["right"] = 29
    assert len(teacher_accuracy.misses(record)) == 1


def test_datasets_are_read_as_their_authors_publish_them(tmp_path: Path) -> None:
    questions = tmp_path / "test.txt"
    questions.write_bytes("NUM:dist How far is it ?\n\nHUM:desc Who was Andr\xe9 ?\n".encode("latin-1"))
    assert teacher_accuracy.read_questions(questions) == [
        ("How far is it ?", "number"),
        ("Who was Andr\xe9 ?", "person"),
    ]
    for kind in ("pos", "neg"):
        (tmp_path / f"rt-polarity.{kind}").write_text(f"{kind} one \n{kind} two \n{kind} three \n")
    rows = teacher_accuracy.read_reviews(tmp_path, 4)
    assert rows == [("pos one", "positive"), ("pos two", "positive"), ("neg one", "negative"), ("neg two", "negative")]
