"""Reads over HTTP and JSON, for services without gRPC: the same requests, by the same way through the proxy.

    GET  /v1                                  the states of all applications
    GET  /v1/{application}                    the states of one
    GET  /v1/{application}/{state}            what a state is
    GET  /v1/{application}/{state}/{key}      a value; of a map or list state its entries, or one by ?map_key=
    GET  /v1/{application}/{state}:scan       all keys of a state
    GET  /v1/{application}/{state}:watch      rows, and then each committed change, as server-sent events
    GET  /v1/{application}/{state}:aggregate  figures over all of them
    POST /v1/{application}/{state}:batchGet   the values of several keys
    GET  /healthz, /readyz                    the loop turns; a state server was reached, and nobody stops the proxy
    GET  /openapi.json, /openapi              what all this is, for programs (openapi.py), and a page to try it

docs/clients-reference.md has it for readers.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from keyhole.backoff import retry_after_seconds
from keyhole.encoding.codec import StateCodec
from keyhole.errors import InternalError, KeyholeError, MalformedRequest, StaleDescriptor, Unauthenticated
from keyhole.rpc import convert
from keyhole.rpc.authorization import discreet
from keyhole.rpc.http.port import HttpLimits
from keyhole.rpc.http.problems import CONTENT_TYPE, http_status, problem
from keyhole.security.authentication import ANYBODY, NOT_KNOWN, Caller, become, current
from keyhole.security.guard import PortGuard
from keyhole.security.policy import Verb
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import state_pb2
from services.client_proxy.directory import Directory
from services.client_proxy.grpc.query_servicer import ProxyServicer
from services.client_proxy.http import answers as http_answers
from services.client_proxy.http import caching, event_stream
from services.client_proxy.http import requests as http_requests
from services.client_proxy.http.all_keys import KeysScan
from services.client_proxy.http.cors import allowing
from services.client_proxy.http.escapes import check_escapes
from services.client_proxy.http.figures import computed
from services.client_proxy.http.host_names import VARIABLE as HOSTS_VARIABLE
from services.client_proxy.http.host_names import answering_to
from services.client_proxy.http.http_call import HttpCall
from services.client_proxy.http.json_response import NO_STORE, json_response
from services.client_proxy.http.openapi_page import add_openapi
from services.client_proxy.http.request_body import body_of
from services.client_proxy.http.requests import Parameters
from services.client_proxy.http.scanned_pages import scanned_pages

_log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.02
# An answer is made in memory.
_MOST_ANSWER_BYTES = 16 << 20
_MOST_BATCH_BYTES = 32 << 20


class HttpReads:
    """The application that an HttpPort serves. Event loop's thread only.

    Args:
        default_timeout_seconds: For requests that bring no timeout.
        guard: Knows who calls, and what that one may read; None: everybody may read everything.
        origins: Whose pages may read the answers, as cors.checked_origins returns them.
        hosts: By which names it may be called, as host_names.checked_hosts returns them.
    """

    def __init__(
        self,
        directory: Directory,
        servicer: ProxyServicer,
        default_timeout_seconds: float,
        limits: HttpLimits | None = None,
        guard: PortGuard | None = None,
        origins: frozenset[str] = frozenset(),
        hosts: frozenset[str] = frozenset(),
    ) -> None:
        self.draining = False
        self._directory = directory
        self._servicer = servicer
        self._default_timeout = default_timeout_seconds
        self._limits = limits or HttpLimits()
        self._guard = guard
        self._pace = caching.EpochPace()
        middlewares = [allowing(origins), _problems, answering_to(hosts)]
        self.app = web.Application(client_max_size=self._limits.body_bytes, middlewares=middlewares)
        state = r"/v1/{application:[^/:]+}/{state:[^/:]+}"
        self.app.router.add_routes(
            [
                web.get("/healthz", self._healthy),
                web.get("/readyz", self._ready),
                web.get("/v1", self._states),
                web.get(r"/v1/{application:[^/:]+}", self._states),
                web.get(state, self._state),
                web.get(state + ":scan", self._whole),
                web.get(state + ":aggregate", self._aggregates),
                web.get(state + ":watch", self._watch, allow_head=False),
                web.post(state + ":batchGet", self._batch),
                web.get(state + r"/{key:[^/]*}", self._key),
            ]
        )
        add_openapi(self.app)

    async def _healthy(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _ready(self, request: web.Request) -> web.Response:
        if self.draining:
            return web.Response(status=503, text="draining\n")
        if not self._directory.reached.is_set():
            return web.Response(status=503, text="no state server was reached yet\n")
        return web.Response(text="ok\n")

    async def _states(self, request: web.Request) -> web.Response:
        caller = self.caller_of(request)
        asked = http_requests.parameters(request.query.items())
        application = request.match_info.get("application", "")
        listed = await self._servicer.ListStates(
            pb.ListStatesRequest(application=application), self._deadline(request, asked)
        )
        states = [
            http_answers.descriptor_json(convert.descriptor_from_proto(state))
            for state in listed.states
            if caller.may_see(state.application, state.state)
        ]
        return json_response({"states": states})

    async def _state(self, request: web.Request) -> web.Response:
        caller, name = self.caller_of(request), _name(request)
        _check_sees(caller, name)
        asked = http_requests.parameters(request.query.items())
        codec = await self._servicer.codec(name, self._deadline(request, asked))
        return json_response(http_answers.descriptor_json(codec.descriptor))

    async def _key(self, request: web.Request) -> web.Response:
        return await self._read(request, request.match_info["key"])

    async def _whole(self, request: web.Request) -> web.Response:
        return await self._read(request, None)

    async def _read(self, request: web.Request, key: str | None) -> web.Response:
        caller, name = self.caller_of(request), _name(request)
        # Nothing is looked up before; which of the two verbs is needed only the state's kind says.
        _check_sees(caller, name)
        asked = http_requests.parameters(request.query.items(), one_key=key is not None, all_keys=key is None)
        deadline = self._deadline(request, asked)
        codec = await self._servicer.codec(name, deadline)
        if key is None and codec.descriptor.scan_key:
            caller.check(Verb.SCAN, *name)
            return json_response(await self._scan_all(name, codec, asked, deadline))
        if http_requests.is_scan(codec, asked, whole=key is None):
            caller.check(Verb.SCAN, *name)
            return json_response(await self._scan(name, codec, key, asked, deadline))
        assert key is not None
        caller.check(Verb.READ, *name)
        wanted = http_requests.lookup_key(codec, key, asked)
        (answer,) = await self._found(name, [wanted], asked, deadline)
        return self._cacheable(request, codec, wanted, answer, asked)

    def _cacheable(
        self, request: web.Request, codec: StateCodec, key: pb.Key, answer: pb.Answer, asked: Parameters
    ) -> web.Response:
        """The answer to one key, for caches; without a body where who asks has it already."""
        descriptor, source = codec.descriptor, answer.source
        name = (descriptor.application, descriptor.state)
        self._pace.note(name, source)
        pace, now_ms = self._pace.seconds(name, source.generation), self._directory.clock.now_ms()
        seconds = caching.fresh_seconds(descriptor, asked.options, source, pace, now_ms)
        tag = caching.tag_of(descriptor, key, answer, integers_as_text=asked.integers_as_text)
        private = self._guard is not None and self._guard.asks_who
        headers = {"ETag": f'W/"{tag}"', "Cache-Control": caching.control(seconds, private=private)}
        if private:
            headers["Vary"] = "Authorization"
        known = request.if_none_match
        if caching.is_known(tag, None if known is None else {of.value for of in known}):
            return web.Response(status=304, headers=headers)
        body = http_answers.answer_json(answer, self._now(), integers_as_text=asked.integers_as_text)
        return json_response(body, headers)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        caller, name = self.caller_of(request), _name(request)
        caller.check(Verb.WATCH, *name)

        def check() -> None:
            if not caller.still_known():
                raise Unauthenticated(NOT_KNOWN)
            caller.check(Verb.WATCH, *name)

        deadline = self._deadline(request, http_requests.parameters(()))
        codec = await self._servicer.codec(name, deadline)
        last = request.headers.get("Last-Event-ID", "")
        asked, as_text = event_stream.watch_request(codec, request.query.items(), last)
        asked.state.CopyFrom(_ref(name))
        watch: Any = self._servicer.Watch(asked, deadline)
        newest = functools.partial(self._servicer.codec, name, deadline)
        return await event_stream.stream(
            request, watch, newest, check, integers_as_text=as_text, most_seconds=self._limits.answer_seconds
        )

    async def _aggregates(self, request: web.Request) -> web.Response:
        caller, name = self.caller_of(request), _name(request)
        caller.check(Verb.SCAN, *name)
        asked = http_requests.parameters(request.query.items(), figures=True)
        deadline = self._deadline(request, asked)
        codec = await self._servicer.codec(name, deadline)
        select, wanted = http_requests.selected(codec, asked), http_requests.aggregates(codec, asked)
        options = http_requests.packed(asked.options)
        within = http_requests.key_range(codec, asked)
        found = await computed(self._servicer, codec, options, wanted, select, within, deadline)
        body = await self._decoded(
            name,
            deadline,
            lambda codec: http_answers.aggregates_json(
                codec, found, self._now(), select, integers_as_text=asked.integers_as_text
            ),
        )
        return json_response(body)

    async def _batch(self, request: web.Request) -> web.Response:
        caller, name = self.caller_of(request), _name(request)
        caller.check(Verb.READ, *name)
        asked = http_requests.parameters(request.query.items(), many=True)
        given = http_requests.batch_keys(await body_of(request, self._limits.body_seconds))
        deadline = self._deadline(request, asked)
        codec = await self._servicer.codec(name, deadline)
        keys = [http_requests.batch_key(codec, key) for key in given]
        found, now = await self._found(name, keys, asked, deadline), self._now()
        answers = [http_answers.answer_json(of, now, integers_as_text=asked.integers_as_text) for of in found]
        return json_response({"answers": answers})

    async def _found(
        self, name: tuple[str, str], keys: list[pb.Key], asked: Parameters, deadline: Any
    ) -> list[pb.Answer]:
        request = pb.GetManyRequest(state=_ref(name), keys=keys, options=asked.options)
        return await self._servicer.read_many(request, deadline, _MOST_BATCH_BYTES)

    async def _scan(
        self, name: tuple[str, str], codec: StateCodec, key: str | None, asked: Parameters, deadline: Any
    ) -> dict[str, Any]:
        select = http_requests.selected(codec, asked)
        request, limit = http_requests.scan_request(codec, key, asked)
        request.state.CopyFrom(_ref(name))
        entries: list[tuple[bytes, bytes]] = []
        source: state_pb2.Source | None = None
        size, kept = 0, limit
        async with aclosing(scanned_pages(self._servicer, request, deadline)) as pages:
            async for page in pages:
                source = source or page.source
                entries += zip(page.map_keys, page.values, strict=True)
                size += page.ByteSize()
                # Two at least: one entry is an answer, and the other says from where it goes on.
                if size > _MOST_ANSWER_BYTES and len(entries) > 1:
                    kept = min(limit, len(entries) - 1)
                    break
        if source is None:
            raise InternalError("a scan was answered without a page, by a bug of Keyhole's")
        # One entry more was asked for, to know whether there are more.
        following, first = _following(entries, kept, descending=request.descending), source
        return await self._decoded(
            name,
            deadline,
            lambda codec: http_answers.entries_json(
                codec, entries[:kept], first, following, self._now(), select, integers_as_text=asked.integers_as_text
            ),
        )

    async def _scan_all(
        self, name: tuple[str, str], codec: StateCodec, asked: Parameters, deadline: Any
    ) -> dict[str, Any]:
        wanted, options = http_requests.all_keys(codec, asked), http_requests.packed(asked.options)
        select = http_requests.selected(codec, asked)
        scan = KeysScan(self._servicer, codec, options, wanted, select, deadline, _MOST_ANSWER_BYTES)
        found = await scan.found()
        return await self._decoded(
            name,
            deadline,
            lambda codec: http_answers.all_keys_json(
                codec, found, self._now(), select, integers_as_text=asked.integers_as_text
            ),
        )

    async def _decoded(
        self, name: tuple[str, str], deadline: Any, answer: Callable[[StateCodec], dict[str, Any]]
    ) -> dict[str, Any]:
        """An answer with rows, by a codec that knows their schema."""
        while True:
            codec = await self._servicer.codec(name, deadline)
            try:
                return answer(codec)
            except StaleDescriptor:
                # A row has come before the word of its schema, which is under way.
                if deadline.time_remaining() <= _RETRY_SECONDS:
                    raise
                await self._directory.clock.pause(_RETRY_SECONDS)

    def caller_of(self, request: web.Request) -> Caller:
        """Who makes the request, under whose name it is logged from now on. Raises Unauthenticated."""
        if self._guard is None:
            return ANYBODY
        caller = self._guard.caller_of(request)
        path = request.match_info.route.resource
        caller.method = f"{request.method} {path.canonical if path is not None else ''}"
        become(caller)
        return caller

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._directory.clock.now_ms() / 1000, UTC)

    def _deadline(self, request: web.Request, asked: Parameters) -> Any:
        seconds = self._default_timeout if asked.timeout_seconds is None else asked.timeout_seconds
        return HttpCall(seconds, request.remote)


def _following(entries: list[tuple[bytes, bytes]], kept: int, *, descending: bool) -> bytes | None:
    """The bound from which a next scan goes on: `from` is inclusive, and `to`, by which one goes down, exclusive."""
    if len(entries) <= kept:
        return None
    return entries[kept - 1 if descending else kept][0]


def _check_sees(caller: Caller, name: tuple[str, str]) -> None:
    """Raises PermissionDenied: it may not know of the state."""
    if not caller.may_see(*name):
        raise caller.denied(Verb.READ, *name)


def _name(request: web.Request) -> tuple[str, str]:
    return request.match_info["application"], request.match_info["state"]


def _ref(name: tuple[str, str]) -> pb.StateRef:
    return pb.StateRef(application=name[0], state=name[1])


def _problem(error: KeyholeError) -> web.Response:
    again = retry_after_seconds(error)
    headers = {**NO_STORE, **({"Retry-After": str(max(1, math.ceil(again or 1)))} if error.retryable else {})}
    if isinstance(error, Unauthenticated):
        headers["WWW-Authenticate"] = "Bearer"
    return web.Response(
        status=http_status(error), body=http_answers.encoded(problem(error)), content_type=CONTENT_TYPE, headers=headers
    )


@web.middleware
async def _problems(request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> Any:
    """Every refusal is a problem in JSON, which names nothing that the caller may not know of."""
    try:
        check_escapes(request.raw_path)
        return await handler(request)
    except KeyholeError as error:
        # `caller_of` has said in this task who calls.
        return _problem(discreet(current(), error))
    except web.HTTPException as refused:
        # What the HTTP library refuses by itself: an unknown path or method, a body that is too large or too late.
        what = problem(MalformedRequest(_WHY.get(refused.status, refused.reason)))
        headers = {**NO_STORE, **({"Allow": refused.headers["Allow"]} if "Allow" in refused.headers else {})}
        response = web.Response(
            status=refused.status,
            body=http_answers.encoded({**what, "status": refused.status}),
            content_type=CONTENT_TYPE,
            headers=headers,
        )
        if refused.status in (408, 413):
            response.force_close()  # the rest of the body is not read
        return response
    except Exception as error:  # noqa: BLE001 - the top of every request
        _log.exception("an HTTP request failed unexpectedly", exc_info=error)
        return _problem(InternalError("the request failed unexpectedly; the proxy's log has the cause"))


_WHY = {
    404: "there is no such path; a key with a / in it spells that %2F. Paths: /v1, /v1/APPLICATION, "
    "/v1/APPLICATION/STATE, /v1/APPLICATION/STATE/KEY, /v1/APPLICATION/STATE:scan, /v1/APPLICATION/STATE:aggregate, "
    "/v1/APPLICATION/STATE:watch, /v1/APPLICATION/STATE:batchGet",
    405: "the path is there, but not with this method",
    408: "the body did not come in time",
    413: "the body is too large; ask for fewer keys at once",
    421: f"the proxy does not answer to this name; call it by its address, or list the name in {HOSTS_VARIABLE}",
}
