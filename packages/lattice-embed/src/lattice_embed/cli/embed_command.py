"""``lattice-embed embed``: texts to vectors."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from lattice_embed.catalogue import Role
from lattice_embed.cli.npy_output import check_npy_path, write_npy
from lattice_embed.cli.progress import progress_bar
from lattice_embed.cli.service_options import open_service
from lattice_embed.result import EmbeddingResult, Float32Array
from lattice_embed.service import EmbeddingService
from lattice_inference.cli.text_input import read_texts

__all__ = ["embed_all", "run"]

PREVIEW_ROWS = 20
PREVIEW_NUMBERS = 4
PREVIEW_TEXT = 48


def run(options: argparse.Namespace) -> int:
    """Embed the texts and print, or write, their vectors."""
    output = None if options.output is None else check_npy_path(options.output)
    texts = read_texts(options.texts, options.input)
    with open_service(options) as service:
        result = embed_all(service, texts, Role(options.role), normalize=not options.no_normalize)
    if output is not None:
        write_npy(output, result.vectors)
    if options.json:
        sys.stdout.writelines(_json_object(result))
    elif output is not None:
        print(f"{output}: {len(result)} vectors of {result.dimensions} float32, {_summary(result)}")
    else:
        _print_preview(texts, result)
    return 0


def embed_all(
    service: EmbeddingService, texts: Sequence[str], role: Role, *, normalize: bool = True
) -> EmbeddingResult:
    """Embed any number of texts, at least one, with a progress bar where it helps."""
    results = []
    with progress_bar(len(texts)) as bar:
        for result in service.embed_batches(texts, role=role, normalize=normalize):
            results.append(result)
            bar.update(len(result))
    return EmbeddingResult(
        np.concatenate([result.vectors for result in results]),
        token_counts=np.concatenate([result.token_counts for result in results]),
        truncated=np.concatenate([result.truncated for result in results]),
        fingerprint=lambda: results[0].fingerprint,
        provenance=lambda: results[0].provenance,
        model=results[0].model,
        role=role,
        prompt=results[0].prompt,
    )


def _json_object(result: EmbeddingResult) -> Iterator[str]:
    """Yield the JSON object in pieces: a list of a million numbers is built for one text at a time."""
    origin = {"model": result.model, "dim": result.dimensions, "fingerprint": result.fingerprint or None}
    origin["space"] = None if result.provenance is None else result.provenance.space
    yield json.dumps(origin)[:-1] + ', "embeddings": ['
    for index, vector in enumerate(result):
        entry = {
            "index": index,
            "tokens": _known(int(result.token_counts[index])),
            "truncated": bool(result.truncated[index]),
            "embedding": _shortest_decimals(vector),
        }
        yield (", " if index else "") + json.dumps(entry)
    usage = {"prompt_tokens": result.total_tokens, "total_tokens": result.total_tokens}
    yield f'], "usage": {json.dumps(usage)}}}\n'


def _known(tokens: int) -> int | None:
    """Return a count of tokens, or ``None`` for the -1 of a server that does not say."""
    return tokens if tokens >= 0 else None


def _shortest_decimals(vector: Float32Array) -> list[float]:
    """Return the doubles whose shortest decimals are those of the float32 values: 9 digits to print instead of 17."""
    return [float(str(value)) for value in vector]


def _summary(result: EmbeddingResult) -> str:
    cut = int(result.truncated.sum())
    note = f", {cut} cut at the token limit" if cut else ""
    tokens = "" if result.total_tokens is None else f"{result.total_tokens} tokens"
    return f"{tokens}{note} ({result.model})".strip()


def _print_preview(texts: Sequence[str], result: EmbeddingResult) -> None:
    print(f"{'text':>5}  {'tokens':>6}  {'vector':<{PREVIEW_NUMBERS * 9}}      of")
    for index, (text, vector) in enumerate(islice(zip(texts, result, strict=True), PREVIEW_ROWS)):
        numbers = " ".join(f"{value:8.5f}" for value in vector[:PREVIEW_NUMBERS])
        mark = "+" if result.truncated[index] else " "
        shown = " ".join(text.split())
        shown = shown if len(shown) <= PREVIEW_TEXT else f"{shown[: PREVIEW_TEXT - 3]}..."
        tokens = _known(int(result.token_counts[index]))
        print(f"{index:>5}  {'-' if tokens is None else tokens:>6}{mark} {numbers} ...  {shown}")
    if len(result) > PREVIEW_ROWS:
        print(f"... and {len(result) - PREVIEW_ROWS} more; --json or --output FILE.npy gives all")
    print(f"{len(result)} vectors of {result.dimensions} float32, {_summary(result)}")
