"""KeyholeError -> HTTP status and application/problem+json (RFC 9457): the only place where one becomes the other.

What gRPC sends in its trailing metadata (status.py), HTTP has in the body: reason, message, retryable, facts.
"""

from __future__ import annotations

from typing import Any

import grpc

from keyhole.errors import KeyholeError
from keyhole.rpc import status
from keyhole.v1 import error_pb2

CONTENT_TYPE = "application/problem+json"

STATUS: dict[grpc.StatusCode, int] = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.OUT_OF_RANGE: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.FAILED_PRECONDITION: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNKNOWN: 500,
    grpc.StatusCode.INTERNAL: 500,
    grpc.StatusCode.DATA_LOSS: 500,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.CANCELLED: 503,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}


def http_status(error: KeyholeError) -> int:
    """The HTTP status of the error's class. What can help to send again is never the caller's fault, but for 429."""
    known = STATUS[status.code(error)]
    return 503 if error.retryable and known == STATUS[grpc.StatusCode.FAILED_PRECONDITION] else known


def problem(error: KeyholeError) -> dict[str, Any]:
    """The body, as JSON holds it: the same facts as over gRPC, cut alike."""
    message = status.to_proto(error)
    reason = error_pb2.Reason.Name(message.reason).removeprefix("REASON_")
    return {
        "type": f"urn:keyhole:reason:{reason.lower().replace('_', '-')}",
        "title": reason.replace("_", " ").capitalize(),
        "status": http_status(error),
        "detail": message.message,
        "reason": reason,
        "retryable": message.retryable,
        "facts": dict(message.facts),
    }
