"""Options that every command which generates takes: the model's and the sampling's."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

from lattice_inference.cli.options import add_device, add_json, add_model, add_threads
from lattice_inference.cli.text_input import read_whole_text
from lattice_inference.errors import InvalidInputError
from lattice_inference.generate.draft_sources import DraftName, Verify
from lattice_inference.precision import Precision

if TYPE_CHECKING:
    from lattice_inference.generate.causal_language_model import CausalLanguageModel
    from lattice_inference.generate.config import GenerateConfig
    from lattice_inference.generate.result import GenerateResult
    from lattice_inference.generate.session import SessionConfig
    from lattice_inference.grammar.specification import Grammar

__all__ = [
    "add_context",
    "add_generation",
    "add_loading",
    "generate_config",
    "load_adapter",
    "open_model",
    "opened_drafts",
    "result_as_json",
    "session_config",
]

CACHE_TYPES = ("float16", "float32", "bfloat16", "int8")


def add_loading(parser: argparse.ArgumentParser) -> None:
    """Add what says which model is loaded, and how."""
    add_model(parser)
    parser.add_argument(
        "--precision",
        choices=get_args(Precision),
        default="stored",
        help="what weights are kept in (default: what the model's files have them in)",
    )
    parser.add_argument(
        "--activations",
        choices=("int8", "float32"),
        help="what quantized weights are multiplied by: integers, or floats, slower and exact (default: int8; on a GPU "
        "float32, which is all that it has)",
    )
    parser.add_argument(
        "--adapter", metavar="DIR|FILE", help="a LoRA adapter to run the model with: a directory, or a GGUF adapter"
    )
    add_threads(parser)
    add_device(parser)
    add_json(parser)


def load_adapter(model: CausalLanguageModel, options: argparse.Namespace) -> str | None:
    """Attach the options' adapter and return its name; None without one.

    Raises:
        LatticeError: as :meth:`CausalLanguageModel.load_adapter`.
    """
    return None if options.adapter is None else model.load_adapter(options.adapter).name


def add_context(parser: argparse.ArgumentParser) -> None:
    """Add what says how a session keeps its context."""
    parser.add_argument(
        "--context", type=int, metavar="N", help="longest context, prompt and answer together (default: the model's)"
    )
    parser.add_argument(
        "--cache-type",
        choices=CACHE_TYPES,
        default="float16",
        help="what keys and values are kept in (default: float16)",
    )


def add_generation(parser: argparse.ArgumentParser) -> None:
    """Add the options of generation.

    Defaults are those of the model's generation_config.json, then ours.
    """
    group = parser.add_argument_group(
        "how to generate", "what is left out, the model's generation_config.json decides, then the default given here"
    )
    group.add_argument("--max-tokens", type=int, metavar="N", help="most tokens to generate (256)")
    group.add_argument("--temperature", type=float, metavar="F", help="0: always the most probable token (0.7)")
    group.add_argument("--top-k", type=int, metavar="N", help="keep the N most probable tokens; 0: all (50)")
    group.add_argument("--top-p", type=float, metavar="F", help="keep the most probable that reach this together (0.9)")
    group.add_argument("--min-p", type=float, metavar="F", help="drop those below this share of the most probable (0)")
    group.add_argument(
        "--typical-p", type=float, metavar="F", help="keep the most typical that reach this together (1)"
    )
    group.add_argument(
        "--repetition-penalty", type=float, metavar="F", help="for tokens that stand in the context (1.1)"
    )
    group.add_argument("--presence-penalty", type=float, metavar="F", help="for tokens that were generated (0)")
    group.add_argument("--frequency-penalty", type=float, metavar="F", help="each time a token was generated (0)")
    group.add_argument("--seed", type=int, metavar="N", help="of the draws (default: another one each time)")
    group.add_argument("--stop", action="append", metavar="TEXT", help="end before this text; may be repeated")
    obeyed = group.add_mutually_exclusive_group()
    obeyed.add_argument("--json-schema", metavar="FILE", help="the answer is a JSON value that this schema describes")
    obeyed.add_argument("--regex", metavar="REGEX", help="the answer is a text that this regular expression matches")
    obeyed.add_argument(
        "--grammar",
        metavar="FILE",
        help="the answer obeys this grammar, in GBNF, or in Lark's form if its name ends so",
    )
    drafts = parser.add_argument_group("speculation", "guess tokens and check several in one step of the model")
    drafts.add_argument(
        "--speculate",
        choices=get_args(DraftName),
        help="guess by repetitions (ngram), by the model's heads for further tokens (mtp) or by its linear layers (self)",
    )
    drafts.add_argument(
        "--draft-model", metavar="PATH|NAME", help="guess by this smaller model, which has the same vocabulary"
    )
    drafts.add_argument(
        "--verify",
        choices=get_args(Verify),
        help="exact: the text is the one without guesses; distribution: a draft model's guesses are kept by rejection "
        "sampling (default: exact)",
    )


def generate_config(options: argparse.Namespace, *, logprobs: int | None = None) -> GenerateConfig:
    """Return the options' configuration.

    Raises:
        InvalidInputError: a value is out of its range, or two sources of guesses are named.
    """
    from lattice_inference.generate.config import GenerateConfig

    if options.draft_model is not None and options.speculate is not None:
        raise InvalidInputError("--speculate and --draft-model exclude each other: name one source of guesses")
    return GenerateConfig(
        max_new_tokens=options.max_tokens,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        typical_p=options.typical_p,
        repetition_penalty=options.repetition_penalty,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        seed=options.seed,
        stop=options.stop,
        logprobs=logprobs,
        grammar=_grammar(options),
        speculate=options.speculate,
        verify=None if options.draft_model is not None else options.verify,
    )


@contextmanager
def opened_drafts(config: GenerateConfig, options: argparse.Namespace) -> Iterator[GenerateConfig]:
    """Yield the configuration with the options' draft model, which is closed at the end.

    Raises:
        LatticeError: as :func:`lattice_inference.load_model`.
    """
    if options.draft_model is None:
        yield config
        return
    with open_model(options, options.draft_model, "stored") as draft:
        yield replace(config, speculate=draft, verify=options.verify)


def _grammar(options: argparse.Namespace) -> Grammar | None:
    """Return what the answer has to obey.

    Raises:
        GrammarError: a schema, expression or grammar cannot be read or enforced.
    """
    from lattice_inference.grammar.specification import Gbnf, JsonSchema, Lark, Regex

    if options.json_schema is not None:
        return JsonSchema(read_whole_text(None, options.json_schema, "a schema"))
    if options.regex is not None:
        return Regex(options.regex)
    if options.grammar is None:
        return None
    text = read_whole_text(None, options.grammar, "a grammar")
    return Lark(text) if options.grammar.endswith(".lark") else Gbnf(text)


def session_config(options: argparse.Namespace) -> SessionConfig:
    """Return the options' configuration of a session.

    Raises:
        InvalidInputError: a value is out of its range.
    """
    from lattice_inference.generate.session import SessionConfig

    return SessionConfig(
        max_tokens=options.context,
        cache_dtype=options.cache_type,
        special_tokens_in_text=not getattr(options, "plain", False),
    )


def open_model(
    options: argparse.Namespace, name: str | None = None, precision: Precision | None = None
) -> CausalLanguageModel:
    """Load the options' model, or another one with the same other options.

    Raises:
        LatticeError: as :func:`lattice_inference.load_model`.
    """
    from lattice_inference.generate.causal_language_model import load_model
    from lattice_inference.runtime import set_num_threads

    if options.threads is not None:
        set_num_threads(options.threads)
    return load_model(
        name or options.model,
        precision=precision or options.precision,
        activations=options.activations,
        device=options.device,
        mtp=name is None and getattr(options, "speculate", None) == "mtp",
    )


def result_as_json(result: GenerateResult) -> dict[str, object]:
    """Return a result as the command line tells it."""
    entry: dict[str, object] = {
        "text": result.text,
        "token_ids": list(result.token_ids),
        "finish_reason": result.finish_reason.value,
        "prompt_tokens": result.prompt_tokens,
        "reused_tokens": result.reused_tokens,
        "generated_tokens": len(result.token_ids),
        "stop": result.stop,
        "stop_token_id": result.stop_token_id,
        "seed": result.seed,
        "prompt_seconds": round(result.prompt_seconds, 6),
        "generate_seconds": round(result.generate_seconds, 6),
        "drafted_tokens": result.drafted_tokens,
        "accepted_tokens": result.accepted_tokens,
    }
    if result.logprobs is not None:
        entry["logprobs"] = [
            {"token_id": one.token_id, "logprob": one.logprob, "top": [list(pair) for pair in one.top]}
            for one in result.logprobs
        ]
    return entry
