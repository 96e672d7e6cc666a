"""From one round to the next: rates, and who has gone meanwhile. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from keyhole.cli.seen_servers import seen_servers
from keyhole.cli.top.looks import ClusterLook
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import state_pb2, stats_pb2

_SERVER, _PROXY = "keyhole_state_server", "keyhole_client_proxy"
_WRITTEN = f"{_SERVER}_committed_rows_total"
_SERVED, _FORWARDED = f"{_SERVER}_lookup_keys_total", f"{_PROXY}_lookup_keys_total"
_FAILED = f"{_PROXY}_failed_reads_total"
_CPU, _MEMORY = f"{_SERVER}_cpu_seconds_total", f"{_SERVER}_resident_memory_bytes"

_State = tuple[str, str]


class Overview:
    """What there is to show. Give it each round's look.

    Attributes:
        error: Why no proxy has answered in this round; empty: one has. Then all else is of the round before.
        silent_seconds: For how long none has.
    """

    def __init__(self) -> None:
        self.error = ""
        self.silent_seconds = 0.0
        self._look: ClusterLook | None = None
        # By address, the figures of a round before, with when they came.
        self._before: dict[str, tuple[stats_pb2.ReadStatsResponse, float]] = {}
        # In the order in which they are shown; and when each address was seen last.
        self._seen: dict[str, pb.ServerStatus] = {}
        self._seen_at: dict[str, float] = {}
        self._at = 0.0

    def take(self, look: ClusterLook) -> None:
        """Goes on to the next round."""
        self._at = look.at
        if look.error is not None:
            self.error = look.error.message
            self.silent_seconds = look.at - self._look.at if self._look is not None else 0.0
            return
        self.error, self.silent_seconds = "", 0.0
        if (last := self._look) is not None:
            self._before |= {
                address: (of, last.figured_at.get(address, last.at)) for address, of in last.figures.items()
            }
        self._look = look
        self._seen = seen_servers(self._seen, look.servers)
        seen_at = self._seen_at | {server.address: look.at for server in look.servers}
        self._seen_at = {address: seen_at[address] for address in self._seen}

    def silent(self) -> dict[str, str]:
        """By address, why one that was asked in this round has given no figures: a proxy, or a server."""
        return dict(self._look.silent) if self._look is not None and not self.error else {}

    @property
    def present(self) -> int:
        """How many servers the proxy knows."""
        return len(self._look.servers) if self._look is not None else 0

    def servers(self) -> list[dict[str, Any]]:
        """A row for each server that there is or was, those first that are there; their columns by importance."""
        look = self._look
        if look is None:
            return []
        present = {server.address for server in look.servers}
        rows = []
        for address, server in self._seen.items():
            is_there = address in present and not server.unreachable
            rows.append(
                {
                    "server": server.server or address,
                    "is": self._condition(
                        server, gone_seconds=None if address in present else self._at - self._seen_at[address]
                    ),
                    "rows_per_second": self._rate(address, _WRITTEN) if is_there else None,
                    "reads_per_second": self._rate(address, _SERVED) if is_there else None,
                    "owns": _groups(server, state_pb2.ROLE_OWNER) if is_there else None,
                    "follows": _groups(server, state_pb2.ROLE_STANDBY) if is_there else None,
                    "cpu_cores": self._rate(address, _CPU) if is_there else None,
                    "memory_bytes": self._gauge(address, _MEMORY) if is_there else None,
                    "address": address,
                    "up_seconds": max(0.0, (look.now_ms - server.started_ms) / 1000)
                    if is_there and server.started_ms
                    else None,
                }
            )
        return rows

    def states(self) -> list[dict[str, Any]]:
        """A row for each state: those with something wrong first, then by reads."""
        look = self._look
        if look is None:
            return []
        held: defaultdict[_State, list[pb.StateHolding]] = defaultdict(list)
        for server in look.servers:
            for holding in server.holdings:
                held[holding.descriptor.application, holding.descriptor.state].append(holding)
        rows = [self._state(of, held[of.application, of.state]) for of in look.states]
        return sorted(rows, key=lambda row: (row["is"] == "ok", -(row["reads_per_second"] or 0), row["state"]))

    def _state(self, of: state_pb2.StateDescriptor, holdings: list[pb.StateHolding]) -> dict[str, Any]:
        assert self._look is not None
        owned = [holding for holding in holdings if holding.source.role == state_pb2.ROLE_OWNER]
        name, now_ms = (of.application, of.state), self._look.now_ms
        committed = max((holding.source.commit_time_ms for holding in owned), default=0)
        as_of = [holding.source.as_of_ms for holding in owned if holding.source.as_of_ms]
        return {
            "state": "/".join(name),
            "is": "; ".join(_troubles(of, holdings)) or "ok",
            "rows_per_second": self._state_rate(name, _WRITTEN),
            "reads_per_second": self._state_rate(name, _SERVED, _FORWARDED),
            "failed_per_second": self._state_rate(name, _FAILED),
            "staleness_seconds": max(0.0, (now_ms - min(as_of)) / 1000) if as_of else None,
            "commit_age_seconds": max(0.0, (now_ms - committed) / 1000) if committed else None,
            "entries": sum(holding.entries for holding in owned),
            "bytes": sum(holding.bytes for holding in owned),
            "key_groups": of.key_groups,
        }

    def _condition(self, server: pb.ServerStatus, gone_seconds: float | None) -> str:
        if gone_seconds is not None:
            return f"gone for {gone_seconds:.0f} s: the proxy knows it no more"
        if server.unreachable:
            return f"unreachable: {server.unreachable}"
        how = "draining" if server.draining else "replica" if server.replica else "ok"
        why = self._look.silent.get(server.address) if self._look is not None else None
        return f"{how}; {why}" if why else how

    def _state_rate(self, name: _State, metric: str, instead: str = "") -> float | None:
        """Of all that tell it together; of `instead` where nobody does. None: not known."""
        assert self._look is not None
        rates = [self._rate(address, metric, name) for address in self._look.figures]
        known = [rate for rate in rates if rate is not None]
        if not known and instead:
            return self._state_rate(name, instead)
        return sum(known) if known else None

    def _rate(self, address: str, metric: str, name: _State | None = None) -> float | None:
        if self._look is None or address not in self._before:
            return None
        figures, before_at = self._before[address]
        now, before = (_samples(of, metric, name) for of in (self._look.figures.get(address), figures))
        if now is None or before is None:
            return None
        # What has started again tells what it has counted since: a server, or one of a proxy's processes. Of their sum
        # it would seem that all of them had.
        earlier = {labels: before.get(labels, 0.0) for labels in now}
        grown = sum(of - earlier[labels] if of >= earlier[labels] else of for labels, of in now.items())
        return grown / max(0.001, self._look.figured_at.get(address, self._look.at) - before_at)

    def _gauge(self, address: str, metric: str) -> float | None:
        samples = None if self._look is None else _samples(self._look.figures.get(address), metric, None)
        return None if samples is None else sum(samples.values())


def _samples(
    figures: stats_pb2.ReadStatsResponse | None, metric: str, name: _State | None
) -> dict[tuple[str, ...], float] | None:
    """By their labels, of the state if one is named; None: it has no such metric, or does not tell."""
    if figures is None:
        return None
    for family in figures.families:
        if family.name == metric:
            return {
                tuple(sample.labels): sample.value
                for sample in family.samples
                if name is None or _of_state(family.labels, sample) == name
            }
    return {} if metric.startswith(_prefix(figures)) else None


def _prefix(figures: stats_pb2.ReadStatsResponse) -> str:
    return {stats_pb2.COMPONENT_STATE_SERVER: _SERVER, stats_pb2.COMPONENT_CLIENT_PROXY: _PROXY}.get(
        figures.component, "?"
    )


def _of_state(labels: Any, sample: stats_pb2.MetricSample) -> _State:
    of: Mapping[str, str] = dict(zip(labels, sample.labels, strict=True))
    return of.get("application", ""), of.get("state", "")


def _groups(server: pb.ServerStatus, role: state_pb2.Role.ValueType) -> int:
    return sum(len(holding.key_groups) for holding in server.holdings if holding.source.role == role)


def _troubles(of: state_pb2.StateDescriptor, holdings: list[pb.StateHolding]) -> Iterator[str]:
    owned, readable = set[int](), set[int]()
    for holding in holdings:
        if holding.source.role == state_pb2.ROLE_OWNER:
            owned |= set(holding.key_groups)
        if holding.ready:
            readable |= set(holding.key_groups)
    if len(readable) < of.key_groups:
        yield f"{of.key_groups - len(readable):,} key groups can't be read"
    if len(owned) < of.key_groups:
        yield f"{of.key_groups - len(owned):,} key groups without owner"
    restoring = [one for one in holdings if not one.ready and one.source.role == state_pb2.ROLE_OWNER]
    for one in restoring:
        yield f"{one.server} restores: {one.restored_records:,} of {one.records_to_restore:,}"
    if any(one.source.unconfirmed for one in holdings if one.source.role == state_pb2.ROLE_OWNER):
        yield "unconfirmed: its job is not heard of"
    if lag := max((one.lag_updates for one in holdings), default=0):
        yield f"{lag:,} updates behind"
