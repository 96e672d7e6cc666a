"""Who calls, and whether it may: in front of every servicer of a port. Methods that aren't listed here are refused but
to the platform and to administrators, so that a new one is closed until somebody has thought about it.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import grpc

from keyhole.errors import KeyholeError, PermissionDenied, Unauthenticated, UnknownApplication, UnknownState
from keyhole.rpc.workarounds.grpcio_handlers import behaviour_of, rebuilt
from keyhole.security.authentication import NOT_KNOWN, Access, Caller, Presented, become
from keyhole.security.certificates import expires, names_of
from keyhole.security.policy import Verb
from keyhole.v1 import error_pb2
from keyhole.v1 import query_pb2 as query
from keyhole.v1 import state_server_pb2 as server

_log = logging.getLogger(__name__)

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
_Rule: TypeAlias = Callable[[Caller, Any], None]

LOOK_SECONDS = 1.0
"""How late, at most, a stream ends whose caller is no longer known, or may no longer have what it asked for."""

_HEALTH = "/grpc.health.v1.Health/"
_REFLECTION = "/grpc.reflection."


def _reads(verb: Verb) -> _Rule:
    return lambda caller, request: caller.check(verb, request.state.application, request.state.state)


def _follows_routes(caller: Caller, request: query.WatchRoutesRequest) -> None:
    for verb in (Verb.DIRECT, Verb.READ):
        caller.check(verb, request.state.application, request.state.state)


def _describes(caller: Caller, request: query.DescribeStateRequest) -> None:
    of = request.state
    if not caller.may_see(of.application, of.state):
        raise caller.denied(Verb.READ, of.application, of.state)


def _writes(caller: Caller, request: Any) -> None:
    caller.check(Verb.WRITE, request.run.application, "*")


def _assigns(caller: Caller, request: server.AssignRequest) -> None:
    _writes(caller, request)
    for given in request.states:
        caller.check(Verb.WRITE, given.descriptor.application, "*")


def _stages(caller: Caller, request: server.StageRequest) -> None:
    if request.WhichOneof("message") == "header":
        caller.check(Verb.WRITE, request.header.run.application, "*")


def _retires(caller: Caller, request: server.RetireQueryRequest) -> None:
    caller.check(Verb.WRITE, request.application, "*")


def _dumps(caller: Caller, request: server.DumpRequest) -> None:
    caller.check(Verb.ADMIN, request.application, request.state)


def _moves(caller: Caller, request: server.MoveRequest) -> None:
    caller.check_administers(request.application, request.state)


def _operates(caller: Caller, _: object) -> None:
    caller.check_everywhere(Verb.ADMIN, Verb.PLATFORM)


def _administers(caller: Caller, _: object) -> None:
    caller.check_administers()


def _figures(caller: Caller, _: object) -> None:
    caller.check_everywhere(Verb.METRICS, Verb.ADMIN, Verb.PLATFORM)


def _is_infrastructure(caller: Caller, _: object) -> None:
    caller.check_infrastructure()


def _describes_server(caller: Caller, request: server.DescribeRequest) -> None:
    caller.check_infrastructure()
    if request.writes:
        caller.check(Verb.WRITE, request.writes, "*")


def _anybody_known(caller: Caller, request: object) -> None:
    """What it may see is decided frame by frame (the servicer asks `current()`), or in the answer."""


_RULES: dict[str, _Rule] = {
    "/keyhole.v1.Query/ListStates": _anybody_known,
    "/keyhole.v1.Query/DescribeState": _describes,
    "/keyhole.v1.Query/Get": _reads(Verb.READ),
    "/keyhole.v1.Query/GetMany": _reads(Verb.READ),
    "/keyhole.v1.Query/Explain": _reads(Verb.READ),
    "/keyhole.v1.Query/Lookup": _anybody_known,
    "/keyhole.v1.Query/Scan": _reads(Verb.SCAN),
    "/keyhole.v1.Query/Watch": _reads(Verb.WATCH),
    "/keyhole.v1.Query/Status": _operates,
    "/keyhole.v1.Query/WatchRoutes": _follows_routes,
    "/keyhole.v1.Stats/Read": _figures,
    "/keyhole.v1.StateServer/OpenRun": _writes,
    "/keyhole.v1.StateServer/Assign": _assigns,
    "/keyhole.v1.StateServer/Release": _writes,
    "/keyhole.v1.StateServer/Stage": _stages,
    "/keyhole.v1.StateServer/ReadBase": _writes,
    "/keyhole.v1.StateServer/Commit": _writes,
    "/keyhole.v1.StateServer/Confirm": _writes,
    "/keyhole.v1.StateServer/RetireQuery": _retires,
    "/keyhole.v1.StateServer/Drain": _administers,
    "/keyhole.v1.StateServer/Move": _moves,
    "/keyhole.v1.StateServer/Describe": _describes_server,
    "/keyhole.v1.StateServer/WatchOwnership": _is_infrastructure,
    "/keyhole.v1.StateServer/Dump": _dumps,
}


class AccessInterceptor(grpc.aio.ServerInterceptor):
    """Lets calls through whose callers are known and may make them. Stands behind the ErrorInterceptor.

    Health is open to probes. A caller that is known no longer (a token expired, or was taken out of the file) has its
    streams ended within LOOK_SECONDS, with UNAUTHENTICATED. One that the policy no longer lets make its call has the
    stream of answers to its one request ended as soon, with PERMISSION_DENIED.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self._streams: dict[asyncio.Task[Any], tuple[Caller, Callable[[], None]]] = {}
        self._ended: dict[asyncio.Task[Any], KeyholeError] = {}
        self._looking: asyncio.Task[None] | None = None

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        handler: Any = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or method.startswith(_HEALTH):
            return handler  # type: ignore[no-any-return]
        return self._wrap(handler, method)

    def close(self) -> None:
        """Ends what looks at streams."""
        if self._looking is not None:
            self._looking.cancel()
        self._access.close()

    def _wrap(self, handler: Any, method: str) -> _Handler:
        rule = _RULES.get(method, _anybody_known if method.startswith(_REFLECTION) else _operates)
        behaviour = behaviour_of(handler)
        wrapped = self._streaming if inspect.isasyncgenfunction(behaviour) else self._answering
        made: _Handler = rebuilt(handler, wrapped(behaviour, method, rule, request_streaming=handler.request_streaming))
        return made

    def _answering(
        self, behaviour: Callable[..., Any], method: str, rule: _Rule, *, request_streaming: bool
    ) -> Callable[..., Any]:
        async def call(request: Any, context: _Context) -> Any:
            caller = self._enter(context, method)
            if not request_streaming:
                rule(caller, request)
                return _seen(caller, await _discreetly(caller, behaviour(request, context)))
            # Stage: nothing of it counts before it has ended, so it may be cut like a stream of answers.
            task = self._watched(caller, _nothing)
            try:
                return await behaviour(_checked(request, rule, caller), context)
            except asyncio.CancelledError:
                raise self._why(task) from None
            finally:
                self._unwatched(task)

        return call

    def _streaming(
        self, behaviour: Callable[..., Any], method: str, rule: _Rule, *, request_streaming: bool
    ) -> Callable[..., Any]:
        async def stream(request: Any, context: _Context) -> AsyncIterator[Any]:
            caller = self._enter(context, method)
            if request_streaming:
                if rule is not _anybody_known:
                    request = _checked(request, rule, caller)
                may = _nothing
            else:
                may = functools.partial(rule, caller, request)
                may()
            responses = behaviour(request, context)
            task = self._watched(caller, may)
            try:
                async for response in responses:
                    yield _seen(caller, response)
            except asyncio.CancelledError:
                raise self._why(task) from None
            except (UnknownApplication, UnknownState) as error:
                raise discreet(caller, error) from None
            finally:
                self._unwatched(task)
                await responses.aclose()

        return stream

    def _enter(self, context: _Context, method: str) -> Caller:
        caller = self._access.caller(_shown(context))
        caller.method = method
        become(caller)
        return caller

    def _watched(self, caller: Caller, may: Callable[[], None]) -> asyncio.Task[Any]:
        task = asyncio.current_task()
        assert task is not None
        self._streams[task] = caller, may
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look())
        return task

    def _unwatched(self, task: asyncio.Task[Any]) -> None:
        self._streams.pop(task, None)
        self._ended.pop(task, None)

    def _why(self, task: asyncio.Task[Any]) -> BaseException:
        why = self._ended.get(task)
        if why is None:
            return asyncio.CancelledError()
        task.uncancel()
        return why

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for task, (caller, may) in list(self._streams.items()):
                if task in self._ended:
                    continue
                try:
                    if not caller.still_known():
                        self._ended[task] = Unauthenticated(NOT_KNOWN, expired=True)
                    else:
                        may()
                except PermissionDenied as error:
                    self._ended[task] = error
                except Exception:  # noqa: BLE001 - the top of a loop, without which streams would never end
                    _log.exception("whether a caller is still known, and may go on, could not be found out")
                if task in self._ended:
                    task.cancel()


def _nothing() -> None:
    """Of streams of requests: what each asks for is decided when it comes."""


async def _checked(requests: AsyncIterator[Any], rule: _Rule, caller: Caller) -> AsyncIterator[Any]:
    async for request in requests:
        rule(caller, request)
        yield request


async def _discreetly(caller: Caller, answer: Awaitable[Any]) -> Any:
    try:
        return await answer
    except (UnknownApplication, UnknownState) as error:
        raise discreet(caller, error) from None


def discreet(caller: Caller, error: KeyholeError) -> KeyholeError:
    """The error without the names of what else there is, for callers who may see only some of it."""
    if caller.is_anybody or not isinstance(error, (UnknownApplication, UnknownState)):
        return error
    return type(error)("there is no such state; `keyhole states` lists those that you may read")


def _seen(caller: Caller, response: Any) -> Any:
    """Without what the caller may not know of."""
    if isinstance(response, query.ListStatesResponse):
        return query.ListStatesResponse(
            states=[of for of in response.states if caller.may_see(of.application, of.state)]
        )
    return seen(response) if isinstance(response, query.LookupResponse) else response


def seen(response: query.LookupResponse) -> query.LookupResponse:
    """The response without the names of what else there is, for callers who were asked who they are."""
    for failure in response.failures:
        if failure.error.reason in _TELLING:
            failure.error.message = "there is no such state; `keyhole states` lists those that you may read"
            failure.error.facts.clear()
    return response


_TELLING = (error_pb2.REASON_UNKNOWN_APPLICATION, error_pb2.REASON_UNKNOWN_STATE)


def _shown(context: _Context) -> Presented:
    authorization = ""
    for key, value in context.invocation_metadata() or ():
        if key == "authorization":
            authorization = value if isinstance(value, str) else value.decode("latin-1")
    shown: Any = context.auth_context()
    pem = shown.get("x509_pem_cert")
    peer = context.peer() or ""
    if not pem:
        return Presented(authorization, peer=peer)
    certificate = bytes(pem[0])
    names, ends = _of_certificate(certificate)
    return Presented(authorization, names, ends, peer)


@functools.lru_cache(maxsize=1024)
def _of_certificate(pem: bytes) -> tuple[tuple[str, ...], float]:
    return names_of(pem), expires(pem).timestamp()
