"""``lattice-embed embed``: texts to vectors."""

from __future__ import annotations

import argparse
import json
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from lattice_embed.catalogue import Role
from lattice_embed.cli.npy_output import check_vector_path, write_npy
from lattice_embed.cli.progress import progress_bar
from lattice_embed.cli.row_output import row_output
from lattice_embed.cli.service_options import open_service
from lattice_embed.cli.table_input import Row, read_rows, table_form
from lattice_embed.errors import InvalidInputError
from lattice_embed.result import EmbeddingResult, Float32Array
from lattice_embed.service import EmbeddingService
from lattice_inference.cli.text_input import read_texts

__all__ = ["embed_all", "run"]

BATCH = 256
"""Rows that are read, embedded and written together."""

PREVIEW_ROWS = 20
PREVIEW_NUMBERS = 4
PREVIEW_TEXT = 48


def run(options: argparse.Namespace) -> int:
    """Embed the texts and print, or write, their vectors."""
    output = None if options.output is None else check_vector_path(options.output)
    writes_rows = output is not None and output.suffix != ".npy"
    rows = EmptyRows(_rows(options, whole=writes_rows), options)
    if output is not None and writes_rows:
        if options.json:
            raise InvalidInputError(f"--json and --output {output} both write the vectors: use one of them")
        with open_service(options) as service:
            _stream(service, rows, output, options)
        rows.tell()
        return 0
    texts = [row.text for row in rows]
    if not texts:
        raise InvalidInputError(f"every row is empty in {options.column!r}: nothing to embed")
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
    rows.tell()
    return 0


class EmptyRows:
    """Yield the rows to embed; count those without a text.

    ``--skip-empty`` leaves these out.
    """

    def __init__(self, rows: Iterable[Row], options: argparse.Namespace) -> None:
        self._rows = rows
        self._skip = options.skip_empty
        self._column = options.column
        self._empty = self._total = 0

    def __iter__(self) -> Iterator[Row]:
        for row in self._rows:
            self._total += 1
            if self._column is not None and row.is_empty:
                self._empty += 1
                if self._skip:
                    continue
            yield row

    def tell(self) -> None:
        """Say on standard error how many rows had no text."""
        if self._empty:
            end = "were left out" if self._skip else "were embedded as empty texts; --skip-empty leaves them out"
            print(
                f"lattice-embed: {self._empty:,} of {self._total:,} rows are empty in {self._column!r} and {end}",
                file=sys.stderr,
            )


def _rows(options: argparse.Namespace, *, whole: bool) -> Iterator[Row]:
    """Return the rows that the options select.

    They are checked as far as possible before any is read.
    """
    form = options.input_format
    source = options.input
    if source is None and options.texts == ["-"] and (form is not None or options.column is not None):
        source = "-"
    elif options.texts and source is not None:
        raise InvalidInputError("texts and --input are both given: use one of them")
    if source is not None and form is None:
        form = table_form(source) or ("jsonl" if source == "-" and options.column is not None else None)
    if form in (None, "lines"):
        if options.column is not None or options.skip_empty:
            option = "--skip-empty" if options.column is None else "--column"
            raise InvalidInputError(
                f"{option} is for rows of a table: --input FILE.jsonl, FILE.csv or FILE.tsv, or --input-format"
            )
        lines = read_texts(options.texts, options.input)
        return (Row(number, {"text": line}, line) for number, line in enumerate(lines, 1))
    if source is None:
        raise InvalidInputError("--input-format is for --input FILE or standard input (-)")
    if options.column is None:
        raise InvalidInputError(
            f"{source} holds rows: name the column of the texts by --column NAME, or --input-format lines for its raw lines"
        )
    return read_rows(source, options.column, form, whole=whole)


def _stream(service: EmbeddingService, rows: Iterable[Row], output: Path, options: argparse.Namespace) -> None:
    """Embed rows and write them as they come, in bounded memory."""
    pending: deque[Row] = deque()

    def texts() -> Iterator[str]:
        for row in rows:
            pending.append(row)
            yield row.text

    vectors = tokens = cut = 0
    last: EmbeddingResult | None = None
    with row_output(output) as write, progress_bar() as bar:
        batches = service.embed_batches(
            texts(), role=Role(options.role), normalize=not options.no_normalize, batch_size=BATCH
        )
        for result in batches:
            write([pending.popleft().fields for _ in range(len(result))], result.vectors)
            bar.update(len(result))
            vectors += len(result)
            tokens += result.total_tokens or 0
            cut += int(result.truncated.sum())
            last = result
        if last is None:
            raise InvalidInputError(f"every row is empty in {options.column!r}: nothing to embed")
    note = f", {cut} cut at the token limit" if cut else ""
    print(f"{output}: {vectors} vectors of {last.dimensions} float32, {tokens} tokens{note} ({last.model})")


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
    """Yield the JSON object in pieces.

    A list of a million numbers is built for one text at a time.
    """
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
    """Return doubles whose shortest decimals are those of the float32 values.

    9 digits to print instead of 17.
    """
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
