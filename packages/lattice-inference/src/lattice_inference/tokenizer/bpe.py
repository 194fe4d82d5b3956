"""The byte-pair encoding model: its vocabulary and merges, and its form in a tokenizer.json."""

from __future__ import annotations

from dataclasses import dataclass

from lattice_inference.errors import TokenizerError, UnsupportedError
from lattice_inference.tokenizer.fields import Fields
from lattice_inference.tokenizer.wordpiece import check_vocabulary

__all__ = ["BPE", "parse_bpe"]


@dataclass(frozen=True)
class BPE:
    """A byte-pair encoding model.

    ``merges``: pairs of tokens that become one, in the order in which they are tried, each ``"left right"`` or
    ``["left", "right"]``. ``prefix`` stands before every unit of a word but the first, ``suffix`` after the last. A
    unit that is no token becomes, with ``byte_fallback``, the tokens ``<0x00>`` to ``<0xFF>`` of its bytes, else
    ``unknown_token`` (one for all in a row with ``fuse_unknown``), else nothing. ``ignore_merges``: a word that is a
    token is that token, whatever the merges make of it.
    """

    vocabulary: dict[str, int]
    merges: list[str] | list[list[str]]
    unknown_token: str | None = None
    prefix: str = ""
    suffix: str = ""
    fuse_unknown: bool = False
    byte_fallback: bool = False
    ignore_merges: bool = False

    def __post_init__(self) -> None:
        check_vocabulary(self.vocabulary, "model.vocab")
        if self.byte_fallback and (self.prefix or self.suffix):
            raise UnsupportedError("model.byte_fallback together with a prefix or suffix of units is not supported")


def parse_bpe(fields: Fields) -> BPE:
    """Return the model of a ``model`` entry of type BPE.

    Dropout makes ids random; it belongs to training, so a file that asks for it is refused.
    """
    vocabulary = fields.raw("vocab")
    if not isinstance(vocabulary, dict):
        raise TokenizerError(f"{fields.where}.vocab is a {type(vocabulary).__name__}; expected an object of token: id")
    dropout = fields.raw("dropout", None)
    if dropout is not None and (isinstance(dropout, bool) or dropout != 0):
        raise UnsupportedError(
            f"{fields.where}.dropout is {dropout!r:.60}: it makes ids random; set it to null for use outside training"
        )
    merges = fields.array("merges")
    if merges and isinstance(merges[0], str):
        # the header of a merges.txt, which older writers took over and Hugging Face's reader skips
        merges = [merge for merge in merges if not (isinstance(merge, str) and merge.startswith("#version"))]
    model = BPE(
        vocabulary=vocabulary,
        merges=merges,  # type: ignore[arg-type]  # checked one by one where the model is built
        unknown_token=_optional_string(fields, "unk_token"),
        prefix=_optional_string(fields, "continuing_subword_prefix") or "",
        suffix=_optional_string(fields, "end_of_word_suffix") or "",
        fuse_unknown=fields.boolean("fuse_unk", False),
        byte_fallback=fields.boolean("byte_fallback", False),
        ignore_merges=fields.boolean("ignore_merges", False),
    )
    fields.finish()
    return model


def _optional_string(fields: Fields, name: str) -> str | None:
    return None if fields.raw(name, None) is None else fields.string(name)
