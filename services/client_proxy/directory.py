"""Follows all servers, and knows all routes as of now."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from keyhole.client.routing.hedging import Hedging
from keyhole.clock import Clock
from keyhole.discovery import Discovery
from keyhole.encoding.codec import StateCodec
from keyhole.errors import KeyholeError, NoServer, UnknownApplication, UnknownState
from keyhole.model.state import StateDescriptor
from keyhole.protocol.routing import RouteTable, build, diff
from keyhole.protocol.server_view import ServerView, StateName, let_go
from keyhole.security.credentials import PLAIN, Credentials
from services.client_proxy.route_events import RouteEvents
from services.client_proxy.server_connection import ServerConnection

_log = logging.getLogger(__name__)

_BEGINNING_SECONDS = 60.0
"""A job's queries begin one after the other: for so long after the first one a state that nobody knows may be late."""


class Directory:
    """Keeps a link per discovered server, and route tables that are swapped whole whenever a server says something new.

    Readers take a table and never wait for anything. Used from the event loop's thread only.

    Args:
        hop_seconds: How long a server may be silent before others are asked.
        clock: Of all that the proxy does, but for the deadlines of calls: those are on the event loop's clock.
        credentials: What it shows to servers.
        expected: Applications that are to be there, also where no server has heard of them yet.
        hedging: As of KnownServers.
    """

    def __init__(
        self,
        discovery: Discovery,
        hop_seconds: float,
        clock: Clock,
        credentials: Credentials = PLAIN,
        expected: frozenset[str] = frozenset(),
        hedging: Hedging | None = None,
    ) -> None:
        self._credentials = credentials
        self.hop_seconds = hop_seconds
        self.hedging = hedging
        self.clock = clock
        self._discovery = discovery
        self._links: dict[str, ServerConnection] = {}
        self._tables: dict[StateName, RouteTable] = {}
        self._codecs: dict[StateName, tuple[StateDescriptor, StateCodec]] = {}
        self._remembered: dict[StateName, StateDescriptor] = {}
        self._views: dict[str, ServerView] = {}
        # Their last holder has let go of them: they aren't away, but gone, once nobody else names them.
        self._let_go: set[StateName] = set()
        self._expected = expected
        # States of those that are gone: they were there, and are not merely late.
        self._retired: set[StateName] = set()
        # When the first state came of those that had none as this proxy knew all servers, by the clock.
        self._begun: dict[str, float] = {}
        self._discovered = False
        self.silent_calls = 0
        self.events = RouteEvents()
        """What happened of late, for the console."""
        self._change = asyncio.Event()
        self._looking: asyncio.Handle | None = None
        self._task: asyncio.Task[None] | None = None
        self.reached = asyncio.Event()
        """Set once any server was reached."""
        self.settled = asyncio.Event()
        """Set once every server has answered or failed: before, a state that is not known may just not be known yet."""

    def next_change(self) -> asyncio.Event:
        """Set at the next change of what a server says of itself. Take it before looking."""
        return self._change

    def start(self) -> None:
        """Begins to follow the discovery."""
        self._task = asyncio.get_running_loop().create_task(self._follow())

    async def close(self) -> None:
        """Follows no server any more, and closes all connections."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError, KeyholeError):
                await self._task
        if self._looking is not None:
            self._looking.cancel()
        await asyncio.gather(*(link.close() for link in self._links.values()))

    @property
    def following(self) -> asyncio.Task[None]:
        """Ends only with the error of a discovery that is refused its answer; known after `start`."""
        assert self._task is not None
        return self._task

    @property
    def links(self) -> list[ServerConnection]:
        """The connections, one per discovered server, in the order of their addresses."""
        return [link for _, link in sorted(self._links.items())]

    @property
    def tables(self) -> dict[StateName, RouteTable]:
        """The route tables of all states that a server holds, or held and did not let go of. Not to be changed."""
        return self._tables

    def link(self, address: str) -> ServerConnection | None:
        """Returns the link to the server at this address; None: it is not discovered any more."""
        return self._links.get(address)

    def suspect(self, address: str) -> None:
        """A server was silent for the hop deadline: others are asked before it, until it is heard again."""
        self.silent_calls += 1
        link = self._links.get(address)
        if link is not None:
            link.suspect()
            if self._looking is not None:  # it was not suspected before
                self._look()  # at once: whoever has noticed goes on by the new tables

    def table(self, name: StateName) -> RouteTable:
        """Returns the routes of a state.

        Raises:
            NoServer: No server can be reached, so nobody knows which states there are. Or none has heard yet of an
                application that is to be there, or of a state of it that may still come.
            UnknownApplication, UnknownState: The message names those that exist.
        """
        table = self._tables.get(name)
        if table is None:
            raise self._unknown(name)
        return table

    def codec(self, name: StateName) -> StateCodec:
        """Returns the codec of the state's newest descriptor; it is made once for each. Raises as `table`."""
        descriptor = self.table(name).descriptor
        known = self._codecs.get(name)
        if known is None or known[0] != descriptor:
            known = self._codecs[name] = (descriptor, StateCodec(descriptor))
        return known[1]

    async def known(self, name: StateName, deadline: float) -> None:
        """Waits only where the state is not known and a server has not been tried yet. Event loop's clock."""
        if name not in self._tables:
            await self.tried(deadline)

    async def tried(self, deadline: float) -> None:
        """Waits until every server was tried once, or the deadline has come: what is not known then is refused, with
        the servers that are still being connected to.
        """
        if not self.settled.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self.settled.wait()

    def check_reachable(self) -> None:
        """Raises NoServer, with each server's reason, if none can be reached."""
        if not any(link.view is not None and not link.view.lost for link in self._links.values()):
            raise NoServer(f"no state server can be reached: {self._reasons() or 'none was discovered yet'}")

    def _unknown(self, name: StateName) -> KeyholeError:
        try:
            self.check_reachable()
        except NoServer as error:
            return error
        application, state = name
        reasons = self._reasons()
        unheard = f" (not asked: {reasons})" if reasons else ""
        applications = ", ".join(sorted({known for known, _ in self._tables})) or (
            "none yet (a job makes its states as it starts, and they can be read after its first batch)"
        )
        states = ", ".join(sorted(known for owner, known in self._tables if owner == application))
        is_expected = application in self._expected
        if not states and is_expected and application not in {of for of, _ in self._retired}:
            return NoServer(
                f"no state server has heard of application {application} yet: its job or feed has not come so far, or "
                f"has never run{unheard}",
                application=application,
            )
        if not states:
            return UnknownApplication(
                f"no application {application!r}; there are: {applications}{unheard}", applications=applications
            )
        if is_expected and name not in self._retired and (why := self._why_late(application)):
            return NoServer(
                f"application {application} has no state {state!r} so far, and {why}; it has: {states}{unheard}",
                application=application,
                states=states,
            )
        return UnknownState(
            f"application {application} has no state {state!r}; it has: {states}{unheard}", states=states
        )

    def _why_late(self, application: str) -> str:
        """Why a state of the application may still come; empty: what there is of it is known."""
        if any(not link.reached for link in self._links.values()):
            return "a server that may have it was not reached yet"
        begun = self._begun.get(application)
        if begun is not None and self.clock.monotonic() - begun < _BEGINNING_SECONDS:
            return "has only begun"
        return ""

    def _reasons(self) -> str:
        lost = {link.address: link.view.lost if link.view else "connecting" for link in self.links}
        return "; ".join(
            reason if address in reason else f"{address}: {reason}" for address, reason in lost.items() if reason
        )

    async def _follow(self) -> None:
        async for addresses in self._discovery.addresses():
            gone = [self._links.pop(address) for address in self._links.keys() - addresses]
            if self.hedging is not None:
                for link in gone:
                    self.hedging.forget(link.address)
            for address in addresses - self._links.keys():
                self._links[address] = ServerConnection(
                    address, self._changed, self.hop_seconds, self.clock, self._credentials
                )
            self._discovered = True
            self._look()
            await asyncio.gather(*(link.close() for link in gone))

    def _changed(self) -> None:
        """A server has said something. What several say in one turn of the event loop is looked at once: all that a
        thousand servers hold takes a while to look at, and at a start they all speak.
        """
        if self._looking is None:
            self._looking = asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        links = self._links.values()
        views = {link.address: link.view for link in links if link.view}
        for address, view in views.items():
            self._let_go |= let_go(self._views.get(address), view)
        self._let_go -= {name for view in views.values() for name in view.held}
        now_ms = self.clock.now_ms()
        self.events.note_servers(now_ms, self._views, views)
        # Who is gone gave key groups up under its name, too.
        names = {address: view.server or address for address, view in (self._views | views).items()}
        known, self._views = self._views, views
        remembered = {name: of for name, of in self._remembered.items() if name not in self._let_go}
        before, self._tables = self._tables, build(views.values(), remembered)
        self._remembered = {name: table.descriptor for name, table in self._tables.items()}
        self._let_go &= self._tables.keys()
        change = diff(before, self._tables)
        self._retired |= {name for name in change.removed if name[0] in self._expected}
        self._retired -= self._tables.keys()
        if self.settled.is_set():
            begun = {application for application, _ in change.added} - {application for application, _ in before}
            self._begun |= dict.fromkeys(begun & self._expected, self.clock.monotonic())
        self.events.note_routes(now_ms, change, before, self._tables, names, moves=self.settled.is_set())
        self.events.note_restores(now_ms, known, views)
        for name in change.removed:
            self._codecs.pop(name, None)
        if change.added or change.removed or change.moved:
            _log.info(
                "routes changed",
                extra={
                    "added": ["/".join(name) for name in sorted(change.added)],
                    "removed": ["/".join(name) for name in sorted(change.removed)],
                    "moved_key_groups": {"/".join(name): count for name, count in change.moved.items()},
                },
            )
        self._change.set()
        self._change = asyncio.Event()
        if any(link.reached for link in links):
            self.reached.set()
        if self._discovered and all(link.view is not None for link in links):
            self.settled.set()
