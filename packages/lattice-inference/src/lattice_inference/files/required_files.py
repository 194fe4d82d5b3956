"""Which files make a model's directory complete, and which of them a directory lacks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lattice_inference.checkpoint.json_file import load_json
from lattice_inference.checkpoint.safetensors import INDEX_FILE, SINGLE_FILE, read_shard_index
from lattice_inference.errors import LatticeError
from lattice_inference.files.known_models import KnownModel

__all__ = ["DOWNLOAD_PATTERNS", "TOKENIZER_FILES", "missing_files"]

#: Tokenizers by the files that they consist of, of which a model needs at least one.
TOKENIZER_FILES = (
    ("tokenizer.json",),
    ("vocab.txt",),
    ("tokenizer.model",),
    ("sentencepiece.bpe.model",),
    ("spiece.model",),
    ("vocab.json", "merges.txt"),
)

#: What is fetched from the hub besides weights: everything that some reader of ours looks at, and nothing else.
DOWNLOAD_PATTERNS = (
    "config.json",
    "adapter_config.json",  # refused by the loaders, so it must not be left behind
    "generation_config.json",
    *(name for names in TOKENIZER_FILES for name in names),
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
    "modules.json",
    "sentence_bert_config.json",
    "sentence_xlm-roberta_config.json",
    "config_sentence_transformers.json",
    "?_*/config.json",
    "?_*/model.safetensors",
    INDEX_FILE,
)


# What each kind of sentence-transformers module keeps in its folder.
_MODULE_FILES = {
    "Pooling": ("config.json",),
    "Dense": ("config.json", SINGLE_FILE),
    "LayerNorm": ("config.json", SINGLE_FILE),
}


def missing_files(directory: Path, *, known: KnownModel | None, files: Sequence[str] | None) -> tuple[str, ...]:
    """Describe what ``directory`` lacks of a complete model; empty when nothing is missing.

    A file counts as missing when it is absent, empty, or a symbolic link that leads nowhere, as an interrupted download
    leaves them.

    Args:
        directory: where to look. It need not exist.
        known: the known model that it should hold, if it is one. Those with digests must have their weights in one
            file, and all of them come with ``modules.json``.
        files: the names that are needed, relative to the directory, instead of the usual set.
    """
    if files is not None:
        return tuple(name for name in files if not _is_there(directory / name))
    missing = [name for name in ("config.json",) if not _is_there(directory / name)]
    missing += _missing_weights(directory, known)
    if not any(all(_is_there(directory / name) for name in names) for names in TOKENIZER_FILES):
        missing.append(" or ".join(" with ".join(names) for names in TOKENIZER_FILES))
    missing += _missing_modules(directory, known)
    return tuple(missing)


def _missing_weights(directory: Path, known: KnownModel | None) -> list[str]:
    if _is_there(directory / SINGLE_FILE):
        return []
    if known is not None and any(name == SINGLE_FILE for name, _ in known.digests):
        return [SINGLE_FILE]
    if not _is_there(directory / INDEX_FILE):
        return [f"{SINGLE_FILE} or {INDEX_FILE}{_other_weights(directory)}"]
    try:
        shards = dict.fromkeys(read_shard_index(directory / INDEX_FILE).values())
    except LatticeError as error:
        return [f"{INDEX_FILE} ({error})"]
    return [shard for shard in shards if not _is_there(directory / shard)]


def _missing_modules(directory: Path, known: KnownModel | None) -> list[str]:
    """Report missing sentence-transformers files: the list of modules, and the modules' files."""
    if not _is_there(directory / "modules.json"):
        return ["modules.json"] if known is not None else []
    try:
        modules = load_json(directory / "modules.json")
    except LatticeError as error:
        return [f"modules.json ({error})"]
    missing = []
    for module in modules if isinstance(modules, list) else ():
        kind, path = (module.get("type"), module.get("path")) if isinstance(module, dict) else (None, None)
        # Other modules have no files that are needed; whether the list makes sense is checked where it is read.
        needed = _MODULE_FILES.get(kind.rpartition(".")[2], ()) if isinstance(kind, str) else ()
        if isinstance(path, str) and ".." not in path:
            missing += [
                f"{path}/{name}{_pickle_hint(directory / path, name)}"
                for name in needed
                if not _is_there(directory / path / name)
            ]
    return missing


def _other_weights(directory: Path) -> str:
    if _is_there(directory / "adapter_config.json"):
        return (
            " (there is an adapter_config.json, and an adapter is no model: merge it into its model, by lattice "
            "merge-adapter, or with peft by merge_and_unload(), then save_pretrained)"
        )
    return _pickle_hint(directory, SINGLE_FILE)


def _pickle_hint(folder: Path, name: str) -> str:
    if name == SINGLE_FILE and _is_there(folder / "pytorch_model.bin"):
        return " (there is a pytorch_model.bin, a pickle that is not read: save the model again as safetensors)"
    return ""


def _is_there(path: Path) -> bool:
    try:
        return path.is_file() and path.stat().st_size > 0
    except (OSError, ValueError):
        return False
