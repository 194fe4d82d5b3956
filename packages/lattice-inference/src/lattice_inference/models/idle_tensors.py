"""Parts of the patterns for idle tensors, which a file may hold but nothing reads.

They are buffers that a program computes itself, and poolers and heads of other tasks. Other unread tensors are refused.
Each family's file states the idle tensors that it allows; ``docs/models-and-files.md`` lists them.
"""

from __future__ import annotations

__all__ = ["PARTS", "PRETRAINING_HEADS", "TEXT_CLASSIFIER"]

#: The ends of the names of a linear's tensors.
PARTS = r"\.(?:weight|bias)"

#: Heads that BERT and RoBERTa were trained with, by transformers' names. Names match as a whole, so an adapter inside a
#: head, such as classifier.modules_to_save.default.weight, does not match.
PRETRAINING_HEADS = (
    rf"cls\.predictions\.(?:bias|decoder{PARTS}|transform\.dense{PARTS}"
    r"|transform\.LayerNorm\.(?:weight|bias|gamma|beta))",
    rf"cls\.seq_relationship{PARTS}",
    rf"lm_head\.(?:bias|(?:dense|layer_norm|decoder){PARTS})",
    rf"qa_outputs{PARTS}",
)

#: The classification head of an encoder.
TEXT_CLASSIFIER = rf"classifier(?:\.dense|\.out_proj)?{PARTS}"
