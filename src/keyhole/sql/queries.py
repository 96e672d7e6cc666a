"""One SQL query over states: DuckDB runs it in this process, and reads live states through a client.

    for row in run(client, "select sensor, max from 'temperature-monitor/sensors' where max > 30"):
        print(row)

Reads only: a query can write nothing, open no file and no connection, and see no variable of the program.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Mapping

import duckdb
import msgspec
import pyarrow as pa

from keyhole.client import Client
from keyhole.client.bounds import Duration, seconds_of
from keyhole.client.sql_result import SqlResult
from keyhole.errors import InvalidConfiguration, KeyholeError, MalformedRequest, TooLarge
from keyhole.model.given import check_name
from keyhole.sql.entry_dataset import EntryDataset, QueriedStates, QueryReading
from keyhole.sql.live_states import LiveStates

# Nothing but what is registered can be read, and nothing of this can be changed by the query.
_LOCKED = (
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET allow_community_extensions = false",
    "SET python_enable_replacements = false",
    "SET temp_directory = ''",
    "SET enable_external_access = false",
    # Of a query of two seconds and more, on stdout: in a shell of Python's, and where Python was begun by `-c`.
    "SET enable_progress_bar = false",
    "SET TimeZone = 'UTC'",
)
MOST_MEMORY = "1GB"
_SIZE = re.compile(r"\s*[1-9][0-9]*(\.[0-9]+)?\s*([KMGT]i?)?B\s*", re.IGNORECASE)
SECONDS = 60.0
_ROWS = 10_000
_AGAIN_SECONDS = 0.1
# What DuckDB says of a state's name without its quotes: it takes one for a division, or for a schema and a table.
_UNQUOTED = re.compile(r'syntax error at or near "[/-]"|Table with name ')


def run(
    client: Client,
    query: str,
    *,
    application: str = "",
    timeout: Duration = SECONDS,
    memory: str = MOST_MEMORY,
    explain: bool = False,
) -> SqlResult:
    """Runs one SELECT. Blocks.

    States are named 'APPLICATION/STATE', in quotes. All states of one Spark query are read as of one epoch, the last
    one that they all have. States of several queries are each as of their own.

    Args:
        application: Of states that are named without one.
        timeout: Seconds (or a timedelta) that it may take.
        memory: The most that DuckDB may take, and the most that the rows of the result may take, as "1GB".
        explain: The result has DuckDB's plan.

    Raises:
        MalformedRequest: It is no SELECT, or DuckDB refuses it; the message says why.
        InvalidConfiguration: `memory` is no size.
        UnknownApplication, UnknownState: It names a state that there is not.
        EpochGone: It has taken longer than the states' `keep_epochs` are.
        DeadlineExceeded: It has taken longer than `timeout`.
        TooLarge: It needs more memory than it may take.
        KeyholeError: As Client.scan_all.
    """
    return run_over(LiveStates(client), query, application=application, timeout=timeout, memory=memory, explain=explain)


def run_over(
    states: QueriedStates,
    query: str,
    *,
    application: str = "",
    timeout: Duration = SECONDS,
    memory: str = MOST_MEMORY,
    explain: bool = False,
) -> SqlResult:
    """The same, of states wherever they are. Raises as `run`, and as the states do."""
    seconds = seconds_of("timeout", timeout)
    if seconds <= 0:
        raise MalformedRequest(f"timeout is {timeout}; a query takes some time: give it a number of seconds above 0")
    check_name("application", application)
    if not isinstance(memory, str) or _SIZE.fullmatch(memory) is None:
        raise InvalidConfiguration(f'memory is {memory!r}; write a size as "500MB" or "2GB"')
    _check_text(query)
    reading = QueryReading(seconds)
    try:
        with contextlib.closing(_connected(memory)) as connection:
            _check_select(connection, query)
            for name, dataset in _datasets(states, connection, query, application, reading).items():
                connection.register(name, dataset)
            for setting in _LOCKED:
                connection.execute(setting)
            connection.execute("SET lock_configuration = true")
            return _ran(connection, query, reading, explain=explain)
    except duckdb.OutOfMemoryException as error:  # before the query begins
        raise _too_large(error) from error


def _check_text(query: str) -> None:
    if not isinstance(query, str):
        raise MalformedRequest(f"the query is a {type(query).__name__}; give it as a str")
    try:
        query.encode()
    except UnicodeError:
        raise MalformedRequest("the query is no text: it has a half of a character") from None


def _connected(memory: str) -> duckdb.DuckDBPyConnection:
    try:
        return duckdb.connect(":memory:", config={"memory_limit": memory, "threads": "2"})
    except duckdb.OutOfMemoryException:
        raise
    except duckdb.Error as error:
        raise InvalidConfiguration(f"DuckDB does not take memory={memory!r}: {error}") from error


def _check_select(connection: duckdb.DuckDBPyConnection, query: str) -> None:
    try:
        statements = connection.extract_statements(query)
    except duckdb.Error as error:
        raise _refused(error) from None
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise MalformedRequest("a query over states is one SELECT: it can change nothing, and there is no other")


def _datasets(
    states: QueriedStates,
    connection: duckdb.DuckDBPyConnection,
    query: str,
    application: str,
    reading: QueryReading,
) -> Mapping[str, EntryDataset]:
    """By the name that the query has for each."""
    names = _tables(connection, query)
    # Without an application, and with one that has no such state, a name is DuckDB's own, or nobody's.
    there = set(states.names(application)) if application else set()
    named = {name: name if "/" in name else f"{application}/{name}" for name in names if "/" in name or name in there}
    alike = {name.casefold(): name for name in named}
    if twice := [name for name in named if alike[name.casefold()] != name]:
        raise MalformedRequest(
            f"the query names {twice[0]} and {alike[twice[0].casefold()]}, which are one name to DuckDB: ask for them "
            "in two queries"
        )
    return states.datasets(named, reading)


def _tables(connection: duckdb.DuckDBPyConnection, query: str) -> list[str]:
    """The names of all tables that the query reads, but for those that it makes itself (WITH).

    As DuckDB's parser has them: get_table_names wants to know their columns, too.
    """
    ((serialized,),) = connection.execute("SELECT json_serialize_sql($1)", [query]).fetchall()
    tree = msgspec.json.decode(serialized)
    if tree.get("error"):
        raise _refused(tree.get("error_message"))
    found: set[str] = set()

    def walk(node: object, made: frozenset[str]) -> None:
        if isinstance(node, dict):
            is_table = node.get("type") == "BASE_TABLE" and not node.get("schema_name")
            if is_table and node["table_name"].casefold() not in made:
                found.add(node["table_name"])
            # What a query makes itself is known in it, and in what it makes after it.
            tables = node.get("cte_map")
            for entry in tables.get("map", ()) if isinstance(tables, dict) else ():
                walk(entry["value"], made)
                made |= {entry["key"].casefold()}
            for name, inner in node.items():
                if name != "cte_map":
                    walk(inner, made)
        elif isinstance(node, list):
            for inner in node:
                walk(inner, made)

    walk(tree, frozenset())
    return sorted(found)


def _ran(connection: duckdb.DuckDBPyConnection, query: str, reading: QueryReading, *, explain: bool) -> SqlResult:
    late, over = threading.Event(), threading.Event()

    def interrupt() -> None:
        if over.wait(max(0.0, reading.left())):
            return
        late.set()
        # Until it is over: a statement forgets, as it begins, what came just before it.
        while not over.is_set():
            connection.interrupt()
            over.wait(_AGAIN_SECONDS)

    watchdog = threading.Thread(target=interrupt, name="keyhole-sql-deadline", daemon=True)
    watchdog.start()
    try:
        plan = ""
        if explain:
            plan = "\n".join(str(row[1]) for row in connection.execute(f"EXPLAIN {query}").fetchall())
            reading.scans.clear()  # planning asks, too
        if late.is_set():
            raise reading.took_too_long()
        return SqlResult(_fetched(connection, query, reading), reading.scans, plan)
    except (duckdb.Error, pa.ArrowException, OSError) as error:  # Arrow's, of what its reader meets, is the last
        raise _error_of(error, reading, late=late.is_set()) from error
    finally:
        over.set()
        watchdog.join()  # a closed connection can't be interrupted


def _fetched(connection: duckdb.DuckDBPyConnection, query: str, reading: QueryReading) -> pa.Table:
    """All rows, as far as they take no more than DuckDB may."""
    ((most,),) = connection.execute("SELECT current_setting('memory_limit')").fetchall()
    most_bytes, taken, batches = _bytes(str(most)), 0, []
    with connection.sql(query).to_arrow_reader(_ROWS) as rows:
        for batch in rows:
            taken += batch.nbytes
            if taken > most_bytes:
                raise TooLarge(
                    f"the rows of the query take more than {most}: ask for fewer, or for sums of them, or give it more "
                    "memory",
                    limit=most_bytes,
                )
            reading.check_time()
            batches.append(batch)
        return pa.Table.from_batches(batches, rows.schema)


def _bytes(size: str) -> int:
    """Of a size as DuckDB says it: 953.6 MiB."""
    number, unit = size.split()
    return int(float(number) * 1024 ** ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB").index(unit))


def _error_of(error: Exception, reading: QueryReading, *, late: bool) -> KeyholeError:
    # What a scan has met has come through Arrow as a text.
    if reading.failed is not None:
        return reading.failed
    if late or isinstance(error, duckdb.InterruptException):
        return reading.took_too_long()
    if isinstance(error, duckdb.OutOfMemoryException):
        return _too_large(error)
    return _refused(error)


def _refused(why: object) -> MalformedRequest:
    unquoted = isinstance(why, duckdb.Error) and _UNQUOTED.search(str(why))
    hint = " (a state is named in quotes: FROM 'APPLICATION/STATE')" if unquoted else ""
    return MalformedRequest(f"DuckDB refuses the query{hint}: {why}")


def _too_large(error: Exception) -> TooLarge:
    return TooLarge(f"the query needs more memory than it may take: {error}")
