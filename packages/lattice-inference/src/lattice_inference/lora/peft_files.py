"""Reads and writes adapters in PEFT's format.

An adapter is a directory with ``adapter_config.json`` and ``adapter_model.safetensors``.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from pathlib import Path

import numpy as np

from lattice_inference.argument_checks import check_path
from lattice_inference.checkpoint.atomic_file import atomic_directory
from lattice_inference.checkpoint.mapped_tensors import MappedTensors
from lattice_inference.checkpoint.safetensors import open_safetensors
from lattice_inference.checkpoint.safetensors_writer import StoredTensor, write_safetensors
from lattice_inference.errors import CheckpointError, InvalidInputError, ModelNotFoundError, UnsupportedError
from lattice_inference.lora.adapter import MAX_RANK, Float32Array, LoraAdapter, LoraSite, listed
from lattice_inference.lora.destination import check_new_directory
from lattice_inference.lora.module_patterns import MAX_PATH_CHARACTERS
from lattice_inference.lora.peft_config import PeftConfig, read_peft_config
from lattice_inference.models.adapter_sites import module_stem

__all__ = ["CONFIG_FILE", "PEFT_WEIGHTS", "built_site", "load_peft_directory", "save_peft_safetensors"]

CONFIG_FILE = "adapter_config.json"
PEFT_WEIGHTS = "adapter_model.safetensors"

_PREFIX = "base_model.model."
_KEY = re.compile(
    r"(?P<module>[^\s]+)\.(?P<part>lora_A|lora_B|lora_magnitude_vector)(?:\.(?P<leaf>weight|bias))?", re.ASCII
)
_EMBEDDINGS = ("lora_embedding_A", "lora_embedding_B", "embed_tokens", "word_embeddings", "token_adapter")


def load_peft_directory(directory: Path) -> LoraAdapter:
    """Read a directory of PEFT.

    Raises:
        ModelNotFoundError: a file is missing.
        ModelConfigError, CheckpointError: a file is malformed, or the two do not match. The message lists every tensor
            of no site, and every module of the configuration that the weights lack.
        UnsupportedError: it needs a feature that is not built.
    """
    config = read_peft_config(directory / CONFIG_FILE)
    path = directory / PEFT_WEIGHTS
    if not os.path.lexists(path):
        hint = ""
        if (directory / "adapter_model.bin").exists():
            hint = " (there is an adapter_model.bin, a pickle that is not read: save the adapter again as safetensors)"
        raise ModelNotFoundError(f"{path}: is missing{hint}")
    with open_safetensors(path) as file:
        parts, whole, unknown = _sorted_keys(file, config)
        if unknown:
            raise CheckpointError(
                f"{path}: tensors that belong to no adapter of low rank ({len(unknown)}): {listed(unknown)}"
            )
        if not parts:
            raise CheckpointError(
                f"{path}: holds no pair lora_A, lora_B, so it changes nothing; it holds {len(file)} tensors"
            )
        _check_targets(parts, whole, config, path)
        sites = {module: _site(file, module, found, config) for module, found in parts.items()}
        replaced = {module_stem(name): file.float32(key).copy() for name, key in whole.items()}
    _check_saved(replaced, config)
    return LoraAdapter(sites, replaced, base_model=config.base_model, source=str(directory))


def _sorted_keys(
    file: MappedTensors, config: PeftConfig
) -> tuple[dict[str, dict[str, str]], dict[str, str], list[str]]:
    """Return the keys of each module's parts, those of whole tensors, and the others.

    Whole tensors are listed by their names.
    """
    parts: dict[str, dict[str, str]] = {}
    whole: dict[str, str] = {}
    unknown: list[str] = []
    for key in file.names():
        name = key.removeprefix(_PREFIX)
        if len(name) > MAX_PATH_CHARACTERS:
            unknown.append(key)
            continue
        if any(part in name.split(".") for part in _EMBEDDINGS):
            raise UnsupportedError(
                f"{file.path}: {key:.200}: adapters of embeddings, and embeddings saved whole, are not built. Remedy: merge "
                "it in PEFT with merge_and_unload(), then save_pretrained, and load the result"
            )
        found = _KEY.fullmatch(name)
        if found is not None:
            part = found["part"] + (".bias" if found["leaf"] == "bias" else "")
            if part in ("lora_A", "lora_B", "lora_magnitude_vector", "lora_B.bias"):
                known = parts.setdefault(found["module"], {})
                if part in known:
                    raise CheckpointError(f"{file.path}: {known[part]:.200} and {key:.200} are the same part")
                known[part] = key
                continue
        plain = name.replace(".modules_to_save.default", "").replace(".modules_to_save", "").replace(".base_layer", "")
        # with bias="all", PEFT also stores the base's bias of a module that is saved whole, and the trained bias again
        if ".original_module." in name or (plain != name and f"{_PREFIX}{plain}" in file):
            continue
        is_saved = any(part in config.modules_to_save for part in plain.split("."))
        # PEFT also stores, and loads, the base's weight of an adapted output matrix
        is_kept = name.endswith(".base_layer.weight")
        is_bias = config.bias != "none" and plain.endswith(".bias")
        if key.startswith(_PREFIX) and (is_saved or is_kept or is_bias):
            whole[plain] = key
        else:
            unknown.append(key)
    return parts, whole, unknown


def _check_targets(parts: dict[str, dict[str, str]], whole: dict[str, str], config: PeftConfig, path: Path) -> None:
    """Refuse pairs of modules that are not targets, and targets without a pair.

    PEFT adapts no module that is saved whole, is excluded, or is in another layer than those to transform.
    """
    strays = [module for module in parts if not config.targets(module)]
    if strays:
        raise CheckpointError(
            f"{path}: pairs for modules that {config.source} does not choose, which PEFT would leave out ({len(strays)}): "
            f"{listed(strays)}"
        )
    modules = [*parts, *(name.rpartition(".")[0] for name in whole)]
    endings = {ending for module in modules for ending in _endings(module)}
    missing = [target for target in config.listed_targets if target not in endings and not config.leaves_out(target)]
    if missing:
        raise CheckpointError(
            f"{path}: target_modules names modules that the file has no pair for ({len(missing)}): {listed(missing)}. "
            "Remedy: if the base has no such modules, take their names out of target_modules"
        )


def _endings(module: str) -> list[str]:
    pieces = module.split(".")
    return [".".join(pieces[start:]) for start in range(len(pieces))]


def _site(file: MappedTensors, module: str, found: dict[str, str], config: PeftConfig) -> LoraSite:
    rank, scale = config.rank_and_scale(module)
    if config.use_dora != ("lora_magnitude_vector" in found):
        said = "true" if config.use_dora else "false"
        raise CheckpointError(f"{file.path}: use_dora is {said}, which {module:.200} is not stored for")
    if config.lora_bias != ("lora_B.bias" in found):
        said = "true" if config.lora_bias else "false"
        raise CheckpointError(f"{file.path}: lora_bias is {said}, which {module:.200} is not stored for")
    site = built_site(
        file, module, {part.replace("lora_A", "a").replace("lora_B", "b"): key for part, key in found.items()}, scale
    )
    if site.rank != rank:
        raise CheckpointError(
            f"{file.path}: {module:.200} has the rank {site.rank}, and {config.source} says {rank} (r, rank_pattern)"
        )
    return site


def built_site(
    file: MappedTensors, module: str, keys: dict[str, str], scale: float, *, transposed: bool = False
) -> LoraSite:
    """Read one pair.

    ``keys`` are the tensor names of ``a``, ``b``, and optionally ``lora_magnitude_vector`` and ``b.bias``.

    Raises:
        CheckpointError: A or B is missing, is no matrix, does not fit the other, or holds NaN.
    """
    for part in ("a", "b"):
        if part not in keys:
            there = next(iter(keys.values()))
            raise CheckpointError(
                f"{file.path}: half a pair: {module:.200} has {there:.200}, and its {part.upper()} is missing"
            )
    for part in ("a", "b"):
        shape = file.info(keys[part]).shape
        if len(shape) != 2:
            raise CheckpointError(
                f"{file.path}: {keys[part]:.200} has the shape {shape}; a linear's matrices have two dimensions"
            )
        if not shape[(part == "b") ^ transposed] <= MAX_RANK:
            raise CheckpointError(
                f"{file.path}: {keys[part]:.200} has the shape {shape}; the largest rank is {MAX_RANK:,}"
            )

    def read(part: str) -> Float32Array | None:
        return None if part not in keys else file.float32(keys[part]).reshape(-1).copy()

    a, b = (_owned(file.float32(keys[part]), transposed=transposed) for part in ("a", "b"))
    bias = read("b.bias")
    try:
        return LoraSite(
            a,
            b,
            scale,
            read("lora_magnitude_vector"),
            None if bias is None else bias * np.float32(scale),
        )
    except InvalidInputError as cause:
        raise CheckpointError(f"{file.path}: {module:.200}: {cause}") from cause


def _owned(array: Float32Array, *, transposed: bool) -> Float32Array:
    """Return a read-only copy that does not depend on the file."""
    copy = np.array(array.T if transposed else array, order="C")
    copy.flags.writeable = False
    return copy


def _check_saved(replaced: dict[str, Float32Array], config: PeftConfig) -> None:
    """Refuse a missing module.

    For a classifier, PEFT lists all names that a head may have, so one of those is enough.
    """
    missing = [name for name in config.modules_to_save if not any(name in key.split(".") for key in replaced)]
    if set(config.modules_to_save) >= {"classifier", "score"} > set(missing):
        missing = [name for name in missing if name not in ("classifier", "score")]
    if missing:
        raise CheckpointError(
            f"{config.source}: modules_to_save names modules that the file does not hold ({len(missing)}): {listed(missing)}"
        )


def save_peft_safetensors(
    adapter: LoraAdapter, directory: str | os.PathLike[str], *, base_model: str | None = None, overwrite: bool = False
) -> Path:
    """Write an adapter as PEFT does, in float32.

    The files are ``adapter_config.json`` and ``adapter_model.safetensors``. The same adapter gives the same bytes. The
    directory appears when it is complete.

    Args:
        adapter: the adapter, with rows in the order of transformers.
        directory: the directory to write.
        base_model: ``base_model_name_or_path``; by default the ``base_model`` of the adapter.
        overwrite: replace ``directory`` if it holds an adapter.

    Returns:
        The directory.

    Raises:
        InvalidInputError: ``directory`` exists, or its parent does not.
        UnsupportedError: the adapter replaces tensors, adds to biases, or has another order of rows.
        WriteError: the directory cannot be written; an older one stays as it was.
    """
    if not isinstance(adapter, LoraAdapter):
        raise InvalidInputError(f"adapter: a LoraAdapter is needed, not {type(adapter).__name__}")
    check_path("directory", directory)
    if base_model is not None and not isinstance(base_model, str):
        raise InvalidInputError(f"base_model: {base_model!r:.60} is not a text")
    if adapter.replaced or any(site.bias is not None for site in adapter.sites.values()):
        raise UnsupportedError(
            f"{adapter.source}: holds biases or whole modules, which are only merged: use merge_adapter"
        )
    if adapter.row_order != "half":
        raise UnsupportedError(
            f"{adapter.source}: its rows are interleaved, as a GGUF file of llama has them. Remedy: "
            "in_row_order(adapter, base, 'half'), with the base that says how many heads there are"
        )
    dora = {site.magnitude is not None for site in adapter.sites.values()}
    if len(dora) > 1:
        raise UnsupportedError(
            f"{adapter.source}: some sites have magnitudes (DoRA) and some do not, which PEFT cannot say"
        )
    target = Path(directory)
    check_new_directory(target, CONFIG_FILE, overwrite=overwrite)
    tensors, arrays = [], []
    for module, site in adapter.sites.items():
        for part, array in (
            ("lora_A.weight", site.a),
            ("lora_B.weight", site.b),
            ("lora_magnitude_vector", site.magnitude),
        ):
            if array is not None:
                tensors.append(StoredTensor(f"{_PREFIX}{module}.{part}", "F32", array.shape))
                arrays.append(array)
    config = _config_of(adapter, base_model if base_model is not None else adapter.base_model, use_dora=dora == {True})
    with atomic_directory(target) as work:
        (work / CONFIG_FILE).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        with open(work / PEFT_WEIGHTS, "wb") as file:
            write_safetensors(file, tensors, arrays, {"format": "pt"})
    return target


def _config_of(adapter: LoraAdapter, base_model: str | None, *, use_dora: bool) -> dict[str, object]:
    """Return the fields: the most common rank and alpha, and patterns for the other sites."""
    settings = {module: (site.rank, site.scale * site.rank) for module, site in adapter.sites.items()}
    for module, (rank, alpha) in settings.items():
        if not math.isfinite(alpha) or not abs(alpha) < 1e30:
            raise InvalidInputError(f"{module}: its scale times its rank {rank} is {alpha:g}, too large for lora_alpha")
    (rank, alpha), _ = Counter(settings.values()).most_common(1)[0]
    ranks = {re.escape(module): each for module, (each, _) in settings.items() if each != rank}
    alphas = {re.escape(module): each for module, (_, each) in settings.items() if each != alpha}
    return {
        "peft_type": "LORA",
        "base_model_name_or_path": base_model,
        "bias": "none",
        "inference_mode": True,
        "r": rank,
        "lora_alpha": int(alpha) if alpha == int(alpha) else alpha,
        "lora_dropout": 0.0,
        "rank_pattern": ranks,
        "alpha_pattern": alphas,
        "target_modules": sorted(adapter.sites),
        "use_dora": use_dora,
        "use_rslora": False,
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "modules_to_save": None,
        "task_type": None,
    }
