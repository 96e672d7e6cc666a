"""`keyhole move APP/STATE GROUP... --to SERVER`: has a state server own these key groups, and keep them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Sequence

from keyhole import Client
from keyhole.cli.drain_command import staying_server
from keyhole.cli.patience import patience
from keyhole.cli.wrong_usage import WrongUsage
from keyhole.client.server_status import ServerStatus
from keyhole.clock import SystemClock
from keyhole.errors import KeyholeError
from keyhole.model.read import Role
from keyhole.model.state_path import state_path
from keyhole.rpc.moving import move
from keyhole.security.credentials import Credentials
from keyhole.terminal.written_out import written_out

_LOOK_SECONDS = 0.5


def run(options: argparse.Namespace, credentials: Credentials, *, as_json: bool) -> int:
    """Exit code 1 where the server doesn't own all of them as the time is over, or another server could not be asked.
    Where that one was to have some of them before, it may still want them.

    Raises:
        UnknownApplication, UnknownState: There is no such state.
        WrongUsage: It has no such key group.
        NoServer: There is no server of this name, or it can't be reached.
        Unsupported: It is a replica, which owns nothing.
        KeyholeError: As keyhole.rpc.moving.move of the server that is to have them; no other one was told anything.
    """
    application, state = state_path(options.state)
    groups, left = frozenset(options.key_groups), frozenset[int]()
    to: ServerStatus | None = None
    with Client(options.proxy, timeout=options.timeout, credentials=credentials) as client:
        if options.to is not None:
            descriptor = client.describe_state(application, state)
            _check(groups, descriptor.key_groups, options.state)
        servers = client.status()
        if options.to is not None:
            to = staying_server(options.to, servers)
            move(
                *(to.address, application, state, groups),
                query=descriptor.query,
                timeout_seconds=options.timeout,
                credentials=credentials,
            )
        others = [of for of in servers if not of.replica and (to is None or of.incarnation != to.incarnation)]
        away = _undone(others, application, state, groups, options.timeout, credentials)
        if to is not None:
            left = groups - _owned(servers, to.server, application, state)
            if left and options.wait:
                left = _waited(options, client, to.server, application, state, groups)
    if as_json:
        told = {"state": options.state, "key_groups": sorted(groups), "to": None, "owned": None, "not_asked": away}
        if to is not None:
            told |= {"to": to.server, "owned": sorted(groups - left)}
        print(json.dumps(told))
    else:
        print(_says(options, groups, left, to))
        for server, why in away.items():
            print(written_out(f"not asked, and may still be to have some of them: {server}: {why}"))
    return 1 if away or (left and options.wait) else 0


def _undone(
    others: Sequence[ServerStatus],
    application: str,
    state: str,
    groups: frozenset[int],
    timeout_seconds: float,
    credentials: Credentials,
) -> dict[str, str]:
    """Has the other servers want them no more. Returns why one could not be asked, by server."""
    away: dict[str, str] = {}
    for other in others:
        if other.unreachable:
            away[other.server or other.address] = other.unreachable
        elif _placed(other, application, state) & groups:
            try:
                move(
                    *(other.address, application, state, groups),
                    undo=True,
                    timeout_seconds=timeout_seconds,
                    credentials=credentials,
                )
            except KeyholeError as error:
                away[other.server or other.address] = error.message
    return away


def _says(options: argparse.Namespace, groups: frozenset[int], left: frozenset[int], to: ServerStatus | None) -> str:
    named = f"{_numbered(groups)} of {options.state}"
    if to is None:
        return f"{named} may be on any server again: its job shares them with the others while it runs"
    if left:
        return (
            f"{to.server} does not own {_numbered(left)} of {options.state} yet. It takes them over as soon as it has "
            "copies, while the job runs; the same command waits again"
        )
    return f"{to.server} owns {named}, until it ends or `keyhole move {_again(options)} --undo`"


def _check(groups: Collection[int], key_groups: int, state: str) -> None:
    if beyond := sorted(group for group in groups if group >= key_groups):
        raise WrongUsage(
            f"state {state} has no key group {beyond[0]}: they are 0 to {key_groups - 1}, and "
            f"`keyhole explain {state} KEY` says which one a key is in"
        )


def _waited(
    options: argparse.Namespace, client: Client, to: str, application: str, state: str, groups: frozenset[int]
) -> frozenset[int]:
    """Those that the server doesn't own as the time is over."""
    clock = SystemClock()
    until = clock.monotonic() + options.wait
    left = groups
    with patience(f"waiting until {to} owns them"):
        while left and clock.monotonic() < until:
            clock.sleep(_LOOK_SECONDS)
            try:
                left = groups - _owned(client.status(), to, application, state)
            except KeyholeError:
                if clock.monotonic() >= until:
                    raise
    return left


def _placed(server: ServerStatus, application: str, state: str) -> frozenset[int]:
    of = (of.key_groups for of in server.placements if (of.application, of.state) == (application, state))
    return frozenset(group for groups in of for group in groups)


def _owned(servers: Sequence[ServerStatus], server: str, application: str, state: str) -> frozenset[int]:
    """What a server owns and can answer for."""
    return frozenset(
        group
        for status in servers
        if status.server == server
        for holding in status.holdings
        if holding.ready
        and holding.source.role is Role.OWNER
        and (holding.descriptor.application, holding.descriptor.state) == (application, state)
        for group in holding.key_groups
    )


def _numbered(groups: Collection[int]) -> str:
    ordered = [str(group) for group in sorted(groups)]
    if len(ordered) == 1:
        return f"key group {ordered[0]}"
    return f"key groups {', '.join(ordered[:-1])} and {ordered[-1]}"


def _again(options: argparse.Namespace) -> str:
    return f"{options.state} {' '.join(str(group) for group in options.key_groups)}"
