"""One query in a process of its own, for a service that must not run DuckDB itself: `main`.

    {"query": "select 1 as one", "proxy": "127.0.0.1:7400", "seconds": 30, "memory": "256MB", "most_rows": 500, ...}
    found
    {"columns": ["one"], "rows": [[1]], "total": 1, "scans": [], "seconds": 0.01}

It reads an SqlQuestion from stdin. To stdout it writes `found` and an SqlFound, or `refused` and an SqlRefused, each on
a line; neither is much longer than the question allows.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import msgspec

from keyhole.client import Client
from keyhole.client.sql_result import SqlResult, StateScanned
from keyhole.errors import InternalError, KeyholeError, TooLarge
from keyhole.hints import ready
from keyhole.sql.predicate_words import in_words
from keyhole.sql.result_json import result_json

_CELL_BYTES = 10_000
_NAME_CHARACTERS, _MOST_COLUMNS = 200, 1_000
_MESSAGE_CHARACTERS = 2_000


@ready
class SqlQuestion(msgspec.Struct, frozen=True):
    """What is asked.

    Attributes:
        proxy: host:port, in plaintext.
        memory: The most that DuckDB may take, and the rows of its result, as "256MB".
        most_rows: That are given; more are counted.
        most_bytes: The same of the rows as JSON.
        data_bytes: The most that the process may allocate.
    """

    query: str
    proxy: str
    seconds: float
    memory: str
    most_rows: int
    most_bytes: int
    data_bytes: int


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
    """The first rows, with values as docs/values.md has them in JSON. A long one is a text, cut.

    Attributes:
        total: How many rows there are.
        seconds: How long the query took.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    total: int
    scans: tuple[SqlScan, ...]
    seconds: float


class SqlRefused(msgspec.Struct, frozen=True):
    """The reason and the message of a KeyholeError."""

    reason: str
    message: str


def answer(question: SqlQuestion) -> SqlFound | SqlRefused:
    """Asks the proxy. Blocks, for `seconds` at most."""
    began = time.monotonic()
    try:
        with Client(question.proxy, timeout=question.seconds) as client:
            result = client.sql(question.query, timeout=question.seconds, memory=question.memory)
        return _first(result, question, time.monotonic() - began)
    except KeyholeError as error:
        return SqlRefused(type(error).reason, _cut(error.message, _MESSAGE_CHARACTERS))
    except MemoryError:
        return SqlRefused(TooLarge.reason, f"the query took more than {question.data_bytes:,} bytes: ask for less")


def _first(result: SqlResult, question: SqlQuestion, seconds: float) -> SqlFound:
    if len(result.columns) > _MOST_COLUMNS:
        raise TooLarge(f"the result has {len(result.columns):,} columns, and {_MOST_COLUMNS:,} can be shown")
    rows: list[tuple[Any, ...]] = []
    left = question.most_bytes
    # Of these alone Python's values are made.
    for row in SqlResult(result.table.slice(0, question.most_rows), (), ""):
        made = tuple(map(_cell, row))
        left -= len(msgspec.json.encode(made))
        if left < 0 and rows:
            break
        rows.append(made)
    columns = tuple(_cut(name, _NAME_CHARACTERS) for name in result.columns)
    scans = tuple(map(SqlScan.of, result.scans))
    return SqlFound(columns, tuple(rows), len(result), scans, seconds)


def _cell(value: Any) -> Any:
    made = result_json(value)
    if isinstance(made, str):
        return _cut(made, _CELL_BYTES)
    encoded = msgspec.json.encode(made)
    return made if len(encoded) <= _CELL_BYTES else _cut(encoded.decode(), _CELL_BYTES)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]} … ({len(text):,} characters)"


class _WithoutPandas(MetaPathFinder):
    """pyarrow loads pandas, where it is installed, for its first value: a third of the processor time of a process
    that uses nothing of it. None in `sys.modules` keeps it out, too, but DuckDB looks there, and takes it for pandas.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        """None: it is looked for as ever."""
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is not used here", name=fullname)
        return None


def main() -> None:
    """Answers the question of stdin."""
    sys.meta_path.insert(0, _WithoutPandas())
    # What a library prints must not come before the answer.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=SqlQuestion)
    resource.setrlimit(resource.RLIMIT_DATA, (question.data_bytes, question.data_bytes))
    outcome: SqlFound | SqlRefused
    try:
        outcome = answer(question)
    except Exception as error:  # noqa: BLE001 - the top of a process: who waits for it must hear of it
        outcome = SqlRefused(InternalError.reason, f"the query failed unexpectedly ({type(error).__name__})")
    kind = b"found" if isinstance(outcome, SqlFound) else b"refused"
    with answers:
        answers.write(kind + b"\n" + msgspec.json.encode(outcome))
