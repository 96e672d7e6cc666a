"""What stands between gRPC and every servicer: errors become statuses here, so that servicers just raise them."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, NoReturn, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from keyhole.errors import InternalError, KeyholeError, MalformedRequest
from keyhole.rpc import status
from keyhole.rpc.workarounds.grpcio_handlers import behaviour_of, rebuilt

_log = logging.getLogger(__name__)

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


# What gRPC raises to whoever reads a call's requests when the server has just ended. It has no public name.
_STOPPED = "_ServerStoppedError"


class _Garbage:
    """Stands for request bytes that are no message. gRPC decodes unary requests before any handler runs, and answers
    UNKNOWN where that fails, so the decoder hands this on to the handler, which answers in our terms."""


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Turns what a servicer raises into a status.

    KeyholeError becomes its own status; bytes that are no message become MalformedRequest; anything else is a bug: it
    is logged with its traceback and answered as InternalError, and the server goes on.

    Args:
        stalled_seconds: A stream whose reader takes nothing for so long is ended.
    """

    def __init__(self, stalled_seconds: float = 60.0) -> None:
        self._stalled_seconds = stalled_seconds

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        return _wrap(handler, handler_call_details.method, self._stalled_seconds)


def _wrap(handler: Any, method: str, stalled_seconds: float) -> _Handler:
    decode = None if handler.request_streaming else _tolerant(handler.request_deserializer)
    made: _Handler = rebuilt(handler, _guarded(behaviour_of(handler), method, stalled_seconds), decode)
    return made


def _guarded(behaviour: Callable[..., Any], method: str, stalled_seconds: float) -> Callable[..., Any]:
    if inspect.isasyncgenfunction(behaviour):

        async def stream(request: object, context: _Context) -> None:
            # Not a generator for gRPC to iterate: it never closes one, and what a cancelled call holds on to must be
            # let go at once, not when its frames are collected.
            responses = behaviour(request, context)
            reader = _Reader(stalled_seconds)
            try:
                while (response := await following(responses, request, context)) is not None:
                    reader.asked_to_take()
                    await _write(context, response)
                    reader.took()
            finally:
                reader.close()
                await responses.aclose()

        async def following(responses: AsyncGenerator[object], request: object, context: _Context) -> object | None:
            try:
                _refuse_garbage(request)
                return await anext(responses, None)
            except Exception as error:  # noqa: BLE001 - the top of every call
                await _abort(context, error, method)

        return stream

    async def call(request: object, context: _Context) -> object:
        try:
            _refuse_garbage(request)
            return await behaviour(request, context)
        except Exception as error:  # noqa: BLE001 - the top of every call
            await _abort(context, error, method)

    return call


class _Reader:
    """Ends a stream to which nothing could be written for too long: what it holds on to is needed by others.

    One timer per stream, and none per message: there are many thousands of these a second.
    """

    __slots__ = ("_loop", "_seconds", "_since", "_task", "_timer")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: float | None = None
        self._task = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(seconds, self._look)

    def asked_to_take(self) -> None:
        self._since = self._loop.time()

    def took(self) -> None:
        self._since = None

    def close(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        waited = 0.0 if self._since is None else self._loop.time() - self._since
        if waited >= self._seconds and self._task is not None:
            _log.warning("a stream is ended, because its reader does not read", extra={"seconds": self._seconds})
            self._task.cancel()
            return
        self._timer = self._loop.call_later(max(0.01, self._seconds - waited), self._look)


async def _write(context: _Context, response: object) -> None:
    try:
        await context.write(response)
    except grpc.aio.InternalError as error:
        # The caller has just gone, and the cancellation is on its way. gRPC would log its own error with a traceback.
        raise asyncio.CancelledError from error


def _tolerant(decode: Callable[[bytes], object]) -> Callable[[bytes], object]:
    def tolerant(data: bytes) -> object:
        try:
            return decode(data)
        except DecodeError:
            return _Garbage()

    return tolerant


def _refuse_garbage(request: object) -> None:
    if isinstance(request, _Garbage):
        raise DecodeError


async def _abort(context: _Context, error: Exception, method: str) -> NoReturn:
    if isinstance(error, grpc.aio.AbortError) or type(error).__name__ == _STOPPED:
        raise error
    if isinstance(error, KeyholeError):
        await status.abort(context, error)
    if isinstance(error, DecodeError):
        await status.abort(
            context,
            MalformedRequest(f"the request is no message of {method}; check the client's protos", method=method),
        )
    _log.error("a call failed unexpectedly", exc_info=error, extra={"method": method})
    await status.abort(
        context, InternalError(f"{method} failed unexpectedly; the server's log has the cause", method=method)
    )
