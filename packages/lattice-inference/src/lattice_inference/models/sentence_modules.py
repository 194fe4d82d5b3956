"""The modules of a sentence-transformers model around its encoder, read from its files.

``modules.json`` lists a transformer, a pooling and the layers after it: dense layers, norms, a normalization. Their small
configuration files and ``config_sentence_transformers.json`` hold the options. Other modules in the list are not built.
They would change the vectors, so they are refused by name and not skipped.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import MappingProxyType

from lattice_inference.checkpoint.json_file import load_json, load_json_object
from lattice_inference.errors import ModelConfigError, UnsupportedError
from lattice_inference.models.config_fields import ConfigFields
from lattice_inference.models.sentence_layers import SentenceLayer, UnitLayer, read_sentence_layer

__all__ = ["Pooling", "SentenceModules", "module_folder", "module_kind", "read_sentence_modules", "read_token_limit"]

#: Longest input in tokens that a file may state; the same as the limit of position embeddings.
MAX_SEQUENCE_LENGTH = 2**22

#: Most modules in a list. Real models have two or three.
MAX_MODULES = 64


class Pooling(Enum):
    """How to combine token vectors into one vector."""

    #: The first token's.
    CLS = "cls"
    #: The mean of all tokens'.
    MEAN = "mean"
    #: The last token's.
    LAST = "last"


# The packages of each module in sentence-transformers: `models` up to version 5, and one of two packages from version 6.
# The first versions named modules by the file that defined them.
_KINDS = {
    "Transformer": "base.modules.transformer",
    "Pooling": "sentence_transformer.modules.pooling",
    "Dense": "base.modules.dense",
    "LayerNorm": "sentence_transformer.modules.layer_norm",
    "Dropout": "sentence_transformer.modules.dropout",
    "Normalize": "base.modules.normalize",
}
_MODULE_KINDS = {
    f"sentence_transformers.{place}.{kind}": kind
    for kind, module in _KINDS.items()
    for place in ("models", f"models.{kind}", module)
}

# Up to version 5, each kind of pooling has its switch; from version 6, `pooling_mode` names the kind.
_POOLING_SWITCHES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}

_POOLINGS = {"cls": Pooling.CLS, "mean": Pooling.MEAN, "lasttoken": Pooling.LAST}

_TRANSFORMER_CONFIG_FILES = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)

_SIMILARITY_FUNCTIONS = ("cosine", "dot", "euclidean", "manhattan")


@dataclass(frozen=True)
class SentenceModules:
    """Everything around the encoder that turns a text into its vector.

    Attributes:
        pooling: how to combine token vectors into one.
        layers: the layers after the pooling, in order.
        normalize: whether the vector is scaled to unit length in the end.
        embedding_dimension: width of the token vectors, as the pooling's file states it; None if it does not.
        max_seq_length: longest input in tokens, special tokens included; None if no file limits it. The encoder's
            position embeddings limit it as well.
        do_lower_case: whether texts are lowercased before they are tokenized. The tokenizer may lowercase them, too.
        prompts: the text before an input, by the name of the kind of input (``"query"``, ...).
        default_prompt_name: the name of the prompt for an input without a kind, or None.
        similarity: the similarity for which the vectors were trained (``"cosine"``, ``"dot"``, ...); None if not stated.
    """

    pooling: Pooling
    layers: tuple[SentenceLayer, ...]
    normalize: bool
    embedding_dimension: int | None
    max_seq_length: int | None
    do_lower_case: bool
    prompts: Mapping[str, str]
    default_prompt_name: str | None
    similarity: str | None


def read_sentence_modules(directory: str | os.PathLike[str]) -> SentenceModules | None:
    """Read the sentence-transformers files of the model in ``directory``.

    Returns:
        None if there is no ``modules.json``: the caller must then state the pooling.

    Raises:
        ModelNotFoundError: the pooling's configuration file is missing.
        ModelConfigError: a file is malformed or contradicts itself.
        UnsupportedError: a module, a kind of pooling or an option is not built; the message names it.
    """
    directory = Path(directory)
    if not os.path.lexists(directory / "modules.json"):
        return None
    modules = _list_modules(directory / "modules.json")
    pooling_file = directory / modules[1][1] / "config.json"
    pooling_config = load_json_object(pooling_file)
    layers, normalize = _layers(directory, modules[2:])
    transformer = _transformer_config(directory, task="feature-extraction", output="token_embeddings")
    prompts, default_prompt_name, similarity = _model_options(directory / "config_sentence_transformers.json")
    return SentenceModules(
        pooling=_pooling(pooling_config, str(pooling_file)),
        layers=layers,
        normalize=normalize,
        embedding_dimension=_embedding_dimension(pooling_config, str(pooling_file)),
        max_seq_length=_token_limit(directory, transformer),
        do_lower_case=transformer.flag("do_lower_case", default=False),
        prompts=MappingProxyType(prompts),
        default_prompt_name=default_prompt_name,
        similarity=similarity,
    )


def module_kind(type_name: object) -> str | None:
    """Return the kind of module of a name in ``modules.json``, or None.

    Kinds are ``"Transformer"``, ``"Pooling"``, and so on.
    """
    return _MODULE_KINDS.get(type_name) if isinstance(type_name, str) else None


def module_folder(path: str) -> str:
    """Return a path of ``modules.json`` in one spelling.

    The model's own directory, ``"."`` or ``"./"``, becomes ``""``.
    """
    plain = PurePosixPath(path).as_posix()
    return "" if plain == "." else plain


def _list_modules(path: Path) -> list[tuple[str, str]]:
    """Return kind and folder of each module, after a check that the list is supported."""
    modules = load_json(path)
    if not isinstance(modules, list) or not 0 < len(modules) <= MAX_MODULES:
        raise ModelConfigError(f"{path}: is not a list of 1 to {MAX_MODULES} modules")
    listed: list[tuple[str, str]] = []
    for position, module in enumerate(modules):
        if not isinstance(module, dict):
            raise ModelConfigError(f"{path}: module {position} is not an object")
        fields = ConfigFields(module, f"{path}: module {position}")
        type_name = fields.text("type")
        kind = module_kind(type_name)
        if kind is None:
            raise UnsupportedError(
                f"{path}: module {position} is {type_name!r:.100}, which is not built; {', '.join(_KINDS)} are"
            )
        if module.get("kwargs"):
            raise UnsupportedError(f"{path}: module {position} ({kind}) has kwargs, which are not built")
        folder = fields.text("path")
        if not _stays_inside(folder):
            raise ModelConfigError(f"{path}: module {position}: path {folder!r:.80} leaves the model's directory")
        listed.append((kind, module_folder(folder)))
    kinds = [kind for kind, _ in listed]
    if kinds[:2] != ["Transformer", "Pooling"] or {"Transformer", "Pooling"} & set(kinds[2:]):
        raise UnsupportedError(
            f"{path}: the modules are {', '.join(kinds)}; built is Transformer, Pooling, and after them any of "
            f"{', '.join(list(_KINDS)[2:])}"
        )
    if listed[0][1] != "":
        raise UnsupportedError(
            f"{path}: the transformer's files lie in {listed[0][1]!r}; move them beside modules.json and set "
            'its path to ""'
        )
    return listed


def _layers(directory: Path, modules: Sequence[tuple[str, str]]) -> tuple[tuple[SentenceLayer, ...], bool]:
    """Return the layers after the pooling, and whether a normalization is the last of them."""
    layers: list[SentenceLayer] = []
    for kind, folder in modules:
        if kind == "Normalize":
            _check_normalize(directory / folder / "config.json")
            layers.append(UnitLayer())
        elif kind != "Dropout":
            layers.append(read_sentence_layer(kind, directory, folder))
    # Scaling a vector of length 1 again does not change it, so one normalization at the end is enough.
    normalize = bool(layers) and isinstance(layers[-1], UnitLayer)
    while layers and isinstance(layers[-1], UnitLayer):
        layers.pop()
    return tuple(layers), normalize


def _stays_inside(folder: str) -> bool:
    if "\0" in folder or "\\" in folder or PureWindowsPath(folder).drive or PurePosixPath(folder).is_absolute():
        return False
    return ".." not in PurePosixPath(folder).parts


def _pooling(config: Mapping[str, object], source: str) -> Pooling:
    fields = ConfigFields(config, source)
    for name in config:
        if name.startswith("pooling_mode_") and name not in _POOLING_SWITCHES and config[name] is not False:
            raise UnsupportedError(f"{source}: {name} is not built")
    if not fields.flag("include_prompt", default=True):
        raise UnsupportedError(f"{source}: include_prompt is false: leaving the prompt out of the pooling is not built")
    switched = [mode for name, mode in _POOLING_SWITCHES.items() if fields.flag(name, default=False)]
    if "pooling_mode" not in config:
        modes = switched
    else:
        named = config["pooling_mode"]
        modes = [str(mode) for mode in named] if isinstance(named, list) else [fields.text("pooling_mode")]
        if any(name in config for name in _POOLING_SWITCHES) and switched != modes:
            raise ModelConfigError(f"{source}: pooling_mode is {named!r:.80}, but the switches say {switched!r}")
    if not modes:
        raise ModelConfigError(f"{source}: no kind of pooling is switched on")
    if len(modes) > 1:
        raise UnsupportedError(f"{source}: several poolings ({', '.join(map(str, modes))}) are concatenated: not built")
    if modes[0] not in _POOLINGS:
        raise UnsupportedError(f"{source}: pooling {modes[0]!r} is not built; {', '.join(map(repr, _POOLINGS))} are")
    return _POOLINGS[modes[0]]


def _embedding_dimension(config: Mapping[str, object], source: str) -> int | None:
    fields = ConfigFields(config, source)
    stated = {
        fields.integer(name, 1, 2**20)
        for name in ("word_embedding_dimension", "embedding_dimension")
        if config.get(name) is not None
    }
    if len(stated) > 1:
        raise ModelConfigError(f"{source}: word_embedding_dimension and embedding_dimension differ")
    return stated.pop() if stated else None


def _check_normalize(path: Path) -> None:
    """Refuse a normalization of anything but the pooled vector.

    Up to version 5, it has no file.
    """
    if not os.path.lexists(path):
        return
    config = load_json_object(path)
    for name in ("module_input_name", "module_output_name"):
        value = config.get(name)
        if value not in (None, "sentence_embedding"):
            raise UnsupportedError(f"{path}: {name} is {value!r:.80}; only 'sentence_embedding' is built")


def read_token_limit(directory: Path, *, task: str, output: str, method_output: str) -> int | None:
    """Return the longest input that a model's own files state, in tokens, or None.

    Up to sentence-transformers 5, the length is in the transformer's own file; later, it is only in the tokenizer's.

    Args:
        directory: the model's.
        task, output, method_output: the required purpose of the network in the transformer's file, if the file states it.

    Raises:
        ModelConfigError: a file is malformed.
        UnsupportedError: the file states another purpose.
    """
    return _token_limit(directory, _transformer_config(directory, task, output, method_output))


def _transformer_config(
    directory: Path, task: str, output: str, method_output: str = "last_hidden_state"
) -> ConfigFields:
    path = next((directory / name for name in _TRANSFORMER_CONFIG_FILES if os.path.lexists(directory / name)), None)
    if path is None:
        return ConfigFields({}, str(directory))
    config = load_json_object(path)
    for name, value in {"transformer_task": task, "module_output_name": output}.items():
        if config.get(name, value) != value:
            raise UnsupportedError(f"{path}: {name} is {config[name]!r:.80}; only {value!r} is built")
    for name in ("query_length", "document_length", "query_expansion"):
        if config.get(name):
            raise UnsupportedError(f"{path}: {name} belongs to multi-vector models, which are not built")
    modalities = config.get("modality_config", {})
    text = modalities.get("text") if isinstance(modalities, dict) else None
    if modalities and text != {"method": "forward", "method_output_name": method_output}:
        raise UnsupportedError(f"{path}: modality_config asks for more than the {method_output} of a text")
    return ConfigFields(config, str(path))


def _token_limit(directory: Path, transformer: ConfigFields) -> int | None:
    if transformer.has("max_seq_length"):
        return transformer.integer("max_seq_length", 1, MAX_SEQUENCE_LENGTH)
    return _tokenizer_limit(directory / "tokenizer_config.json")


def _tokenizer_limit(path: Path) -> int | None:
    if not os.path.lexists(path):
        return None
    value = load_json_object(path).get("model_max_length")
    # "No limit" is written as a huge float-like number.
    if value is None or (isinstance(value, (int, float)) and value > MAX_SEQUENCE_LENGTH):
        return None
    return ConfigFields({"model_max_length": value}, str(path)).integer("model_max_length", 1, MAX_SEQUENCE_LENGTH)


def _model_options(path: Path) -> tuple[dict[str, str], str | None, str | None]:
    """Return prompts, the default prompt's name and the similarity. The file is optional."""
    if not os.path.lexists(path):
        return {}, None, None
    config = load_json_object(path)
    model_type = config.get("model_type", "SentenceTransformer")
    if model_type != "SentenceTransformer":
        raise UnsupportedError(f"{path}: model_type is {model_type!r:.80}; only 'SentenceTransformer' is built")
    prompts = config.get("prompts")
    if prompts is None:
        prompts = {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise ModelConfigError(f"{path}: prompts is not an object of strings")
    default_prompt_name = config.get("default_prompt_name")
    if default_prompt_name is not None and not (
        isinstance(default_prompt_name, str) and default_prompt_name in prompts
    ):
        raise ModelConfigError(f"{path}: default_prompt_name {default_prompt_name!r} is none of the prompts")
    similarity = config.get("similarity_fn_name")
    if similarity is not None and not (isinstance(similarity, str) and similarity in _SIMILARITY_FUNCTIONS):
        raise UnsupportedError(f"{path}: similarity_fn_name {similarity!r:.80} is none of {_SIMILARITY_FUNCTIONS}")
    return dict(prompts), default_prompt_name, similarity
