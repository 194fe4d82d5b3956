"""The deployment examples of docs/serving.md: commands run, probes and times fit."""

from __future__ import annotations

import configparser
import json
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from lattice_inference import Engine, load_model
from lattice_inference.serve import ServeConfig, create_app
from tiny_decoders import write_drawn_model

from .conftest import ROOT
from .snippets import blocks_of

testclient = pytest.importorskip("starlette.testclient")
yaml = pytest.importorskip("yaml")

BLOCKS = {block.info: block.code for block in blocks_of((ROOT / "docs" / "serving.md").read_text(encoding="utf-8"))}
DRAIN_SECONDS = ServeConfig().drain_seconds


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the examples name, in one folder."""
    made = tmp_path_factory.mktemp("srv")
    write_drawn_model(made / "model.gguf", context=64)  # a directory of that name does as well
    (made / "keys.txt").write_text("a key\n".replace(" ", "-"))
    return made


@pytest.fixture(scope="module")
def dockerfile() -> list[list[str]]:
    return [line.split(maxsplit=1) for line in BLOCKS["dockerfile"].splitlines()]


def checked(command: list[str], folder: Path, *further: str) -> Any:
    """Run an example's command on the files of ``folder``, and return what it would serve."""
    program, *arguments = [word.replace("/srv/", f"{folder}/") for word in command]
    assert Path(program).name == "lattice"
    done = subprocess.run(
        [sys.executable, "-m", "lattice_inference", *arguments, "--port", "0", "--check", *further],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_the_command_of_the_image_serves(dockerfile: list[list[str]], folder: Path) -> None:
    (command,) = [json.loads(rest) for word, rest in dockerfile if word == "CMD"]
    assert checked(command, folder)["models"] == ["small"]


def test_the_image_has_what_its_command_needs(dockerfile: list[list[str]]) -> None:
    (install,) = [rest for word, rest in dockerfile if word == "RUN"]
    words = shlex.split(install)
    (wanted,) = [word for word in words if word.startswith("lattice-inference")]
    text = (ROOT / "packages" / "lattice-inference" / "pyproject.toml").read_text()
    known = tomllib.loads(text)["project"]["optional-dependencies"]
    extras = wanted.partition("[")[2].removesuffix("]").split(",")
    assert "serve" in extras
    assert set(extras) <= set(known)
    (copied,) = [rest.split()[:-1] for word, rest in dockerfile if word == "COPY"]
    (command,) = [json.loads(rest) for word, rest in dockerfile if word == "CMD"]
    named = [word.partition("/srv/")[2] for word in command if "/srv/" in word]
    assert sorted(copied) == sorted(named)
    (user,) = [rest for word, rest in dockerfile if word == "USER"]
    assert words[-2:] == ["--system", user]


@pytest.mark.slow
def test_the_unit_serves_and_waits_for_running_requests(folder: Path) -> None:
    unit = configparser.ConfigParser()
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(BLOCKS["ini"])
    assert checked(shlex.split(unit["Service"]["ExecStart"]), folder)["models"] == ["small"]
    assert float(unit["Service"]["TimeoutStopSec"]) > DRAIN_SECONDS
    assert unit["Service"].get("KillSignal", "SIGTERM") == signal.SIGTERM.name


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    program = tmp_path / "lattice"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "lattice.service"
    unit.write_text(BLOCKS["ini"].replace("/opt/lattice/bin/lattice", str(program)))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, timeout=60)
    complaints = [line for line in done.stderr.splitlines() if "lattice.service" in line]
    assert complaints == []


def test_the_probes_ask_what_the_server_answers(folder: Path) -> None:
    spec = yaml.safe_load(BLOCKS["yaml"])["spec"]
    assert spec["terminationGracePeriodSeconds"] > DRAIN_SECONDS
    (container,) = spec["containers"]
    (port,) = container["ports"]
    probes = {name: probe["httpGet"] for name, probe in container.items() if name.endswith("Probe")}
    assert set(probes) == {"startupProbe", "readinessProbe", "livenessProbe"}
    exposed = [line.split()[1] for line in BLOCKS["dockerfile"].splitlines() if line.startswith("EXPOSE")]
    assert {str(probe["port"]) for probe in probes.values()} == {str(port["containerPort"])} == set(exposed)
    with load_model(folder / "model.gguf") as model, Engine(model) as engine:
        app = create_app(models={"small": engine}, config=ServeConfig(api_keys=["key"]))
        with testclient.TestClient(app, base_url="http://10.0.0.1:8080") as client:  # as a kubelet asks: without a key
            statuses = {name: client.get(probe["path"]).status_code for name, probe in probes.items()}
            assert statuses == dict.fromkeys(probes, 200)
            app.state.lattice.is_draining = True
            statuses = {name: client.get(probe["path"]).status_code for name, probe in probes.items()}
            assert statuses == {"startupProbe": 503, "readinessProbe": 503, "livenessProbe": 200}
