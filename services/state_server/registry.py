"""All that one state server holds: its hosts, its tables, and who watches for changes. Event loop's thread only."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Mapping

from keyhole.changelog.base import Changelog
from keyhole.errors import (
    Draining,
    KeyholeError,
    NotReady,
    StaleDescriptor,
    UnknownApplication,
    UnknownState,
    Unsupported,
)
from keyhole.metrics.families import version
from keyhole.model.epoch import Run
from keyhole.rpc.convert import descriptor_to_proto
from keyhole.rpc.version import PROTOCOL_VERSION
from keyhole.v1 import query_pb2, state_server_pb2
from services.state_server.counts import ServerCounts
from services.state_server.fence import LastRun
from services.state_server.host import QueryHost
from services.state_server.host_settings import HostSettings
from services.state_server.placements import Placements
from services.state_server.read.holdings import holdings
from services.state_server.read.table import Table

_log = logging.getLogger(__name__)

_Name = tuple[str, str]
"""Application and query."""


class Registry:
    """See the module's text.

    Args:
        address: Gives host:port that others reach this server by, once it is bound.
        started_ms: Milliseconds since 1970, UTC.
        max_key_bytes: The longest storage key that its stores take.
        replica: It holds standby copies only.
    """

    def __init__(
        self,
        server: str,
        incarnation: str,
        address: Callable[[], str],
        started_ms: int,
        max_key_bytes: int,
        *,
        replica: bool = False,
    ) -> None:
        self.server = server
        self.incarnation = incarnation
        self._address = address
        # Its key groups are to go to others; until they have them it goes on owning and answering. Either it was sent
        # SIGTERM (`ending`), and closes then; or somebody has asked for it, and may take that back.
        self.draining = False
        self.ending = False
        self.closing = False
        self.replica = replica
        # Kept while it drains.
        self._placements = Placements()
        self.counts = ServerCounts()
        self.lookup_port = 0
        """Of its lookup port, which is announced with its address; 0: it has none."""
        self.tables: dict[tuple[str, str], Table] = {}
        self._hosts: dict[_Name, QueryHost] = {}
        # Of queries that were forgotten: what is being closed, and all that is kept of them.
        self._leaving: dict[_Name, asyncio.Task[None]] = {}
        self._last_runs: dict[_Name, LastRun] = {}
        self._started_ms = started_ms
        self._max_key_bytes = max_key_bytes
        self._change = asyncio.Event()
        self._on_change: Callable[[], None] = lambda: None
        self._on_retire: Callable[[str, str], None] = lambda application, query: None

    @property
    def started_ms(self) -> int:
        """When this process began, in milliseconds since 1970, UTC."""
        return self._started_ms

    @property
    def ready(self) -> bool:
        """Whether it has key groups, and all of them can be read."""
        return bool(self._hosts) and not self.draining and all(host.ready for host in self._hosts.values())

    @property
    def hosts(self) -> Mapping[tuple[str, str], QueryHost]:
        """The hosts by application and query, in the order in which they came."""
        return self._hosts

    @property
    def owning(self) -> bool:
        """A coordinator that is alive counts on this server for key groups that others could own."""
        return any(host.owning for host in self._hosts.values())

    def drain(self, *, undo: bool = False) -> None:
        """Its key groups are to go to others, or may stay from now on. Idempotent.

        Raises:
            Draining: It is to end, and that can't be undone.
            Unsupported: It is a replica.
        """
        if self.replica:
            raise Unsupported(f"server {self.server} is a replica: it owns nothing, and may be ended at any time")
        if undo and self.ending:
            raise Draining(f"server {self.server} is shutting down; its successor takes key groups again")
        if self.draining == undo:
            self.draining = not undo
            _log.info("may be given key groups again" if undo else "drains: key groups are to go to others")
            self.changed()

    def move(
        self, application: str, query: str, state: str, key_groups: frozenset[int], *, undo: bool = False
    ) -> frozenset[int]:
        """Key groups are to be here, or may be anywhere again. Idempotent.

        Args:
            query: The state's, with which they are forgotten; not looked at where it is undone.

        Returns:
            All of the state that are to be here now.

        Raises:
            Draining: It is to give its key groups to others.
            Unsupported: It is a replica.
            TooLarge: They would be too many.
        """
        if not undo and self.draining:
            raise Draining(f"server {self.server} drains: its key groups go to others, and none comes")
        if self.replica:
            raise Unsupported(f"server {self.server} is a replica: it follows, and owns nothing")
        before = self._placements.of(application, state)
        after = before - key_groups if undo else before | key_groups
        if after != before:
            self._placements.put(application, query, state, after)
            _log.info(
                "what is to be here was changed",
                extra={"application": application, "state": state, "key_groups": sorted(after)},
            )
        return after

    def end(self) -> None:
        """It is to end: drains for good."""
        self.ending = self.draining = True
        self.changed()

    @property
    def assigned(self) -> bool:
        """It owns key groups, or is to: nobody has taken them over, whether anybody could or not."""
        return any(host.assigned for host in self._hosts.values())

    def on_retire(self, callback: Callable[[str, str], None]) -> None:
        """Is called with what is to be retired, by application and query, before anything is done (on a replica)."""
        self._on_retire = callback

    def on_change(self, callback: Callable[[], None]) -> None:
        """Is called after each change (by which the health service hears of it)."""
        self._on_change = callback

    def changed(self) -> None:
        """Wakes all who watch the ownership, and the health service."""
        self._change.set()
        self._change = asyncio.Event()
        for table in self.tables.values():
            table.changes.look(frozenset() if self.closing else table.groups)
        self._on_change()

    def next_change(self) -> asyncio.Event:
        """Set at the next change. Take it before looking: a change while one looks, or sends, is then not missed."""
        return self._change

    def table(self, application: str, state: str) -> Table:
        """Raises UnknownApplication or UnknownState, naming what there is."""
        table = self.tables.get((application, state))
        if table is not None:
            return table
        states = sorted(name for app, name in self.tables if app == application)
        if states:
            raise UnknownState(
                f"application {application} has no state {state!r} on server {self.server}; it has {', '.join(states)}",
                states=",".join(states),
            )
        applications = sorted({app for app, _ in self.tables})
        raise UnknownApplication(
            f"server {self.server} holds nothing of application {application!r}; "
            + (f"it holds {', '.join(applications)}" if applications else "no job has given it key groups yet"),
            applications=",".join(applications),
        )

    async def renew(self, table: Table, *, owned: bool, followed: bool) -> None:
        """What is shown of a table that lives is shown by its store's last commit; see Ownership.renew."""
        of = table.descriptor
        host = self._hosts.get((of.application, of.query))
        if host is not None and self.tables.get((of.application, of.state)) is table:
            await host.renew(of.state, owned=owned, followed=followed)

    def ended_watch(self, table: Table) -> KeyholeError | None:
        """Why nobody can watch the state of this table here any more; None: one can."""
        application, state = table.descriptor.application, table.descriptor.state
        if self.closing:
            return Draining(f"server {self.server} is shutting down", server=self.server)
        if not table.changes.closed:
            return None
        try:
            now = self.table(application, state)
        except (UnknownApplication, UnknownState) as error:
            return error
        return StaleDescriptor(
            f"state {application}/{state} was made anew, and what was watched is gone; begin the watch without a token",
            topic_id=now.descriptor.topic_id,
        )

    def check_incarnation(self, incarnation: str) -> None:
        """Raises NotReady: the caller means this server as it was before it was restarted."""
        if incarnation != self.incarnation:
            raise NotReady(f"server {self.server} has been restarted; it needs a new grant")

    def host(self, run: Run) -> QueryHost:
        """The host of a query that has been opened here."""
        host = self._hosts.get((run.application, run.query))
        if host is None:
            raise NotReady(f"run {run.generation} of query {run.query!r} has not been opened on server {self.server}")
        return host

    def host_for(
        self, run: Run, grant: str, changelog: Callable[[str], Changelog], settings: HostSettings
    ) -> QueryHost:
        """The host of a query, made if absent.

        Raises:
            Draining, Unsupported: It takes no query.
            NotReady: It is still forgetting the query.
            Fenced, StageLost: It has forgotten the query, and the run or the grant is of before. See LastRun.
        """
        if self.ending:  # one that was asked to drain is given something only where all drain
            raise Draining(f"server {self.server} is shutting down")
        if self.replica:
            raise Unsupported(
                f"server {self.server} is a replica: it follows, and owns nothing. Take it off the job's list"
            )
        key = run.application, run.query
        if key in self._leaving:
            raise NotReady(f"server {self.server} is forgetting query {run.query!r}; ask again")
        if key not in self._hosts and key in self._last_runs:
            self._last_runs[key].check(run, grant)
        return self.host_of(run.application, run.query, changelog, settings)

    def host_of(
        self, application: str, query: str, changelog: Callable[[str], Changelog], settings: HostSettings
    ) -> QueryHost:
        """As `host_for`, without a run."""
        key = application, query
        if key not in self._hosts:
            self._hosts[key] = QueryHost(application, query, changelog(application), self.tables, settings)
        return self._hosts[key]

    def status(self, now_ms: int, *, brief: bool = False) -> query_pb2.ServerStatus:
        """The server's status, with sizes, which are read from the stores.

        Args:
            now_ms: By its clock.
            brief: Without what it holds: all coordinators ask for that in each heartbeat.
        """
        return query_pb2.ServerStatus(
            server=self.server,
            address=self._address(),
            incarnation=self.incarnation,
            started_ms=self._started_ms,
            draining=self.draining,
            goes_on=not self.ending,
            holdings=() if brief else self.holdings(sizes=True),
            max_key_bytes=self._max_key_bytes,
            replica=self.replica,
            protocol_version=PROTOCOL_VERSION,
            now_ms=now_ms,
            version=version(),
            placements=self._placements.messages,
            lookup_port=self.lookup_port,
        )

    def ownership(self) -> state_server_pb2.Ownership:
        """What this server owns and follows, for proxies to route by. Without sizes."""
        return state_server_pb2.Ownership(
            server=self.server,
            address=self._address(),
            incarnation=self.incarnation,
            draining=self.draining,
            holdings=self.holdings(sizes=False),
            max_key_bytes=self._max_key_bytes,
            replica=self.replica,
            protocol_version=PROTOCOL_VERSION,
            lookup_port=self.lookup_port,
        )

    def holdings(self, *, sizes: bool) -> list[query_pb2.StateHolding]:
        return [
            holding
            for _, table in sorted(self.tables.items())
            for holding in holdings(table, descriptor_to_proto(table.descriptor), sizes=sizes)
        ]

    def retirable(self, application: str, query: str = "", run: Run | None = None) -> dict[str, list[str]]:
        """What `retire` would forget. Raises as it does."""
        names = [name for name in self._hosts if _meant(name, application, query)]
        for name in names:
            self._hosts[name].check_over(run)
        return {name[1]: self._hosts[name].states for name in names}

    async def retire(self, application: str, query: str = "", run: Run | None = None) -> dict[str, list[str]]:
        """Forgets queries, and deletes what their stores have on disk; returns when nothing is left of them.

        A caller that goes away does not stop it. May be repeated: what is not there is retired.

        Args:
            query: Empty: all of the application.
            run: The run of the query that says so itself; None: somebody else does.

        Returns:
            The states of each query that was forgotten now.

        Raises:
            StillRunning, Fenced, NotReady: See QueryHost.check_over. Nothing was changed.
        """
        retired = self.retirable(application, query, run)
        for of in retired or [query]:
            self._on_retire(application, of)
        self._placements.forget(application, query)
        for of in retired:
            self._forget((application, of), destroy=True)
        leaving = [task for name, task in self._leaving.items() if _meant(name, application, query)]
        if leaving:
            await asyncio.wait(leaving)
        for task in leaving:
            task.result()
        return retired

    def forget_idle(self) -> None:
        """Begins to forget the queries that nobody needs here. Their stores' files stay: they may be given back."""
        for name in [name for name, host in self._hosts.items() if host.idle]:
            self._forget(name, destroy=False)

    def _forget(self, name: _Name, *, destroy: bool) -> None:
        host = self._hosts.pop(name)
        last = host.fence.last_run
        if last.run.generation:
            self._last_runs[name] = last
        host.withdraw()
        self.changed()
        task = self._leaving[name] = asyncio.create_task(host.close(destroy=destroy))
        task.add_done_callback(functools.partial(self._left, name))

    def _left(self, name: _Name, task: asyncio.Task[None]) -> None:
        del self._leaving[name]
        if not self.closing:
            self.changed()  # a store that was just being opened may have been announced since
        application, query = name
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a query was not forgotten in order", extra={"query": query}, exc_info=error)
        else:
            _log.info("forgot a query", extra={"application": application, "query": query})

    async def close(self) -> None:
        """Closes all hosts, one after the other."""
        if self._leaving:
            await asyncio.wait(self._leaving.values())
        for host in self._hosts.values():
            await host.close()
        self._hosts.clear()
        self.tables.clear()


def _meant(name: _Name, application: str, query: str) -> bool:
    return name[0] == application and query in ("", name[1])
