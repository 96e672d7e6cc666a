"""The commands that read through a proxy: states, describe, get, explain, scan, watch, status and codegen."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from keyhole.cli.wrong_usage import WrongUsage, as_usage
from keyhole.config import CliConfig, load
from keyhole.installing import require
from keyhole.security.credentials import Credentials

if TYPE_CHECKING:
    from keyhole.cli.reads import Bounds

TO_READ = ("grpc", "rich")
"""Modules that a command needs which asks a proxy and prints tables."""

LOOK_SECONDS = 2.0
"""Between two looks of a command that looks again and again, unless an option says otherwise."""

RELEASES = "app.kubernetes.io/name=keyhole"
"""A label selector: the pods of all releases of the chart."""


def credentials(options: argparse.Namespace) -> Credentials:
    """Who asks: by the options, else by the environment. It also checks who is to be asked, by --proxy.

    Raises:
        InvalidConfiguration: The credentials can't be, or their files can't be read.
        WrongUsage: What --proxy says is no address.
    """
    from keyhole.client.target import targets_of

    as_usage(lambda: targets_of(options.proxy))
    given = {field.name: getattr(options, field.name) for field in dataclasses.fields(CliConfig)}
    if given["tls"] is None and any(value for name, value in given.items() if name.startswith("tls_")):
        given["tls"] = "on"
    return load(CliConfig, os.environ, **given).credentials


def _pods(options: argparse.Namespace) -> Mapping[str, list[dict[str, Any]]] | None:
    if options.pods is None:
        if options.namespace is not None:
            raise WrongUsage("--namespace says where the pods of --pods are: give both, or neither")
        return None
    if options.watch:
        raise WrongUsage("--pods asks Kubernetes once, and --watch looks again and again: give one of them")
    require("keyhole status --pods", "service", ("kubernetes",))
    from keyhole.cli.pod_status import pod_troubles

    return pod_troubles(options.pods, options.namespace)


def _bounds(options: argparse.Namespace) -> Bounds:
    from keyhole.cli.reads import Bounds

    return Bounds(options.stale, options.max_staleness, options.min_epoch, options.as_of)


def read(options: argparse.Namespace) -> int:
    """Runs the one that `options.read` names. Raises KeyholeError."""
    require(f"keyhole {options.read}", "cli", TO_READ)
    if options.read == "status" and not options.watch and (options.count or options.interval):
        raise WrongUsage("--count and --interval are of looking again and again: give --watch, too, or leave them out")
    if options.read == "scan" and options.key is not None and options.after is not None:
        raise WrongUsage("--after goes on with all keys of a state; the entries of one key go on by --from")
    from keyhole import Client
    from keyhole.cli import reads
    from keyhole.cli.patience import PatientClient

    output = reads.OutputFormat(as_json=options.format == "json")
    pods = _pods(options) if options.read == "status" else None
    # What draws the whole terminal says by itself that nobody answers.
    kind = Client if options.read == "status" and options.watch else PatientClient
    with kind(options.proxy, timeout=options.timeout, credentials=credentials(options)) as client:
        if options.read == "states":
            reads.states(client, output)
        elif options.read == "describe":
            reads.describe(client, output, options.state)
        elif options.read == "get":
            reads.get(client, output, options.state, options.keys, _bounds(options), latest=options.latest)
        elif options.read == "explain":
            from keyhole.cli import explain

            return explain.explain(client, output, options.state, options.keys, _bounds(options))
        elif options.read == "scan":
            from keyhole.cli import scan_command

            within = scan_command.Range(
                options.start,
                options.stop,
                options.descending,
                options.limit,
                options.after,
                options.ordered,
                options.prefix,
                options.map_from,
                options.map_to,
            )
            wanted = scan_command.WantedEntries(
                options.where, options.fields, options.keys_only, options.aggregate, options.latest
            )
            scan_command.scan(client, output, options.state, options.key, within, _bounds(options), wanted)
        elif options.read == "watch":
            from keyhole.cli import watch_command

            lines = watch_command.WatchedLines(
                options.keys,
                options.after,
                options.rows,
                options.before,
                options.latest_only,
                options.count,
                options.where,
                options.fields,
                options.start,
                options.stop,
                options.prefix,
            )
            watch_command.watch(client, output, options.state, lines)
        elif options.read == "codegen":
            reads.codegen(client, options.application, options.states, options.language)
        elif pods is None and options.watch:
            from keyhole.cli import status_watch
            from keyhole.terminal.rounds import Rounds

            status_watch.watch(client, output, Rounds(options.interval or LOOK_SECONDS, options.count))
        else:
            reads.status(client, output, pods)
    return 0
