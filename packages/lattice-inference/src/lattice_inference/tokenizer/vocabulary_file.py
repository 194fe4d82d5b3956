"""BERT's tokenizer from vocab.txt, one token a line, and tokenizer_config.json.

This is the older form of the files.
"""

from __future__ import annotations

from pathlib import Path

from lattice_inference.errors import TokenizerError, UnsupportedError
from lattice_inference.tokenizer.decoders import WordPieceDecoder
from lattice_inference.tokenizer.definition import TokenizerDefinition
from lattice_inference.tokenizer.fields import Fields, read_json_object, read_text_file
from lattice_inference.tokenizer.normalizers import bert_normalizer
from lattice_inference.tokenizer.post_processors import bert_post_processor
from lattice_inference.tokenizer.pre_tokenizers import BERT_PRE_TOKENIZER
from lattice_inference.tokenizer.tokenizer_config import CONFIG_NAME, config_added_tokens, special_token
from lattice_inference.tokenizer.wordpiece import WordPiece

__all__ = ["CONFIG_NAME", "read_vocabulary_file"]

# Classes of transformers whose tokenizer is BERT's; others read a vocab.txt in another way.
_BERT_CLASSES = {
    "Bert",
    "DistilBert",
    "Electra",
    "MobileBert",
    "ConvBert",
    "Funnel",
    "LayoutLM",
    "Lxmert",
    "SqueezeBert",
}

_SPECIAL_TOKENS = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}


def read_vocabulary_file(path: Path) -> TokenizerDefinition:
    """Return BERT's tokenizer with the vocabulary in ``path``.

    The tokenizer_config.json beside it has the settings. Without that file, the settings are BERT's own defaults:
    lower case, accents stripped, CJK characters apart.
    """
    vocabulary = _read_vocabulary(path)
    config_path = path.with_name(CONFIG_NAME)
    config = Fields(read_json_object(config_path) if config_path.exists() else {}, CONFIG_NAME)
    _refuse_other_tokenizers(config)
    special = {name: special_token(config, name, default) for name, default in _SPECIAL_TOKENS.items()}
    added = config_added_tokens(config, list(special.values()))
    for token in added:
        if token.content not in vocabulary:
            raise TokenizerError(f"{path} lacks the special token {token.content!r:.80} that {CONFIG_NAME} asks for")
    strip_accents = config.raw("strip_accents", None)
    if not isinstance(strip_accents, bool | None):
        raise TokenizerError(f"{CONFIG_NAME}.strip_accents is {strip_accents!r:.60}; expected true, false or null")
    return TokenizerDefinition(
        normalizer=bert_normalizer(
            clean_text=True,
            handle_chinese_chars=config.boolean("tokenize_chinese_chars", True),
            strip_accents=strip_accents,
            lowercase=config.boolean("do_lower_case", True),
        ),
        pre_tokenizer=BERT_PRE_TOKENIZER,
        model=WordPiece(vocabulary, special["unk_token"].content),
        post_processor=bert_post_processor(
            vocabulary[special["cls_token"].content], vocabulary[special["sep_token"].content]
        ),
        decoder=WordPieceDecoder(),
        added_tokens=tuple(added),
    )


def _read_vocabulary(path: Path) -> dict[str, int]:
    """Return token -> line number.

    Of a token on two lines the later counts, as in transformers.
    """
    lines = read_text_file(path).split("\n")
    if lines[-1] == "":
        lines.pop()
    return {line.removesuffix("\r"): number for number, line in enumerate(lines)}


def _refuse_other_tokenizers(config: Fields) -> None:
    name = config.raw("tokenizer_class", None)
    if name is not None:
        name = config.string("tokenizer_class")
        if name.removesuffix("Fast").removesuffix("Tokenizer") not in _BERT_CLASSES:
            raise UnsupportedError(
                f"{CONFIG_NAME} names the tokenizer class {name!r:.80}, which does not read a vocab.txt as BERT does; use "
                "the model's tokenizer.json"
            )
    if not config.boolean("do_basic_tokenize", True):
        raise UnsupportedError(f"{CONFIG_NAME} sets do_basic_tokenize to false, which is not supported")
    if config.raw("never_split", None):
        raise UnsupportedError(f"{CONFIG_NAME} sets never_split, which is not supported")
