"""The options of a command that serves over HTTP, and what it does with its application."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from lattice_inference.checkpoint.model_file import read_model_file
from lattice_inference.errors import InvalidInputError, LatticeError

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from lattice_inference.serve import ServeConfig

__all__ = ["add_server_options", "serve_app"]

MOST_KEY_BYTES = 2**20

_LIMITS = (
    ("max_requests", int, "most requests at once, waiting ones too (256)"),
    ("max_connections", int, "most connections at once (1000)"),
    ("max_inputs", int, "most texts of a request (2048)"),
    ("max_body_bytes", int, "longest body of a request (8388608)"),
    ("header_seconds", float, "longest time of a request's headers (10)"),
    ("body_seconds", float, "longest time of a request's body (30)"),
    ("first_token_seconds", float, "longest time to the first token (120)"),
    ("request_seconds", float, "longest time of an answer (600)"),
    ("drain_seconds", float, "how long requests go on after SIGTERM (30)"),
)


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Say what all servers take."""
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8080, metavar="N", help="0 takes a free one (default: 8080)")
    parser.add_argument(
        "--api-key-file",
        metavar="FILE",
        help="take requests with one of these keys only, one a line, # for comments; LATTICE_API_KEYS holds more",
    )
    parser.add_argument("--lenient", action="store_true", help="ignore fields of requests that are not known")
    for name, kind, what in _LIMITS:
        mark = "N" if kind is int else "F"
        parser.add_argument("--" + name.replace("_", "-"), type=kind, metavar=mark, help=what)
    parser.add_argument("--check", action="store_true", help="load everything, print what would be served, and end")


def serve_app(
    options: argparse.Namespace,
    program: str,
    make: Callable[[ServeConfig, contextlib.ExitStack], Starlette],
) -> int:
    """Listen, load, and serve until a signal; return the exit status.

    Args:
        options: the parsed ones of :func:`add_server_options`.
        program: the name for messages.
        make: loads the models and returns the application; the stack closes them.

    Raises:
        LatticeError: the extra ``[serve]`` is missing, the address cannot be used, or a model cannot be loaded.
    """
    from lattice_inference import serve  # says which extra is missing before anything is loaded

    del serve
    config = _config(options)
    with contextlib.ExitStack() as stack:
        from lattice_inference.serve.server import listen, run_server

        listener = stack.enter_context(listen(options.host, options.port, has_keys=bool(config.api_keys)))
        app = make(config, stack)
        served = [entry["id"] for entry in app.state.lattice.served.listing()]
        host = f"[{options.host}]" if ":" in options.host else options.host
        address = f"http://{host}:{listener.getsockname()[1]}/v1"
        if options.check:
            print(json.dumps({"url": address, "models": served}))
            return 0
        _log_to_standard_error()
        print(f"{program}: serving {', '.join(served)} at {address}", file=sys.stderr, flush=True)
        run_server(app, listener)
    return 0


def _config(options: argparse.Namespace) -> ServeConfig:
    from lattice_inference.serve import ServeConfig

    given = {name: getattr(options, name) for name, _, _ in _LIMITS if getattr(options, name) is not None}
    keys = [key.strip() for key in os.environ.get("LATTICE_API_KEYS", "").split(",") if key.strip()]
    if options.api_key_file is not None:
        content = read_model_file(Path(options.api_key_file), max_bytes=MOST_KEY_BYTES, error=LatticeError)
        lines = [line.strip() for line in content.decode("utf-8-sig", "replace").splitlines()]
        lines = [line for line in lines if line and not line.startswith("#")]
        if not lines:
            raise InvalidInputError(f"{options.api_key_file} holds no key")
        keys += lines
    return ServeConfig(api_keys=keys, lenient=options.lenient, **given)


def _log_to_standard_error() -> None:
    import logging

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    for name, level in (("lattice_inference.serve", logging.INFO), ("uvicorn.error", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.setLevel(level)
        logger.addHandler(handler)
        logger.propagate = False
