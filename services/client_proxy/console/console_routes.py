"""The console's paths: its pages, and the JSON that they show. docs/console-reference.md has them.

GET /console/...                                     the pages
GET /console/api/overview                            all states, what is wrong, the servers, the last events
GET /console/api/states/{application}/{state}        one state: its descriptor, key groups and copies
GET /console/api/key-groups                          the key groups of all states
GET /console/api/epochs/{application}/{query}        what the last epochs of a query took
POST /console/api/sql                                the first rows of one SELECT over states
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from keyhole.errors import MalformedRequest, UnknownState
from keyhole.metrics.families import version
from keyhole.protocol.server_view import StateName
from keyhole.security.authentication import Caller
from keyhole.security.policy import Verb
from keyhole.v1 import query_pb2 as pb
from services.client_proxy.console.built_pages import HEADERS, BuiltPages
from services.client_proxy.console.hottest import hottest_json
from services.client_proxy.console.query_epochs import QueryEpochs, epoch_json
from services.client_proxy.console.refusals import refusals_of, turned_away
from services.client_proxy.console.shared_rounds import FRESH_SECONDS
from services.client_proxy.console.shared_status import ServerReports, SharedStatus
from services.client_proxy.console.sql_queries import SqlQueries
from services.client_proxy.console.state_standing import Described, StateStanding, describe_all
from services.client_proxy.console.troubles import troubles_of
from services.client_proxy.directory import Directory
from services.client_proxy.http.answers import descriptor_json
from services.client_proxy.http.json_response import NO_STORE, json_response
from services.client_proxy.http.request_body import body_of
from services.client_proxy.siblings import ProcessFacts, Siblings

POLL_SECONDS = 2 * FRESH_SECONDS
"""How often an open page asks; the answer says so."""

_BODY_SECONDS = 10.0


class ConsoleRoutes:
    """Adds them to an application. Event loop's thread only.

    Args:
        siblings: Whose reads are shown, and of the one that has begun first its events.
        caller_of: Who makes a request; raises Unauthenticated.
        grpc_port: Of the proxy, for what the pages say to copy.
        sql: What runs queries.
    """

    def __init__(
        self,
        directory: Directory,
        siblings: Siblings,
        caller_of: Callable[[web.Request], Caller],
        grpc_port: Callable[[], int],
        sql: SqlQueries,
    ) -> None:
        self._directory = directory
        self._siblings = siblings
        self._caller_of = caller_of
        self._grpc_port = grpc_port
        self._status = SharedStatus(directory)
        self._epochs = QueryEpochs(directory)
        self._sql = sql
        self._described: tuple[ServerReports, dict[StateName, Described]] | None = None
        self._pages = BuiltPages()

    def add_to(self, app: web.Application) -> None:
        """Before the application is served."""
        app.router.add_routes(
            [
                web.get("/", self._to_start),
                web.get("/console", self._to_start),
                web.get("/console/api/overview", self._overview),
                web.get("/console/api/key-groups", self._key_groups),
                web.get(r"/console/api/states/{application:[^/:]+}/{state:[^/:]+}", self._state),
                web.get(r"/console/api/epochs/{application:[^/:]+}/{query:[^/]+}", self._epochs_of),
                web.post("/console/api/sql", self._rows),
                web.get(r"/console/{name:.*}", self._page),
            ]
        )

    async def close(self) -> None:
        """Ends what asks the servers."""
        await self._status.close()
        await self._epochs.close()
        await self._sql.close()

    async def _to_start(self, request: web.Request) -> web.Response:
        return web.Response(status=302, headers={**HEADERS, "Location": "/console/"})

    async def _page(self, request: web.Request) -> web.Response:
        # Nobody is asked who they are: the pages are the same for all, and a browser shows no token for them.
        return self._pages.answer(request, request.match_info["name"])

    async def _overview(self, request: web.Request) -> web.Response:
        caller = self._caller_of(request)
        reports, described = await self._look()
        processes = await self._siblings.facts()
        reads = _reads(processes)
        seen = _seen(caller, described)
        administers = _administers(caller)
        servers = _servers(reports, seen, all_of_them=administers)

        def may_know(application: str, state: str) -> bool:
            return _may_know(caller, application, state)

        events = [event for event in processes[0].events if may_know(event.application, event.state)]
        return _shown(
            {
                **self._head(reports),
                "version": version(),
                "grpc_port": self._grpc_port(),
                "administers": administers,
                "no_sql": self._sql.why_not,
                "states": [self._state_json(of.standing, reports, reads) for of in seen.values()],
                "servers": [_server_json(server, administers) for server in servers],
                "troubles": troubles_of(
                    reports.at_ms, [of.standing for of in seen.values()], servers if administers else ()
                ),
                "events": events,
                "refusals": refusals_of(processes, may_know),
                "turned_away": turned_away(processes) if administers else {},
            }
        )

    async def _key_groups(self, request: web.Request) -> web.Response:
        caller = self._caller_of(request)
        reports, described = await self._look()
        states = [
            {
                "application": name[0],
                "state": name[1],
                "key_groups": of.standing.key_groups,
                "runs": of.runs,
                "copies": of.copies,
            }
            for name, of in _seen(caller, described).items()
        ]
        return _shown({**self._head(reports), "states": states})

    async def _state(self, request: web.Request) -> web.Response:
        caller = self._caller_of(request)
        name = (request.match_info["application"], request.match_info["state"])
        if not caller.may_see(*name):
            raise caller.denied(Verb.READ, *name)
        reports, described = await self._look()
        table = self._directory.table(name)
        of = described.get(name)
        if of is None:  # it has come since the servers were asked
            of = describe_all({name: table}, reports.servers, reports.awaited)[name]
        processes, may_scan = await self._siblings.facts(), caller.may(Verb.SCAN, *name)
        return _shown(
            {
                **self._head(reports),
                "grpc_port": self._grpc_port(),
                "descriptor": descriptor_json(of.descriptor),
                "scan_key": of.descriptor.scan_key,
                "entry_key": of.descriptor.entry_key,
                "may_read": caller.may(Verb.READ, *name),
                "may_scan": may_scan,
                # Who may not see which keys there are sees none of these either.
                "hottest": hottest_json(self._directory.codec(name), processes) if may_scan else None,
                "standing": self._state_json(of.standing, reports, _reads(processes)),
                "runs": of.runs,
                "copies": of.copies,
                "missing": of.missing if _administers(caller) else "",
                "troubles": troubles_of(reports.at_ms, [of.standing], ()),
            }
        )

    async def _epochs_of(self, request: web.Request) -> web.Response:
        caller = self._caller_of(request)
        name = (request.match_info["application"], request.match_info["query"])
        fed = [of for of, table in self._directory.tables.items() if (of[0], table.descriptor.query) == name]
        if not any(caller.may_see(*of) for of in fed):
            self._directory.check_reachable()
            # Whether there is one is for those alone who may see a state of it.
            raise UnknownState(f"application {name[0]} has no query {name[1]!r} that feeds a state that you may see")
        answer = await self._epochs.of(name)
        return _shown(
            {
                "now_ms": self._directory.clock.now_ms(),
                "at_ms": answer.at_ms,
                "poll_seconds": POLL_SECONDS,
                "application": name[0],
                "query": name[1],
                "answered": answer.answered,
                "epochs": [epoch_json(of) for of in answer.epochs],
            }
        )

    async def _rows(self, request: web.Request) -> web.Response:
        self._caller_of(request)
        # No form of another page can say that it sends JSON: its browser would ask first, and be refused.
        if request.content_type != "application/json":
            raise MalformedRequest("the body is JSON: say so, by the header Content-Type: application/json")
        answer = await self._sql.run(await body_of(request, _BODY_SECONDS))
        return web.Response(body=answer, content_type="application/json", headers={**NO_STORE, **HEADERS})

    async def _look(self) -> tuple[ServerReports, dict[StateName, Described]]:
        reports = await self._status.now()
        if self._described is None or self._described[0] is not reports:
            self._described = reports, describe_all(self._directory.tables, reports.servers, reports.awaited)
        return self._described

    def _head(self, reports: ServerReports) -> dict[str, Any]:
        return {"now_ms": self._directory.clock.now_ms(), "at_ms": reports.at_ms, "poll_seconds": POLL_SECONDS}

    def _state_json(
        self, standing: StateStanding, reports: ServerReports, reads: dict[StateName, dict[str, int]]
    ) -> dict[str, Any]:
        name = (standing.application, standing.state)
        writes, latency = reports.writes.get(name), reports.latencies.get(name)
        return {
            "standing": standing,
            "reads": reads.get(name, _NO_READS),
            # None: no server has counted it, as of the states beyond those that have figures of their own.
            "writes": None if writes is None else writes._asdict(),
            "replayed_epochs": reports.replays.get((standing.application, standing.query), 0),
            # None: it is fed by epochs, or no server tells.
            "latency": None if latency is None else latency._asdict(),
        }


_NO_READS = {"keys": 0, "scans": 0, "entries": 0, "failed": 0}


def _reads(processes: Iterable[ProcessFacts]) -> dict[StateName, dict[str, int]]:
    """By state, through all processes of this proxy, since each began."""
    sums: dict[StateName, dict[str, int]] = {}
    for of in (of for facts in processes for of in facts.reads):
        before = sums.get((of.application, of.state), _NO_READS)
        sums[of.application, of.state] = {figure: count + getattr(of, figure) for figure, count in before.items()}
    return sums


def _seen(caller: Caller, described: dict[StateName, Described]) -> dict[StateName, Described]:
    return {name: of for name, of in described.items() if caller.may_see(*name)}


def _may_know(caller: Caller, application: str, state: str) -> bool:
    """Of an event, or of refusals: a state's like the state; a server's those who administer all."""
    return caller.may_see(application, state) if state else _administers(caller)


def _administers(caller: Caller) -> bool:
    """Whether it may know of servers what `Status` tells."""
    return caller.may_everywhere(Verb.ADMIN, Verb.PLATFORM)


def _servers(reports: ServerReports, seen: dict[StateName, Described], *, all_of_them: bool) -> list[pb.ServerStatus]:
    named = {server for of in seen.values() for server in of.standing.servers}
    return [of for _, of in sorted(reports.servers.items()) if all_of_them or of.server in named]


def _server_json(server: pb.ServerStatus, administers: bool) -> dict[str, Any]:
    return {
        "server": server.server,
        "address": server.address if administers else "",
        "started": _moment(server.started_ms) if administers else None,
        "replica": server.replica,
        "draining": server.draining,
        "unreachable": server.unreachable if administers else "",
        "copies": [
            {
                "application": of.descriptor.application,
                "state": of.descriptor.state,
                "role": "owner" if of.source.role == 1 else "standby",
                "key_groups": len(of.key_groups),
                "ready": of.ready,
            }
            for of in (server.holdings if administers else ())
        ],
    }


def _moment(ms: int) -> str | None:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat() if ms else None


def _shown(body: dict[str, Any]) -> web.Response:
    return json_response(body, HEADERS)
