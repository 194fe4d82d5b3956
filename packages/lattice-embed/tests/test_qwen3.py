"""The catalogue's Qwen3-Embedding models through every service, from a directory that the environment names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qwen3_files as files
from lattice_embed import (
    CachedEmbeddingService,
    CrossEncoder,
    EmbeddingModel,
    InvalidInputError,
    ModelConfigError,
    NativeEmbeddingService,
    TextTooLongError,
)
from lattice_embed.cli import main
from lattice_inference import load_encoder

Capture = pytest.CaptureFixture[str]
SMALL, LARGE = EmbeddingModel.QWEN3_EMBEDDING_0_6B, EmbeddingModel.QWEN3_EMBEDDING_4B
TEXTS = ["a cat", "a kitten", "gravity attracts bodies", "", "日本語"]


def write_embedder(directory: Path, hidden: int, *, positions: int = 32_768) -> Path:
    """A model of the real width and limits, with one small layer of drawn weights."""
    sizes = {"hidden_size": hidden, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": positions}
    content = files.embedding_files(**sizes, **heads)
    content["1_Pooling/config.json"]["word_embedding_dimension"] = hidden
    return files.write(directory, content, prefix="")


@pytest.fixture(scope="session")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[EmbeddingModel, Path]:
    folder = tmp_path_factory.mktemp("qwen3")
    return {model: write_embedder(folder / model.slug, model.native_dimensions) for model in (SMALL, LARGE)}


@pytest.fixture
def small(directories: dict[EmbeddingModel, Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("LATTICE_EMBED_MODEL", "LATTICE_EMBED_DIM"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("LATTICE_QWEN_MODEL_DIR", str(directories[SMALL]))
    return directories[SMALL]


def run_json(capsys: Capture, *arguments: str) -> dict[str, Any]:
    assert main(list(arguments)) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("model", [SMALL, LARGE])
def test_both_models_embed(
    model: EmbeddingModel, directories: dict[EmbeddingModel, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LATTICE_QWEN_MODEL_DIR", str(directories[model]))
    with NativeEmbeddingService(model) as service, load_encoder(directories[model]) as encoder:
        result = service.embed(TEXTS)
        assert result.vectors.shape == (len(TEXTS), model.native_dimensions)
        assert result.vectors.tobytes() == encoder.encode(TEXTS).vectors.tobytes()
        assert service.max_tokens == 8192 < encoder.max_tokens
        query = service.embed_query(TEXTS).vectors
        prompt = model.description.query_prompt
        assert query.tobytes() == encoder.encode(TEXTS, prompt=prompt).vectors.tobytes()
        assert result.token_counts.tolist() == [len(text.encode()) + 1 for text in TEXTS]


@pytest.mark.slow
def test_a_text_over_the_catalogues_limit_is_cut_or_refused(small: Path) -> None:
    text = "x" * 8_192
    with NativeEmbeddingService(SMALL) as service:
        result = service.embed([text, text[:-1]])
        assert (result.token_counts.tolist(), result.truncated.tolist()) == ([8192, 8192], [True, False])
        assert (result.vectors[0] == result.vectors[1]).all()
    with NativeEmbeddingService(SMALL, truncate="error") as service, pytest.raises(TextTooLongError):
        service.embed([text])


@pytest.mark.parametrize("size", [32, 33, 64, 256, 1000, 1024])
def test_shorter_vectors_are_the_first_components(small: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with NativeEmbeddingService(SMALL) as service:
        whole = service.embed(TEXTS, normalize=False)
    monkeypatch.setenv("LATTICE_EMBED_DIM", str(size))
    with NativeEmbeddingService(SMALL) as service:
        short = service.embed(TEXTS)
    expected = whole.vectors[:, :size] / np.linalg.norm(whole.vectors[:, :size], axis=1, keepdims=True)
    assert short.vectors.shape == (len(TEXTS), size)
    assert np.abs(short.vectors - expected).max() < 1e-6


def test_fingerprints_tell_dimensions_apart(small: Path) -> None:
    found = {}
    for size in (None, 32, 512):
        with NativeEmbeddingService(SMALL, output_dim=size) as service:
            found[size] = service.embed(["a"]).fingerprint
    assert len(set(found.values())) == 3


def test_company_and_the_caches_show_in_no_bit(small: Path, tmp_path: Path) -> None:
    texts = [f"text {number} " + "word " * (number % 20) for number in range(60)]
    with NativeEmbeddingService(SMALL) as service:
        want = service.embed(texts).vectors
        assert service.embed(texts[:7]).vectors.tobytes() == want[:7].tobytes()
        with CachedEmbeddingService(service) as cached:
            assert cached.embed(texts[:30]).vectors.tobytes() == want[:30].tobytes()
            assert cached.embed(texts).vectors.tobytes() == want.tobytes()
    for _ in range(2):
        with NativeEmbeddingService(SMALL, cache=tmp_path / "vectors") as service:
            assert service.embed(texts).vectors.tobytes() == want.tobytes()


@pytest.mark.slow
def test_a_full_call_of_mixed_texts_and_the_caches_give_the_same_bits(small: Path, tmp_path: Path) -> None:
    texts = [f"{number} " + "word " * (number * 7 % 90) for number in range(1_000)]
    with NativeEmbeddingService(SMALL) as service:
        want = service.embed(texts).vectors
        for number in (0, 13, 500, 999):
            assert service.embed_one(texts[number]).tobytes() == want[number].tobytes()
        with CachedEmbeddingService(service) as cached:
            cached.embed(texts[300:600])
            assert cached.embed(texts).vectors.tobytes() == want.tobytes()
    for _ in range(2):
        with NativeEmbeddingService(SMALL, cache=tmp_path / "vectors") as service:
            assert service.embed(texts).vectors.tobytes() == want.tobytes()


def test_the_commands_embed_store_and_move_to_shorter_vectors(
    small: Path, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    got = run_json(capsys, "embed", "--model", "qwen3", "--json", "a cat")
    assert (got["model"], got["dim"], got["embeddings"][0]["tokens"]) == (SMALL.slug, 1024, 6)
    monkeypatch.setenv("LATTICE_EMBED_DIM", "64")
    assert run_json(capsys, "embed", "--model", "qwen3", "--json", "a cat")["dim"] == 64
    monkeypatch.delenv("LATTICE_EMBED_DIM")
    (tmp_path / "lines.txt").write_text("a cat\na kitten\ngravity attracts bodies\n")
    run_json(capsys, "store", "import", "corpus.db", "--model", "qwen3", "--input", "lines.txt", "--json")
    found = run_json(capsys, "store", "query", "corpus.db", "a cat", "--json")
    assert len(found["matches"]) == 3
    moved = run_json(
        capsys, "backfill", "--from-store", "corpus.db", "--model", "qwen3", "--output-dim", "128", "--json"
    )
    assert (moved["state"], moved["processed"]) == ("completed", 3)
    assert run_json(capsys, "store", "info", moved["target"], "--json")["dimensions"] == 128


def test_the_models_are_listed_where_the_environment_says(small: Path, capsys: Capture) -> None:
    models = {model["name"]: model for model in run_json(capsys, "models", "--json")["models"]}
    assert models[SMALL.slug]["runs_here"]
    assert models[SMALL.slug]["reason"] is None
    assert models[SMALL.slug]["location"] == str(small)


def test_a_directory_of_another_size_or_none_is_refused(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelConfigError, match="gives vectors of 1024 dimensions, qwen3-embedding-4b has 2560"):
        NativeEmbeddingService(LARGE).load()
    monkeypatch.setenv("LATTICE_QWEN_MODEL_DIR", str(small / "missing"))
    with pytest.raises(InvalidInputError, match=r"LATTICE_QWEN_MODEL_DIR names .*missing, which does not exist"):
        NativeEmbeddingService(SMALL)
    NativeEmbeddingService(EmbeddingModel.ALL_MINILM_L6_V2)  # the variable is Qwen's
    monkeypatch.setenv("LATTICE_QWEN_MODEL_DIR", " ")
    assert NativeEmbeddingService(SMALL).recipe()[0] is SMALL


# Reranking


@pytest.fixture(scope="session")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return files.write(
        tmp_path_factory.mktemp("reranker") / "m", files.reranker_files(files.small_tokenizer(ends=False))
    )


def test_a_reranker_scores_as_the_model_card_does(reranker: Path) -> None:
    data = Path(__file__).parents[2] / "lattice-inference" / "tests" / "data" / "qwen3" / "outputs.npz"
    with np.load(data) as stored, CrossEncoder(reranker) as model:
        want = stored["scores-small"]
        for (instruction, query, document), score in zip(files.PAIRS, want, strict=True):
            assert abs(model.score(query, [document], instruction=instruction)[0] - score) <= 1e-5
        with pytest.raises(InvalidInputError, match="instruction"):
            model.score("a", ["b"], instruction=3)  # type: ignore[arg-type]


def test_the_command_ranks(reranker: Path, capsys: Capture, tmp_path: Path) -> None:
    documents = ["an animal", "a car", "gravity"]
    with CrossEncoder(reranker) as model:
        want = model.rank("what is a cat?", documents)
    arguments = ["rerank", "--model", str(reranker), "what is a cat?"]
    found = run_json(capsys, *arguments, *documents, "--json")
    assert found["query"] == "what is a cat?"
    assert [(entry["index"], entry["score"]) for entry in found["scores"]] == [(one.index, one.score) for one in want]
    assert [entry["text"] for entry in found["scores"]] == [documents[one.index] for one in want]
    (tmp_path / "in.txt").write_text("\n".join(documents) + "\n")
    assert main([*arguments, "--input", str(tmp_path / "in.txt"), "--top", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"{one.score:9.6f}  {one.index + 1:>6}  {documents[one.index]}" for one in want[:2]]
    asked = run_json(capsys, *arguments, *documents, "--json", "--instruction", "Find a pet")
    assert asked["scores"] != found["scores"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rerank", "a"], "pass --model"),
        (["rerank", "--model", "MODEL", "a"], "no document to rank"),
        (["rerank", "--model", "MODEL", "--input", "x", "a", "b"], "both given"),
        (["rerank", "--model", "MODEL", "--top", "0", "a", "b"], "--top is 0"),
        (["rerank", "--model", "MODEL", "--truncate", "error", "a", "b" * 3000], "tokens"),
        (["rerank", "--model", "minilm", "a", "b"], "model of embeddings"),
    ],
)
def test_mistakes_are_explained(arguments: list[str], words: str, reranker: Path, capsys: Capture) -> None:
    assert main([str(reranker) if part == "MODEL" else part for part in arguments]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""


def test_a_bert_cross_encoder_ranks_by_the_command_too(tmp_path: Path, capsys: Capture) -> None:
    from drawn_checkpoints import write_directory

    data = Path(__file__).parents[2] / "lattice-inference" / "tests" / "data" / "architectures" / "cases.json"
    case = json.loads(data.read_text())["cases"]["cross-encoder-xlm-roberta"]
    directory = write_directory(tmp_path / "ranker", case)
    with CrossEncoder(directory) as model:
        want = model.rank("the cat", ["dogs", "the mat"])
    found = run_json(capsys, "rerank", "--model", str(directory), "the cat", "dogs", "the mat", "--json")
    assert [entry["score"] for entry in found["scores"]] == [one.score for one in want]
    assert main(["rerank", "--model", str(directory), "--instruction", "x", "a", "b"]) == 2
    assert "no instruction" in capsys.readouterr().err
