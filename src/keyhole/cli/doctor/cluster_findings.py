"""What a proxy's answers say of the servers, their clocks and versions, and of who has which key groups. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from keyhole.cli.doctor.diagnosis import Diagnosis, fault, ok, warning
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import state_pb2

_SKEW_WARNING_MS = 1_000
"""From here on, ages and `max_staleness` are visibly wrong."""

_SKEW_FAULT_MS = 60_000
"""From here on, tokens and certificates may count as expired, or as not valid yet."""

_MOST_NAMED = 8


class ProxyAnswer(NamedTuple):
    """A proxy's status, with when it was asked for and answered: milliseconds since 1970, by this machine's clock."""

    target: str
    status: pb.StatusResponse
    sent_ms: float
    answered_ms: float


def server_findings(asked: ProxyAnswer) -> Iterator[Diagnosis]:
    """Whether each server answers, and whether their versions are one."""
    servers = asked.status.servers
    if not servers:
        yield fault(
            f"proxy {asked.target}",
            "it knows no state server",
            "look at its KEYHOLE_CLIENT_PROXY_SERVERS, and whether state servers run",
        )
        return
    for server in servers:
        about = f"server {_name(server)}"
        if server.unreachable:
            yield fault(
                about,
                f"the proxy can't reach it: {server.unreachable}",
                f"start it again, or take {server.address} out of the proxy's KEYHOLE_CLIENT_PROXY_SERVERS; its log "
                "says more",
            )
        elif server.draining:
            yield warning(
                about,
                "it drains: its key groups go to others",
                "wait, and see that they have taken over; where `keyhole drain` was asked for it, `--undo` ends that",
            )
        else:
            kind = "replica" if server.replica else "owner"
            yield ok(about, f"answers at {server.address}, {kind}, version {server.version or 'not told'}")


def version_findings(asked: ProxyAnswer, here: str) -> Iterator[Diagnosis]:
    """Whether the same Keyhole runs everywhere. `here`: the version of this command."""
    of: defaultdict[str, list[str]] = defaultdict(list)
    of[here].append("this machine")
    of[asked.status.proxy.version or "older"].append(f"proxy {asked.target}")
    for server in asked.status.servers:
        if not server.unreachable:
            of[server.version or "older"].append(f"server {_name(server)}")
    if len(of) == 1:
        yield ok("versions", f"{here} everywhere")
        return
    versions = "; ".join(f"{version}: {', '.join(_some(names))}" for version, names in sorted(of.items()))
    yield warning("versions", f"they differ: {versions}", "run the same release everywhere")


def clock_findings(asked: ProxyAnswer) -> Iterator[Diagnosis]:
    """How far the clocks of proxy and servers are from this machine's. What the way there may have taken is not held
    against them.
    """
    clocks = [(f"proxy {asked.target}", asked.status.proxy.now_ms)]
    clocks += [(f"server {_name(server)}", server.now_ms) for server in asked.status.servers]
    known = [(who, now_ms) for who, now_ms in clocks if now_ms]
    if not known:
        return
    worst = 0.0
    for who, now_ms in known:
        skew_ms = max(0.0, asked.sent_ms - now_ms, now_ms - asked.answered_ms)
        worst = max(worst, skew_ms)
        if skew_ms <= _SKEW_WARNING_MS:
            continue
        side = "ahead of" if now_ms > asked.answered_ms else "behind"
        says = f"its clock is {skew_ms / 1000:.1f} s {side} this machine's"
        todo = "have both machines' clocks set by NTP: ages, max_staleness and expiry go by them"
        yield (fault if skew_ms > _SKEW_FAULT_MS else warning)(who, says, todo)
    if worst <= _SKEW_WARNING_MS:
        took = asked.answered_ms - asked.sent_ms
        yield ok("clocks", f"within {max(worst, took) / 1000:.2f} s of this machine's")


class _Holders:
    """Who has what of one state."""

    def __init__(self, descriptor: state_pb2.StateDescriptor) -> None:
        self.descriptor = descriptor
        self.owned: set[int] = set()
        self.readable: set[int] = set()
        self.restoring: dict[str, pb.StateHolding] = {}
        self.unconfirmed: set[str] = set()


def route_findings(asked: ProxyAnswer, states: Sequence[state_pb2.StateDescriptor]) -> Iterator[Diagnosis]:
    """Whether each key group of each state has an owner, and whether somebody answers for it.

    Args:
        states: As the proxy lists them: also those that no server holds now.
    """
    holders = {(of.application, of.state): _Holders(of) for of in states}
    if not holders:
        yield ok("states", "there are none yet: a job makes them with its first batch, `keyhole feed` with its start")
        return
    for server in asked.status.servers:
        for holding in server.holdings:
            of = holders.get((holding.descriptor.application, holding.descriptor.state))
            if of is None:
                continue
            is_owner = holding.source.role == state_pb2.ROLE_OWNER
            if is_owner:
                of.owned |= set(holding.key_groups)
                if holding.source.unconfirmed:
                    of.unconfirmed.add(server.server)
            if holding.ready:
                of.readable |= set(holding.key_groups)
            elif is_owner:
                of.restoring[server.server] = holding
    for _, of in sorted(holders.items()):
        yield from _of_state(of)


def _of_state(of: _Holders) -> Iterator[Diagnosis]:
    descriptor = of.descriptor
    about = f"state {descriptor.application}/{descriptor.state}"
    every = set(range(descriptor.key_groups))
    troubled = False
    if unread := every - of.readable:
        troubled = True
        yield fault(
            about,
            f"nobody answers for {_groups(unread, descriptor)}: their keys can't be read",
            "wait where they restore; else see docs/operations.md, KeyholeKeyGroupsUnreadable",
        )
    if ownerless := every - of.owned:
        troubled = True
        yield fault(
            about,
            f"{_groups(ownerless, descriptor)} have no owner: nothing is written to them",
            f"start the job that writes query {descriptor.query}; it gives key groups to the servers that it reaches",
        )
    for server, holding in sorted(of.restoring.items()):
        troubled = True
        yield warning(
            about,
            f"server {server} restores: {holding.restored_records:,} of {holding.records_to_restore:,} records",
            "wait; if it stands still, see docs/operations.md, KeyholeRestoreStuck",
        )
    if of.unconfirmed:
        troubled = True
        yield warning(
            about,
            f"its job is not heard of on {', '.join(sorted(of.unconfirmed))} any more: answers are unconfirmed",
            f"is the job of query {descriptor.query} running, and does it reach the servers? If it is over, that is as "
            "it should be",
        )
    if not troubled:
        yield ok(about, f"all {descriptor.key_groups:,} key groups have an owner, and can be read")


def _groups(of: set[int], descriptor: state_pb2.StateDescriptor) -> str:
    if len(of) == descriptor.key_groups:
        return f"all {descriptor.key_groups:,} key groups"
    return f"{len(of):,} of {descriptor.key_groups:,} key groups ({', '.join(_some([str(one) for one in sorted(of)]))})"


def _some(names: Sequence[str]) -> list[str]:
    more = len(names) - _MOST_NAMED
    return [*names[:_MOST_NAMED], *([f"and {more} more"] if more > 0 else [])]


def _name(server: pb.ServerStatus) -> str:
    return server.server or server.address
