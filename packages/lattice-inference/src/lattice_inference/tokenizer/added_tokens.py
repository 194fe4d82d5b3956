"""Added tokens: strings that become one token in any text.

They are found before normalizing and splitting.
"""

from __future__ import annotations

from dataclasses import dataclass

from lattice_inference.errors import TokenizerError
from lattice_inference.tokenizer import _tokenizer as native
from lattice_inference.tokenizer.fields import Fields
from lattice_inference.tokenizer.wordpiece import MAX_TOKEN_CHARACTERS

__all__ = ["AddedToken", "assign_ids", "parse_added_tokens"]


@dataclass(frozen=True)
class AddedToken:
    """One added token.

    ``single_word``: it matches only where no word character touches it. ``lstrip``, ``rstrip``: it takes the white
    space beside it. ``normalized``: its normalized form is searched in the normalized text. ``special``: it has a
    meaning for the model; ``decode`` leaves it out, and texts may be searched without it.
    """

    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True
    special: bool = False

    def __post_init__(self) -> None:
        if not self.content:
            raise TokenizerError("an added token is empty")
        try:
            self.content.encode()
        except UnicodeEncodeError:
            raise TokenizerError(f"the added token {self.content[:60]!r} has a lone surrogate") from None
        if len(self.content) > MAX_TOKEN_CHARACTERS:
            raise TokenizerError(
                f"an added token has {len(self.content):,} characters; the limit is {MAX_TOKEN_CHARACTERS:,}"
            )

    @property
    def flags(self) -> int:
        """The flags of the C code."""
        return (
            self.single_word * native.ADDED_SINGLE_WORD
            | self.lstrip * native.ADDED_STRIP_LEFT
            | self.rstrip * native.ADDED_STRIP_RIGHT
            | self.special * native.ADDED_SPECIAL
        )


def parse_added_tokens(value: object, where: str = "added_tokens") -> list[tuple[AddedToken, int]]:
    """Return the added tokens of a tokenizer.json with the ids that it states."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise TokenizerError(f"{where} is a {type(value).__name__}; expected an array")
    tokens = []
    for i, item in enumerate(value):
        fields = Fields(item, f"{where}[{i}]")
        token = AddedToken(
            content=fields.string("content"),
            single_word=fields.boolean("single_word"),
            lstrip=fields.boolean("lstrip"),
            rstrip=fields.boolean("rstrip"),
            normalized=fields.boolean("normalized"),
            special=fields.boolean("special"),
        )
        tokens.append((token, fields.integer("id", 0, 2**31 - 1)))
        fields.finish()
    return tokens


def assign_ids(tokens: list[AddedToken], vocabulary: dict[str, int] | native.PieceTable) -> dict[str, int]:
    """Return each added token's id: the vocabulary's, else the next free one after it.

    Hugging Face's library numbers them so and does not look at the id that a file states.
    """
    ids: dict[str, int] = {}
    taken: set[int] | None = None
    highest = -1
    for token in tokens:
        if token.content in ids:
            raise TokenizerError(f"the added token {token.content!r:.80} is listed twice")
        token_id = vocabulary.get(token.content, -1)
        if token_id < 0:
            token_id = max(len(vocabulary), highest + 1)
            taken = set(vocabulary.values()) if taken is None else taken
            if token_id in taken:
                raise TokenizerError(
                    f"the added token {token.content!r:.80} would get the id {token_id}, which the vocabulary uses: "
                    "its ids have holes"
                )
        ids[token.content] = token_id
        highest = max(highest, token_id)
    return ids
