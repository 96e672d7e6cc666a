"""`keyhole verify APP/STATE`: what differs between the copies of a state and its changelog."""

from __future__ import annotations

import argparse
from typing import Any

from keyhole import Client
from keyhole.changelog.kafka.changelog import KafkaChangelog
from keyhole.cli.patience import patience
from keyhole.cli.reads import OutputFormat
from keyhole.model.state_path import state_path
from keyhole.security.credentials import Credentials
from keyhole.terminal.json_output import print_json
from keyhole.terminal.written_out import written_out
from keyhole.verify.differences import Differences
from keyhole.verify.fetched_copies import RemoteDump, Server
from keyhole.verify.verify import Finding, Verdict, describe, verify


def run(options: argparse.Namespace, credentials: Credentials, output: OutputFormat) -> int:
    """Exit code 1 where something differs, and where something could not be compared: of that, nothing is known."""
    application, state = state_path(options.state)
    changelog = KafkaChangelog(options.bootstrap_servers, application)
    descriptor = describe(application, state, changelog, options.timeout)
    servers, away = _servers(options, credentials)
    dump = RemoteDump(application, state, options.dump_timeout, credentials)
    with patience(f"comparing {options.state} with its changelog"):
        verdict = verify(descriptor, servers, changelog, dump, deadline_seconds=options.timeout)
    away |= verdict.unreachable
    _show(verdict, away, options, output)
    return 1 if verdict.findings or away or verdict.not_compared or verdict.unread_indexes else 0


def _servers(options: argparse.Namespace, credentials: Credentials) -> tuple[list[Server], dict[str, str]]:
    """Those that answer, and why others don't. One that is named and doesn't answer is an error."""
    answers = []
    for target in options.servers or [options.proxy]:
        with Client(target, timeout=options.timeout, credentials=credentials) as client:
            answers += client.status()
    away = {status.server or status.address: status.unreachable for status in answers if status.unreachable}
    return [Server(status.server, status.address) for status in answers if not status.unreachable], away


def _show(verdict: Verdict, away: dict[str, str], options: argparse.Namespace, output: OutputFormat) -> None:
    copies, differences = copy_rows(verdict), difference_rows(verdict, options.show)
    unread = [
        {"server": copy.server.server, "key_group": copy.key_group, "why": why}
        for copy, why in verdict.unread_indexes.items()
    ]
    if output.as_json:
        as_json = {
            "state": options.state,
            "copies": copies,
            "differences": differences,
            "unreachable": away,
            "not_compared": list(verdict.not_compared),
            "unread_indexes": unread,
        }
        print_json(as_json)
        return
    output.rows(copies, f"{options.state}, compared with its changelog")
    output.rows(differences, "differences")
    for server, why in away.items():
        print(written_out(f"not compared: {server}: {why}"))
    output.rows(unread, "indexes not compared")
    if verdict.not_compared:
        print(f"not compared: no copy was found of key groups {', '.join(map(str, verdict.not_compared))}")


def copy_rows(verdict: Verdict) -> list[dict[str, Any]]:
    """What was compared: a row for each server and role. `indexes`: of all its key groups, where the state has some."""
    differing = {(finding.copy.server, finding.copy.key_group) for finding in verdict.findings}
    rows = []
    for server, role in sorted({(c.server.server, c.role) for c in verdict.copies}):
        copies = [c for c in verdict.copies if (c.server.server, c.role) == (server, role)]
        row = {
            "server": server,
            "role": str(role),
            "key_groups": len(copies),
            "all_key_groups": verdict.descriptor.key_groups,
            "epoch": max(copy.epoch for copy in copies),
            "differing": sum((copy.server, copy.key_group) in differing for copy in copies),
        }
        if verdict.descriptor.index:
            row["indexes"] = sum(verdict.indexes[copy].compared for copy in copies)
            row["all_indexes"] = len(verdict.descriptor.index) * len(copies)
        rows.append(row)
    return rows


def difference_rows(verdict: Verdict, show: int) -> list[dict[str, Any]]:
    """What differs: a row for each copy of a key group, and one for each index. `show`: so many keys of each kind."""
    rows = []
    for finding in verdict.findings:
        if finding.differences or finding.ahead:
            rows.append(_difference_row(finding, "", finding.differences, show))
        rows += [_difference_row(finding, name, found, show) for name, found in finding.indexes.items()]
    return rows


def _difference_row(finding: Finding, index: str, found: Differences, show: int) -> dict[str, Any]:
    copy = finding.copy
    row: dict[str, Any] = {
        "server": copy.server.server,
        "role": str(copy.role),
        "key_group": copy.key_group,
        "offset": copy.offset,
        "epoch": copy.epoch,
        "index": index,
        "missing": len(found.missing),
        "extra": len(found.extra),
        "different": len(found.different),
        "at_least": found.cut,
        "beyond_changelog": finding.ahead,
    }
    if show:
        kinds = {"missing": found.missing, "extra": found.extra, "different": found.different}
        row["keys"] = {kind: [key.hex() for key in keys[:show]] for kind, keys in kinds.items() if keys}
    return row
