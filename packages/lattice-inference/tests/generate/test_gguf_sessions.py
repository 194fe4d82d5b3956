"""Sessions on GGUF files: what their metadata says about where a text ends."""

from __future__ import annotations

import pytest

from lattice_inference import load_model
from lattice_inference.generate.config import GenerateConfig
from lattice_inference.generate.session import Session
from test_decoder_gguf import VOCAB, write

TOKENS = ["<unk>", "<s>", "</s>", "<|end|>", "<|im_start|>", "<|im_end|>", "<|eom|>", "<|eot|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>{% endif %}"
)


@pytest.mark.parametrize("roles", [{}, {"eos": 3}, {"eos": 3, "eot": 7}, {"eos": 2, "eot": 7, "eom": 6}], ids=str)
@pytest.mark.parametrize("template", [None, TEMPLATE], ids=["no template", "template"])
def test_every_source_of_stop_tokens_in_the_file_counts(tmp_path, roles, template):
    """Case D7: the tokens of each role that has one, and the one that the chat template puts behind an answer."""
    letters = [chr(code) for code in range(33, 33 + VOCAB - len(TOKENS) - 1)]
    entries = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*TOKENS, *letters, "\u0120"],
        "tokenizer.ggml.token_type": [3] * len(TOKENS) + [1] * (len(letters) + 1),
        "tokenizer.ggml.merges": [],
        **{f"tokenizer.ggml.{role}_token_id": roles.get(role, 2**32 - 1) for role in ("eos", "eot", "eom")},
        **({} if template is None else {"tokenizer.chat_template": template}),
    }
    expected = set(roles.values()) | ({5} if template else set())
    with load_model(write(tmp_path / "model.gguf", "llama", entries=entries)) as model, Session(model) as session:
        assert session.stop_token_ids == expected
        for token_id in expected:
            config = GenerateConfig(9, temperature=0, logit_bias={token_id: 100.0})
            assert session.generate("abc", config).stop_token_id == token_id
