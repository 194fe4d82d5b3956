"""Threads, forks, and what goes on beside training."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

from lattice_fann import (
    Activation,
    BackpropTrainer,
    BusyError,
    InvalidInputError,
    Network,
    NetworkBuilder,
    RlooTrainer,
    TrainingConfig,
    get_num_threads,
    set_num_threads,
)
from lattice_fann.cli import main


def train(network: Network) -> bytes:
    generator = np.random.RandomState(0)
    x, labels = generator.standard_normal((600, 300)), generator.randint(0, 4, 600)
    config = TrainingConfig(max_epochs=2, batch_size=200, seed=0, target_error=None)
    BackpropTrainer(network, config).train(x, labels)
    return network.to_bytes()


def network() -> Network:
    return NetworkBuilder().input(300).dense(200).output(4, Activation.SOFTMAX).build(seed=0)


def test_the_number_of_threads_is_set_and_checked() -> None:
    set_num_threads(3)
    assert get_num_threads() == 3
    wrong: list[Any] = [0, -1, 257, 1.5, "x", "2", True, np.True_, None, [1], np.array([2]), 10**400, 10**5000]
    for value in wrong:
        with pytest.raises(InvalidInputError, match=r"^threads is .*; it must be an integer from 1 to 256$"):
            set_num_threads(value)
    assert get_num_threads() == 3
    set_num_threads(np.int64(2))  # type: ignore[arg-type]
    assert get_num_threads() == 2


@pytest.mark.parametrize("command", [["bench"], ["train", "none.csv"], ["predict", "none.fann", "none.csv"]])
@pytest.mark.parametrize("text", ["0", "-1", "257", "1.5", "x", "9" * 30, "9" * 5000])
def test_the_command_line_refuses_it_before_any_work(
    command: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, f"--threads={text}"])
    assert ended.value.code == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert "--threads" in message
    assert message.endswith("it must be an integer from 1 to 256")
    assert len(message) < 250


@pytest.mark.slow
@pytest.mark.parametrize("text", ["0", "257", "x", "1,2"])
def test_the_environment_variable_is_refused_without_a_traceback(text: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "lattice_fann", "bench", "--seconds", "0.01"],
        env=os.environ | {"LATTICE_NUM_THREADS": text},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"lattice-fann: error: LATTICE_NUM_THREADS must be an integer from 1 to 256, not '{text}'\n"


def test_trainings_side_by_side_give_the_bits_of_one_alone() -> None:
    set_num_threads(2)
    wanted = train(network())
    results: list[bytes] = []
    workers = [threading.Thread(target=lambda: results.append(train(network()))) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert results == [wanted] * 3


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_trains_and_runs() -> None:
    set_num_threads(2)
    wanted = train(network())
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        os._exit(0 if train(network()) == wanted else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_forward_keeps_subnormal_values() -> None:
    tiny = NetworkBuilder().input(1).output(1).build(seed=0)
    tiny.layers[0].weights = [[1e-40]]
    assert tiny.forward([1.0])[0] == np.float32(1e-40)
    assert tiny.forward_batch([[1.0]])[0, 0] == np.float32(1e-40)


@pytest.mark.parametrize("threads", [1, 2])
def test_training_takes_subnormal_values_for_zero(threads: int) -> None:
    """Arithmetic on them is slow, and a network that has become sure makes more of them in every epoch."""
    set_num_threads(threads)
    tiny = NetworkBuilder().input(700).output(700).build(seed=0)
    tiny.layers[0].weights = np.full((700, 700), 1e-40, np.float32)
    config = TrainingConfig(max_epochs=1, batch_size=64, learning_rate=1e-3, target_error=None)
    BackpropTrainer(tiny, config).train(np.ones((64, 700), np.float32), np.zeros((64, 700), np.float32))
    assert not np.any(tiny.layers[0].weights)


def test_a_network_is_trained_by_one_thread_at_a_time() -> None:
    wanted, tried = network(), network()
    generator = np.random.RandomState(0)
    x, labels = generator.standard_normal((60, 300)), generator.randint(0, 4, 60)
    config = TrainingConfig(max_epochs=2, batch_size=20, seed=0, target_error=None)
    BackpropTrainer(wanted, config).train(x, labels)
    ends: list[object] = []

    def beside(_: object) -> None:
        def work() -> None:
            try:
                BackpropTrainer(tried, config).train(x, labels)
            except BusyError as error:
                ends.append(str(error))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    BackpropTrainer(tried, config).train(x, labels, callbacks=[beside])
    assert ends == ["this network is at work in another thread: wait for it, or use one for each thread"] * 2
    assert tried.to_bytes() == wanted.to_bytes()
    BackpropTrainer(tried, config).train(x, labels)


def test_a_gate_takes_a_step_of_one_thread_at_a_time() -> None:
    gate = NetworkBuilder().input(3).output(4, Activation.LINEAR).build(seed=0)
    trainer, ends = RlooTrainer(gate, seed=1), []

    class Context:
        """What NumPy asks for its numbers in the middle of a step."""

        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            def work() -> None:
                for step in (lambda: trainer.step(np.ones(3), 0, 1.0), lambda: trainer.rloo_step(np.ones(3), 1)):
                    try:
                        step()
                    except BusyError as error:
                        ends.append(error)

            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            return np.ones(3, np.float32)

    trainer.step(Context(), 0, 1.0)
    assert ends
    assert len(ends) % 2 == 0
    trainer.step(np.ones(3), 0, 1.0)
