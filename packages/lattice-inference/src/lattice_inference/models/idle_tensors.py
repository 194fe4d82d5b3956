"""The tensors that a model's file may hold although nothing reads them; any other unread tensor is refused.

They are buffers that a program works out itself, and poolers and heads of tasks other than the one that a model is loaded
for. ``docs/models-and-files.md`` publishes the list.
"""

from __future__ import annotations

import re

__all__ = ["IDLE_IN_BERT_GGUF", "IDLE_IN_DECODER_GGUF", "idle_in_bert", "idle_in_decoder"]

_PARTS = r"\.(?:weight|bias)"

# Heads that BERT and RoBERTa were trained with, by transformers' names. The names are whole: an adapter inside a head,
# such as classifier.modules_to_save.default.weight, is none of them.
_PRETRAINING_HEADS = (
    rf"cls\.predictions\.(?:bias|decoder{_PARTS}|transform\.dense{_PARTS}"
    r"|transform\.LayerNorm\.(?:weight|bias|gamma|beta))",
    rf"cls\.seq_relationship{_PARTS}",
    rf"lm_head\.(?:bias|(?:dense|layer_norm|decoder){_PARTS})",
    rf"qa_outputs{_PARTS}",
)
_CLASSIFIER = rf"classifier(?:\.dense|\.out_proj)?{_PARTS}"


def idle_in_bert(prefix: str, *, classifies: bool) -> re.Pattern[str]:
    """Return what matches the names of idle tensors of a BERT encoder or of its kin.

    Args:
        prefix: what stands before ``embeddings.`` in the checkpoint.
        classifies: whether the model is a classifier, whose own head is not idle.
    """
    own = rf"{re.escape(prefix)}(?:embeddings\.(?:position_ids|token_type_ids)|pooler\.dense{_PARTS})"
    heads = _PRETRAINING_HEADS if classifies else (*_PRETRAINING_HEADS, _CLASSIFIER)
    return re.compile("|".join((own, *heads)))


def idle_in_decoder(prefix: str) -> re.Pattern[str]:
    """Return what matches the names of idle tensors of a decoder; ``prefix`` stands before ``embed_tokens.``."""
    frequencies = rf"{re.escape(prefix)}(?:layers\.[0-9]+\.self_attn\.)?rotary_emb\.inv_freq"
    return re.compile(rf"{frequencies}|score\.weight|v_head\.summary{_PARTS}")


#: The same for BERT encoders in GGUF files: the pooler and the head of a reranker.
IDLE_IN_BERT_GGUF = re.compile(rf"cls(?:\.output)?{_PARTS}")

#: The same for decoders in GGUF files; ``rope_freqs.weight`` is read.
IDLE_IN_DECODER_GGUF = re.compile(r"blk\.[0-9]+\.attn_rot_embd(?:\.weight)?")
