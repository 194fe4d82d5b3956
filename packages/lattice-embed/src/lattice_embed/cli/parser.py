"""What may be written on the command line, and its help."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from typing import get_args

from lattice_embed._version import __version__
from lattice_embed.cli import backfill_options, serve_options, store_options
from lattice_embed.cli.store_options import add_truncate
from lattice_inference.cli.completion import add_completion
from lattice_inference.cli.options import add_device, thread_count
from lattice_inference.errors import UnsupportedError
from lattice_inference.precision import Precision

__all__ = ["build_parser"]

_MAIN_EXAMPLES = """\
examples:
  lattice-embed embed --model all-minilm-l6-v2 "The quick brown fox"
  lattice-embed embed --model all-minilm-l6-v2 --input lines.txt --output vectors.npy
  lattice-embed similarity --model all-minilm-l6-v2 "a cat" "a kitten"
  lattice-embed rerank --model Qwen/Qwen3-Reranker-0.6B "what is a cat?" "an animal" "a car"
  lattice-embed serve --model all-minilm-l6-v2
  lattice-embed models
  lattice-embed download multilingual-e5-small
  lattice-embed cache stats
  lattice-embed store import corpus.db --input lines.txt
  lattice-embed backfill --from-store corpus.db --model all-minilm-l6-v2
  lattice-embed check-drift baselines/
  lattice-embed doctor

Without --model, the model named by LATTICE_EMBED_MODEL is used, else bge-small-en-v1.5.
"""

_EMBED_EXAMPLES = """\
examples:
  lattice-embed embed --model all-minilm-l6-v2 "first text" "second text"
  lattice-embed embed --model all-minilm-l6-v2 --json "a text" | jq '.embeddings[0].embedding'
  lattice-embed embed --model ./my-model --role query --json "what is a cat?"
  lattice-embed embed --model all-minilm-l6-v2 --input corpus.txt --output corpus.npy
  lattice-embed embed --model all-minilm-l6-v2 --input table.csv --column text --output table.jsonl
  lattice-embed embed --model all-minilm-l6-v2 --cache --input corpus.txt --output corpus.npy
  lattice-embed embed --base-url http://localhost:11434/v1 --model nomic-embed-text --json "a text"
  OPENAI_API_KEY=... lattice-embed embed --model text-embedding-3-small --output-dim 512 --json "a text"

--json prints one object:
  {"model": ..., "dim": ..., "embeddings": [{"index", "tokens", "truncated", "embedding"}, ...],
   "usage": {"prompt_tokens", "total_tokens"}}
Tokens are null where a server does not say them.
"""

_SIMILARITY_EXAMPLES = """\
examples:
  lattice-embed similarity --model all-minilm-l6-v2 "a cat" "a kitten"
  lattice-embed similarity --model all-minilm-l6-v2 "a cat" "a kitten" "a car" "a sonnet"
  lattice-embed similarity --model all-minilm-l6-v2 --input corpus.txt --top 5 "how do I reset my password?"
  lattice-embed similarity --model bge-small-en-v1.5 --retrieval --input corpus.txt "what is a cat?"

Two texts print their cosine similarity. One text against several, or against the lines of a file, prints the nearest
first: score, line number from 1, text.
"""

_SEARCH_EXAMPLES = """\
examples:
  lattice-embed embed --model all-minilm-l6-v2 --input corpus.txt --output corpus.npy
  lattice-embed search corpus.npy --texts corpus.txt --model all-minilm-l6-v2 "how do I reset my password?"
  lattice-embed search corpus.npy --texts corpus.csv --column body --model all-minilm-l6-v2 --top 3 "a cat"
  lattice-embed search corpus.db "a cat"

VECTORS is a .npy file, which needs --texts and the --model that made it, or a store, which holds both.
"""

_COMPARE_EXAMPLES = """\
examples:
  lattice-embed compare all-minilm-l6-v2 bge-small-en-v1.5 --input corpus.txt
  lattice-embed compare ./old-model ./new-model --input corpus.jsonl --column text --top 5 --json

Prints how many of each text's nearest neighbours the two models have in common, the rank correlation of all similarities,
and what each model costs: time, tokens, bytes of a vector. Of more than 2,000 texts so many are drawn.
"""

_RERANK_EXAMPLES = """\
examples:
  lattice-embed rerank --model Qwen/Qwen3-Reranker-0.6B "what is a cat?" "an animal" "a car"
  lattice-embed rerank --model ./my-reranker --input results.txt --top 5 "how do I reset my password?"
  lattice-embed rerank --model cross-encoder/ms-marco-MiniLM-L6-v2 --json "a query" "a document" | jq .scores
  lattice-embed rerank --model Qwen/Qwen3-Reranker-0.6B --instruction "Find code that does it" "sort" "sorted(x)"

The model reads the query with each document, which ranks better than comparing vectors and costs a pass of the model for
each. Prints the best first: score, number of the document from 1, document. A score is the model's own: of Qwen3-Reranker
the probability that the document answers the query, of other models what their files say.
"""

_MODELS_EXAMPLES = """\
examples:
  lattice-embed models
  lattice-embed models --json | jq '.models[] | select(.runs_here) | .name'
"""

_DOWNLOAD_EXAMPLES = """\
examples:
  lattice-embed download all-minilm-l6-v2
  lattice-embed download BAAI/bge-reranker-base
  HF_TOKEN=hf_... lattice-embed download --json my-organization/private-model

A model that is already on this machine is checked, not downloaded again. A download goes into the Hugging Face cache
(HF_HUB_CACHE, HF_HOME); tokens (HF_TOKEN, `hf auth login`), proxies and mirrors (HF_ENDPOINT) are huggingface_hub's.
"""

_CACHE_EXAMPLES = """\
examples:
  lattice-embed embed --cache --input corpus.txt --output corpus.npy
  lattice-embed cache stats
  lattice-embed cache stats --json | jq .models
  lattice-embed cache clear --of sentence-transformers/all-MiniLM-L6-v2
  du -h "$(lattice-embed cache path)"
  lattice-embed cache inspect embed_qwen3-embedding-0.6b_1024d.bin

path     where the database is
stats    how many vectors it holds, of which models, and its size
clear    remove all vectors, or those of one model as stats names it
inspect  check a cache file (LQECACHE) of the reference implementation, and say what it holds

The folder is --cache-folder, else LATTICE_VECTOR_CACHE, else ~/.lattice/cache.
"""

_CHECK_DRIFT_EXAMPLES = """\
examples:
  lattice-embed check-drift --update-baseline --model all-minilm-l6-v2 --input texts.txt minilm.json
  lattice-embed check-drift minilm.json
  lattice-embed check-drift --enforce --json baselines/
  lattice-embed check-drift --update-baseline minilm.json

A baseline is a file of texts and the vectors that a release of lattice-embed gave them. Later releases are compared with it:
exit status 0 if every baseline passes, 1 if one does not. A baseline that is missing, damaged, edited, empty, or of other
weights does not pass. One whose model is not on this machine is skipped, and does not pass either with --enforce, or with
LATTICE_DRIFT_ENFORCE=1. (For the drift of a corpus, see `lattice-transport drift`.)
"""

_DOCTOR_EXAMPLES = """\
examples:
  lattice-embed doctor
  lattice-embed doctor --json > report.json
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser; the chosen command is the parsed options' ``run``."""
    parser = argparse.ArgumentParser(
        prog="lattice-embed",
        description="Turn texts into vectors and compare them.",
        epilog=_MAIN_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"lattice-embed {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    embed = _add_command(commands, "embed", "turn texts into vectors", _EMBED_EXAMPLES)
    _add_texts(embed, "texts to embed; a single - reads them from standard input, one a line")
    _add_model(embed)
    embed.add_argument(
        "--role",
        choices=("query", "passage", "generic"),
        default="generic",
        help="what the texts are for: decides the prompt that the model wants before each (default: generic, none)",
    )
    _add_output_dim(embed)
    embed.add_argument("--no-normalize", action="store_true", help="do not scale the vectors to length 1")
    embed.add_argument(
        "--output",
        metavar="FILE",
        help="write the vectors: .npy is an array, float32 (texts, dim); .jsonl and .parquet hold the rows of --input with "
        "a column 'embedding', written as they are computed (Parquet needs pyarrow)",
    )
    embed.add_argument(
        "--column", metavar="NAME", help="the column of --input FILE.jsonl, .csv or .tsv that holds the texts"
    )
    embed.add_argument("--skip-empty", action="store_true", help="leave rows out whose text is empty")
    embed.add_argument(
        "--input-format",
        choices=("lines", "jsonl", "csv", "tsv"),
        help="what --input holds (default: by its suffix; lines for others)",
    )
    embed.add_argument(
        "--cache",
        action="store_true",
        help="keep vectors on disk, and take those that are there (see: lattice-embed cache)",
    )
    _add_cache_folder(embed, "the same, in this folder")
    _add_json(embed)

    similarity = _add_command(
        commands, "similarity", "compare texts by the angle of their vectors", _SIMILARITY_EXAMPLES
    )
    _add_texts(similarity, "the first text is compared with the others, or with the lines of --input")
    _add_model(similarity)
    similarity.add_argument(
        "--retrieval", action="store_true", help="embed the first text as a query and the others as passages"
    )
    similarity.add_argument("--top", type=int, metavar="K", help="print the K nearest only")
    _add_json(similarity)

    search = _add_command(commands, "search", "find the texts nearest to a query", _SEARCH_EXAMPLES)
    search.add_argument("vectors", metavar="VECTORS.npy|STORE", help="the vectors, or a store")
    search.add_argument("query", metavar="QUERY", help="what to look for")
    search.add_argument(
        "--texts", metavar="FILE", help="the texts of VECTORS.npy, one for each: lines, .jsonl, .csv, .tsv"
    )
    search.add_argument("--column", metavar="NAME", help="the column of --texts FILE.jsonl, .csv or .tsv")
    search.add_argument("--top", type=int, default=10, metavar="K", help="how many (default: 10)")
    search.add_argument("--retrieval", action="store_true", help="embed the query in the role of a query")
    _add_model(search)
    _add_json(search)

    compare = _add_command(commands, "compare", "compare two models on your texts", _COMPARE_EXAMPLES)
    compare.add_argument("first", metavar="MODEL_A", help="a name of the catalogue, a hub id or a directory")
    compare.add_argument("second", metavar="MODEL_B", help="the other")
    compare.add_argument("--input", required=True, metavar="FILE", help="texts: lines, .jsonl, .csv or .tsv")
    compare.add_argument("--column", metavar="NAME", help="the column of --input FILE.jsonl, .csv or .tsv")
    compare.add_argument(
        "--top", type=int, default=10, metavar="K", help="neighbours of a text that count (default: 10)"
    )
    _add_native_options(compare)
    add_truncate(compare)
    compare.set_defaults(base_url=None, api_key_variable=None, allow_plain_http=False)
    _add_json(compare)

    rerank = _add_command(commands, "rerank", "rank documents as answers to a query", _RERANK_EXAMPLES)
    rerank.add_argument("query", metavar="QUERY", help="what the documents are to answer")
    rerank.add_argument("documents", nargs="*", metavar="DOCUMENT", help="documents; a single - reads them, one a line")
    rerank.add_argument(
        "--input", metavar="FILE", help="read documents from a UTF-8 file, one a line; - for standard input"
    )
    _add_native_model(rerank)
    rerank.add_argument(
        "--truncate",
        choices=("longest_first", "error"),
        default="longest_first",
        help="what happens to a pair over the model's limit: its end is cut, or it is an error (default: longest_first)",
    )
    rerank.add_argument("--instruction", metavar="TEXT", help="what to rank by, for a language model that is asked")
    rerank.add_argument("--top", type=int, metavar="K", help="print the K best only")
    _add_json(rerank)

    serve = _add_command(commands, "serve", "serve embeddings and reranking over HTTP", serve_options.EXAMPLES)
    serve_options.add_serve_options(serve)
    _add_native_options(serve)
    serve.add_argument("--cache", action="store_true", help="keep vectors on disk (see: lattice-embed cache)")
    _add_cache_folder(serve, "the same, in this folder")

    models = _add_command(commands, "models", "list the models known by name", _MODELS_EXAMPLES)
    _add_json(models)

    download = _add_command(
        commands, "download", "get a model's files from the hub, or check those that are here", _DOWNLOAD_EXAMPLES
    )
    download.add_argument(
        "model", nargs="?", metavar="MODEL", help="a name of the catalogue or a hub id (default: the default model)"
    )
    download.add_argument("--revision", metavar="REV", help="a branch, tag or commit instead of the one on record")
    _add_json(download)

    cache = _add_command(commands, "cache", "look after the vectors that are kept on disk", _CACHE_EXAMPLES)
    cache.add_argument("action", choices=("path", "stats", "clear", "inspect"), help="what to do")
    cache.add_argument("file", nargs="?", metavar="FILE", help="for inspect: the file")
    cache.add_argument("--of", dest="space", metavar="MODEL", help="for clear: remove this model's vectors only")
    _add_cache_folder(cache, "the cache in this folder")
    _add_json(cache)

    store = _add_command(commands, "store", "keep documents and vectors, and search them", store_options.EXAMPLES)
    store_options.add_store_actions(store, _add_native_model, _add_output_dim, _add_json)

    actions = "\n".join(f"  {name:<14}{text}" for name, text in backfill_options.ACTIONS.items())
    backfill = _add_command(
        commands,
        "backfill",
        "embed a store's documents again with another model",
        backfill_options.EXAMPLES.format(actions=actions),
    )
    backfill_options.add_backfill_options(backfill)
    _add_native_model(backfill)
    _add_output_dim(backfill)
    _add_json(backfill)

    _add_check_drift(commands)

    doctor = _add_command(commands, "doctor", "say what would be used: files, CPU, threads, versions", _DOCTOR_EXAMPLES)
    _add_json(doctor)
    add_completion(commands, parser, "lattice-embed[completion]", UnsupportedError)
    return parser


def _add_check_drift(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = _add_command(
        commands, "check-drift", "compare this release's vectors with frozen ones", _CHECK_DRIFT_EXAMPLES
    )
    command.add_argument(
        "baselines",
        nargs="*",
        metavar="BASELINE",
        help="a baseline's file, or a folder whose *.json are baselines (default: LATTICE_DRIFT_BASELINES)",
    )
    command.add_argument(
        "--model", metavar="NAME|DIR", help="where the model is (default: by the name that the baseline has)"
    )
    command.add_argument(
        "--threads",
        type=thread_count,
        metavar="N",
        help="threads to compute with, 1 to 256 (default: all allowed CPUs)",
    )
    add_device(command)
    command.add_argument("--enforce", action="store_true", help="a baseline whose model is not here does not pass")
    command.add_argument(
        "--update-baseline",
        action="store_true",
        help="write this release's vectors to the one BASELINE: of the texts it has, or of --input",
    )
    command.add_argument("--input", metavar="FILE", help="with --update-baseline: the texts, one a line; - for stdin")
    command.add_argument(
        "--role", choices=("query", "passage", "generic"), help="with --update-baseline: what the texts are for"
    )
    command.add_argument("--precision", choices=get_args(Precision), help="with --update-baseline: of the weights")
    command.add_argument("--output-dim", type=int, metavar="N", help="with --update-baseline: shorter vectors")
    command.add_argument(
        "--max-abs-difference",
        type=float,
        metavar="X",
        help="with --update-baseline: how far a component may be off later (default: 1e-6; 0: the same bits)",
    )
    command.add_argument(
        "--max-cosine-distance",
        type=float,
        metavar="X",
        help="with --update-baseline: how far an angle may be off later (default: 1e-6)",
    )
    _add_json(command)


def _add_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, summary: str, examples: str
) -> argparse.ArgumentParser:
    command = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(run=_lazily(name))
    return command


def _lazily(command: str) -> Callable[[argparse.Namespace], int]:
    """Return the command's function.

    Its module is imported at the call: --help needs none of it.
    """

    module = command.replace("-", "_")

    def run(options: argparse.Namespace) -> int:
        status: int = importlib.import_module(f"lattice_embed.cli.{module}_command").run(options)
        return status

    return run


def _add_texts(command: argparse.ArgumentParser, what: str) -> None:
    command.add_argument("texts", nargs="*", metavar="TEXT", help=what)
    command.add_argument(
        "--input",
        metavar="FILE",
        help="read texts from a UTF-8 file, one a line, blank lines included; - for standard input",
    )


def _add_native_model(command: argparse.ArgumentParser) -> None:
    """Add the options of a model that runs in this process."""
    command.add_argument("--model", metavar="NAME|DIR", help="a name of the catalogue, a hub id or a directory")
    _add_native_options(command)


def _add_native_options(command: argparse.ArgumentParser) -> None:
    """Add how a model runs in this process."""
    command.add_argument(
        "--threads",
        type=thread_count,
        metavar="N",
        help="threads to compute with, 1 to 256 (default: all allowed CPUs)",
    )
    add_device(command)
    command.add_argument(
        "--precision",
        choices=get_args(Precision),
        default="float32",
        help="what weights are kept in: those of 16 bits take half the memory and move vectors a little, int8 multiplies "
        "integers, which is fastest and moves them more (default: float32)",
    )
    command.add_argument(
        "--plain", action="store_true", help="take special tokens that are spelled out in a text for plain text"
    )


def _add_model(command: argparse.ArgumentParser) -> None:
    """Add the options of a model that runs in this process or at a server."""
    _add_native_model(command)
    add_truncate(command)
    command.add_argument(
        "--base-url",
        metavar="URL",
        help="ask a server that speaks the OpenAI protocol, such as http://localhost:11434/v1 (extra: remote)",
    )
    command.add_argument(
        "--api-key-variable",
        metavar="NAME",
        help="environment variable with the server's key (default: OPENAI_API_KEY for OpenAI's own address, else none)",
    )
    command.add_argument(
        "--allow-plain-http",
        action="store_true",
        help="send the key over http:// to another machine, where all on the way can read it",
    )


def _add_output_dim(command: argparse.ArgumentParser) -> None:
    command.add_argument("--output-dim", type=int, metavar="N", help="shorter vectors, for models trained for that")


def _add_cache_folder(command: argparse.ArgumentParser, what: str) -> None:
    command.add_argument("--cache-folder", metavar="DIR", help=what)


def _add_json(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--json", action="store_true", help="print one JSON object, and nothing else, on standard output"
    )
