"""``lattice chat``: a conversation at the terminal, or with lines of standard input."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

from lattice_inference.cli.chat_commands import HELP, ChatCommands
from lattice_inference.cli.generation_options import (
    add_context,
    add_generation,
    add_loading,
    generate_config,
    load_adapter,
    open_model,
    opened_drafts,
    result_as_json,
    session_config,
)
from lattice_inference.errors import InvalidInputError, LatticeError
from lattice_inference.generate.chat import Chat
from lattice_inference.generate.session import Session

__all__ = ["EXAMPLES", "add_arguments", "run"]

EXAMPLES = f"""\
examples:
  lattice chat --model ./model.gguf
  lattice chat --model ./model.gguf --system "Answer in one sentence." "Why is the sky blue?"
  printf 'My name is Ada.\\nWhat is my name?\\n' | lattice chat --model ./model.gguf --json
  lattice chat --model ./qwen3 --variable enable_thinking=false

With a MESSAGE it is answered and that is all. Without one, every line is a message; an end of input (Ctrl-D) ends the
conversation, and Ctrl-C ends an answer. A line that begins with a slash is a command; a second slash makes it a message.

{HELP}

--json prints one object an answer, {{"text", "token_ids", "finish_reason", ...}}, each on its line, and with --stream one
{{"text", "token_id"}} a token before it.
"""

PROMPT = "> "


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    parser.add_argument("message", nargs="?", metavar="MESSAGE", help="answer this and end")
    add_loading(parser)
    parser.add_argument("--system", metavar="TEXT", help="what the model is told before the conversation")
    parser.add_argument(
        "--variable",
        action="append",
        metavar="NAME=VALUE",
        help="a variable of the chat template; VALUE is JSON or a text",
    )
    parser.add_argument(
        "--special-tokens-in-text",
        action="store_true",
        help="let special tokens that a message spells out become those tokens: such a message can end its turn",
    )
    add_context(parser)
    add_generation(parser)
    parser.add_argument("--stream", action="store_true", help="with --json: one object a token, the answer at last")


def run(options: argparse.Namespace) -> int:
    """Hold the conversation."""
    config, session_settings, variables = generate_config(options), session_config(options), _variables(options)
    with (
        open_model(options) as model,
        opened_drafts(config, options) as config,
        Session(model, config=session_settings, adapter=load_adapter(model, options)) as session,
    ):
        chat = Chat(
            session,
            system=options.system,
            config=config,
            variables=variables,
            special_tokens_in_text=options.special_tokens_in_text,
        )
        if options.message is not None:
            _answer(chat, options.message, options)
            return 0
        talks = sys.stdin.isatty() and not options.json
        commands = ChatCommands(chat)
        if talks:
            print(f"Talking with {options.model}. /help lists the commands, Ctrl-D ends.", file=sys.stderr)
        for line in _lines(talks):
            try:
                message = commands.handle(line)
                if commands.ended:
                    break
                if message is not None:
                    _answer(chat, message, options)
            except LatticeError as error:  # of this message: the conversation goes on
                if not talks:
                    raise
                print(f"lattice: {error}", file=sys.stderr)
    return 0


def _answer(chat: Chat, message: str, options: argparse.Namespace) -> None:
    stream = None
    try:
        stream = chat.stream(message)  # a grammar may take seconds to compile
        for piece in stream:
            if not options.json:
                print(piece.text, end="", flush=True)
            elif options.stream:
                print(json.dumps({"text": piece.text, "token_id": piece.token_id}), flush=True)
    except KeyboardInterrupt:
        if not sys.stdin.isatty():
            raise
        if stream is not None:
            stream.close()
        print(" (interrupted)", file=sys.stderr)
        if stream is None:
            return
    if options.json:
        print(json.dumps(result_as_json(stream.result)), flush=True)
    else:
        print(flush=True)


def _lines(talks: bool) -> Iterator[str]:
    """Yield typed lines, with editing and history, or the lines of standard input."""
    if not talks:
        for raw in sys.stdin.buffer:
            try:
                line = raw.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise InvalidInputError(
                    f"standard input is not UTF-8 (byte 0x{raw[error.start]:02x}): convert it"
                ) from None
            if line.strip():
                yield line
        return
    import contextlib

    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 -- makes input() edit lines and remember them
    while True:
        try:
            line = input(PROMPT)
        except EOFError:
            print()
            return
        if line.strip():
            yield line


def _variables(options: argparse.Namespace) -> dict[str, Any]:
    variables: dict[str, Any] = {}
    for entry in options.variable or ():
        name, equals, value = entry.partition("=")
        if not equals or not name.isidentifier():
            raise InvalidInputError(f"--variable is {entry!r}; expected NAME=VALUE")
        try:
            variables[name] = json.loads(value)
        except ValueError:
            variables[name] = value
        except RecursionError:
            raise InvalidInputError(f"--variable {name}: its value nests too many lists or objects") from None
    return variables
