"""The command line, driven as a user does: texts in, tables, JSON and files out, and clear errors."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import lattice_inference
from lattice_embed import EmbeddingModel, NativeEmbeddingService
from lattice_embed.cli import main

Capture = pytest.CaptureFixture[str]
COMMANDS = ["embed", "similarity", "models", "download", "cache", "store", "backfill", "check-drift", "doctor"]


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Any:
    def provide(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    return provide


def vectors_of(texts: list[str], **options: Any) -> np.ndarray:
    with NativeEmbeddingService("minilm") as service:
        return service.encode(texts, **options)


def run_json(capsys: Capture, *arguments: str) -> Any:
    assert main(list(arguments)) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return json.loads(captured.out)


def failure(capsys: Capture, *arguments: str) -> tuple[int, str]:
    status = main(list(arguments))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("lattice-embed: error: ")
    return status, captured.err


# embed


def test_json_holds_the_vectors_of_the_service(loader: Any, capsys: Capture) -> None:
    report = run_json(capsys, "embed", "--model", "minilm", "--json", "one two", "three")
    assert list(report) == ["model", "dim", "fingerprint", "space", "embeddings", "usage"]
    origin = NativeEmbeddingService(EmbeddingModel.ALL_MINILM_L6_V2).provenance()
    assert (report["fingerprint"], report["space"]) == (origin.fingerprint, origin.space)
    assert (report["model"], report["dim"]) == ("all-minilm-l6-v2", 384)
    assert [list(entry) for entry in report["embeddings"]] == [["index", "tokens", "truncated", "embedding"]] * 2
    assert [entry["index"] for entry in report["embeddings"]] == [0, 1]
    assert [entry["tokens"] for entry in report["embeddings"]] == [4, 3]
    assert [entry["truncated"] for entry in report["embeddings"]] == [False, False]
    assert report["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    numbers = np.array([entry["embedding"] for entry in report["embeddings"]], np.float32)
    assert numbers.tobytes() == vectors_of(["one two", "three"]).tobytes()


def test_numbers_are_written_in_their_shortest_form(loader: Any, capsys: Capture) -> None:
    assert main(["embed", "--model", "minilm", "--json", "a"]) == 0
    numbers = capsys.readouterr().out.split('"embedding": [')[1].split("]")[0].split(", ")
    assert max(map(len, numbers)) <= len("-1.2345678e-05")


def test_preview_shows_texts_tokens_and_truncation(loader: Any, capsys: Capture) -> None:
    assert main(["embed", "--model", "minilm", "a\nb", "word " * 300, *["more"] * 30]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[1].split()[:2] == ["0", "4"]
    assert out[1].endswith("a b")
    assert "256+" in out[2]
    assert "and 12 more" in out[-2]
    assert "32 vectors of 384 float32" in out[-1]
    assert "1 cut at the token limit" in out[-1]


def test_output_is_a_whole_npy_file(loader: Any, capsys: Capture, tmp_path: Path) -> None:
    output = tmp_path / "x.npy"
    assert main(["embed", "--model", "minilm", "--output", str(output), "a", "b"]) == 0
    assert "2 vectors of 384 float32" in capsys.readouterr().out
    written = np.load(output)
    assert written.dtype == np.float32
    assert written.tobytes() == vectors_of(["a", "b"]).tobytes()
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]
    umask = os.umask(0)
    os.umask(umask)
    assert output.stat().st_mode & 0o777 == 0o666 & ~umask


def test_failed_write_leaves_nothing_behind(
    loader: Any, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "x.npy"
    output.write_bytes(b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    status, message = failure(capsys, "embed", "--model", "minilm", "--output", str(output), "a")
    assert status == 1
    assert "No space left" in message
    assert output.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]


@pytest.mark.parametrize("name", ["x.txt", "missing/x.npy", "x"])
def test_impossible_output_is_refused_before_any_work(name: str, loader: Any, capsys: Capture, tmp_path: Path) -> None:
    status, message = failure(capsys, "embed", "--model", "minilm", "--output", str(tmp_path / name), "a")
    assert status == 2
    assert "--output" in message
    assert loader.calls == []


@pytest.mark.parametrize(
    ("data", "texts"),
    [
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\r\n\r\ntwo", ["one", "", "two"]),
        (b"\xef\xbb\xbfone\n", ["one"]),
        ("a\u2028b\x0cc\n".encode(), ["a\u2028b\x0cc"]),
        (b"\n", [""]),
    ],
)
def test_lines_are_texts(
    data: bytes, texts: list[str], loader: Any, capsys: Capture, tmp_path: Path, stdin: Any
) -> None:
    expected = vectors_of(texts)
    file = tmp_path / "in.txt"
    file.write_bytes(data)
    for source in (["--input", str(file)], ["--input", "-"], ["-"]):
        stdin(data)
        report = run_json(capsys, "embed", "--model", "minilm", "--json", *source)
        assert np.array_equal(np.array([entry["embedding"] for entry in report["embeddings"]], np.float32), expected)


def test_more_lines_than_a_call_takes_are_split(loader: Any, capsys: Capture, tmp_path: Path) -> None:
    texts = [f"line {number}" for number in range(1_205)]
    (tmp_path / "in.txt").write_text("\n".join(texts))
    output = tmp_path / "x.npy"
    assert main(["embed", "--model", "minilm", "--input", str(tmp_path / "in.txt"), "--output", str(output)]) == 0
    assert np.load(output).tobytes() == vectors_of(texts).tobytes()


def test_options_reach_the_service(loader: Any, capsys: Capture) -> None:
    arguments = [
        "embed",
        "--model",
        "bge-small-en-v1.5",
        "--json",
        "--role",
        "query",
        "--no-normalize",
        "--threads",
        "2",
        "--device",
        "auto",
    ]
    report = run_json(capsys, *arguments, "cats")
    assert loader.encoders[0].seen == ["Represent this sentence for searching relevant passages: cats"]
    assert np.linalg.norm(report["embeddings"][0]["embedding"]) > 2
    assert loader.calls[0][1]["threads"] == 2
    assert loader.calls[0][1]["device"] == "auto"


def test_model_comes_from_the_environment(loader: Any, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_json(capsys, "embed", "--json", "a")["model"] == "bge-small-en-v1.5"
    monkeypatch.setenv("LATTICE_EMBED_MODEL", "minilm")
    assert run_json(capsys, "embed", "--json", "a")["model"] == "all-minilm-l6-v2"


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["embed", "--model", "minilm"], 2, "no texts"),
        (["embed", "--model", "no-such-model", "a"], 2, "known are"),
        (["embed", "--model", "minilm", "--input", "missing.txt"], 1, "missing.txt"),
        (["embed", "--model", "minilm", "--input", "in.txt", "a"], 2, "both given"),
        (["embed", "--model", "minilm", "--truncate", "error", "word " * 300], 2, "302 tokens"),
        (["embed", "--model", "minilm", "x" * 40_000], 2, "32,768"),
        (["embed", "--model", "minilm", "--output-dim", "64", "a"], 2, "not trained"),
        (["similarity", "--model", "minilm"], 2, "give two texts"),
        (["similarity", "--model", "minilm", "a"], 2, "add another"),
        (["similarity", "--model", "minilm", "--input", "in.txt", "a", "b"], 2, "both given"),
        (["similarity", "--model", "minilm", "--top", "0", "a", "b"], 2, "--top"),
    ],
)
def test_mistakes_are_explained_without_a_traceback(
    arguments: list[str], status: int, words: str, loader: Any, capsys: Capture
) -> None:
    got, message = failure(capsys, *arguments)
    assert got == status
    assert words in message
    assert "Traceback" not in message


@pytest.mark.parametrize(("data", "words"), [(b"", "is empty"), (b"good\nb\xffd\n", "line 2: not UTF-8 (byte 0xff)")])
def test_unreadable_input_is_explained(data: bytes, words: str, loader: Any, capsys: Capture, stdin: Any) -> None:
    stdin(data)
    status, message = failure(capsys, "embed", "--model", "minilm", "-")
    assert status == 2
    assert words in message


def test_missing_model_is_a_failure_not_a_mistake(loader: Any, capsys: Capture) -> None:
    loader.failures = [lattice_inference.errors.ModelNotFoundError("nowhere to be found")]
    status, told = failure(capsys, "embed", "--model", "minilm", "a")
    assert status == 1
    assert told.startswith("lattice-embed: error: nowhere to be found\n")
    assert told.endswith("`lattice-embed download all-minilm-l6-v2` downloads the model (with lattice-embed[hub])\n")


@pytest.mark.parametrize("arguments", [[], ["frobnicate"], ["embed", "--role", "boss", "a"], ["embed", "--nope"]])
def test_unknown_options_are_usage_errors(arguments: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "usage: lattice-embed" in capsys.readouterr().err


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help_teaches_by_examples(command: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*command, "--help"])
    assert stopped.value.code == 0
    out = capsys.readouterr().out
    assert "examples:" in out
    assert f"lattice-embed {command[0] if command else 'embed'}" in out


def test_interrupt_is_reported_in_one_line(loader: Any, capsys: Capture) -> None:
    loader.failures = [KeyboardInterrupt()]
    assert main(["embed", "--model", "minilm", "a"]) == 130
    assert capsys.readouterr().err == "lattice-embed: interrupted\n"


def test_interrupt_before_a_command_is_known_is_reported_likewise(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("argparse.ArgumentParser.parse_args", Mock(side_effect=KeyboardInterrupt))
    assert main(["models"]) == 130
    assert capsys.readouterr().err == "lattice-embed: interrupted\n"


# similarity


def test_two_texts_give_one_number(loader: Any, capsys: Capture) -> None:
    assert main(["similarity", "--model", "minilm", "a", "a"]) == 0
    assert capsys.readouterr().out == "1.000000\n"


def test_one_text_against_many_is_ranked(loader: Any, capsys: Capture, tmp_path: Path) -> None:
    texts = ["b", "a", "c"]
    (tmp_path / "in.txt").write_text("\n".join(texts))
    expected = vectors_of(texts) @ vectors_of(["a"])[0]
    for source in (["a", *texts], ["--input", str(tmp_path / "in.txt"), "a"]):
        report = run_json(capsys, "similarity", "--model", "minilm", "--json", *source)
        assert (report["model"], report["metric"], report["query"]) == ("all-minilm-l6-v2", "cosine", "a")
        assert [entry["index"] for entry in report["scores"]] == np.argsort(-expected).tolist()
        for entry in report["scores"]:
            assert entry["text"] == texts[entry["index"]]
            assert entry["score"] == pytest.approx(expected[entry["index"]], abs=1e-6)
    assert main(["similarity", "--model", "minilm", "--top", "1", "a", *texts]) == 0
    assert capsys.readouterr().out.split() == ["1.000000", "2", "a"]


def test_retrieval_uses_both_prompts(loader: Any, capsys: Capture) -> None:
    run_json(capsys, "similarity", "--model", "bge-small-en-v1.5", "--retrieval", "--json", "cats", "cats")
    assert loader.encoders[0].seen == ["Represent this sentence for searching relevant passages: cats", "cats"]


# models, doctor


def test_models_lists_the_catalogue(capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LATTICE_OFFLINE", "1")
    monkeypatch.setenv("LATTICE_MODEL_CACHE", str(tmp_path))
    models = {model["name"]: model for model in run_json(capsys, "models", "--json")["models"]}
    assert len(models) == 10
    minilm = models["all-minilm-l6-v2"]
    assert (minilm["dim"], minilm["max_tokens"], minilm["license"]) == (384, 256, "Apache-2.0")
    assert minilm["weights_bytes"] == 90_868_376
    assert minilm["runs_here"]
    local = [model for model in models.values() if not model["remote"] and "qwen" not in model["name"]]
    assert all(model["weights_bytes"] > 90_000_000 and model["dim"] and model["license"] for model in local)
    assert all(model["runs_here"] and model["reason"] is None for model in models.values() if not model["remote"])
    assert models["text-embedding-3-small"]["remote"]
    assert main(["models"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in models)


def test_models_says_where_the_files_would_come_from(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for variable in ("LATTICE_MODEL_CACHE", "HF_HUB_CACHE"):
        monkeypatch.setenv(variable, str(tmp_path))

    def source() -> object:
        models = run_json(capsys, "models", "--json")["models"]
        return next(model["source"] for model in models if model["name"] == "bge-small-en-v1.5")

    monkeypatch.setenv("LATTICE_OFFLINE", "1")
    assert source() is None
    monkeypatch.delenv("LATTICE_OFFLINE")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert source() == "hub"


def test_doctor_tells_what_would_be_used(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATTICE_OFFLINE", "1")
    monkeypatch.setenv("LATTICE_EMBED_MODEL", "minilm")
    report = run_json(capsys, "doctor", "--json")
    assert report["versions"]["numpy"] == np.__version__
    assert report["cpu"]["isa"] in report["cpu"]["available"]
    assert report["cpu"]["threads"] >= 1
    assert report["default_model"] == "all-minilm-l6-v2"
    assert report["offline"]
    assert report["environment"]["LATTICE_EMBED_MODEL"] == "minilm"
    assert len(report["models"]) == 10
    for model in report["models"]:
        assert model["runs_here"] == (model["reason"] is None)
    minilm = next(model for model in report["models"] if model["name"] == "all-minilm-l6-v2")
    assert minilm["sources"][-1]["source"] == "hub"
    assert not minilm["sources"][-1]["found"]
    assert main(["doctor"]) == 0
    assert "numerics" in capsys.readouterr().out


# As a process


def run_process(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "lattice_embed", *arguments]
    return subprocess.run(command, capture_output=True, timeout=60, check=False, **options)


@pytest.mark.slow
def test_module_runs_as_a_program() -> None:
    done = run_process("--version")
    assert done.returncode == 0
    assert done.stdout.startswith(b"lattice-embed ")
    done = run_process("embed", "--model", "no-such-model", "a")
    assert done.returncode == 2
    assert done.stdout == b""
    assert b"Traceback" not in done.stderr


def test_help_needs_no_numpy() -> None:
    code = (
        "import sys; from lattice_embed.cli.parser import build_parser; build_parser(); print('numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"


@pytest.mark.slow
def test_reader_that_goes_away_is_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "lattice_embed", "models"],
        stdout=writing,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(writing)
    assert done.returncode == 141
    assert done.stderr == b""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_full_disk_at_the_other_end_is_no_traceback() -> None:
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "lattice_embed", "models"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(b"lattice-embed: error: ")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.slow
def test_narrow_output_encoding_is_no_traceback() -> None:
    code = "from lattice_embed.cli import main; import sys; main(['models', '--json']); print('\u8a9e')"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "LATTICE_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0
    assert done.stdout.endswith(b"\\u8a9e\n")


@pytest.mark.slow
def test_interrupted_process_stops_without_a_traceback() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "lattice_embed", "embed", "--model", "minilm", "-"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # a test run in the background of a shell ignores the signal, and its children with it
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdin is not None
    process.stdin.write(b"a text\n" * 20_000)  # more than a pipe holds: when it is written, the process is reading
    process.stdin.flush()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err == b"lattice-embed: interrupted\n"


def test_progress_is_shown_at_a_terminal_only(loader: Any, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"line {number}" for number in range(600)]
    terminal, other_end = pty.openpty()
    termios.tcsetwinsize(other_end, (24, 80))
    with os.fdopen(other_end, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        assert main(["embed", "--model", "minilm", *texts]) == 0
        assert b"/600" in os.read(terminal, 100_000)
    os.close(terminal)
    monkeypatch.undo()
    capsys.readouterr()
    assert main(["models", "--json"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "command",
    [
        ["embed", "--model", "minilm", "a"],
        ["similarity", "--model", "minilm", "a", "b"],
        ["store", "query", "none.db", "a"],
        ["check-drift", "none"],
        ["backfill", "--from-store", "none.db"],
    ],
    ids=lambda command: command[0],
)
@pytest.mark.parametrize("text", ["0", "-1", "257", "1.5", "x", "9" * 5000])
def test_a_wrong_number_of_threads_is_refused_before_any_work(
    command: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    option = "--concurrent" if command[0] == "backfill" else "--threads"
    with pytest.raises(SystemExit) as ended:
        main([*command, f"{option}={text}"])
    assert ended.value.code == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert option in message
    assert message.endswith("it must be an integer from 1 to 256")
    assert len(message) < 250
