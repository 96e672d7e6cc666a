"""`python -m keyhole.sql.one_query`: one query in a process of its own, for a service that must not run DuckDB itself.

    {"query": "select 1 as one", "proxy": "127.0.0.1:7400", "seconds": 30, "memory": "512MB", "most_rows": 500, ...}
    {"columns": ["one"], "rows": [[1]], "total": 1, "scans": []}

It reads an SqlQuestion from stdin, and writes an SqlFound, or an SqlRefused, to stdout.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

import msgspec

from keyhole.client import Client
from keyhole.client.sql_result import SqlResult, StateScanned
from keyhole.encoding.value_json import to_json
from keyhole.errors import KeyholeError
from keyhole.hints import ready
from keyhole.sql.predicate_words import in_words


@ready
class SqlQuestion(msgspec.Struct, frozen=True):
    """What is asked.

    Attributes:
        proxy: host:port, in plaintext.
        memory: The most that DuckDB may take, as "512MB".
        most_rows: That are given; more are counted.
        most_bytes: The same of the rows as JSON.
    """

    query: str
    proxy: str
    seconds: float
    memory: str
    most_rows: int
    most_bytes: int


class SqlScan(msgspec.Struct, frozen=True):
    """What the servers were asked for of one state, as StateScanned; `epoch` 0: the last one of each key group."""

    state: str
    epoch: int
    columns: tuple[str, ...]
    where: str
    entries: int
    indexes: tuple[str, ...]

    @classmethod
    def of(cls, scan: StateScanned) -> SqlScan:
        """Of what the client tells, with the predicate in words."""
        where = "" if scan.where is None else in_words(scan.where)
        return cls(scan.state, scan.epoch, scan.columns, where, scan.entries, scan.indexes)


class SqlFound(msgspec.Struct, frozen=True):
    """The first rows, with values as docs/values.md has them in JSON; `total`: how many there are."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    total: int
    scans: tuple[SqlScan, ...]


class SqlRefused(msgspec.Struct, frozen=True):
    """The reason and the message of a KeyholeError."""

    reason: str
    message: str


def answer(question: SqlQuestion) -> SqlFound | SqlRefused:
    """Asks the proxy. Blocks, for `seconds` at most."""
    try:
        with Client(question.proxy, timeout=question.seconds) as client:
            return _first(client.sql(question.query, timeout=question.seconds, memory=question.memory), question)
    except KeyholeError as error:
        return SqlRefused(type(error).reason, error.message)


def _first(result: SqlResult, question: SqlQuestion) -> SqlFound:
    rows: list[tuple[Any, ...]] = []
    left = question.most_bytes
    for row in itertools.islice(result, question.most_rows):
        made = tuple(map(to_json, row))
        left -= len(msgspec.json.encode(made))
        if left < 0 and rows:
            break
        rows.append(made)
    return SqlFound(tuple(result.columns), tuple(rows), len(result), tuple(map(SqlScan.of, result.scans)))


if __name__ == "__main__":
    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=SqlQuestion)
    sys.stdout.buffer.write(msgspec.json.encode(answer(asked)))
