"""What may be written after ``lattice-embed backfill``."""

from __future__ import annotations

import argparse

from lattice_inference.cli.options import thread_count

__all__ = ["ACTIONS", "EXAMPLES", "add_backfill_options"]

ACTIONS = {
    "run": "plan the migration if there is none, and embed until all is done (the default)",
    "status": "say how far it is; opens neither stores nor models",
    "pause": "stop a running backfill, in whatever process, after its present batch",
    "resume": "let a paused or failed migration go on, and run it",
    "cancel": "give up before completion: the old store goes on alone",
    "rollback": "go back to the old store after completion, within the rollback window",
    "close-window": "give up the way back: writes go to the new store only",
}

EXAMPLES = """\
examples:
  lattice-embed store import corpus.db --input corpus.txt
  lattice-embed backfill --from-store corpus.db --model all-minilm-l6-v2 --dry-run
  lattice-embed backfill --from-store corpus.db --model all-minilm-l6-v2 --to-store new.db
  lattice-embed backfill status --to-store new.db
  lattice-embed store query new.db "how do I reset my password?"
  lattice-transport drift old.npy new.npy --json > drift.json
  lattice-embed backfill --if-drift drift.json --from-store corpus.db --model all-minilm-l6-v2
  lattice-embed backfill pause --to-store new.db --reason "the machine is needed"
  lattice-embed backfill resume --to-store new.db
  lattice-embed backfill --from-store old.db --model ./my-model --long chunk --chunk-tokens 200 --chunk-overlap 20

actions:
{actions}

The old store keeps its vectors, and the new ones go into a second store. The state is in a file, the journal, beside
the new store. After a kill, a crash or Ctrl-C, run the same command again: it goes on where it was, and embeds nothing twice
that was stored. Several processes may run at once. An application that reads and writes meanwhile does so through
lattice_embed.migration.BackfillCoordinator, which sends each query and write where it belongs.

--json prints one object: state, phase, queries (source or target), processed, total, skipped, pending, throughput,
eta_seconds, ... and the paths of both stores and the journal.
"""


def add_backfill_options(command: argparse.ArgumentParser) -> None:
    """Add the options that only this command has."""
    command.add_argument(
        "action", nargs="?", choices=tuple(ACTIONS), default="run", metavar="ACTION", help="see below (default: run)"
    )
    places = command.add_argument_group("stores")
    places.add_argument("--from-store", metavar="STORE", help="the store to embed again, or of texts to embed at all")
    places.add_argument(
        "--to-store",
        metavar="STORE",
        help="the new store: an SQLite file for a name in .db, .sqlite or .sqlite3, else a folder of NumPy files "
        "(default: the old one's name with the model's before the suffix)",
    )
    places.add_argument(
        "--journal", metavar="FILE", help="the migration's state (default: the new store's name and .migration)"
    )
    work = command.add_argument_group("a new migration")
    work.add_argument(
        "--long",
        choices=("truncate", "skip", "chunk"),
        help="what happens to a document longer than the model: cut its end, leave it out with a reason, or cut it into "
        "overlapping chunks with a vector each, found by the best (default: truncate)",
    )
    work.add_argument(
        "--chunk-tokens", type=int, metavar="N", help="with --long chunk: most tokens of a chunk (default: the model's)"
    )
    work.add_argument("--chunk-overlap", type=int, metavar="N", help="with --long chunk: tokens shared (default: 32)")
    work.add_argument("--batch-size", type=int, metavar="N", help="documents a transaction (default: 100)")
    work.add_argument("--concurrent", type=thread_count, metavar="N", help="batches at once, 1 to 256 (default: 1)")
    work.add_argument(
        "--rollback-window",
        type=float,
        metavar="SECONDS",
        help="how long after completion writes still go to both stores and rollback is possible (default: a day)",
    )
    work.add_argument(
        "--if-drift",
        metavar="REPORT",
        help="begin or go on only if the verdict of this report is reindex: the JSON of 'lattice-transport drift --json'",
    )
    work.add_argument("--dry-run", action="store_true", help="say what would be done and how long, and write nothing")
    command.add_argument("--reason", metavar="TEXT", help="with pause: why, for the status")
    command.add_argument("--skipped", action="store_true", help="list the skipped documents too, and why")
