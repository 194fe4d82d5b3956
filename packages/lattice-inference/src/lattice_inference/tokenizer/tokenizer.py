"""The tokenizer: texts to token ids and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

import numpy as np
import numpy.typing as npt

from lattice_inference.argument_checks import checked_flag
from lattice_inference.errors import InvalidInputError, TokenizerError, UnsupportedError
from lattice_inference.text_lists import check_text_list
from lattice_inference.thread_count import check_thread_count
from lattice_inference.token_ids import MOST_TOKEN_ID, as_token_id, in_order
from lattice_inference.tokenizer import _tokenizer as native
from lattice_inference.tokenizer.bpe import BPE
from lattice_inference.tokenizer.definition import TokenizerDefinition
from lattice_inference.tokenizer.encoding import Encoding, PackedEncoding
from lattice_inference.tokenizer.limits import Truncation
from lattice_inference.tokenizer.post_processors import PostProcessor
from lattice_inference.tokenizer.streaming import TokenStream
from lattice_inference.tokenizer.unigram import UNKNOWN_PENALTY, Unigram
from lattice_inference.tokenizer.wordpiece import WordPiece
from lattice_inference.value_text import value_text

__all__ = ["Tokenizer"]

Text = str | tuple[str, str]
IdArray = npt.NDArray[np.int32]

_STRATEGIES = {
    "longest_first": native.LONGEST_FIRST,
    "only_first": native.ONLY_FIRST,
    "only_second": native.ONLY_SECOND,
}


class Tokenizer:
    """Converts texts to token ids and back, with the ids of Hugging Face ``tokenizers``.

    Both read the same file. Made by :func:`load_tokenizer`. Immutable: any number of threads may use one, and the
    work on texts runs without the GIL. Picklable.

    Texts are ``str``. Every text has a defined result. The file's normalizer handles control characters, NUL and
    unassigned code points (BERT's drops them). An empty text has only the template's special tokens. A lone
    surrogate, which no Unicode text contains, and a text that is not a ``str`` raise :class:`InvalidInputError`.

    Special tokens in a text, such as ``"[SEP]"`` typed by a user, become the special token, as in Hugging Face's
    library; with ``special_tokens_in_text=False`` they are text like any other.

    >>> from lattice_inference import find_model, load_tokenizer
    >>> tokenizer = load_tokenizer(find_model("all-minilm-l6-v2").directory)
    >>> encoding = tokenizer.encode("Hello world!")
    >>> encoding.ids.tolist()
    [101, 7592, 2088, 999, 102]
    >>> tokenizer.decode(encoding.ids)
    'hello world!'
    """

    def __init__(self, definition: TokenizerDefinition, *, apply_file_limits: bool = False) -> None:
        self._definition = definition
        self._apply_file_limits = apply_file_limits
        self._file_truncation = definition.truncation if apply_file_limits else None
        self._file_padding = definition.padding if apply_file_limits else None
        self._pipeline = _build_pipeline(definition)
        processor = definition.post_processor
        self._templates = _templates(processor)
        self._bare_templates = _templates(processor.without_special_tokens())
        added = definition.added_token_ids
        self._vocabulary = definition.model.vocabulary
        self._added = added
        self._tokens = _tokens_by_id(definition)
        special = [added[token.content] for token in definition.added_tokens if token.special]
        self._special_ids = frozenset((*special, *(token.id for token in definition.repeated_tokens if token.special)))

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (self._definition, self._apply_file_limits)

    def __repr__(self) -> str:
        return f"Tokenizer({type(self._definition.model).__name__}, {self.vocab_size:,} tokens)"

    @property
    def definition(self) -> TokenizerDefinition:
        """What the tokenizer was made from."""
        return self._definition

    @property
    def vocab_size(self) -> int:
        """The number of tokens, added tokens included."""
        repeated = 0 if isinstance(self._vocabulary, native.PieceTable) else len(self._definition.repeated_tokens)
        return len(self._vocabulary) + repeated + sum(token not in self._vocabulary for token in self._added)

    @property
    def special_ids(self) -> frozenset[int]:
        """The ids of special tokens, which decoding leaves out by default."""
        return self._special_ids

    @property
    def unknown_id(self) -> int | None:
        """The id of the token for what the vocabulary lacks; ``None`` where there is no such token."""
        model = self._definition.model
        if isinstance(model, Unigram):
            return model.unknown_id
        return None if model.unknown_token is None else self.token_to_id(model.unknown_token)

    def token_to_id(self, token: str) -> int | None:
        """Return the id of ``token``, or ``None`` if there is no such token."""
        if not isinstance(token, str):
            raise InvalidInputError(f"a token is a str, not {value_text(token)}")
        token_id = self._added.get(token)
        return self._vocabulary.get(token) if token_id is None else token_id

    def id_to_token(self, token_id: int) -> str | None:
        """Return the token with the id ``token_id``, or ``None`` if there is none."""
        number = as_token_id(token_id)
        if number is None:
            raise InvalidInputError(f"a token id is an integer, not {value_text(token_id)}")
        token = self._tokens.get(number)
        if token is None and isinstance(self._vocabulary, native.PieceTable) and 0 <= number <= MOST_TOKEN_ID:
            return self._vocabulary.piece(number)
        return token

    def special_token_count(self, *, pair: bool = False) -> int:
        """Return how many special tokens the template puts around a text, or around a pair."""
        return self._templates[checked_flag("pair", pair)].special_count

    def encode(
        self,
        text: str,
        pair: str | None = None,
        *,
        add_special_tokens: bool = True,
        special_tokens_in_text: bool = True,
        truncation: Truncation | int | None = None,
    ) -> Encoding:
        """Encode one text, or a pair of texts.

        ``add_special_tokens`` puts the template's special tokens around it. ``truncation``, a number of tokens or a
        :class:`Truncation`, cuts the text so that it has at most so many tokens, special tokens included.

        Raises :class:`InvalidInputError` for what is not a ``str``, a lone surrogate, or a limit that cannot be kept.
        """
        ids, offsets, type_ids, _, _, truncated = self._encode(
            (text,), None if pair is None else (pair,), add_special_tokens, special_tokens_in_text, truncation, True
        )
        encoding = Encoding(ids, offsets, type_ids, bool(truncated[0]), self)
        return encoding if self._file_padding is None else self._pad([encoding])[0]

    def encode_marked(
        self, text: str, plain: Sequence[tuple[int, int]], *, add_special_tokens: bool = True
    ) -> Encoding:
        """Encode one text in which special tokens are found, but for some of its characters.

        Args:
            text: such as a rendered conversation; see :meth:`ChatTemplate.render_marked`.
            plain: the characters ``text[start:end]`` that are part of no special token, such as users'. Added tokens that
                are not special are found there too.
            add_special_tokens: put the template's special tokens around it.

        Raises:
            InvalidInputError: as :meth:`encode`, or a range that is not in the text.
        """
        mask = bytearray(len(text))
        for start, end in plain:
            if not 0 <= start <= end <= len(text):
                raise InvalidInputError(f"the range {start} to {end} is not in a text of {len(text):,} characters")
            mask[start:end] = b"\1" * (end - start)
        ids, offsets, type_ids, _, _, truncated = self._encode(
            (text,), None, add_special_tokens, True, None, True, plain=bytes(mask) if plain else None
        )
        if plain:
            ids, offsets, type_ids = self._without_spelled_tokens(text, mask, ids, offsets, type_ids)
        return Encoding(ids, offsets, type_ids, bool(truncated[0]), self)

    def _without_spelled_tokens(
        self, text: str, mask: bytearray, ids: IdArray, offsets: IdArray, type_ids: IdArray
    ) -> tuple[IdArray, IdArray, IdArray]:
        """Spell out the special tokens that a model itself makes of plain text.

        Some vocabularies have them as pieces: a Unigram model finds ``</s>`` in a text as it finds any word.
        """
        wrong = [
            place
            for place in np.flatnonzero(np.isin(ids, list(self._special_ids))).tolist()
            if any(mask[offsets[place, 0] : offsets[place, 1]]) and self._is_spelled(text, ids[place], offsets[place])
        ]
        for place in reversed(wrong):
            spelled = self._characters_of(str(self.id_to_token(int(ids[place]))))
            where = [place, place + 1]
            ids = np.concatenate([ids[: where[0]], np.array(spelled, ids.dtype), ids[where[1] :]])
            offsets, type_ids = (
                np.concatenate(
                    [array[: where[0]], np.repeat(array[place : place + 1], len(spelled), 0), array[where[1] :]]
                )
                for array in (offsets, type_ids)
            )
        return ids, offsets, type_ids

    def _is_spelled(self, text: str, token_id: int, offset: IdArray) -> bool:
        """Return whether a token comes from a text's spelling, not from unknown content."""
        return str(self.id_to_token(int(token_id))) in text[offset[0] : offset[1]]

    def _characters_of(self, token: str) -> list[int]:
        """Return the tokens of a text's single characters.

        An unknown one gives its bytes', or the unknown token.
        """
        prefix = getattr(self._definition.model, "prefix", None) or ""
        spelled = []
        for index, character in enumerate(token):
            names = [character] if index == 0 else [prefix + character, character]
            found = [token_id for name in names if (token_id := self.token_to_id(name)) is not None]
            if found:
                spelled.append(found[0])
                continue
            of_bytes = [self.token_to_id(f"<0x{byte:02X}>") for byte in character.encode()]
            spelled += [token_id for token_id in of_bytes if token_id is not None]
        return spelled

    def encode_batch(
        self,
        texts: Iterable[Text],
        *,
        add_special_tokens: bool = True,
        special_tokens_in_text: bool = True,
        truncation: Truncation | int | None = None,
    ) -> list[Encoding]:
        """Encode texts and pairs (tuples of two texts); each gets what :meth:`encode` gives for it."""
        firsts, seconds = _split_pairs(texts)
        ids, offsets, type_ids, boundaries, _, truncated = self._encode(
            firsts, seconds, add_special_tokens, special_tokens_in_text, truncation, True
        )
        bounds = boundaries.tolist()
        encodings = [
            Encoding(ids[start:end], offsets[start:end], type_ids[start:end], was_cut, self)
            for start, end, was_cut in zip(bounds, bounds[1:], truncated.tolist(), strict=False)
        ]
        return encodings if self._file_padding is None else self._pad(encodings)

    def encode_packed(
        self,
        texts: Iterable[Text],
        *,
        max_tokens: Truncation | int | None = None,
        add_special_tokens: bool = True,
        special_tokens_in_text: bool = True,
        threads: int | None = None,
    ) -> PackedEncoding:
        """Encode texts and pairs into one packed array.

        There are no offsets, and no Python object per token.

        ``max_tokens`` cuts each to at most so many tokens, special tokens included, the longer text of a pair first.
        A :class:`Truncation` says which text and which end loses tokens.
        Nothing is ever padded here. Long lists are shared out over the process's threads, at most ``threads`` of them.
        """
        firsts, seconds = _split_pairs(texts)
        ids, _, type_ids, boundaries, counts, truncated = self._encode(
            firsts, seconds, add_special_tokens, special_tokens_in_text, max_tokens, False, threads
        )
        return PackedEncoding(ids, boundaries, type_ids, counts, truncated)

    def count(self, text: str, *, add_special_tokens: bool = True, special_tokens_in_text: bool = True) -> int:
        """Return how many tokens ``text`` has.

        The template's special tokens are included unless told otherwise.
        """
        counts = self._encode((text,), None, add_special_tokens, special_tokens_in_text, None, False)[4]
        return int(counts[0])

    def decode(self, ids: Sequence[int] | npt.NDArray[np.integer], *, skip_special_tokens: bool = True) -> str:
        """Return the text of ``ids``; raise :class:`InvalidInputError` for an id that no token has."""
        tokens = []
        for given in in_order(ids, "ids"):
            token = self.token_of(given, skip_special_tokens=skip_special_tokens)
            if token is not None:
                tokens.append(token)
        return "".join(self._definition.decoder.decode(tokens))

    def stream(self, *, skip_special_tokens: bool = True) -> TokenStream:
        """Return a stream that turns ids into text one at a time, as they are generated."""
        return TokenStream(self, self._definition.decoder.stream(), skip_special_tokens)

    def token_of(self, token_id: int, *, skip_special_tokens: bool) -> str | None:
        """Return the token that decoding uses for an id.

        ``None`` for a special token that is left out. Raises :class:`InvalidInputError` for an id that no token has.
        """
        given: object = skip_special_tokens
        if type(given) is not bool:  # asked first: there is a call for every token
            skip_special_tokens = checked_flag("skip_special_tokens", given)
        number = as_token_id(token_id)
        token = None if number is None else self.id_to_token(number)
        if token is None:
            raise InvalidInputError(
                f"no token has the id {value_text(token_id)}; ids go from 0 to {self._definition.highest_id}"
            )
        return None if skip_special_tokens and number in self._special_ids else token

    def _encode(
        self,
        firsts: tuple[str, ...],
        seconds: tuple[str | None, ...] | None,
        add_special_tokens: bool,
        special_tokens_in_text: bool,
        truncation: Truncation | int | None,
        want_offsets: bool,
        threads: int | None = None,
        plain: bytes | None = None,
    ) -> native.Encoded:
        if type(add_special_tokens) is not bool or type(special_tokens_in_text) is not bool:
            add_special_tokens = checked_flag("add_special_tokens", add_special_tokens)  # type: ignore[unreachable]  # callers without a type checker
            special_tokens_in_text = checked_flag("special_tokens_in_text", special_tokens_in_text)
        single, pair = self._templates if add_special_tokens else self._bare_templates
        if truncation is None:
            truncation = self._file_truncation
        if truncation is None:
            limit, strategy, cut_left = -1, 0, False
        elif type(truncation) is int and truncation >= 0:
            limit, strategy, cut_left = truncation, 0, False  # as Truncation(truncation), which takes longer to make
        else:
            if not isinstance(truncation, Truncation):
                truncation = Truncation(truncation)
            limit, strategy, cut_left = (
                truncation.max_tokens,
                _STRATEGIES[truncation.strategy],
                truncation.side == "left",
            )
        limit = min(limit, MOST_TOKEN_ID)  # more than any text has
        threads = native.MAX_THREADS if threads is None else check_thread_count(threads)
        return self._pipeline.encode(
            firsts,
            seconds,
            single,
            pair,
            limit,
            strategy,
            cut_left,
            special_tokens_in_text,
            want_offsets,
            threads,
            plain,
        )

    def _pad(self, encodings: list[Encoding]) -> list[Encoding]:
        padding = self._file_padding
        if padding is None or not encodings:
            return encodings
        length = padding.target(max(map(len, encodings)))
        return [
            encoding.padded(length, left=padding.side == "left", token_id=padding.id, type_id=padding.type_id)
            for encoding in encodings
        ]


def _restore(definition: TokenizerDefinition, apply_file_limits: bool) -> Tokenizer:
    return Tokenizer(definition, apply_file_limits=apply_file_limits)


def _split_pairs(texts: Iterable[Text]) -> tuple[tuple[str, ...], tuple[str | None, ...] | None]:
    """Return the first texts, and the second texts unless there are none."""
    items = tuple(check_text_list(texts))
    if tuple not in map(type, items):
        return cast(tuple[str, ...], items), None
    firsts: list[str] = []
    seconds: list[str | None] = []
    for i, item in enumerate(items):
        if not isinstance(item, tuple):
            firsts.append(item)
            seconds.append(None)
        elif len(item) == 2 and item[1] is not None:
            firsts.append(item[0])
            seconds.append(item[1])
        else:
            raise InvalidInputError(f"text {i} is a tuple of {len(item)} items; a pair is two texts")
    return tuple(firsts), tuple(seconds)


def _templates(processor: PostProcessor) -> tuple[native.Template, native.Template]:
    def build(pair: bool) -> native.Template:
        parts = processor.pair if pair else processor.single
        return native.Template([(part.sequence, part.id, part.type_id) for part in parts])

    return build(False), build(True)


def _tokens_by_id(definition: TokenizerDefinition) -> dict[int, str]:
    """Return the tokens by their ids, without those that a table of pieces can tell."""
    tokens = {token.id: token.content for token in definition.repeated_tokens}
    for ids in (definition.model.vocabulary, definition.added_token_ids):
        if isinstance(ids, dict):
            tokens.update(zip(ids.values(), ids, strict=True))  # one call for all, not one for each
    return tokens


def _set_wordpiece(pipeline: native.Pipeline, model: WordPiece) -> None:
    pieces = model.vocabulary
    if "" in pieces:  # the empty string can be in a file and have an id, but is never a piece
        pieces = {token: token_id for token, token_id in pieces.items() if token}
    pipeline.set_wordpiece(
        pieces,
        model.vocabulary[model.unknown_token],
        model.prefix,
        min(model.max_word_characters, native.MAX_TEXT_CHARACTERS),
    )


def _build_pipeline(definition: TokenizerDefinition) -> native.Pipeline:
    """Compile a definition for the C code."""
    model = definition.model
    pipeline = native.Pipeline(definition.normalizer, definition.pre_tokenizer)
    byte_level = native.SPLIT_BYTE_LEVEL in definition.pre_tokenizer
    if isinstance(model, BPE):
        _set_bpe(pipeline, model, byte_level=byte_level)
    elif byte_level:
        raise UnsupportedError(f"the pre-tokenizer ByteLevel with a {type(model).__name__} model is not supported")
    elif isinstance(model, Unigram):
        unknown_id = -1 if model.unknown_id is None else model.unknown_id
        unknown_score = model.vocabulary.lowest_score - UNKNOWN_PENALTY
        pipeline.set_unigram(model.vocabulary, unknown_id, unknown_score, model.byte_fallback)
    else:
        _set_wordpiece(pipeline, model)
    ids = definition.added_token_ids
    raw: list[tuple[str, int, int]] = []
    normalized: dict[str, tuple[str, int, int]] = {}
    # Of two tokens that normalize to the same text, the first special one counts, else the first. Hugging
    # Face's library (0.23) takes one of them by chance.
    for token in sorted(definition.added_tokens, key=lambda token: not token.special):
        if not token.normalized:
            raw.append((token.content, ids[token.content], token.flags))
            continue
        content = pipeline.normalize(token.content)
        if not content:
            raise UnsupportedError(
                f"the added token {token.content!r:.80} is nothing once normalized, so it is everywhere"
            )
        normalized.setdefault(content, (content, ids[token.content], token.flags))
    pipeline.finish(raw, list(normalized.values()))
    trimming = definition.post_processor.trimming
    if trimming is not None:
        if not isinstance(model.vocabulary, dict):
            raise UnsupportedError(f"the post-processor ByteLevel with a {type(model).__name__} model is not supported")
        by_text = [ids[token.content] for token in definition.added_tokens if token.lstrip or token.rstrip]
        tokens = {**model.vocabulary, **ids}
        pipeline.set_trimming(tokens, definition.highest_id, by_text, trimming == "all but a prefix space")
    return pipeline


def _set_bpe(pipeline: native.Pipeline, model: BPE, *, byte_level: bool) -> None:
    unknown_id = -1 if model.unknown_token is None else model.vocabulary.get(model.unknown_token, -1)
    pipeline.set_bpe(
        model.vocabulary,
        model.merges,
        unknown_id=unknown_id,
        prefix=model.prefix,
        suffix=model.suffix,
        fuse_unknown=model.fuse_unknown,
        byte_fallback=model.byte_fallback,
        ignore_merges=model.ignore_merges,
        byte_level=byte_level,
    )
    if model.unknown_token is not None and unknown_id < 0 and not pipeline.has_all_bytes():
        raise TokenizerError(f"the unknown token {model.unknown_token!r:.80} is not in model.vocab")
