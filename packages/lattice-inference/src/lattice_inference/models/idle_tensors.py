"""Parts of patterns for tensors that a model's file may hold although nothing reads them; others are refused.

They are buffers that a program works out itself, and poolers and heads of tasks other than the one that a model is loaded
for. What a family allows stands in its own file; ``docs/models-and-files.md`` publishes the list.
"""

from __future__ import annotations

__all__ = ["PARTS", "PRETRAINING_HEADS", "TEXT_CLASSIFIER"]

#: The ends of the names of a linear's tensors.
PARTS = r"\.(?:weight|bias)"

#: Heads that BERT and RoBERTa were trained with, by transformers' names. The names are whole: an adapter inside a head,
#: such as classifier.modules_to_save.default.weight, is none of them.
PRETRAINING_HEADS = (
    rf"cls\.predictions\.(?:bias|decoder{PARTS}|transform\.dense{PARTS}"
    r"|transform\.LayerNorm\.(?:weight|bias|gamma|beta))",
    rf"cls\.seq_relationship{PARTS}",
    rf"lm_head\.(?:bias|(?:dense|layer_norm|decoder){PARTS})",
    rf"qa_outputs{PARTS}",
)

#: The classification head of an encoder.
TEXT_CLASSIFIER = rf"classifier(?:\.dense|\.out_proj)?{PARTS}"
