"""Opens a model for training: chooses the sites, and compiles the program and its reverse."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

from lattice_inference.argument_checks import as_number, check_choice, check_count, check_path, checked_flag
from lattice_inference.backends.opening import check_backend, open_backend
from lattice_inference.backends.training_protocol import SiteFactors, TrainingBackend
from lattice_inference.checkpoint.formats import only_gguf
from lattice_inference.errors import InvalidInputError, UnsupportedError
from lattice_inference.graph.adapting import linear_sites
from lattice_inference.graph.backward import Keep, Site, differentiate, forward_program
from lattice_inference.graph.program import Program
from lattice_inference.lora.adapter import MAX_RANK
from lattice_inference.lora.attaching import AdapterPlace, adapter_places
from lattice_inference.lora.base_sites import row_permutation
from lattice_inference.models.adapter_sites import AdapterSites, module_stem
from lattice_inference.models.family import LOGITS, SCORES, Head, vectors
from lattice_inference.models.opened_model import OpenedModel, open_model
from lattice_inference.training.trained_sites import RowOrder, TrainedSite
from lattice_inference.training.training_program import TrainingProgram
from lattice_inference.value_text import value_text

__all__ = ["Activations", "Loss", "open_training_program"]

Loss = Literal["tokens", "vectors", "scores"]
Activations = Literal["float32", "bfloat16"]
_POOLINGS = ("cls", "mean", "last")


def open_training_program(
    path: str | os.PathLike[str],
    *,
    sites: Sequence[str] | Literal["all-linear"],
    rank: int,
    scaling: float,
    loss: Loss,
    pooling: Literal["cls", "mean", "last"] | None = None,
    normalize: bool | None = None,
    keep: Keep = "products",
    activations: Activations = "float32",
    backend: Literal["cpu", "reference"] = "cpu",
    threads: int | None = None,
) -> TrainingProgram:
    """Open a model whose weights stay as they are, with low-rank factors that can be trained.

    Args:
        path: the model's directory or GGUF file, with weights of any format.
        sites: which linears get factors: the ends of their paths in transformers, of whole names between dots
            (``"q_proj"``, ``"attention.self.query"``, ``"layers.0.mlp.up_proj"``). ``"all-linear"`` is every linear of the
            layers, as in PEFT.
        rank: rows of A of each site.
        scaling: the factor of the product B A.
        loss: ``"tokens"`` for the cross-entropy of a language model's next tokens; ``"vectors"`` for the vectors of an
            encoder, whose gradients come from outside; ``"scores"`` for the logits of a classifier or cross-encoder, in
            the place of vectors.
        pooling: for vectors, how those of tokens become one. By default what the model's files state, else ``"mean"``.
        normalize: for vectors, whether they are scaled to length 1. By default as ``load_encoder`` does.
        keep: what the forward pass keeps for the reverse: everything (``"all"``), all but what norms, activations and
            rotations give (``"products"``), or the input of each layer (``"layers"``). The rest is computed again. The
            choice changes memory and time, and no bit of a result.
        activations: what linears multiply: float32 rows, or rows rounded to bfloat16, as weights then are.
        backend: ``"cpu"``, or ``"reference"``: NumPy in float64, slow and readable.
        threads: the most threads that a run may use; by default all of the process's pool.

    Returns:
        The program. A's and B's are zeros until :meth:`TrainingProgram.write_factors`.

    Raises:
        InvalidInputError: an option has an invalid value, or a site matches no linear of the model.
        ModelNotFoundError, CheckpointError, ModelConfigError: a file is missing or malformed.
        UnsupportedError: adapters are not built for the family, the model does not give what ``loss`` needs, a site is the
            output matrix, or a gradient would have to pass an op that has no reverse; the message names the op.
    """
    check_path("path", path)
    check_choice("loss", loss, get_args(Loss), InvalidInputError)
    check_choice("keep", keep, get_args(Keep), InvalidInputError)
    check_choice("activations", activations, get_args(Activations), InvalidInputError)
    check_backend(backend)
    rank = check_count("rank", rank, least=1, most=MAX_RANK)
    factor = as_number(scaling)
    if factor is None or not 0 < abs(factor) < 1e30:
        raise InvalidInputError(f"scaling is {value_text(scaling)}; expected a number other than 0")
    opened = open_backend(
        backend,
        threads=threads,
        precision="stored" if activations == "float32" else "bfloat16",
        activations="float32" if activations == "float32" else "int8",
    )
    if not isinstance(opened, TrainingBackend):
        raise UnsupportedError(f"the backend {backend!r} has no reverse pass")
    place = Path(path)
    if os.path.isdir(place) and not (place / "config.json").exists():
        place = only_gguf(place) or place
    with open_model(place, causal=loss == "tokens") as model:
        family = model.family
        if family.adapter_sites is None:
            raise UnsupportedError(f"{place}: adapters are not built for models of {family.name}")
        head, output = _head(model, loss, pooling, normalize)
        model.check(head)
        program = model.program(head)
        found = adapter_places(family.adapter_sites, linear_sites(program))
        places = [
            replace(place, module=_transformers_path(place.module, loss, family.adapter_sites))
            for place in _chosen(found, sites, place)
        ]
        numbers = {place.tensor: Site(number, rank, factor) for number, place in enumerate(places)}
        programs: Mapping[str, Program] = {
            "forward": forward_program(program, numbers, output),
            "reverse": differentiate(program, numbers, keep, output=output),
        }
        sizes = {place.tensor: SiteFactors(rank, place.shape[1], place.shape[0]) for place in places}
        compiled = opened.compile_training(programs, model.tensors(head), sizes)
        return TrainingProgram(
            compiled,
            [TrainedSite(place.module, place.shape[1], place.shape[0]) for place in places],
            {place.module: place.tensor for place in places},
            _row_orders(model, family.adapter_sites, places),
            rank=rank,
            scaling=factor,
            loss=loss,
            output=output,
            width=program.outputs[output].width,
            positions=None if loss == "tokens" else model.config.position_ids,
        )


def _head(model: OpenedModel, loss: Loss, pooling: object, normalize: object) -> tuple[Head, str]:
    """Return the head of the model, and the output that the loss reads."""
    if loss != "vectors":
        if pooling is not None or normalize is not None:
            raise InvalidInputError(f"pooling and normalize are for loss='vectors', not for {loss!r}")
        if loss == "scores" and not model.config.classifies:
            raise UnsupportedError(f"{model.path}: has no classification head, so it gives no scores")
        return (LOGITS if loss == "tokens" else SCORES), "logits"
    modules = model.modules
    stated = modules.pooling if modules is not None else model.pooling
    if pooling is None:
        pooling = "mean" if stated is None else stated.value
    check_choice("pooling", pooling, _POOLINGS, InvalidInputError)
    scaled = (modules is None or modules.normalize) if normalize is None else checked_flag("normalize", normalize)
    layers = () if modules is None else modules.layers
    return vectors(pooling, layers), "normalized" if scaled else "pooled"  # type: ignore[arg-type]  # it was checked


def _transformers_path(module: str, loss: Loss, sites: AdapterSites) -> str:
    """Return a linear's path in the class of transformers that has a loss.

    It does not depend on the class that wrote the file, but for scores, which only files of classifiers have.
    """
    stem = module_stem(module)
    match loss:
        case "vectors":
            return stem
        case "tokens" if "{layer}" in (sites.pattern_of(module) or ""):
            return sites.prefix + stem
        case _:
            return module


def _chosen(places: Mapping[str, AdapterPlace], sites: object, path: Path) -> list[AdapterPlace]:
    """Return the places that ``sites`` names, in the order of the program."""
    if sites == "all-linear":
        return [place for stem, place in places.items() if any(part.isdecimal() for part in stem.split("."))]
    if isinstance(sites, (str, bytes)) or not isinstance(sites, Sequence) or not sites:
        raise InvalidInputError(f"sites is {value_text(sites)}; expected names of linears, or 'all-linear'")
    chosen: set[str] = set()
    for site in sites:
        stem = module_stem(site) if isinstance(site, str) and site else None
        found = [name for name in places if stem is not None and f".{name}".endswith(f".{stem}")]
        if not found:
            kinds = dict.fromkeys(name.rpartition(".")[2] for name in places)
            raise InvalidInputError(
                f"sites: {value_text(site)} is the end of no linear of {path}; its linears end in {', '.join(kinds)}"
            )
        chosen.update(found)
    return [place for stem, place in places.items() if stem in chosen]


def _row_orders(model: OpenedModel, linears: AdapterSites, places: Sequence[AdapterPlace]) -> dict[str, RowOrder]:
    """Return the order of rows in the file for the sites where it is not that of transformers."""
    if not (model.is_gguf and linears.architecture(model.config) in linears.interleaved):
        return {}
    heads = {place: linears.head_count(place.module, model.config) for place in places}
    return {
        place.module: row_permutation(place.shape[0], count, interleaved=True)
        for place, count in heads.items()
        if count is not None
    }
