"""Peers that decode, besides llama.cpp: PyTorch, Ollama and MLX.

PyTorch has drawn weights; the others run if they are installed. None is needed: one that cannot run here raises
RuntimeError with the reason, which ends up in the record.
"""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.decoders import Decoder, Decoding

__all__ = ["MlxDecoder", "OllamaDecoder", "TorchDecoder", "TorchWithoutTiles", "gguf_shape", "require_tiles"]

OLLAMA = "http://127.0.0.1:11434"
SECONDS = 600


def gguf_shape(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the shape of a GGUF file's network in the words of transformers' ``LlamaConfig``."""
    from lattice_inference.checkpoint.gguf import open_gguf_file

    with open_gguf_file(path) as file:
        fields: dict[str, Any] = dict(file.metadata)
        tied = "output.weight" not in file.names()
        vocabulary = file.info("token_embd.weight").shape[0]
    at = f"{fields['general.architecture']}."
    heads, hidden = int(fields[f"{at}attention.head_count"]), int(fields[f"{at}embedding_length"])
    return {
        "hidden_size": hidden,
        "intermediate_size": fields[f"{at}feed_forward_length"],
        "num_hidden_layers": fields[f"{at}block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": fields.get(f"{at}attention.head_count_kv", heads),
        "head_dim": fields.get(f"{at}attention.key_length", hidden // heads),
        "vocab_size": vocabulary,
        "max_position_embeddings": fields[f"{at}context_length"],
        "tie_word_embeddings": tied,
    }


def _drawn_classes(path: str, transformers: Any) -> tuple[Any, Any]:
    """Return the classes of a file's network and of its configuration.

    Raises:
        RuntimeError: its architecture is not drawn.
    """
    from lattice_inference.checkpoint.gguf import open_gguf_file

    with open_gguf_file(path) as file:
        architecture = file.metadata["general.architecture"]
    names = {"llama": "Llama", "qwen3": "Qwen3"}
    if architecture not in names:
        raise RuntimeError(f"a file of architecture {architecture}, only {' and '.join(names)} are drawn")
    name = names[str(architecture)]
    return getattr(transformers, f"{name}ForCausalLM"), getattr(transformers, f"{name}Config")


class TorchDecoder(Decoder):
    """PyTorch in bfloat16 through transformers: a network of the file's shape, drawn weights.

    PyTorch reads no block formats, so only its prompts compare: the work of a prompt is the same whatever the weights.
    """

    decodes = False

    def __init__(self, path: str, threads: int) -> None:
        import torch
        import transformers

        torch.set_num_threads(threads)
        torch.manual_seed(0)
        network, configuration = _drawn_classes(path, transformers)
        config = configuration(**gguf_shape(path))
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            self._model = network(config).eval()
        finally:
            torch.set_default_dtype(before)
        self._torch = torch
        self._cache: Any = None
        self.vocabulary = config.vocab_size

    def restart(self) -> None:
        """Forget all tokens."""
        self._cache = None

    def extend(self, ids: Sequence[int]) -> int:
        """Append tokens and return the most likely next one."""
        with self._torch.inference_mode():
            out = self._model(
                self._torch.tensor([list(ids)]), past_key_values=self._cache, use_cache=True, logits_to_keep=1
            )
        self._cache = out.past_key_values
        return int(out.logits[0, -1].argmax())


class TorchWithoutTiles(TorchDecoder):
    """The same, as on a CPU with AVX-512 products of bfloat16 and without AMX.

    Raises:
        RuntimeError: this CPU has none.
    """

    def __init__(self, path: str, threads: int) -> None:
        require_tiles()
        os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_BF16"  # read when oneDNN first makes a kernel
        super().__init__(path, threads)


def require_tiles() -> None:
    """Refuse to leave out what is not there.

    Raises:
        RuntimeError: this CPU has no matrix tiles.
    """
    from lattice_inference import cpu_info

    if not {"amx_int8", "amx_bf16"} <= set(cpu_info()["features"]):
        raise RuntimeError("this CPU has no matrix tiles: every row is without them")


class MlxDecoder(Decoder):
    """MLX on Apple's chips.

    The model FILE.mlx was written beside FILE.gguf by ``mlx_lm.convert``.
    """

    def __init__(self, path: str, threads: int) -> None:
        converted = Path(path).with_suffix(".mlx")
        try:
            import mlx.core
            import mlx_lm
            from mlx_lm.models.cache import make_prompt_cache
        except ImportError as error:
            raise RuntimeError(f"MLX cannot be imported: {error}") from error
        if not converted.is_dir():
            raise RuntimeError(f"there is no {converted.name}, converted by mlx_lm.convert")
        self._model, self._tokenizer = mlx_lm.load(str(converted))
        self._core, self._make_cache = mlx.core, make_prompt_cache
        self._cache = make_prompt_cache(self._model)
        self.vocabulary = int(self._model.args.vocab_size)

    def restart(self) -> None:
        """Forget all tokens."""
        self._cache = self._make_cache(self._model)

    def extend(self, ids: Sequence[int]) -> int:
        """Append tokens and return the most likely next one."""
        logits = self._model(self._core.array([list(ids)]), cache=self._cache)
        return int(self._core.argmax(logits[0, -1]).item())


class OllamaDecoder(Decoder):
    """Ollama's server on this machine.

    The file becomes one of its models, and the server's counters are read. It takes text and no ids. Its slope is
    that of its counter between two answers of different length.
    """

    def __init__(self, path: str, threads: int, *, server: str = OLLAMA) -> None:
        self._server, self._threads, self._context = server, threads, 0
        self._name = f"lattice-benchmark-{Path(path).stem.lower()}"
        try:
            self._ask("version", None)
        except OSError as error:
            raise RuntimeError(f"no Ollama answers at {server}: {error}") from error
        blob = _upload(server, Path(path))
        self._ask("create", {"model": self._name, "files": {Path(path).name: blob}, "stream": False})
        self._generate("a", 1)
        self.vocabulary = 0

    def _ask(self, what: str, message: dict[str, Any] | None) -> dict[str, Any]:
        body = None if message is None else json.dumps(message).encode()
        request = urllib.request.Request(
            f"{self._server}/api/{what}", data=body, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return dict(json.loads(answer.read()))

    def _generate(self, prompt: str, tokens: int) -> dict[str, Any]:
        options = {"num_thread": self._threads, "num_predict": tokens, "num_ctx": 16_384, "num_gpu": 0}
        options |= {"temperature": 0, "seed": 0, "num_batch": 512}
        message = {"model": self._name, "prompt": prompt, "raw": True, "stream": False, "options": options}
        return self._ask("generate", message)

    def restart(self) -> None:
        """Nothing: every request begins anew."""

    def extend(self, ids: Sequence[int]) -> int:
        """Not offered by the server."""
        raise RuntimeError("Ollama takes no token ids")

    def decode(self, early: int, late: int, context: int, kept: Path | None = None) -> Decoding:
        """Return the time of a token by the server's counter, from two lengths of answers.

        They have ``early`` and ``late`` tokens.
        """
        prompt = " the" * max(context, 1)
        nanoseconds, tokens = [], []
        for count in (early, late):
            answer = self._generate(prompt, count)
            nanoseconds.append(int(answer["eval_duration"]))
            tokens.append(int(answer["eval_count"]))
        if tokens[1] <= tokens[0]:
            raise RuntimeError(f"Ollama ended after {tokens[1]} tokens")
        seconds = (nanoseconds[1] - nanoseconds[0]) / 1e9 / (tokens[1] - tokens[0])
        return Decoding(seconds, [], nanoseconds[1] / 1e9 / tokens[1])

    def prefill(self, tokens: int) -> float:
        """Return the time of a prompt of ``tokens`` tokens, scaled from the server's counter."""
        self._calls = getattr(self, "_calls", 0) + 1
        answer = self._generate(f"{self._calls}" + " the" * (tokens - 1), 1)  # another beginning: nothing is reused
        return int(answer["prompt_eval_duration"]) / 1e9 * tokens / int(answer["prompt_eval_count"])


def _upload(server: str, path: Path) -> str:
    """Hand a file to the server under its digest, unless it has it, and return the digest."""
    import hashlib

    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    name = f"sha256:{digest.hexdigest()}"
    with path.open("rb") as file:
        request = urllib.request.Request(f"{server}/api/blobs/{name}", data=file, method="POST")
        request.add_header("Content-Length", str(path.stat().st_size))
        with urllib.request.urlopen(request, timeout=SECONDS):
            return name
