"""BPE models in SentencePiece files: Llama 1 and 2 and models like them."""

from __future__ import annotations

from pathlib import Path

from lattice_inference.errors import TokenizerError, UnsupportedError
from lattice_inference.tokenizer.added_tokens import AddedToken
from lattice_inference.tokenizer.bpe import BPE
from lattice_inference.tokenizer.decoders import parse_decoder
from lattice_inference.tokenizer.definition import TokenizerDefinition
from lattice_inference.tokenizer.fields import Fields
from lattice_inference.tokenizer.metaspace import SPACE, metaspace
from lattice_inference.tokenizer.post_processors import Part, PostProcessor
from lattice_inference.tokenizer.sentencepiece_file import CONTROL, NORMAL, USER_DEFINED, SentencePieceFile
from lattice_inference.tokenizer.tokenizer_config import CONFIG_NAME, config_added_tokens, special_token
from lattice_inference.tokenizer.wordpiece import MAX_TOKEN_CHARACTERS

__all__ = ["merges_of", "sentencepiece_bpe"]

_LLAMA = {"Llama", "llama", "mistral", ""}


def sentencepiece_bpe(file: SentencePieceFile, config: Fields, family: str, path: Path) -> TokenizerDefinition:
    """Return the tokenizer of a SentencePiece BPE model, as in Llama's published tokenizer.json.

    A space is put before the text and becomes U+2581, and what is in no piece becomes bytes. ``<s>`` stands before each
    text unless ``add_bos_token`` is false in tokenizer_config.json, ``</s>`` after it if ``add_eos_token`` is true.

    Raises :class:`UnsupportedError` for the model of another class.
    """
    if family not in _LLAMA:
        raise UnsupportedError(
            f"{path}: the directory names the tokenizer class {family!r:.80}; of SentencePiece's BPE models, Llama's are "
            "supported; use the model's tokenizer.json"
        )
    vocabulary = {piece: i for i, piece in enumerate(file.pieces)}
    if len(vocabulary) != len(file):
        raise TokenizerError(f"{path} has the same piece twice")
    tokens = {
        name: special_token(config, name, default)
        for name, default in (("unk_token", "<unk>"), ("bos_token", "<s>"), ("eos_token", "</s>"))
        if config.raw(name, default) is not None
    }
    for name in ("bos_token", "eos_token"):
        if name not in tokens or tokens[name].content not in vocabulary:
            raise TokenizerError(f"{path} lacks the {name} that {CONFIG_NAME} or Llama's tokenizer asks for")
    adds_prefix = config.raw("add_prefix_space", None) is None or config.boolean("add_prefix_space")
    scheme = "never" if not adds_prefix else "always" if config.raw("legacy", None) is True else "first"
    decoders: list[object] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if adds_prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    unknown = tokens.get("unk_token")
    return TokenizerDefinition(
        normalizer=(),
        pre_tokenizer=(metaspace(prepend_scheme=scheme, split=False),),
        model=BPE(
            vocabulary,
            merges_of(file, vocabulary),
            unknown_token=None if unknown is None or unknown.content not in vocabulary else unknown.content,
            fuse_unknown=True,
            byte_fallback=True,
        ),
        post_processor=_template(
            vocabulary[tokens["bos_token"].content] if config.boolean("add_bos_token", True) else None,
            vocabulary[tokens["eos_token"].content] if config.boolean("add_eos_token", False) else None,
        ),
        decoder=parse_decoder({"type": "Sequence", "decoders": decoders}),
        added_tokens=_added(file, config, tokens),
    )


def merges_of(file: SentencePieceFile, vocabulary: dict[str, int]) -> list[list[str]]:
    """Return the merges that the pieces imply, by falling score.

    Each way to make a normal piece of two others is one.
    """
    merges: list[tuple[float, int, int, str, str]] = []
    for piece, score, kind in zip(file.pieces, file.scores.tolist(), file.types.tolist(), strict=True):
        if kind != NORMAL:
            continue
        if len(piece) > MAX_TOKEN_CHARACTERS:
            raise TokenizerError(f"a piece has {len(piece):,} characters; the limit is {MAX_TOKEN_CHARACTERS:,}")
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocabulary and right in vocabulary:
                merges.append((-score, len(left), len(right), left, right))
    merges.sort(key=lambda merge: merge[:3])
    return [[left, right] for *_, left, right in merges]


def _template(bos: int | None, eos: int | None) -> PostProcessor:
    def around(sequence: int, type_id: int) -> list[Part]:
        before = [] if bos is None else [Part(-1, bos, type_id)]
        behind = [] if eos is None else [Part(-1, eos, type_id)]
        return [*before, Part(sequence, -1, type_id), *behind]

    return PostProcessor(tuple(around(0, 0)), (*around(0, 0), *around(1, 1)))


def _added(file: SentencePieceFile, config: Fields, special: dict[str, AddedToken]) -> tuple[AddedToken, ...]:
    """Return the added tokens: the configuration's flags count before those of the model file."""
    tokens = {token.content: token for token in config_added_tokens(config, list(special.values()))}
    for piece, kind in zip(file.pieces, file.types.tolist(), strict=True):
        if kind in (CONTROL, USER_DEFINED):
            tokens.setdefault(piece, AddedToken(piece, normalized=False, special=kind == CONTROL))
    return tuple(tokens.values())
