"""Environment variables for model files: cache folders, and the ban of the network."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["absolute_path", "hugging_face_cache_root", "is_offline", "model_cache_root"]

_UNSET_VALUES = frozenset(("", "0", "false", "no", "off"))


def is_offline() -> bool:
    """Whether ``LATTICE_OFFLINE`` or ``HF_HUB_OFFLINE`` forbids the network.

    Empty, ``0``, ``false``, ``no`` and ``off`` (in any case) count as not set.
    """
    return any(
        os.environ.get(variable, "").strip().lower() not in _UNSET_VALUES
        for variable in ("LATTICE_OFFLINE", "HF_HUB_OFFLINE")
    )


def model_cache_root() -> Path:
    """Return the absolute root of the model cache: ``LATTICE_MODEL_CACHE``, else the default.

    The default is ``~/.lattice/models``.
    """
    return absolute_path(os.environ.get("LATTICE_MODEL_CACHE") or "~/.lattice/models")


def hugging_face_cache_root() -> Path:
    """Return the absolute root of the Hugging Face cache, where huggingface_hub would place it."""
    environment = os.environ
    root = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE")
    if not root:
        home = environment.get("HF_HOME") or os.path.join(
            environment.get("XDG_CACHE_HOME") or "~/.cache", "huggingface"
        )
        root = os.path.join(home, "hub")
    return absolute_path(root)


def absolute_path(path: str) -> Path:
    """Return ``path`` absolute, with ``~`` and variables of the environment put in."""
    return Path(os.path.abspath(os.path.expandvars(os.path.expanduser(path))))
