"""Makes the headers of small Qwen3 files that llama.cpp's own converter writes.

The models have drawn weights: dense, mixtures of experts, an embedder and a reranker. The converter is the package
``conversion`` in llama.cpp's source, as the sdist of llama-cpp-python has it below ``vendor/llama.cpp``. A fixture without
a tokenizer is given ``_set_vocab_none``. The small tokenizer is none of those that the converter knows by digest, so it is
told that the pre-tokenizer is Qwen2's. Writes tests/data/qwen3/converted.npz and converted.json, from which
qwen3_converted.py in packages/lattice-inference/tests/models makes the files again. ``--check`` compares.
Needs torch, transformers and that source.

    python tools/goldens/qwen3_converter.py llama_cpp_python-0.3.36/vendor/llama.cpp
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "packages" / "lattice-inference" / "tests"
TARGET = TESTS / "data" / "qwen3"


def convert(name: str, folder: Path) -> Path:
    """Have the converter write the file of a case."""
    import gguf
    from conversion import ModelBase, get_model_class

    from qwen3_converted import OPTIONS, directory_of

    directory = directory_of(name, folder)
    options: dict[str, Any] = dict(OPTIONS[name])
    kind = gguf.LlamaFileType[options.pop("ftype", "ALL_F32")]
    hparams = ModelBase.load_hparams(directory, False)
    model_class = get_model_class(hparams["architectures"][0])

    class Prepared(model_class):  # type: ignore[misc, valid-type]
        model_arch = model_class.model_arch

        def set_vocab(self) -> None:
            if name in ("embedder", "qwen3-reranker"):
                self._set_vocab_gpt2()
            else:
                self._set_vocab_none()

        def get_vocab_base_pre(self, tokenizer: object) -> str:
            return "qwen2"

    model = Prepared(directory, kind, folder / f"{name}.gguf", eager=True, model_name=name, **options)
    model.write()
    return model.fname_out if isinstance(model.fname_out, Path) else folder / f"{name}.gguf"


def described(path: Path) -> tuple[npt.NDArray[np.uint8], dict[str, Any]]:
    """Return what lies before the first tensor, and size and digest of the file."""
    import gguf

    content = path.read_bytes()
    first = min(int(tensor.data_offset) for tensor in gguf.GGUFReader(path).tensors)
    return np.frombuffer(content[:first], np.uint8), {
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, metavar="LLAMA.CPP", help="the folder with conversion/ and gguf-py/")
    parser.add_argument("--check", action="store_true", help="compare with the committed files, write nothing")
    arguments = parser.parse_args()
    sys.path[:0] = [str(TESTS / "models"), str(arguments.source), str(arguments.source / "gguf-py")]
    import torch
    import transformers

    from qwen3_converted import CONVERTED

    headers, files = {}, {}
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        for name in CONVERTED:
            headers[name], files[name] = described(convert(name, Path(folder)))
    if arguments.check:
        assert json.loads((TARGET / "converted.json").read_text())["files"] == files
        return
    made_with = {"llama.cpp": "llama-cpp-python 0.3.36", "transformers": transformers.__version__}
    content = {"made_with": made_with, "files": files}
    (TARGET / "converted.json").write_text(json.dumps(content, indent=1) + "\n")
    np.savez_compressed(TARGET / "converted.npz", allow_pickle=False, **headers)


if __name__ == "__main__":
    main()
