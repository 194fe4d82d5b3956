"""Keys of the cache on disk: digests of all that a vector depends on.

The text enters as the model's tokens.
"""

from __future__ import annotations

from lattice_inference.tokenizer import PackedEncoding
from lattice_inference.vector_cache._journal import TextDigests

__all__ = ["KEY_BYTES", "TokenKeys"]

KEY_BYTES = 32
"""Length of a key: 256 bits, so that no two texts share one."""

_DOMAIN = b"lattice-inference token cache 1"  # no other digest of Lattice begins so: keys of the two layers stay apart


class TokenKeys:
    """Makes the keys of one model's texts.

    Texts with the same tokens have the same key: this layer's keys are made after tokenization. A cache of texts has
    no tokenizer and makes other keys.

    Args:
        fingerprint: the weights' and the tokenizer's revision, and how they are read: ``Encoder.fingerprint``.
        output: which of the model's outputs a vector is, such as ``"normalized"``.
        dimension: length of the vector.

    Attributes:
        digests: makes the keys from arrays.
    """

    def __init__(self, fingerprint: str, output: str, dimension: int) -> None:
        fields = (_DOMAIN, fingerprint.encode(), output.encode(), str(dimension).encode())
        self.digests: TextDigests = TextDigests(
            b"".join([len(field).to_bytes(8, "little") + field for field in fields])
        )

    def __call__(self, packed: PackedEncoding) -> list[bytes]:
        """Return the key of each text: nearly every text's types are zero, and are left out."""
        return self.digests.of(packed.token_ids, packed.type_ids, packed.cu_seqlens)
