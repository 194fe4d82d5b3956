"""Byte-level BPE from vocab.json and merges.txt, with settings in tokenizer_config.json.

This is the older form of the files.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lattice_inference.errors import ModelNotFoundError, TokenizerError, UnsupportedError
from lattice_inference.tokenizer import _tokenizer as native
from lattice_inference.tokenizer.added_tokens import AddedToken, assign_ids
from lattice_inference.tokenizer.bpe import BPE
from lattice_inference.tokenizer.decoders import ByteLevelDecoder
from lattice_inference.tokenizer.definition import TokenizerDefinition
from lattice_inference.tokenizer.fields import Fields, read_json_object, read_text_file
from lattice_inference.tokenizer.post_processors import DEFAULT_POST_PROCESSOR, Part, PostProcessor, Trimming
from lattice_inference.tokenizer.pre_tokenizers import byte_level_steps
from lattice_inference.tokenizer.replacements import Step
from lattice_inference.tokenizer.tokenizer_config import (
    CONFIG_NAME,
    ROBERTA_SPECIAL_TOKENS,
    config_added_tokens,
    special_token,
    tokenizer_family,
)

__all__ = ["MERGES_NAME", "VOCABULARY_NAME", "read_merges_file"]

VOCABULARY_NAME = "vocab.json"
MERGES_NAME = "merges.txt"


def read_merges_file(directory: Path) -> TokenizerDefinition:
    """Return the tokenizer of a vocab.json and a merges.txt.

    The tokenizer_config.json beside them has the settings. The files do not say how a text is split. That follows
    from the class that tokenizer_config.json names, else from the ``model_type`` of config.json: GPT-2, RoBERTa,
    Qwen2 and Qwen3, Qwen3.5 are known. If neither file names one, it is GPT-2, whose files these are.

    Raises :class:`TokenizerError` for a malformed file and :class:`UnsupportedError` for another class.
    """
    for name in (VOCABULARY_NAME, MERGES_NAME):
        if not (directory / name).is_file():
            raise ModelNotFoundError(
                f"{directory} has no {name}; a BPE tokenizer needs {VOCABULARY_NAME} and {MERGES_NAME}"
            )
    config_path = directory / CONFIG_NAME
    config = Fields(read_json_object(config_path) if config_path.exists() else {}, CONFIG_NAME)
    family = tokenizer_family(directory, config)
    if family not in _FAMILIES:
        raise UnsupportedError(
            f"{directory} names the tokenizer class {family!r:.80}, for which {VOCABULARY_NAME} and {MERGES_NAME} do not "
            f"say how a text is split; use the model's tokenizer.json (known: {', '.join(sorted(filter(None, _FAMILIES)))})"
        )
    model = BPE(read_json_object(directory / VOCABULARY_NAME), _read_merges(directory / MERGES_NAME))
    return _FAMILIES[family](model, config)


def _read_merges(path: Path) -> list[str]:
    lines = [line.removesuffix("\r") for line in read_text_file(path).split("\n")]
    return [line for line in lines if line and not line.startswith("#version")]


def _special_tokens(config: Fields, defaults: dict[str, str]) -> dict[str, AddedToken]:
    """Return the special tokens by role, without those that the file sets to null."""
    return {
        name: special_token(config, name, default)
        for name, default in defaults.items()
        if config.raw(name, default) is not None
    }


def _definition(
    model: BPE,
    config: Fields,
    tokens: dict[str, AddedToken],
    *,
    pre_tokenizer: tuple[Step, ...],
    normalizer: tuple[Step, ...] = (),
    post_processor: Callable[[dict[str, int]], PostProcessor] = lambda ids: DEFAULT_POST_PROCESSOR,
) -> TokenizerDefinition:
    added = config_added_tokens(config, list(tokens.values()))
    # tokens that the vocabulary lacks are numbered after it, in the order of the ids that the file gives them
    ids = {**model.vocabulary, **assign_ids(added, model.vocabulary)}
    return TokenizerDefinition(
        normalizer=normalizer,
        pre_tokenizer=pre_tokenizer,
        model=model,
        post_processor=post_processor({name: ids[token.content] for name, token in tokens.items()}),
        decoder=ByteLevelDecoder(),
        added_tokens=tuple(added),
    )


_END = "<|endoftext|>"


def _gpt2(model: BPE, config: Fields) -> TokenizerDefinition:
    tokens = _special_tokens(config, {"unk_token": _END, "bos_token": _END, "eos_token": _END})
    adds_bos = config.boolean("add_bos_token", False)
    if adds_bos and "bos_token" not in tokens:
        raise TokenizerError(f"{CONFIG_NAME} sets add_bos_token, but bos_token to null")

    def post_processor(ids: dict[str, int]) -> PostProcessor:
        if not adds_bos:
            return DEFAULT_POST_PROCESSOR
        single = (Part(-1, ids["bos_token"], 0), Part(0, -1, 0))
        return PostProcessor(single, (*single, Part(-1, ids["bos_token"], 1), Part(1, -1, 1)))

    prefix = config.boolean("add_prefix_space", False)
    steps = byte_level_steps(add_prefix_space=prefix, use_regex=True)
    return _definition(model, config, tokens, pre_tokenizer=steps, post_processor=post_processor)


def _roberta(model: BPE, config: Fields) -> TokenizerDefinition:
    tokens = _special_tokens(config, ROBERTA_SPECIAL_TOKENS)
    prefix = config.boolean("add_prefix_space", False)

    def post_processor(ids: dict[str, int]) -> PostProcessor:
        cls_id, sep_id = ids["cls_token"], ids["sep_token"]
        single = (Part(-1, cls_id, 0), Part(0, -1, 0), Part(-1, sep_id, 0))
        trimming: Trimming | None = "all but a prefix space" if prefix else "all"
        if not config.boolean("trim_offsets", True):
            trimming = None
        second = (Part(-1, sep_id, 0), Part(1, -1, 0), Part(-1, sep_id, 0))
        return PostProcessor(single, (*single, *second), trimming)

    for name in ("cls_token", "sep_token"):
        if name not in tokens:
            raise TokenizerError(f"{CONFIG_NAME} sets {name} to null, which RoBERTa's tokenizer needs")
    steps = byte_level_steps(add_prefix_space=prefix, use_regex=True)
    return _definition(model, config, tokens, pre_tokenizer=steps, post_processor=post_processor)


def _qwen(scanner: int) -> Callable[[BPE, Fields], TokenizerDefinition]:
    def build(model: BPE, config: Fields) -> TokenizerDefinition:
        tokens = _special_tokens(config, {"unk_token": _END, "eos_token": _END, "pad_token": _END})
        prefix = config.raw("add_prefix_space", None) is not None and config.boolean("add_prefix_space")
        steps = (scanner, *byte_level_steps(add_prefix_space=prefix, use_regex=False))
        return _definition(model, config, tokens, normalizer=(native.NORMALIZE_NFC,), pre_tokenizer=steps)

    return build


_FAMILIES: dict[str, Callable[[BPE, Fields], TokenizerDefinition]] = {
    "": _gpt2,
    "GPT2": _gpt2,
    "gpt2": _gpt2,
    "Roberta": _roberta,
    "roberta": _roberta,
    "Qwen2": _qwen(native.SPLIT_QWEN2),
    "qwen2": _qwen(native.SPLIT_QWEN2),
    "qwen3": _qwen(native.SPLIT_QWEN2),
    "Qwen3_5": _qwen(native.SPLIT_QWEN35),
    "qwen3_5": _qwen(native.SPLIT_QWEN35),
    "qwen3_5_text": _qwen(native.SPLIT_QWEN35),
}
