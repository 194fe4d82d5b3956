"""The engines that decode: how each is asked, and that one that is not there says so."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

import decode
from decode import kv_bytes
from harness.decoder_peers import MlxDecoder, OllamaDecoder, _drawn_classes, gguf_shape
from harness.decoder_worker import LatticeDecoder, LatticeWithoutTiles
from harness.decoders import Decoder
from lattice_inference import cpu_info
from lattice_inference.backends import cpu
from lattice_inference.backends.cpu import CpuBackend


class CountingDecoder(Decoder):
    """Answers with how many tokens it has seen."""

    vocabulary = 1000

    def __init__(self) -> None:
        self.calls: list[int] = []

    def restart(self) -> None:
        self.calls = []

    def extend(self, ids: Sequence[int]) -> int:
        self.calls.append(len(ids))
        return sum(self.calls)


def test_decoding_follows_the_context_in_chunks() -> None:
    decoder = CountingDecoder()
    decoding = decoder.decode(4, 9, 1100)
    assert decoder.calls == [512, 512, 75, 1] + [1] * 8
    assert decoding.ids == [1100, 1101, 1102, 1103]
    assert decoder.decode(2, 3, 0).ids == [1, 2]


class KeepingDecoder(CountingDecoder):
    """Keeps how many tokens it has seen."""

    def keep(self, path: Path) -> None:
        path.write_text(str(sum(self.calls)), encoding="utf-8")

    def fetch(self, path: Path, tokens: int) -> None:
        assert int(path.read_text(encoding="utf-8")) == tokens
        self.calls = [tokens]


def test_a_context_that_was_kept_is_run_once(tmp_path: Path) -> None:
    first, second, kept = KeepingDecoder(), KeepingDecoder(), tmp_path / "kept"
    ids = first.decode(4, 9, 1100, kept).ids
    assert second.decode(4, 9, 1100, kept).ids == ids == CountingDecoder().decode(4, 9, 1100).ids
    assert second.calls == [1099, 1] + [1] * 8


def test_our_own_engine_goes_on_from_what_it_kept(tiny_drawn_model: Path, tmp_path: Path) -> None:
    fresh = LatticeDecoder(str(tiny_drawn_model), 1).decode(4, 6, 100)
    for _ in range(2):
        decoding = LatticeDecoder(str(tiny_drawn_model), 1).decode(4, 6, 100, tmp_path / "kept")
        assert decoding.ids == fresh.ids


def test_our_own_engine_does_without_tiles_where_there_are_some(
    tiny_drawn_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool | None] = []

    class Backend(CpuBackend):
        def __init__(self, **options: Any) -> None:
            asked.append(options.get("tiles"))
            super().__init__(**options)

    monkeypatch.setattr(cpu, "CpuBackend", Backend)
    if "amx_int8" not in cpu_info()["features"]:
        with pytest.raises(RuntimeError, match="no matrix tiles"):
            LatticeWithoutTiles(str(tiny_drawn_model), 1)
        return
    with_tiles = LatticeDecoder(str(tiny_drawn_model), 1).extend([3, 4, 5])
    assert LatticeWithoutTiles(str(tiny_drawn_model), 1).extend([3, 4, 5]) == with_tiles
    assert asked == [None, False]


def test_only_long_texts_of_engines_that_can_are_kept(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    assert decode._kept_in(tmp_path, model, "lattice", 100) == str((tmp_path / "m-lattice-100.state").resolve())
    for folder, engine, context in ((None, "lattice", 100), (tmp_path, "lattice", 0), (tmp_path, "Ollama", 100)):
        assert decode._kept_in(folder, model, engine, context) is None


class FakeOllama(BaseHTTPRequestHandler):
    """The server's four calls, with counters of 3 ms a token read and 20 ms a token written."""

    asked: ClassVar[list[tuple[str, dict[str, object]]]] = []

    def do_GET(self) -> None:
        self._answer({"version": "0"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.startswith("/api/blobs/"):
            self.asked.append((self.path, {"size": len(body)}))
            self._answer({})
            return
        message = json.loads(body)
        self.asked.append((self.path, message))
        if self.path == "/api/create":
            self._answer({"status": "success"})
            return
        read, written = len(message["prompt"].split()), message["options"]["num_predict"]
        answer = {"eval_count": written, "eval_duration": 5_000_000 + 20_000_000 * written}
        self._answer({**answer, "prompt_eval_count": read, "prompt_eval_duration": 3_000_000 * read})

    def _answer(self, message: dict[str, object]) -> None:
        body = json.dumps(message).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def ollama() -> Iterator[str]:
    FakeOllama.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeOllama)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_ollama_is_given_the_file_and_read_by_its_counters(ollama: str, tmp_path: Path) -> None:
    file = tmp_path / "Model.Q8_0.gguf"
    file.write_bytes(b"GGUF" * 10)
    decoder = OllamaDecoder(str(file), 2, server=ollama)
    blob, create = FakeOllama.asked[0], FakeOllama.asked[1]
    assert blob[1] == {"size": 40}
    assert create[1]["files"] == {file.name: blob[0].removeprefix("/api/blobs/")}
    decoding = decoder.decode(32, 256, 100)
    assert decoding.seconds == pytest.approx(0.02)
    assert decoder.prefill(512) == pytest.approx(0.003 * 512)
    prompts = [message["prompt"] for path, message in FakeOllama.asked if path == "/api/generate"]
    assert len({str(prompt)[:2] for prompt in prompts[3:]}) == len(prompts[3:])
    options = FakeOllama.asked[-1][1]["options"]
    assert isinstance(options, dict)
    assert options["num_thread"] == 2


def test_an_engine_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no Ollama answers"):
        OllamaDecoder(str(tmp_path / "m.gguf"), 1, server="http://127.0.0.1:9")
    with pytest.raises(RuntimeError, match=r"MLX cannot be imported|there is no m\.mlx"):
        MlxDecoder(str(tmp_path / "m.gguf"), 1)


def test_of_a_mixture_the_experts_that_are_read_count(random_llama: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "experts.gguf"
    random_llama.write_random_llama(path, random_llama.SHAPES["tiny-moe"], "F32")
    matrices = 2 * (2 * 4 * 32 * 64 + 2 * 2 * 32 * 64)  # queries, outputs, keys and values of two layers
    experts = 2 * 2 * 3 * 32 * 64  # two of eight, with three matrices each
    vectors = 64 + 2 * (2 * 64 + 2 * 32)
    assert decode.read_bytes(path) == 4 * (matrices + experts + vectors + 2 * 8 * 64 + 320 * 64)
    assert kv_bytes(path) == 2 * 2 * 32 * 2 * 2
    with pytest.raises(RuntimeError, match="architecture qwen3moe, only llama and qwen3 are drawn"):
        _drawn_classes(str(path), None)


def test_a_shape_that_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "DRAWN", tmp_path)
    with pytest.raises(ValueError, match=r"--shapes must be of qwen3-0\.6b, .*, not large"):
        decode.drawn_model("Q8_0", "large")
    assert decode.drawn_model("Q8_0", "tiny").name == "tiny-q8_0.gguf"


def test_the_shape_of_a_file_is_what_it_was_drawn_in(tiny_drawn_model: Path) -> None:
    shape = gguf_shape(tiny_drawn_model)
    assert (shape["num_hidden_layers"], shape["hidden_size"], shape["head_dim"]) == (2, 64, 32)
    assert (shape["num_key_value_heads"], shape["vocab_size"], shape["tie_word_embeddings"]) == (2, 320, True)
    assert kv_bytes(tiny_drawn_model) == 2 * 2 * 32 * 2 * 2
