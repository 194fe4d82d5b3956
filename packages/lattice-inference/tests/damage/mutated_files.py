"""Files with damage in them, drawn from a seed: for the tests of every reader of stores, caches, journals and prefixes."""

from __future__ import annotations

import copy
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["mutate_database", "mutate_file", "mutated_bytes", "mutated_json"]

NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)

JSON_VALUES: tuple[Callable[[], Any], ...] = (
    lambda: None,
    lambda: True,
    lambda: -1,
    lambda: 0,
    lambda: 2**31,
    lambda: 2**63,
    lambda: 10**400,
    lambda: 1.5,
    lambda: float("nan"),
    lambda: float("inf"),
    lambda: "",
    lambda: "x" * 5_000,
    lambda: "a\0b",
    lambda: "\ud800",
    lambda: "é" * 64,
    lambda: "../../x",
    list,
    dict,
    lambda: [[]],
    lambda: [1, "2", None],
)

SQL_VALUES = (
    "NULL",
    "-1",
    "0",
    "9223372036854775807",
    "-9223372036854775808",
    "4611686018427387905",
    "1.5",
    "9e999",
    "''",
    "'text'",
    "'pending'",
    f"'{'x' * 5_000}'",
    "CAST(x'610062' AS TEXT)",
    "CAST(x'ff61' AS TEXT)",
    "CAST(x'eda080' AS TEXT)",
    "x''",
    "x'00'",
    "x'0000c07f0000c07f0000c07f0000c07f'",
    "zeroblob(5000)",
    "'{}'",
    "'[1'",
)


def mutated_bytes(data: bytes, draw: random.Random) -> bytes:
    """Return ``data`` with one to three pieces of damage."""
    content = bytearray(data)
    for _ in range(draw.randint(1, 3)):
        place = draw.randrange(len(content) + 1)
        length = min(draw.choice((1, 1, 2, 4, 8, 40, 700)), len(content) - place)
        kind = draw.randrange(8)
        if kind == 0 and place < len(content):
            content[place] ^= 1 << draw.randrange(8)
        elif kind == 1:
            content[place : place + length] = draw.randbytes(length)
        elif kind == 2:
            content[place:place] = draw.randbytes(length)
        elif kind == 3:
            del content[place : place + length]
        elif kind == 4:
            del content[place:]
        elif kind == 5:
            content[place : place + length] = bytes(length)
        elif kind == 6:
            start = draw.randrange(len(content) + 1)
            content[place : place + length] = content[start : start + length]
        else:
            size = draw.choice((1, 2, 4, 8))
            place -= place % size if draw.random() < 0.7 else 0
            number = draw.choice(NUMBERS) % 256**size
            content[place : place + size] = number.to_bytes(size, draw.choice(("little", "big")))
    return bytes(content)


def mutate_file(path: Path, draw: random.Random) -> None:
    """Damage a file where it lies, near its beginning more often than elsewhere."""
    data = path.read_bytes()
    if draw.random() < 0.4:
        path.write_bytes(mutated_bytes(data[:200], draw) + data[200:])
    else:
        path.write_bytes(mutated_bytes(data, draw))


def mutated_json(value: Any, draw: random.Random) -> Any:
    """Return a copy of what JSON holds with one value replaced, removed or added, or nested beyond what is read."""
    places: list[tuple[Any, Any]] = []
    root = [copy.deepcopy(value)]

    def walk(holder: Any, name: Any) -> None:
        places.append((holder, name))
        inside = holder[name]
        if isinstance(inside, dict):
            for key in list(inside):
                walk(inside, key)
        elif isinstance(inside, list):
            for index in range(len(inside)):
                walk(inside, index)

    walk(root, 0)
    holder, name = draw.choice(places)
    kind = draw.randrange(12)
    if kind == 0 and isinstance(holder, dict):
        del holder[name]
    elif kind == 1 and isinstance(holder[name], dict):
        holder[name]["more"] = draw.choice(JSON_VALUES)()
    elif kind == 2 and isinstance(holder[name], list) and holder[name]:
        holder[name].append(copy.deepcopy(draw.choice(holder[name])))
    else:
        holder[name] = draw.choice(JSON_VALUES)()
    return root[0]


def mutate_database(path: Path, draw: random.Random) -> str:
    """Put values of other kinds into a row of an SQLite file, past every constraint; return the statement."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA writable_schema = ON")
        definitions = connection.execute("SELECT rowid, sql FROM sqlite_master WHERE type = 'table'").fetchall()
        connection.execute("UPDATE sqlite_master SET sql = replace(sql, 'NOT NULL', '') WHERE type = 'table'")
        connection.execute("PRAGMA writable_schema = RESET")
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        table = draw.choice(tables)
        information = connection.execute(f"PRAGMA table_info({table})").fetchall()
        columns = [row[1] for row in information]
        key = "id" if table == "documents" else "rowid"
        if any(str(sql).startswith(f"CREATE TABLE {table} ") and "WITHOUT ROWID" in str(sql) for _, sql in definitions):
            key = next(row[1] for row in information if row[5])
        rows = [row for (row,) in connection.execute(f"SELECT {key} FROM {table}")] or [0]
        value = draw.choice(SQL_VALUES)
        statement = f"UPDATE {table} SET {draw.choice(columns)} = {value} WHERE {key} = ?"
        if draw.random() < 0.05:
            statement = f"DELETE FROM {table} WHERE {key} = ?"
        try:
            connection.execute(statement, (draw.choice(rows),))
        except sqlite3.Error:  # a key that is there already, or text where only a number can be
            statement = "nothing"
        connection.execute("PRAGMA writable_schema = ON")
        for row, sql in definitions:
            connection.execute("UPDATE sqlite_master SET sql = ? WHERE rowid = ?", (sql, row))
        return statement
    finally:
        connection.close()
