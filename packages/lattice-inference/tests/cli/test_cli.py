"""The command line, driven as a user does: what is printed, as text and JSON, and what a mistake gets."""

import io
import json
import os
import pty
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import gguf
import numpy as np
import pytest

import lattice_inference
from lattice_inference.checkpoint.gguf_writer import TensorToWrite, write_gguf
from lattice_inference.cli import main
from lattice_inference.cli.commands import COMMANDS
from lattice_inference.cli.parser import command_module

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch):
    for name in [name for name in os.environ if name.startswith("LATTICE_")]:
        if name not in ("LATTICE_REQUIRE_MODELS", "LATTICE_OFFLINE", "LATTICE_ISA", "LATTICE_NUM_THREADS"):
            monkeypatch.delenv(name)


@pytest.fixture
def model(tmp_path) -> Path:
    """A GGUF file with a small tokenizer and two layers."""
    rows = np.arange(64 * 32, dtype=np.float32).reshape(64, 32)
    names = ["token_embd.weight", "blk.0.attn_q.weight", "blk.1.attn_q.weight"]
    metadata = {
        "general.architecture": "llama",
        "general.name": "Small\x1b[31m",
        "llama.block_count": 2,
        "llama.context_length": 8192,
        "llama.embedding_length": 32,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "a.nan": float("nan"),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ["<|end|>", "a", "b", "ab", "Ġ", "Ċ"],
        "tokenizer.ggml.token_type": [3, 1, 1, 1, 1, 1],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
    }
    tensors = [TensorToWrite(name, rows.shape, "F32", lambda: [rows.tobytes()]) for name in names]
    write_gguf(tmp_path / "model.gguf", metadata, tensors)
    return tmp_path / "model.gguf"


def run_json(capsys: Capture, *arguments: object) -> Any:
    assert main([str(argument) for argument in arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return json.loads(captured.out)


def failure(capsys: Capture, *arguments: object) -> tuple[int, str]:
    try:
        status: object = main([str(argument) for argument in arguments])
    except SystemExit as error:
        status = error.code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    assert isinstance(status, int)
    return status, captured.err.strip().splitlines()[-1]


# The frame


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_whole_and_teaches_by_example(capsys, command):
    module = command_module(command)
    assert module.EXAMPLES.startswith("examples:\n  lattice ")
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert f"lattice {command}" in out.split("examples:")[1]
    assert "--config FILE.toml" in out


def test_help_lists_every_command(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    out = capsys.readouterr().out
    assert all(summary.split()[-1] in out for summary in COMMANDS.values())


def test_help_and_the_module_form_need_no_numpy():
    code = (
        "import sys\ntry:\n    from lattice_inference.cli import main; main(['--help'])\n"
        "except SystemExit: pass\nsys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
    command = [sys.executable, "-m", "lattice_inference", "--version"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert out == f"lattice {lattice_inference.__version__}\n"


def test_no_command_and_no_such_command(capsys):
    assert failure(capsys)[0] == 2
    assert failure(capsys, "generat")[0] == 2


@pytest.mark.slow
def test_the_reader_of_the_output_may_go_away(model):
    command = f"{sys.executable} -m lattice_inference tokenize --model {model} --count --input - | head -n 1"
    done = subprocess.run(["bash", "-c", command], input=b"ab\n" * 20_000, capture_output=True, check=False)
    assert done.stdout == b"2\n"
    assert done.stderr == b""


# Where options come from


def test_options_come_from_flags_then_environment_then_file(capsys, model, tmp_path, monkeypatch):
    config = tmp_path / "lattice.toml"
    config.write_text(
        f'model = "{model}"\n[tokenize]\ncount = true\nno_special_tokens = true\n[inspect]\nlayers = true\n'
    )
    assert main(["tokenize", "--config", str(config), "ab"]) == 0
    assert capsys.readouterr().out == "1\n"
    monkeypatch.setenv("LATTICE_NO_SPECIAL_TOKENS", "0")
    assert main(["tokenize", "--config", str(config), "ab"]) == 0
    assert capsys.readouterr().out == "2\n"
    monkeypatch.setenv("LATTICE_CONFIG", str(config))
    monkeypatch.setenv("LATTICE_MODEL", "no-such-model.gguf")
    assert main(["tokenize", "--model", str(model), "ab"]) == 0
    assert capsys.readouterr().out == "2\n"
    assert failure(capsys, "tokenize", "ab")[0] == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("modle = 'x'", "modle: no such option"),
        ("[tokenise]\ncount = true", "no command is called 'tokenise'"),
        ("[tokenize]\ntensors = true", "[tokenize] tensors: no such option"),
        ("count = 'yes'", "count is 'yes'; expected true or false"),
        ("model = ['a', 'b']", "model is an array"),
        ("model = 2020-01-01", "which the option does not take"),
        ("model = ", "not TOML"),
        ("[tokenize.more]\ncount = 1", "more: no such option"),
    ],
)
def test_mistakes_in_a_configuration_file_are_named(capsys, tmp_path, content, message):
    config = tmp_path / "lattice.toml"
    config.write_text(content)
    status, error = failure(capsys, "tokenize", "--config", config, "--model", "x", "ab")
    assert status == 2
    assert str(config) in error
    assert message in error


def test_a_number_out_of_the_choices_is_named(capsys, tmp_path, model):
    config = tmp_path / "lattice.toml"
    config.write_text("[quantize]\ntype = 'q9_9'\n")
    status, error = failure(capsys, "quantize", "--config", config, model, tmp_path / "b.gguf")
    assert status == 2
    assert "type is 'q9_9'; expected one of F32" in error
    config.write_text("context = 'many'\n")
    assert "context is 'many'; expected int" in failure(capsys, "doctor", "--config", config, model)[1]


def test_mistakes_in_the_environment_are_named(capsys, monkeypatch, model):
    monkeypatch.setenv("LATTICE_COUNT", "maybe")
    status, error = failure(capsys, "tokenize", "--model", model, "ab")
    assert status == 2
    assert "LATTICE_COUNT is 'maybe'; expected 1 or 0" in error


def test_an_absent_configuration_file_is_an_error(capsys, model):
    status, error = failure(capsys, "tokenize", "--config", "absent.toml", "--model", model, "ab")
    assert status == 2
    assert "absent.toml: no such file" in error


# tokenize, detokenize


def test_tokenize(capsys, model):
    assert main(["tokenize", "--model", str(model), "ab a"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[:4]] == [
        ["0", "''", "'<|end|>'"],
        ["3", "'ab'", "'ab'"],
        ["4", "'", "'", "'Ġ'"],
        ["1", "'a'", "'a'"],
    ]
    assert lines[4] == "4 tokens"
    report = run_json(capsys, "tokenize", "--model", model, "--json", "ab<|end|>", "b")
    assert report["texts"][0] == {
        "index": 0,
        "count": 3,
        "ids": [0, 3, 0],
        "tokens": ["<|end|>", "ab", "<|end|>"],
        "offsets": [[0, 0], [0, 2], [2, 9]],
    }
    report = run_json(capsys, "tokenize", "--model", model, "--json", "--no-special-tokens", "--plain", "--count", "b")
    assert report["texts"] == [{"index": 0, "count": 1}]


def test_tokenize_and_detokenize_from_standard_input(capsys, model, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ab\na b\n")))
    assert main(["tokenize", "--model", str(model), "--count", "-"]) == 0
    assert capsys.readouterr().out == "2\n4\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO("[0, 3, 4, 2]"))
    assert main(["detokenize", "--model", str(model), "-"]) == 0
    assert capsys.readouterr().out == "ab b\n"


def test_detokenize(capsys, model):
    assert run_json(capsys, "detokenize", "--model", model, "--json", 0, 3)["text"] == "ab"
    assert run_json(capsys, "detokenize", "--model", model, "--json", "--special-tokens", 0, 3)["text"] == "<|end|>ab"
    for wrong in ("x", "-1", "99999999999", 6):
        status, error = failure(capsys, "detokenize", "--model", model, "--", wrong)
        assert status == 2
        assert error.startswith("lattice: error: ")


@pytest.mark.model
def test_a_directory_and_a_name_will_do(capsys, minilm_directory):
    for name in (minilm_directory, "all-minilm-l6-v2"):
        assert run_json(capsys, "tokenize", "--model", name, "--json", "hello")["texts"][0]["ids"] == [101, 7592, 102]


# inspect


def test_inspect(capsys, model):
    report = run_json(capsys, "inspect", model, "--json", "--tensors", "--layers")
    assert report["format"] == "GGUF 3"
    assert report["architecture"] == "llama"
    assert report["metadata"]["a.nan"] == "nan"
    assert report["metadata"]["tokenizer.ggml.tokens"] == {
        "type": "STRING",
        "count": 6,
        "first": ["<|end|>", "a", "b", "ab", "Ġ", "Ċ"],
    }
    share = {"tensor_count": 3, "parameters": 6144, "bytes": 24576, "bytes_by_dtype": {"F32": 24576}}
    assert report["by_dtype"] == {"F32": share}
    assert {name: part["tensor_count"] for name, part in report["by_layer"].items()} == {"0": 1, "1": 1, "other": 1}
    reader = gguf.GGUFReader(model)
    assert [(t["name"], t["offset"], t["bytes"]) for t in report["tensors"]] == [
        (t.name, t.data_offset, t.n_bytes) for t in reader.tensors
    ]
    assert report["tensors"][0]["shape"] == [64, 32]


def test_inspect_for_people_sends_no_commands_to_the_terminal(capsys, model):
    assert main(["inspect", str(model), "--tensors", "--layers"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "6 x STRING: ['<|end|>', 'a', 'b', 'ab', 'Ġ', 'Ċ']" in out
    assert "blk.1.attn_q.weight  F32" in out
    assert out.splitlines()[0].startswith(str(model))


@pytest.mark.model
def test_inspect_takes_safetensors(capsys, minilm_directory):
    for path in (minilm_directory, minilm_directory / "model.safetensors", "all-minilm-l6-v2"):
        report = run_json(capsys, "inspect", path, "--json")
        assert report["format"] == "safetensors"
        assert report["parameters"] == 22_713_728
        assert "tensors" not in report


def test_inspect_refuses_what_is_no_model(capsys, tmp_path):
    (tmp_path / "bad.gguf").write_bytes(b"GGUF")
    assert failure(capsys, "inspect", tmp_path / "bad.gguf") == (
        1,
        f"lattice: error: {tmp_path / 'bad.gguf'}: 4 bytes are too few for a GGUF file, which begins with 24",
    )
    assert failure(capsys, "inspect", tmp_path / "absent.gguf")[0] == 1


# quantize


def test_quantize(capsys, model, tmp_path):
    report = run_json(capsys, "quantize", model, tmp_path / "q.gguf", "--type", "q8_0", "--json")
    assert report["tensors"] == {"Q8_0": 3}
    assert report["file_bytes"] == (tmp_path / "q.gguf").stat().st_size
    status, error = failure(capsys, "quantize", model, tmp_path / "q.gguf", "--type", "F16")
    assert status == 2
    assert "exists" in error
    assert main(["quantize", str(model), str(tmp_path / "q.gguf"), "--type", "Q4_0", "--pure", "--overwrite"]) == 0
    assert "3 x Q4_0" in capsys.readouterr().out
    assert run_json(capsys, "inspect", tmp_path / "q.gguf", "--json")["by_dtype"]["Q4_0"]["tensor_count"] == 3


def test_quantize_takes_an_encoders_directory(capsys, data_directory, tmp_path):
    report = run_json(capsys, "quantize", data_directory / "tiny_bert", tmp_path / "q.gguf", "--type", "F16", "--json")
    assert report["tensors"]["F16"] > 0
    status, error = failure(
        capsys, "quantize", data_directory / "tiny_bert", tmp_path / "r.gguf", "--type", "Q4_0", "--pure"
    )
    assert status == 2
    assert "--pure" in error


def test_progress_goes_to_a_terminal_only(capsys, monkeypatch, model, tmp_path):
    terminal, other_end = pty.openpty()
    termios.tcsetwinsize(other_end, (24, 80))
    with os.fdopen(other_end, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        assert main(["quantize", str(model), str(tmp_path / "q.gguf"), "--type", "F16", "--json"]) == 0
        assert b"/3" in os.read(terminal, 100_000)
    os.close(terminal)
    monkeypatch.undo()
    assert json.loads(capsys.readouterr().out)["tensors"] == {"F16": 3}
    run_json(capsys, "quantize", model, tmp_path / "r.gguf", "--type", "F16", "--json")


# doctor


def test_doctor(capsys):
    report = run_json(capsys, "doctor", "--json")
    assert report["versions"]["lattice-inference"] == lattice_inference.__version__
    assert report["cpu"] == lattice_inference.cpu_info()
    assert "memory" not in report
    assert main(["doctor"]) == 0
    assert "LATTICE_ISA" in capsys.readouterr().out


def test_doctor_checks_the_files_before_it_lists_devices(capsys, monkeypatch, tmp_path):
    """The list may take seconds, and drivers write to standard error."""
    monkeypatch.setattr("lattice_inference.cli.doctor_command.devices", Mock(side_effect=AssertionError))
    assert failure(capsys, "doctor", tmp_path / "none.gguf")[0] == 1
    assert failure(capsys, "doctor", "--context", 5)[0] == 2


def test_doctor_weighs_a_model(capsys, model):
    memory = run_json(capsys, "doctor", "--json", model)["memory"]
    assert memory["weights_bytes"] == 3 * 64 * 32 * 4
    assert memory["context"] == 4096
    # two layers, two heads of 8 for keys and 8 for values, two bytes each
    assert memory["kv_bytes"] == 4096 * 2 * 2 * (8 + 8) * 2
    assert memory["needed_bytes"] == memory["weights_bytes"] + memory["kv_bytes"]
    assert memory["fits"] is True
    layers = run_json(capsys, "doctor", "--json", model, "--context", 100)["layers"]
    matrix, kept = 64 * 32 * 4, 100 * 2 * (8 + 8) * 2
    assert layers == [
        {"layer": None, "F32": matrix},
        {"layer": 0, "F32": matrix, "keys, values": kept},
        {"layer": 1, "F32": matrix, "keys, values": kept},
    ]
    assert main(["doctor", str(model), "--context", "1000000"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[-11:-6] == [
        ["layer", "F32", "keys,", "values", "MB"],
        ["outside", "of", "layers", "0.0", "0.0", "0.0"],
        ["0", "0.0", "64.0", "64.0"],
        ["1", "0.0", "64.0", "64.0"],
        ["together", "0.0", "128.0", "128.0"],
    ]
    assert lines[-6:-3] == [
        [],
        ["weights", "kept", "as", "a", "layer", "weights", "needed", "fits"],
        ["stored", "0.0", "0.0", "128.0", "yes"],
    ]
    assert [line[0] for line in lines[-3:]] == ["float32", "bfloat16", "int8"]
    large = run_json(capsys, "doctor", "--json", model, "--context", 2**31 - 1)["memory"]
    assert large["kv_bytes"] == (2**31 - 1) * 128
    for wrong in (0, -1, 2**31):
        assert failure(capsys, "doctor", model, f"--context={wrong}")[0] == 2
    assert failure(capsys, "doctor", "--context", 5)[0] == 2


def test_an_interrupt_before_a_command_is_known_is_one_line(capsys, monkeypatch):
    monkeypatch.setattr("argparse.ArgumentParser.parse_args", Mock(side_effect=KeyboardInterrupt))
    assert main(["doctor"]) == 130
    assert capsys.readouterr().err == "lattice: interrupted\n"


@pytest.mark.parametrize("command", ["tokenize", "inspect"])
def test_a_model_in_the_home_of_a_user_that_does_not_exist_is_not_found(command, capsys):
    text = ["a"] if command == "tokenize" else []
    assert main([command, *(["--model"] if text else []), "~no-such-user/model", *text]) == 1
    assert "no-such-user" in capsys.readouterr().err
