"""Where a model's chat template and the texts of its special tokens are."""

from __future__ import annotations

import json

import gguf
import pytest

from lattice_inference.errors import CheckpointError, ModelConfigError, TokenizerError
from lattice_inference.tokenizer.chat_template_file import load_chat_template, read_special_tokens

ASKED = [{"role": "user", "content": "hello"}]


def write(directory, **files):
    for name, content in files.items():
        path = directory / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return directory


def write_gguf(path, templates, tokens=("<unk>", "<s>", "</s>", "<|end|>"), **ids):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_array("tokenizer.ggml.tokens", list(tokens))
    for role, token_id in ids.items():
        writer.add_uint32(f"tokenizer.ggml.{role}_token_id", token_id)
    if templates is not None:
        writer.add_chat_template(templates)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_a_file_of_its_own_counts_before_the_configuration(tmp_path):
    config = {
        "chat_template": "config {{ bos_token }}",
        "bos_token": "<s>",
        "eos_token": {"content": "</s>", "lstrip": False},
    }
    write(tmp_path, tokenizer_config_DOT_json=config)
    assert load_chat_template(tmp_path).render(ASKED) == "config <s>"
    write(tmp_path, chat_template_DOT_json={"chat_template": "old {{ eos_token }}"})
    assert load_chat_template(tmp_path).render(ASKED) == "old </s>"
    write(tmp_path, chat_template_DOT_jinja="file")
    assert load_chat_template(tmp_path).render(ASKED) == "file"


def test_templates_have_names(tmp_path):
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    write(tmp_path, tokenizer_config_DOT_json={"chat_template": named})
    assert load_chat_template(tmp_path).render(ASKED) == "plain"
    assert load_chat_template(tmp_path).render(ASKED, tools=[{}]) == "tools"
    write(tmp_path, additional_chat_templates__tool_use_DOT_jinja="newer")
    assert load_chat_template(tmp_path).render(ASKED, tools=[{}]) == "newer"


def test_no_template_is_none(tmp_path):
    assert load_chat_template(tmp_path) is None
    write(tmp_path, tokenizer_config_DOT_json={"bos_token": None, "chat_template": None})
    assert load_chat_template(tmp_path) is None
    assert read_special_tokens(tmp_path) == {}
    assert load_chat_template(write_gguf(tmp_path / "x.gguf", None)) is None


def test_special_tokens_come_from_both_files(tmp_path):
    write(
        tmp_path,
        special_tokens_map_DOT_json={"bos_token": "<a>", "pad_token": {"content": "<p>"}},
        tokenizer_config_DOT_json={"bos_token": "<b>", "eos_token": "<e>", "add_bos_token": True},
    )
    assert read_special_tokens(tmp_path) == {"bos_token": "<b>", "pad_token": "<p>", "eos_token": "<e>"}


def test_a_gguf_file_has_its_template_and_its_roles(tmp_path):
    templates = [
        {"name": "default", "template": "{{ bos_token }}{{ eos_token }}"},
        {"name": "tool_use", "template": "T"},
    ]
    path = write_gguf(tmp_path / "x.gguf", templates, bos=1, eos=2, eot=3, unknown=0, padding=99)
    assert read_special_tokens(path) == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "eot_token": "<|end|>",
        "unk_token": "<unk>",  # and an id beyond the vocabulary has no role
    }
    assert load_chat_template(path).render(ASKED) == "<s></s>"
    assert load_chat_template(path).render(ASKED, tools=[{}]) == "T"


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ("{", TokenizerError),
        ({"chat_template": 5}, TokenizerError),
        ({"chat_template": [{"name": "default"}]}, TokenizerError),
        ({"chat_template": [{"name": "tool_use", "template": "x"}]}, TokenizerError),
        ({"chat_template": "{% for"}, ModelConfigError),
    ],
)
def test_a_malformed_file_is_refused(tmp_path, config, error):
    with pytest.raises(error):
        load_chat_template(write(tmp_path, tokenizer_config_DOT_json=config))


def test_a_file_that_is_no_gguf_is_refused(tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"GGUF" + bytes(20))
    with pytest.raises(CheckpointError):
        load_chat_template(tmp_path / "x.gguf")
    (tmp_path / "tokenizer.json").write_text("{}")
    assert load_chat_template(tmp_path / "tokenizer.json") is None
