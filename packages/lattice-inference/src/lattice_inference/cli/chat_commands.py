"""The commands inside a conversation: lines that begin with a slash."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

from lattice_inference.checkpoint.atomic_file import atomic_file
from lattice_inference.checkpoint.json_file import load_json
from lattice_inference.errors import InvalidInputError
from lattice_inference.generate.chat import Chat
from lattice_inference.generate.config import GenerateConfig
from lattice_inference.tokenizer.chat_template import checked_messages

__all__ = ["HELP", "ChatCommands"]

HELP = """\
/help                show the commands
/reset               forget the conversation, keep the system message
/system [TEXT]       set the system message (without TEXT: none) and forget the conversation
/undo                forget the last question and its answer
/retry               ask the last question again
/history             show the conversation
/set NAME VALUE      change how to generate: temperature, top_k, top_p, min_p, seed, max_new_tokens, ...
/stats               tell how many tokens the conversation has and what it keeps in memory
/save FILE           write the conversation as JSON
/load FILE           go on with a conversation that was saved
/exit, /quit         end"""


class ChatCommands:
    """Carries out the commands of one conversation; what they tell goes to standard error.

    Attributes:
        ended: whether the conversation is to end.
    """

    def __init__(self, chat: Chat) -> None:
        self.ended: bool = False
        self._chat = chat
        self._commands: dict[str, Callable[[str], str | None]] = {
            "help": lambda _: self._tell(HELP),
            "reset": lambda _: chat.reset(),
            "system": self._system,
            "undo": lambda _: self._undo() and None,
            "retry": lambda _: self._undo(),
            "history": lambda _: self._history(),
            "set": self._set,
            "stats": lambda _: self._stats(),
            "save": self._save,
            "load": self._load,
            "exit": lambda _: self._end(),
            "quit": lambda _: self._end(),
        }

    def handle(self, line: str) -> str | None:
        """Carry out a command; return the message that is to be answered, if there is one.

        Raises:
            InvalidInputError: there is no such command, or it cannot be carried out.
        """
        if not line.startswith("/"):
            return line
        if line.startswith("//"):
            return line[1:]
        name, _, rest = line[1:].partition(" ")
        command = self._commands.get(name)
        if command is None:
            raise InvalidInputError(f"there is no command /{name}; /help lists them")
        return command(rest.strip())

    def _tell(self, text: str) -> None:
        print(text, file=sys.stderr)

    def _end(self) -> None:
        self.ended = True

    def _system(self, text: str) -> None:
        self._chat.system = text or None
        self._chat.reset()

    def _undo(self) -> str:
        messages = self._chat.messages
        last = max((index for index, message in enumerate(messages) if message["role"] == "user"), default=None)
        if last is None:
            raise InvalidInputError("there is no question yet")
        question = messages[last]["content"]
        del messages[last:]
        return str(question)

    def _history(self) -> None:
        for message in self._chat.messages:
            content = message.get("content")
            self._tell(f"{message['role']}: {'' if content is None else content}")

    def _set(self, text: str) -> None:
        name, _, value = text.partition(" ")
        names = [field.name for field in fields(GenerateConfig)]
        if name not in names:
            raise InvalidInputError(f"there is nothing called {name!r} to set; there are {', '.join(names)}")
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            parsed = value
        self._chat.config = replace(self._chat.config or GenerateConfig(), **{name: parsed})

    def _stats(self) -> None:
        session = self._chat.session
        used = len(session.token_ids)
        self._tell(f"{used:,} of {session.max_tokens:,} tokens; keys and values: {session.cache_bytes / 2**20:.1f} MiB")

    def _save(self, name: str) -> None:
        path = self._path(name)
        content = json.dumps({"messages": self._chat.messages}, ensure_ascii=False, indent=1)
        try:
            with atomic_file(path, mode=0o600) as file:  # conversations are private
                file.write(content.encode("utf-8", "surrogatepass"))
        except OSError as error:
            raise InvalidInputError(f"the conversation cannot be written: {error}") from error

    def _load(self, name: str) -> None:
        path = self._path(name)
        try:
            content = load_json(path, error=InvalidInputError)
        except OSError as error:
            raise InvalidInputError(f"the conversation cannot be read: {error}") from error
        messages = content.get("messages") if isinstance(content, dict) else content
        self._chat.messages = checked_messages(messages)  # type: ignore[arg-type]  # that is what it checks

    def _path(self, name: str) -> Path:
        if not name:
            raise InvalidInputError("the command needs a file's name")
        return Path(os.path.expanduser(name))
