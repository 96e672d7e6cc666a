"""`keyhole verify APP/STATE`: what differs between the copies of a state and its changelog."""

from __future__ import annotations

import argparse
import json
from typing import Any

from keyhole import Client
from keyhole.changelog.kafka.changelog import KafkaChangelog
from keyhole.cli.patience import patience
from keyhole.cli.reads import OutputFormat
from keyhole.model.state_path import state_path
from keyhole.security.credentials import Credentials
from keyhole.verify.copies import RemoteDump, Server
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
    return 1 if verdict.findings or away or verdict.not_compared else 0


def _servers(options: argparse.Namespace, credentials: Credentials) -> tuple[list[Server], dict[str, str]]:
    """Those that answer, and why others don't. One that is named and doesn't answer is an error."""
    answers = []
    for target in options.servers or [options.proxy]:
        with Client(target, timeout=options.timeout, credentials=credentials) as client:
            answers += client.status()
    away = {status.server or status.address: status.unreachable for status in answers if status.unreachable}
    return [Server(status.server, status.address) for status in answers if not status.unreachable], away


def _show(verdict: Verdict, away: dict[str, str], options: argparse.Namespace, output: OutputFormat) -> None:
    copies = _copy_rows(verdict)
    differences = [_finding_row(finding, options.show) for finding in verdict.findings]
    if output.as_json:
        told = {
            "state": options.state,
            "copies": copies,
            "differences": differences,
            "unreachable": away,
            "not_compared": list(verdict.not_compared),
        }
        print(json.dumps(told))
        return
    output.rows(copies, f"{options.state}, compared with its changelog")
    output.rows(differences, "differences")
    for server, why in away.items():
        print(f"not compared: {server}: {why}")
    if verdict.not_compared:
        print(f"not compared: no copy was found of key groups {', '.join(map(str, verdict.not_compared))}")


def _copy_rows(verdict: Verdict) -> list[dict[str, Any]]:
    differing = {(finding.copy.server, finding.copy.key_group) for finding in verdict.findings}
    rows = []
    for server, role in sorted({(c.server.server, c.role) for c in verdict.copies}):
        copies = [c for c in verdict.copies if (c.server.server, c.role) == (server, role)]
        rows.append(
            {
                "server": server,
                "role": str(role),
                "key_groups": len(copies),
                "all_key_groups": verdict.descriptor.key_groups,
                "epoch": max(copy.epoch for copy in copies),
                "differing": sum((copy.server, copy.key_group) in differing for copy in copies),
            }
        )
    return rows


def _finding_row(finding: Finding, show: int) -> dict[str, Any]:
    copy, found = finding.copy, finding.differences
    row: dict[str, Any] = {
        "server": copy.server.server,
        "role": str(copy.role),
        "key_group": copy.key_group,
        "offset": copy.offset,
        "epoch": copy.epoch,
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
