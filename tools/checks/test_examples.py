"""Every program of ``examples/`` does what its first lines say, with the real models."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import ROOT

EXAMPLES = ROOT / "examples"
NOTES = {
    "refunds.txt": "Refunds are paid to the card that you used, within ten days.",
    "trains.txt": "Trains to the airport leave every half hour from platform two.",
    "garden.md": "Water the tomatoes in the evening and tie them to a stick.",
}
ANIMALS = ["cat", "dog", "horse", "cow", "sheep", "goat", "rabbit", "mouse", "fox", "bear"]
PLACES = ["in the house", "near the river", "on the hill", "under a tree", "behind the barn"]
COURTS = [
    "tax law",
    "a contract",
    "the budget",
    "an audit",
    "a merger",
    "a lawsuit",
    "a patent",
    "the board",
    "a loan",
    "a fee",
]
DAYS = ["on Monday", "last year", "in the report", "before the court", "at the meeting"]

pytestmark = [pytest.mark.slow, pytest.mark.model, pytest.mark.usefixtures("minilm_directory")]


@pytest.fixture
def run(tmp_path, snippet_environment):
    """Run a program in an empty folder and return its output's lines.

    ``status`` is its required exit status.
    """

    def run(name: str, *arguments: str, status: int = 0) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments],
            cwd=tmp_path,
            env=snippet_environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == status, done.stderr
        assert done.stderr == ""
        return done.stdout.splitlines()

    return run


@pytest.fixture
def notes(tmp_path) -> Path:
    folder = tmp_path / "notes"
    folder.mkdir()
    for name, text in NOTES.items():
        (folder / name).write_text(text + "\n", encoding="utf-8")
    return folder


def test_folder_is_searched_and_only_changes_are_embedded(run, notes):
    first = run("search_folder.py", "notes", "I want my money back", "--top", "1")
    assert first[0] == "3 files embedded"
    assert first[1].endswith(f"refunds.txt  {NOTES['refunds.txt']}")
    (notes / "garden.md").write_text("The bakery opens at six.", encoding="utf-8")
    (notes / "refunds.txt").unlink()
    second = run("search_folder.py", "notes", "where do I buy bread?", "--top", "5")
    assert second[0] == "1 files embedded"
    assert [line.split("  ")[1] for line in second[1:]] == ["garden.md", "trains.txt"]
    assert run("search_folder.py", "notes", "bread")[0] == "0 files embedded"


def test_language_model_answers_from_the_folder(run, notes, smollm2):
    lines = run(
        "answer_from_documents.py", "notes", "When are refunds paid?", "--generator", str(smollm2), "--top", "1"
    )
    assert lines[-1] == "from: refunds.txt"
    assert "ten days" in " ".join(lines[:-1])


def test_candidates_are_put_in_the_order_of_the_cross_encoder(run, snippet_folder):
    from lattice_embed import CrossEncoder

    query = "how do cats sleep?"
    printed = run("rerank.py", "corpus.txt", query, "--reranker", "models/reranker", "--candidates", "3")
    hits = [re.fullmatch(r"(\S+)  \(was (\d) of 3\)  (.*)", line).groups() for line in printed]
    with CrossEncoder(snippet_folder / "models" / "reranker") as reranker:
        scores = reranker.score(query, [text for _, _, text in hits])
    assert [score for score, _, _ in hits] == [f"{score:.3f}" for score in sorted(scores, reverse=True)]
    assert sorted(number for _, number, _ in hits) == ["1", "2", "3"]
    assert next(text for _, number, text in hits if number == "1") == "Cats sleep a lot."


def test_texts_get_the_label_of_texts_like_them(run, tmp_path):
    lines = [f"animals\tA {animal} sleeps {place}." for animal in ANIMALS for place in PLACES[:2]]
    lines += [f"business\tThey discuss {matter} {day}." for matter in COURTS for day in DAYS[:2]]
    (tmp_path / "labelled.tsv").write_text("\n".join(lines), encoding="utf-8")
    texts = ["A squirrel sleeps in the park.", "The lawyers discuss the invoice."]
    printed = run("classify_texts.py", "labelled.tsv", *texts, "--save", "labels.fann")
    assert [line.split("  ")[0] for line in printed] == ["animals", "business"]
    assert all(float(line.split("  ")[1]) > 0.8 for line in printed)
    from lattice_fann import Network

    assert Network.load(tmp_path / "labels.fann").layers[0].weights.shape == (16, 384)


def test_drift_is_told_and_no_drift_is_not(run, tmp_path):
    animals = [f"A {animal} sleeps {place}." for animal in ANIMALS for place in PLACES]
    business = [f"They discuss {matter} {day}." for matter in COURTS for day in DAYS]
    for name, lines in (("old", animals[::2]), ("same", animals[1::2]), ("other", business)):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert run("watch_drift.py", "old", "same")[0].startswith("stable: p = ")
    assert run("watch_drift.py", "old", "other", status=1)[0].startswith("reindex: p = ")


def test_cells_of_the_notebook_run_in_order(tmp_path, snippet_environment):
    notebook = json.loads((EXAMPLES / "first_steps.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= 5
    assert [cell for cell in notebook["cells"] if cell.get("outputs")] == []  # outputs are of the reader's machine
    checks = """
assert similarities[0, 1] > 0.4 > similarities[0, 2]
assert answers == texts[:2]
assert found_int8.indices.tolist() == found.indices.tolist()
"""
    program = "\n".join([*cells, checks])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path,
        env=snippet_environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def test_web_service_embeds_and_refuses(monkeypatch):
    pytest.importorskip("fastapi")
    monkeypatch.setenv("LATTICE_OFFLINE", "1")
    monkeypatch.delenv("LATTICE_EMBED_MODEL", raising=False)
    spec = importlib.util.spec_from_file_location("web_service", EXAMPLES / "web_service.py")
    web_service = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "web_service", web_service)
    spec.loader.exec_module(web_service)

    async def post(body: dict[str, object]) -> tuple[int, dict[str, object]]:
        """Ask the application as a server would (ASGI), without a socket."""
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": "/embeddings",
            "raw_path": b"/embeddings",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
        }
        sent: list[dict[str, object]] = []

        async def receive() -> dict[str, object]:
            return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}

        async def send(message: dict[str, object]) -> None:
            sent.append(message)

        await web_service.app(scope, receive, send)
        content = b"".join(message.get("body", b"") for message in sent)
        return sent[0]["status"], json.loads(content)

    async def requests() -> list[tuple[int, dict[str, object]]]:
        async with web_service.lifespan(web_service.app):
            return [await post({"texts": ["a cat", "a kitten"], "role": "query"}), await post({"texts": []})]

    (status, found), (refused, error) = asyncio.run(requests())
    assert status == 200
    assert [len(vector) for vector in found["vectors"]] == [384, 384]
    assert found["truncated"] == [False, False]
    assert refused == 422
    assert "text" in error["detail"]


def test_every_program_is_listed_and_tested():
    programs = {path.name for path in EXAMPLES.iterdir() if path.suffix in {".py", ".ipynb"}}
    listed = re.findall(
        r"^\| \[(\w+\.(?:py|ipynb))\]", (EXAMPLES / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert set(listed) == programs
    assert {name for name in programs if name not in Path(__file__).read_text(encoding="utf-8")} == set()
