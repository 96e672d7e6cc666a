"""SQL by DuckDB: over live states by `Client.sql`, over those of a savepoint by `query_savepoint`. Needs the extra
`sql`, and for savepoints the extra `savepoint`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from keyhole.installing import require

if TYPE_CHECKING:
    from keyhole.client.bounds import Duration
    from keyhole.client.sql_result import SqlResult
    from keyhole.sql.saved_states import SavedStates


def query_savepoint(
    path: str,
    query: str,
    *,
    application: str = "",
    timeout: Duration | None = None,
    memory: str = "1GB",
    explain: bool = False,
) -> SqlResult:
    """The rows of one SELECT over the states of a savepoint, with no cluster at all. Blocks.

        for city, orders in query_savepoint("/backup/monday", "select city, count(*) from 'shop/orders' group by city"):
            print(city, orders)

    Each state is as of its query's epoch in the savepoint. What had expired when that was taken is not shown. The files
    that are read to their end are checked by their checksums, before anything is given.

    Args:
        path: The savepoint: a folder, or whatever fsspec knows.
        application: Of states that are named without one; default: the savepoint's.
        timeout: Seconds (or a timedelta); default: 60.
        memory: The most that DuckDB may take, and the most that the rows of the result may take.
        explain: The result has DuckDB's plan.

    Raises:
        InvalidConfiguration: An extra is not installed, or the folder can't be read.
        SavepointMismatch, SavepointDamaged: There is no savepoint, or not as it was written.
        UnknownApplication, UnknownState: It names a state that the savepoint has not.
        KeyholeError: As keyhole.sql.queries.run.
    """
    require("query_savepoint", "sql,savepoint", ("duckdb", "fsspec", "grpc", "pyarrow"))
    states: SavedStates = importlib.import_module("keyhole.sql.saved_states").opened(path)
    run = importlib.import_module("keyhole.sql.queries").run_over
    more = {} if timeout is None else {"timeout": timeout}
    result: SqlResult = run(
        states, query, application=application or states.application, memory=memory, explain=explain, **more
    )
    return result
