"""gRPC's handlers of methods, as interceptors take them apart and put them together again.

A handler has four fields for its behaviour, by whether requests and responses are streams, and no way to exchange it.
Only public names are used here.

Library: grpcio. Seen with 1.85. May go once an interceptor can wrap a behaviour without
knowing its kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import grpc

Behaviour: TypeAlias = Callable[..., Any]
"""What a servicer's method is: of (request or requests, context)."""


def behaviour_of(handler: Any) -> Behaviour:
    """What answers the method; a handler has exactly one."""
    found: Behaviour = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    return found


def rebuilt(handler: Any, behaviour: Behaviour, decode: Callable[[bytes], Any] | None = None) -> Any:
    """The same handler with another behaviour, and another way to read requests where one is given."""
    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[handler.request_streaming, handler.response_streaming]
    return make(
        behaviour,
        request_deserializer=decode or handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )
