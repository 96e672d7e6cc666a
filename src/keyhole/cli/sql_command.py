"""`keyhole sql`: a query over live states or a savepoint, as a table or as JSON, and what was asked for it."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from typing import Any

from keyhole.cli.exit_codes import ExitCode
from keyhole.cli.patience import PatientClient, patience
from keyhole.cli.reads import OutputFormat
from keyhole.client.sql_result import SqlResult
from keyhole.errors import MalformedRequest
from keyhole.security.credentials import Credentials
from keyhole.sql import query_savepoint
from keyhole.sql.predicate_words import in_words
from keyhole.sql.result_json import result_json
from keyhole.terminal.json_output import print_json
from keyhole.terminal.written_out import written_out


def run(options: argparse.Namespace, credentials: Credentials) -> int:
    """Runs one SELECT; returns the exit code. Raises KeyholeError."""
    query = sys.stdin.read() if options.query == "-" else options.query
    output = OutputFormat(as_json=options.format == "json")
    asked = {
        "application": options.application or "",
        "timeout": options.timeout,
        "memory": options.memory,
        "explain": options.explain,
    }
    if options.savepoint is not None:
        with patience(f"reading the savepoint at {options.savepoint}"):
            result = query_savepoint(options.savepoint, query, **asked)
    else:
        with PatientClient(options.proxy, timeout=options.timeout, credentials=credentials) as client:
            result = client.sql(query, **asked)
    if options.explain:
        _explained(result, as_json=options.format == "json", saved=options.savepoint is not None)
    else:
        if twice := [name for name, count in Counter(result.columns).items() if count > 1]:
            raise MalformedRequest(f"two columns of the result are called {twice[0]}; give one another name, by AS")
        rows = [dict(zip(result.columns, map(result_json, row), strict=True)) for row in result]
        output.rows(rows, f"{len(rows):,} rows")
    return ExitCode.DONE


def _explained(result: SqlResult, *, as_json: bool, saved: bool) -> None:
    scans: list[dict[str, Any]] = [
        {
            "state": scan.state,
            "epoch": scan.epoch or None,
            "columns": list(scan.columns),
            "servers_test": None if scan.where is None else in_words(scan.where),
            "entries": scan.entries,
            "by_key": scan.by_key,
            "indexes": list(scan.indexes),
        }
        for scan in result.scans
    ]
    if as_json:
        print_json({"scans": scans, "plan": result.plan, "rows": len(result)})
        return
    for one in scans:
        print(written_out(f"{one['state']}, epoch {one['epoch'] or 'of each key group'}: {one['entries']:,} entries"))
        print(written_out(f"  columns       {', '.join(one['columns'])}"))
        print(written_out(f"  {'read where  ' if saved else 'servers test'}  {one['servers_test'] or 'nothing'}"))
        if one["by_key"]:
            print("  by the key    a range of keys is read, and no others")
        if one["indexes"]:
            print(written_out(f"  by an index   of {' or '.join(one['indexes'])}, where that pays"))
    print(written_out(result.plan, "\n"))
