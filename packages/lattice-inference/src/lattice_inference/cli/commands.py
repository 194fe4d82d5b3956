"""Every command of ``lattice``, by name, with the line that ``lattice --help`` shows.

The module of a command holds

* ``EXAMPLES``: the end of its help, real command lines first;
* ``add_arguments(parser)``, which says what may follow the command's name;
* ``run(options) -> int``, which does the work by calls of the public Python API and returns the exit status.

It is imported only when its command is called (or its help is printed), so it may import what it likes.
"""

from __future__ import annotations

from lattice_inference.cli.completion import SUMMARY

__all__ = ["COMMANDS"]

#: Name and summary. A new command is one line here and its module.
COMMANDS: dict[str, str] = {
    "generate": "generate a text after a prompt",
    "chat": "talk with a model",
    "serve": "serve models over HTTP, for clients of OpenAI's API",
    "perplexity": "measure how well a model predicts a text",
    "compare-logits": "measure how far a model's predictions are from another's",
    "bench": "measure a model's speed and memory",
    "inspect": "say what a model's files hold",
    "quantize": "write a model as a GGUF file of a smaller type",
    "merge-adapter": "write a model with a LoRA adapter merged into its weights",
    "tokenize": "turn texts into token ids",
    "detokenize": "turn token ids back into a text",
    "doctor": "say what would be used, and whether a model fits into memory",
    "completion": SUMMARY,
}
