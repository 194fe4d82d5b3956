"""What may be written after ``lattice-embed store``."""

from __future__ import annotations

import argparse
from collections.abc import Callable

__all__ = ["EXAMPLES", "add_store_actions", "add_truncate"]

EXAMPLES = """\
examples:
  lattice-embed store import corpus.db --input corpus.txt
  lattice-embed store import corpus.db --input more.jsonl --model all-minilm-l6-v2
  lattice-embed store info corpus.db --verify
  lattice-embed store query corpus.db --top 5 "how do I reset my password?"

A store is an SQLite file for a name in .db, .sqlite or .sqlite3, else a folder of NumPy files. It holds documents and their
vectors, all of one model; `lattice-embed backfill` moves it to another.
"""


def add_truncate(command: argparse.ArgumentParser) -> None:
    """Add the option that says what happens to long texts."""
    command.add_argument(
        "--truncate",
        choices=("right", "error"),
        default="right",
        help="what happens to a text over the model's token limit: cut its end, or fail (default: right)",
    )


def add_store_actions(
    command: argparse.ArgumentParser,
    add_model: Callable[[argparse.ArgumentParser], None],
    add_output_dim: Callable[[argparse.ArgumentParser], None],
    add_json: Callable[[argparse.ArgumentParser], None],
) -> None:
    """Add the actions, each with the options that count for it.

    Args:
        command: the parser of ``store``.
        add_model: adds the options of a model that runs in this process.
        add_output_dim: adds the option that decides how long vectors are.
        add_json: adds ``--json``.
    """
    actions = command.add_subparsers(title="actions", metavar="ACTION", required=True, dest="action")

    def add_action(name: str, summary: str, description: str) -> argparse.ArgumentParser:
        action = actions.add_parser(name, help=summary, description=description)
        action.add_argument("store", metavar="STORE", help="a file in .db, .sqlite or .sqlite3, else a folder")
        return action

    fill = add_action(
        "import",
        "add texts to a store, which is made if need be",
        "Store the lines of a text file, the id being the line's number, or the objects {id, text} of a .jsonl file; what "
        "has the same id is replaced. A new store holds texts only, for a backfill to embed, unless --model says what "
        "embeds them. A store with vectors embeds what is added with its own model.",
    )
    fill.add_argument("--input", required=True, metavar="FILE", help="a UTF-8 text file, a .jsonl file, or - for lines")
    add_model(fill)
    add_truncate(fill)
    add_output_dim(fill)
    add_json(fill)
    info = add_action("info", "say what a store holds", "Say what a store holds.")
    info.add_argument("--verify", action="store_true", help="read everything and compare it with its digests")
    add_json(info)
    query = add_action(
        "query",
        "find the documents nearest to a text",
        "Find the documents nearest to a text, with the store's own model: score, id, and the text of the best chunk.",
    )
    query.add_argument("text", metavar="TEXT", help="what to look for")
    query.add_argument("--top", type=int, default=10, metavar="K", help="how many (default: 10)")
    add_model(query)
    add_truncate(query)
    add_json(query)
