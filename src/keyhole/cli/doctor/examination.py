"""Looks at everything, one thing after the other, and shows each line as soon as it is known."""

from __future__ import annotations

import argparse
import importlib.util
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import grpc
from rich.console import Console
from rich.table import Table
from rich.text import Text

from keyhole.cli.doctor.cluster_findings import (
    ProxyAnswer,
    clock_findings,
    route_findings,
    server_findings,
    version_findings,
)
from keyhole.cli.doctor.diagnosis import Diagnosis, Level, fault, ok, skipped, warning
from keyhole.cli.doctor.machine_findings import machine_findings, way_findings
from keyhole.cli.patience import patience
from keyhole.client.target import targets_of
from keyhole.errors import KeyholeError, MachineError, PermissionDenied, Unauthenticated
from keyhole.installing import with_extra
from keyhole.metrics.families import version
from keyhole.rpc.channels import sync_channel
from keyhole.rpc.status import from_rpc_error
from keyhole.security.credentials import Credentials
from keyhole.terminal.json_output import print_json
from keyhole.terminal.written_out import written_out
from keyhole.up.exports import hint
from keyhole.up.home import DEFAULT_DIRECTORY, Home
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import query_pb2_grpc, state_pb2

_STYLES = {Level.OK: "green", Level.SKIPPED: "dim", Level.WARNING: "yellow", Level.FAULT: "bold red"}
_LEVELS = list(Level)
_KAFKA = "KEYHOLE_JOB_BOOTSTRAP_SERVERS"


def run(options: argparse.Namespace, credentials: Credentials) -> int:
    """Exit code 1 where something is a fault; with `strict`, also where something is a warning."""
    shown, worst = [], Level.OK
    console = Console(highlight=False)
    looked = findings(options, credentials, os.environ)
    while True:
        with patience("looking"):
            finding = next(looked, None)
        if finding is None:
            break
        worst = max(worst, finding.level, key=_LEVELS.index)
        if options.format == "json":
            shown.append(finding._asdict())
        else:
            _show(console, finding)
    if options.format == "json":
        print_json({"worst": worst, "findings": shown})
    return 1 if worst is Level.FAULT or (options.strict and worst is Level.WARNING) else 0


def findings(options: argparse.Namespace, credentials: Credentials, environ: Mapping[str, str]) -> Iterator[Diagnosis]:
    """All of them, in an order in which a cause comes before what it causes. Each may take `options.timeout`."""
    known: _ProxySays | None = None
    for target in targets_of(options.proxy):
        says = _ask(target, credentials, options.timeout)
        yield from says.findings
        if known is None and says.states is not None:
            known = says
    asked = known.asked if known is not None else None
    if asked is not None:
        yield from server_findings(asked)
        yield from version_findings(asked, version())
        yield from clock_findings(asked)
        yield from route_findings(asked, known.states or () if known is not None else ())
    yield from _of_kafka(options, environ, known.states if known is not None else None)
    yield from machine_findings(environ)
    if asked is not None and importlib.util.find_spec("pyspark") is not None:
        yield from way_findings([server.address for server in asked.status.servers if not server.unreachable])


class _ProxySays(NamedTuple):
    """What one proxy says. `states`: None: nothing; `asked`: None: it may not be asked for its servers."""

    findings: Sequence[Diagnosis]
    states: Sequence[state_pb2.StateDescriptor] | None = None
    asked: ProxyAnswer | None = None


def _ask(target: str, credentials: Credentials, timeout_seconds: float) -> _ProxySays:
    about = f"proxy {target}"
    with sync_channel(target, credentials) as channel:
        stub: Any = query_pb2_grpc.QueryStub(channel)
        try:
            # It also has the connection made, which is not to count below.
            states = list(stub.ListStates(pb.ListStatesRequest(), timeout=timeout_seconds).states)
        except grpc.RpcError as error:
            why = from_rpc_error(error, target)
            if not isinstance(why, (Unauthenticated, PermissionDenied)) and why.reason == "NO_SERVER":
                states = []  # It lives, and the status says which servers it can't reach.
            else:
                return _ProxySays([_unanswered(about, target, why)])
        sent_ms, began = time.time() * 1000, time.perf_counter()
        try:
            status = stub.Status(pb.StatusRequest(), timeout=timeout_seconds)
        except grpc.RpcError as error:
            why = from_rpc_error(error, target)
            if not isinstance(why, PermissionDenied):
                return _ProxySays([_unanswered(about, target, why)], states)
            rights = warning(
                about,
                "it answers; this caller may not ask for servers, so that they, clocks and routes are not looked at",
                "show credentials that have the right admin or platform (docs/security.md), if you are to have it",
            )
            return _ProxySays([rights], states)
        took_ms = (time.perf_counter() - began) * 1000
    asked = ProxyAnswer(target, status, sent_ms, sent_ms + took_ms)
    return _ProxySays([ok(about, f"answers, with the status of its servers after {took_ms:.0f} ms")], states, asked)


def _unanswered(about: str, target: str, why: KeyholeError) -> Diagnosis:
    if isinstance(why, (Unauthenticated, PermissionDenied)):
        return fault(about, why.message, "show other credentials: --token-file, --tls-certificate (docs/security.md)")
    todo = hint(Home(DEFAULT_DIRECTORY), target).lstrip(". ")
    return fault(about, why.message, todo or "start it, or name another one by --proxy or KEYHOLE_PROXY")


def _of_kafka(
    options: argparse.Namespace, environ: Mapping[str, str], states: Sequence[state_pb2.StateDescriptor] | None
) -> Iterator[Diagnosis]:
    address = options.bootstrap_servers or environ.get(_KAFKA) or _kafka_here(options.proxy)
    if not address:
        yield skipped("Kafka", "not looked at: nothing says where it is", f"give --bootstrap-servers, or set {_KAFKA}")
    elif importlib.util.find_spec("confluent_kafka") is None:
        yield skipped("Kafka", "not looked at: its client is not installed", f"install {with_extra('cli,kafka')}")
    else:
        from keyhole.cli.doctor.kafka_findings import kafka_findings

        yield from kafka_findings(address, states or (), options.timeout)


def _kafka_here(proxy: str) -> str:
    """That of `keyhole up`, where its proxy is the one that is asked; empty: it is not."""
    home = Home(DEFAULT_DIRECTORY)
    try:
        recorded = home.read()
    except MachineError:  # it is said where the proxy does not answer
        return ""
    return recorded.kafka if recorded is not None and recorded.proxy == proxy and home.runs() else ""


def _show(console: Console, finding: Diagnosis) -> None:
    lines = [written_out(f"{finding.about}: {finding.says}")]
    if finding.todo:
        lines.append(f"-> {written_out(finding.todo)}")
    if not console.is_terminal:
        for name, line in zip((str(finding.level), ""), lines, strict=False):
            console.print(f"{name:<7}  {line}", markup=False, soft_wrap=True)
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, width=7)
    table.add_column(overflow="fold")
    for name, line in zip((str(finding.level), ""), lines, strict=False):
        table.add_row(Text(name, style=_STYLES[finding.level]), Text(line))
    console.print(table)
