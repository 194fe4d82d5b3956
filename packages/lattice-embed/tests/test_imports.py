"""What an import costs and what it gives."""

import subprocess
import sys

import lattice_embed


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_loads_neither_numpy_nor_asyncio() -> None:
    code = "import sys, lattice_embed; print(sorted({'numpy', 'asyncio', 'lattice_inference'} & set(sys.modules)))"
    assert run_python(code) == "[]\n"


def test_service_loads_neither_asyncio_nor_network_modules() -> None:
    code = (
        "import sys; from lattice_embed import NativeEmbeddingService as S; S('minilm')\n"
        "print(sorted({'asyncio', 'huggingface_hub', 'socket', 'urllib.request', 'ssl', 'tqdm'} & set(sys.modules)))"
    )
    assert run_python(code) == "[]\n"


def test_every_public_name_can_be_had() -> None:
    for name in lattice_embed.__all__:
        assert getattr(lattice_embed, name) is not None
    assert set(lattice_embed.__all__) <= set(dir(lattice_embed))
    assert not hasattr(lattice_embed, "no_such_name")


def test_utils_is_another_name_for_vectors() -> None:
    for name in lattice_embed.utils.__all__:
        assert getattr(lattice_embed.utils, name) is getattr(lattice_embed.vectors, name)
    assert {"cosine_similarity", "dot_product", "euclidean_distance", "normalize", "batch_cosine_similarity"} <= set(
        lattice_embed.utils.__all__
    )


def test_vector_operations_and_inference_share_one_pool() -> None:
    """Two pools would start twice the threads of one, and each count on all processors."""
    code = (
        "import sys; from lattice_embed.vectors import _vectors; first = sys._lattice_pool_v1\n"
        "from lattice_inference.backends.cpu import _cpu; assert sys._lattice_pool_v1 is first\n"
        "print([name for name in vars(sys) if name.startswith('_lattice_pool')])"
    )
    assert run_python(code) == "['_lattice_pool_v1']\n"
