import importlib
import subprocess
import sys

import pytest

import lattice_transport


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
