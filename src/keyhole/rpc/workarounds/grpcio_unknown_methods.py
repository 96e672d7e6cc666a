"""gRPC's asyncio server, made to survive callers of methods that it doesn't have.

grpcio 1.85 decodes the path of a call to an unknown method as UTF-8, in the one loop that takes all calls in. Where it
can't, it ends the whole server. A single frame of anybody, before any interceptor could ask who it is, closes the port
for good. Here these calls are taken in by a loop of their own, which never looks at the path: each is answered
UNIMPLEMENTED.

That needs parts of grpcio that aren't public; tests/rpc/test_limits.py shows that they do what they should, and
where another version of grpcio has them no more, servers fail at their start.

Library: grpcio. Seen with 1.85. May go once the oldest grpcio that pyproject.toml allows answers this call, and
tests/rpc/test_limits.py passes with `grpc.aio.server`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import grpc
import grpc._cython.cygrpc as _cygrpc  # type: ignore[import-not-found]  # no stubs of what is not public

from keyhole.rpc.channels import Options


def server(interceptors: Sequence[grpc.aio.ServerInterceptor], options: Options) -> grpc.aio.Server:
    """As grpc.aio.server. All servicers must be added by generated code, which registers their methods."""
    made: Any = grpc.aio.server(interceptors=interceptors, options=options)
    made._server = _RefusingServer(made._loop, None, (), tuple(interceptors), options, None)
    return made  # type: ignore[no-any-return]


class _RefusingServer(_cygrpc.AioServer):  # type: ignore[misc]
    def _make_request_call_future(self, method: bytes | None) -> asyncio.Future[Any]:
        """The next call of one registered method; None: of any other. Called by gRPC's loop."""
        if method is not None:
            return super()._make_request_call_future(method)  # type: ignore[no-any-return]
        loop = asyncio.get_running_loop()
        never: asyncio.Future[Any] = loop.create_future()
        taking = loop.create_task(self._refuse_unknown(loop))
        # gRPC's loop cancels what it waits for when it ends.
        never.add_done_callback(lambda _: taking.cancel())
        return never

    async def _refuse_unknown(self, loop: asyncio.AbstractEventLoop) -> None:
        nothing = _cygrpc._MethodResolver([], {})
        refusing: set[asyncio.Task[None]] = set()
        # What it raises when the server stops.
        with contextlib.suppress(_cygrpc._RequestCallError):
            while True:
                call = await self._request_call()
                answer = _cygrpc._handle_rpc("unknown", nothing, (), call, loop, False)
                task = loop.create_task(_cygrpc._schedule_rpc_coro(answer, call, loop, "unknown"))
                refusing.add(task)
                task.add_done_callback(refusing.discard)
