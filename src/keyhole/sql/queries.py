"""One SQL query over live states: DuckDB runs it in this process, and reads the states through a client.

    for row in run(client, "select sensor, max from 'temperature-monitor/sensors' where max > 30"):
        print(row)

Reads only: a query can write nothing, open no file and no connection, and see no variable of the program.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import duckdb
import msgspec

from keyhole.client import Client
from keyhole.client.bounds import Duration, seconds_of
from keyhole.client.sql_result import SqlResult, StateScanned
from keyhole.errors import DeadlineExceeded, KeyholeError, MalformedRequest, TooLarge
from keyhole.model.state import StateDescriptor
from keyhole.model.state_path import state_path
from keyhole.sql.state_dataset import StateDataset

# Nothing but what is registered can be read, and nothing of this can be changed by the query.
_LOCKED = (
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET allow_community_extensions = false",
    "SET python_enable_replacements = false",
    "SET temp_directory = ''",
    "SET enable_external_access = false",
    "SET TimeZone = 'UTC'",
)
MOST_MEMORY = "1GB"
_SECONDS = 60.0


def run(
    client: Client,
    query: str,
    *,
    application: str = "",
    timeout: Duration = _SECONDS,
    memory: str = MOST_MEMORY,
) -> SqlResult:
    """Runs one SELECT. Blocks.

    States are named 'APPLICATION/STATE', in quotes. All states of one Spark query are read as of one epoch, the last
    one that they all have. States of several queries are each as of their own.

    Args:
        application: Of states that are named without one.
        timeout: Seconds (or a timedelta) that it may take.
        memory: The most that DuckDB may take, as "1GB".

    Raises:
        MalformedRequest: It is no SELECT, or DuckDB refuses it; the message says why.
        UnknownApplication, UnknownState: It names a state that there is not.
        EpochGone: It has taken longer than the states' `keep_epochs` are.
        DeadlineExceeded: It has taken longer than `timeout`.
        TooLarge: It needs more memory than it may take.
        KeyholeError: As Client.scan_all.
    """
    seconds = seconds_of("timeout", timeout)
    scans: list[StateScanned] = []
    connection = duckdb.connect(":memory:", config={"memory_limit": memory, "threads": "2"})
    try:
        statement = _select(connection, query)
        for name, dataset in _datasets(client, connection, query, application, scans, seconds).items():
            connection.register(name, dataset)
        for setting in _LOCKED:
            connection.execute(setting)
        connection.execute("SET lock_configuration = true")
        return _ran(connection, statement, scans, seconds)
    finally:
        connection.close()


def _select(connection: duckdb.DuckDBPyConnection, query: str) -> str:
    try:
        statements = connection.extract_statements(query)
    except duckdb.Error as error:
        raise MalformedRequest(f"DuckDB refuses the query: {error}") from None
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise MalformedRequest("a query over states is one SELECT: it can change nothing, and there is no other")
    return query


def _datasets(
    client: Client,
    connection: duckdb.DuckDBPyConnection,
    query: str,
    application: str,
    scans: list[StateScanned],
    seconds: float,
) -> dict[str, StateDataset]:
    """By the name that the query has for each."""
    names = _tables(connection, query)
    named = {name: name if "/" in name else f"{application}/{name}" for name in names if "/" in name or application}
    described = {name: client.describe_state(*state_path(path)) for name, path in named.items()}
    epochs = _epochs(client, described.values())
    return {
        name: StateDataset(client, of, epochs.get((of.application, of.query), 0), scans, seconds)
        for name, of in described.items()
    }


def _tables(connection: duckdb.DuckDBPyConnection, query: str) -> list[str]:
    """The names of all tables that the query reads, but for those that it makes itself (WITH).

    As DuckDB's parser has them: get_table_names wants to know their columns, too.
    """
    ((serialized,),) = connection.execute("SELECT json_serialize_sql($1)", [query]).fetchall()
    tree = msgspec.json.decode(serialized)
    if tree.get("error"):
        raise MalformedRequest(f"DuckDB refuses the query: {tree.get('error_message')}")
    found: set[str] = set()
    made: set[str] = set()

    def walk(node: object) -> None:
        if isinstance(node, dict):
            if node.get("type") == "BASE_TABLE" and not node.get("schema_name"):
                found.add(node["table_name"])
            for entry in (node.get("cte_map") or {}).get("map", ()):
                made.add(entry["key"])
            for inner in node.values():
                walk(inner)
        elif isinstance(node, list):
            for inner in node:
                walk(inner)

    walk(tree)
    return sorted(found - made)


def _epochs(client: Client, described: Iterable[StateDescriptor]) -> dict[tuple[str, str], int]:
    """As of which the states of each Spark query are read."""
    states: dict[tuple[str, str], list[StateDescriptor]] = {}
    for of in described:
        if not of.updates_topic_id:  # else each key group has epochs of its own
            states.setdefault((of.application, of.query), []).append(of)
    return {
        query: client.snapshot(*(f"{of.application}/{of.state}" for of in group)).epoch
        for query, group in states.items()
    }


def _ran(connection: duckdb.DuckDBPyConnection, query: str, scans: list[StateScanned], seconds: float) -> SqlResult:
    late = threading.Event()

    def interrupt() -> None:
        late.set()
        connection.interrupt()

    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    timer.start()
    try:
        plan = "\n".join(str(row[1]) for row in connection.execute(f"EXPLAIN {query}").fetchall())
        scans.clear()  # planning asks, too
        table = connection.sql(query).to_arrow_table()
    except duckdb.Error as error:
        raise _told(error, seconds, late=late.is_set()) from error
    finally:
        timer.cancel()
    return SqlResult(table, scans, plan)


def _told(error: duckdb.Error, seconds: float, *, late: bool) -> KeyholeError:
    cause = error.__cause__
    if isinstance(cause, KeyholeError):
        return cause
    if late or isinstance(error, duckdb.InterruptException):
        return DeadlineExceeded(f"the query has taken longer than {seconds:g} s; give it more time, or ask for less")
    if isinstance(error, duckdb.OutOfMemoryException):
        return TooLarge(f"the query needs more memory than it may take: {error}")
    return MalformedRequest(f"DuckDB refuses the query: {error}")
