"""`keyhole move APP/STATE GROUP... --to SERVER`: has a state server own these key groups, and keep them."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from keyhole import Client
from keyhole.cli.drain_command import staying_server
from keyhole.cli.patience import look_until
from keyhole.cli.wrong_usage import WrongUsage
from keyhole.client.server_status import ServerStatus
from keyhole.errors import KeyholeError
from keyhole.model.read import Role
from keyhole.model.state_path import state_path
from keyhole.rpc.moving import move
from keyhole.security.credentials import Credentials
from keyhole.terminal.json_output import print_json
from keyhole.terminal.written_out import written_out


class _Groups(NamedTuple):
    """The key groups of a state that the command is about."""

    application: str
    state: str
    numbers: frozenset[int]

    def placed(self, server: ServerStatus) -> bool:
        """Whether the server is to have any of them."""
        return any(
            (of.application, of.state) == (self.application, self.state) and not self.numbers.isdisjoint(of.key_groups)
            for of in server.placements
        )

    def not_owned(self, servers: Sequence[ServerStatus], server: str) -> frozenset[int]:
        """Those that the server of this id does not own yet, or can't answer for."""
        return self.numbers.difference(
            *(
                holding.key_groups
                for status in servers
                if status.server == server
                for holding in status.holdings
                if holding.ready
                and holding.source.role is Role.OWNER
                and (holding.descriptor.application, holding.descriptor.state) == (self.application, self.state)
            )
        )


class _Outcome(NamedTuple):
    """What has become of it.

    Attributes:
        away: Why one of the other servers could not be asked, by server.
        says: That, for a person.
        to: Who is to have them; None: anybody may.
        left: Those that it doesn't own yet.
    """

    away: Mapping[str, str]
    says: str
    to: str | None = None
    left: frozenset[int] = frozenset()


def run(options: argparse.Namespace, credentials: Credentials, *, as_json: bool) -> int:
    """Exit code 1 where the server doesn't own all of them as the time is over, or another server could not be asked.
    Where that one was to have some of them before, it may still want them.

    Raises:
        UnknownApplication, UnknownState: There is no such state.
        WrongUsage: It has no such key group.
        NoServer: There is no server of this name, or it can't be reached.
        Unsupported: It is a replica, which owns nothing.
        KeyholeError: As keyhole.rpc.moving.move of the server that is to have them; no other one was asked.
    """
    groups = _Groups(*state_path(options.state), frozenset(options.key_groups))
    with Client(options.proxy, timeout=options.timeout, credentials=credentials) as client:
        outcome = (_anywhere if options.to is None else _moved)(options, client, groups, credentials)
    if as_json:
        owned = None if outcome.to is None else sorted(groups.numbers - outcome.left)
        moved = {"state": options.state, "key_groups": sorted(groups.numbers), "to": outcome.to, "owned": owned}
        print_json(moved | {"not_asked": outcome.away})
    else:
        print(outcome.says)
        for server, why in outcome.away.items():
            print(written_out(f"not asked, and may still be to have some of them: {server}: {why}"))
    return 1 if outcome.away or (outcome.left and options.wait) else 0


def _anywhere(options: argparse.Namespace, client: Client, groups: _Groups, credentials: Credentials) -> _Outcome:
    """No server is to have them. The state need not be there any more."""
    away = _undone(client.status(), groups, options.timeout, credentials)
    named = f"{_numbered(groups.numbers)} of {options.state}"
    return _Outcome(away, f"{named} may be on any server again: its job shares them with the others while it runs")


def _moved(options: argparse.Namespace, client: Client, groups: _Groups, credentials: Credentials) -> _Outcome:
    """The server that was named is to have them, and no other one. Waits until it has. Raises as `run`."""
    descriptor = client.describe_state(groups.application, groups.state)
    _check(groups.numbers, descriptor.key_groups, options.state)
    servers = client.status()
    to = staying_server(options.to, servers)
    move(to.address, *groups, query=descriptor.query, timeout_seconds=options.timeout, credentials=credentials)
    others = [of for of in servers if of.incarnation != to.incarnation]
    away = _undone(others, groups, options.timeout, credentials)
    left = groups.not_owned(servers, to.server)
    if left and options.wait:
        left = look_until(
            lambda seen: not seen,
            lambda: groups.not_owned(client.status(), to.server),
            left,
            options.wait,
            f"waiting until {to.server} owns them",
            may_fail=True,
        )
    if left:
        says = (
            f"{to.server} does not own {_numbered(left)} of {options.state} yet. It takes them over as soon as it has "
            "copies, while the job runs; the same command waits again"
        )
    else:
        named = f"{_numbered(groups.numbers)} of {options.state}"
        says = f"{to.server} owns {named}, until it ends or `keyhole move {_again(options)} --undo`"
    return _Outcome(away, says, to.server, left)


def _undone(
    servers: Sequence[ServerStatus], groups: _Groups, timeout_seconds: float, credentials: Credentials
) -> dict[str, str]:
    """Has these servers want them no more, but replicas, which own nothing. Returns why one could not be asked."""
    away: dict[str, str] = {}
    for server in servers:
        if server.replica:
            continue
        why = server.unreachable
        if not why and groups.placed(server):
            try:
                move(server.address, *groups, undo=True, timeout_seconds=timeout_seconds, credentials=credentials)
            except KeyholeError as error:
                why = error.message
        if why:
            away[server.server or server.address] = why
    return away


def _check(groups: Collection[int], key_groups: int, state: str) -> None:
    if beyond := sorted(group for group in groups if group >= key_groups):
        raise WrongUsage(
            f"state {state} has no key group {beyond[0]}: they are 0 to {key_groups - 1}, and "
            f"`keyhole explain {state} KEY` says which one a key is in"
        )


def _numbered(groups: Collection[int]) -> str:
    ordered = [str(group) for group in sorted(groups)]
    if len(ordered) == 1:
        return f"key group {ordered[0]}"
    return f"key groups {', '.join(ordered[:-1])} and {ordered[-1]}"


def _again(options: argparse.Namespace) -> str:
    return f"{options.state} {' '.join(str(group) for group in options.key_groups)}"
