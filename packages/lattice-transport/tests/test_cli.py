import json
import subprocess
import sys
from unittest.mock import Mock

import numpy as np
import pytest

from lattice_transport import cli


@pytest.fixture
def files(tmp_path):
    random = np.random.default_rng(0)
    names = []
    for name, shift in (("a", 0.0), ("b", 0.0), ("c", 1.5)):
        path = tmp_path / f"{name}.npy"
        np.save(path, random.normal(size=(40, 3)) + shift)
        names.append(str(path))
    return names


def run(capsys, *arguments):
    status = cli.main([*arguments])
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.parametrize("method", ["divergence", "sinkhorn", "emd", "sliced", "gaussian"])
def test_distance_prints_json_or_lines(capsys, files, method):
    status, out, err = run(capsys, "distance", files[0], files[2], "--method", method, "--epsilon", "0.5", "--json")
    report = json.loads(out)
    assert status == 0
    assert err == ""
    assert report["method"] == method
    if method != "sinkhorn":
        assert report["distance"] == pytest.approx(1.5 * (1 if method == "sliced" else 3**0.5), rel=0.2)
    status, out, _ = run(capsys, "distance", files[0], files[2], "--method", method, "--epsilon", "0.5")
    assert status == 0
    assert "dist" in out or "cost" in out


def test_plan_is_written(capsys, files, tmp_path):
    target = tmp_path / "plan.npy"
    assert run(capsys, "distance", files[0], files[1], "--method", "emd", "--plan", str(target))[0] == 0
    np.testing.assert_allclose(np.load(target).sum(1), 1 / 40)
    status, _, err = run(capsys, "distance", files[0], files[1], "--plan", str(target))
    assert status == 2
    assert "--plan" in err


def test_unconverged_distance_is_a_failure(capsys, files):
    status, out, _ = run(
        capsys, "distance", files[0], files[2], "--method", "sinkhorn", "--threshold", "1e-15", "--max-iterations", "1"
    )
    assert status == 1
    assert "NOT CONVERGED" in out


def test_drift_reports_and_can_set_the_exit_code(capsys, files):
    status, out, _ = run(capsys, "drift", files[0], files[1], "--permutations", "39", "--exit-code")
    assert status == 0
    assert out.startswith("verdict      stable")
    status, out, err = run(capsys, "drift", files[0], files[2], "--permutations", "39", "--exit-code", "--json")
    report = json.loads(out)
    assert status == 1
    assert err == ""
    assert report["verdict"]["decision"] == "reindex"
    assert report["p_value"] == 0.025


def test_barycenter_writes_points_or_weights(capsys, files, tmp_path):
    target = str(tmp_path / "mean.npy")
    status, out, _ = run(
        capsys, "barycenter", files[0], files[2], "--points", "20", "--epsilon", "0.05", "--output", target, "--json"
    )
    assert status == 0
    assert json.loads(out)["points"] == 20
    assert np.load(target).mean() == pytest.approx(0.75, abs=0.15)
    status, _, _ = run(
        capsys,
        "barycenter",
        files[0],
        files[2],
        "--support",
        files[1],
        "--epsilon",
        "1",
        "--lambdas",
        "1,2",
        "--output",
        target,
    )
    assert status == 0
    assert np.load(target).sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["distance", "none.npy", "A"], 1, "none.npy"),
        (["distance", "A", "BAD"], 2, "not a NumPy file"),
        (["distance", "A", "LINE"], 2, "matrix"),
        (["distance", "A", "NAN"], 2, "coordinate"),
        (["distance", "A", "A", "--epsilon", "-1"], 2, "epsilon"),
        (["drift", "A", "A", "--false-alarm-rate", "0"], 2, "false_alarm_rate"),
        (["drift", "A", "A", "--plot", "x.gif"], 2, "--plot"),
        (["barycenter", "A", "A", "--points", "3", "--output", "no/x.npy"], 2, "--output"),
        (["barycenter", "A", "A", "--points", "3", "--output", "x.npy", "--lambdas", "1"], 2, "--lambdas"),
        (["barycenter", "A", "A", "--points", "0", "--output", "x.npy"], 2, "--points"),
    ],
)
def test_a_users_mistake_is_one_line(capsys, files, tmp_path, monkeypatch, arguments, status, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.npy").write_bytes(b"no array")
    np.save(tmp_path / "line.npy", np.zeros(3))
    np.save(tmp_path / "nan.npy", np.full((3, 3), np.nan))
    names = {"A": files[0], "BAD": "bad.npy", "LINE": "line.npy", "NAN": "nan.npy"}
    got, out, err = run(capsys, *(names.get(argument, argument) for argument in arguments))
    assert got == status
    assert out == ""
    assert err.startswith("lattice-transport: error: ")
    assert err.count("\n") == 1
    assert words in err
    assert not (tmp_path / "x.npy").exists()


@pytest.mark.parametrize("command", [[], ["distance"], ["drift"], ["barycenter"]])
def test_help_teaches_by_example(capsys, command):
    with pytest.raises(SystemExit) as exit_status:
        cli.main([*command, "--help"])
    assert exit_status.value.code == 0
    assert "lattice-transport" in capsys.readouterr().out.split("examples:")[1]


def test_module_runs():
    done = subprocess.run(
        [sys.executable, "-m", "lattice_transport", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("lattice-transport ")


def test_an_interrupt_before_a_command_is_known_is_one_line(capsys, monkeypatch):
    monkeypatch.setattr("argparse.ArgumentParser.parse_args", Mock(side_effect=KeyboardInterrupt))
    assert cli.main(["solve"]) == 130
    assert capsys.readouterr().err == "lattice-transport: interrupted\n"


@pytest.mark.parametrize("command", [["distance", "a", "b"], ["drift", "a", "b"], ["barycenter", "a", "--output", "b"]])
@pytest.mark.parametrize("text", ["0", "-1", "257", "1.5", "x", "9" * 30, "9" * 5000])
def test_a_wrong_number_of_threads_is_refused_before_any_work(capsys, command, text):
    with pytest.raises(SystemExit) as ended:
        cli.main([*command, f"--threads={text}"])
    assert ended.value.code == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert "--threads" in message
    assert message.endswith("it must be an integer from 1 to 256")
    assert len(message) < 250
