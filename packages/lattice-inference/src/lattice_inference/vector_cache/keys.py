"""Keys of the cache on disk: digests of all that a vector depends on, the text as the model's tokens."""

from __future__ import annotations

import hashlib

from lattice_inference.tokenizer import PackedEncoding

__all__ = ["KEY_BYTES", "TokenKeys"]

KEY_BYTES = 32
"""Length of a key: 256 bits, so that no two texts share one."""

_DOMAIN = (
    b"lattice-inference token cache 1"  # no other digest of the house begins so: keys of the two layers stay apart
)


class TokenKeys:
    """Makes the keys of one model's texts.

    Texts that become the same tokens have the same key, whatever they were: that is why this layer's keys are made after
    tokenization, and why a cache of texts, which has no tokenizer, makes its own.

    Args:
        fingerprint: the weights' and the tokenizer's revision, and how they are read: ``Encoder.fingerprint``.
        output: which of the model's outputs a vector is, such as ``"normalized"``.
        dimension: length of the vector.
    """

    def __init__(self, fingerprint: str, output: str, dimension: int) -> None:
        self._prefix = hashlib.blake2b(digest_size=KEY_BYTES)
        for field in (_DOMAIN, fingerprint.encode(), output.encode(), str(dimension).encode()):
            self._prefix.update(len(field).to_bytes(8, "little") + field)

    def __call__(self, packed: PackedEncoding) -> list[bytes]:
        """Return the key of each text."""
        ids = packed.token_ids.astype("<i4", copy=False).tobytes()
        types = packed.type_ids.astype("<i4", copy=False).tobytes()
        has_types = types.count(0) < len(types)
        keys = []
        start = 0
        for end in packed.cu_seqlens[1:].tolist():
            part = ids[4 * start : 4 * end]
            text = len(part).to_bytes(8, "little") + part
            if has_types and types[4 * start : 4 * end].strip(b"\0"):  # nearly every text's are zero, and are left out
                text += types[4 * start : 4 * end]
            digest = self._prefix.copy()
            digest.update(text)
            keys.append(digest.digest())
            start = end
        return keys
