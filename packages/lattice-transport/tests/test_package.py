import importlib
import os
import subprocess
import sys

import numpy as np
import pytest

import lattice_transport
from lattice_transport import _transport
from lattice_transport.errors import InvalidInputError


def test_every_public_name_exists_and_is_documented():
    for name in lattice_transport.__all__:
        value = getattr(lattice_transport, name)
        assert name == "__version__" or value.__doc__
    assert dir(lattice_transport) == sorted(lattice_transport.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        importlib.import_module("lattice_transport").__getattr__("nothing")


def test_import_is_lazy_and_solving_needs_numpy_only():
    script = (
        "import sys, lattice_transport\n"
        "assert 'numpy' not in sys.modules\n"
        "from lattice_transport import solve, detect_drift\n"
        "solve(None, None, [[0.0, 1.0]])\n"
        "assert not {'scipy', 'matplotlib', 'lattice_inference', 'lattice_embed'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_number_of_threads_is_checked():
    before = _transport.get_num_threads()
    wrong = [0, -1, 257, 1.5, "x", "2", True, np.True_, None, [1], np.array([2]), 10**400, 10**5000]
    for value in wrong:
        with pytest.raises(InvalidInputError, match=r"^threads is .*; it must be an integer from 1 to 256$"):
            _transport.set_num_threads(value)
    assert _transport.get_num_threads() == before
    try:
        _transport.set_num_threads(np.int32(2))
        assert _transport.get_num_threads() == 2
    finally:
        _transport.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["0", "257", "x", "1,2"])
def test_the_environment_variable_is_refused_without_a_traceback(text, tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((2, 2)))
    ended = subprocess.run(
        [sys.executable, "-m", "lattice_transport", "distance", tmp_path / "a.npy", tmp_path / "a.npy"],
        env=os.environ | {"LATTICE_NUM_THREADS": text},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    wanted = f"lattice-transport: error: LATTICE_NUM_THREADS must be an integer from 1 to 256, not '{text}'\n"
    assert ended.stderr == wanted
