"""Which module has which target. A worker imports only the one that it needs."""

from __future__ import annotations

import importlib

from target import Target

__all__ = ["CHECK", "MODULES", "load_target"]

MODULES = {
    "weight-files": "model_files",
    "safetensors": "model_files",
    "encoder-directory": "model_files",
    "decoder-directory": "model_files",
    "int8-directory": "model_files",
    "prefix-file": "model_files",
    "tokenizer-json": "tokenizer_files",
    "vocabulary-files": "tokenizer_files",
    "sentencepiece": "tokenizer_files",
    "split-patterns": "tokenizer_files",
    "chat-templates": "chat_templates",
    "chat-template-files": "chat_templates",
    "vector-cache": "caches",
    "lqecache": "caches",
    "text-cache": "caches",
    "sqlite-store": "stores",
    "numpy-store": "stores",
    "migration-journal": "stores",
    "embedding-files": "embed_files",
    "model-registry": "model_registries",
    "version-bundle": "model_registries",
    "adapter-manifest": "model_registries",
    "server-answers": "server_answers",
    "teacher-answers": "teachers",
    "label-stores": "teachers",
    "networks": "networks",
    "training-states": "networks",
    "tables": "networks",
    "drift-states": "drift_states",
    "vector-files": "drift_states",
}

CHECK = "faults"
"""A target that shows every fault, and is run only where it is named."""


def load_target(name: str) -> Target:
    """Return a target by its name."""
    targets: list[Target] = importlib.import_module(CHECK if name == CHECK else MODULES[name]).TARGETS
    return next(target for target in targets if target.name == name)
