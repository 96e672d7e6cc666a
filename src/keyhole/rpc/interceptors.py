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

_log = logging.getLogger(__name__)

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class _Garbage:
    """Stands for request bytes that are no message. gRPC decodes unary requests before any handler runs, and answers
    UNKNOWN where that fails, so the decoder hands this on to the handler, which answers in our terms."""


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Turns what a servicer raises into a status.

    KeyholeError becomes its own status; bytes that are no message become MalformedRequest; anything else is a bug: it
    is logged with its traceback and answered as InternalError, and the server goes on.
    """

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        return _wrap(handler, handler_call_details.method)


def _wrap(handler: Any, method: str) -> _Handler:
    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[handler.request_streaming, handler.response_streaming]
    behaviour = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    decode = handler.request_deserializer
    return make(
        _guarded(behaviour, method),
        request_deserializer=decode if handler.request_streaming else _tolerant(decode),
        response_serializer=handler.response_serializer,
    )


def _guarded(behaviour: Callable[..., Any], method: str) -> Callable[..., Any]:
    if inspect.isasyncgenfunction(behaviour):

        async def stream(request: object, context: _Context) -> None:
            # Not a generator for gRPC to iterate: it never closes one, and what a cancelled call holds on to must be
            # let go at once, not when its frames are collected.
            responses = behaviour(request, context)
            try:
                while (response := await following(responses, request, context)) is not None:
                    await _write(context, response)
            finally:
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
    if isinstance(error, grpc.aio.AbortError):
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
