"""KeyholeError <-> gRPC status: the only place where one becomes the other.

A refused call ends with the class's gRPC code, the error's message as details, and the whole error (keyhole.v1.Error)
in the trailing metadata `keyhole-error-bin`. So Python clients get back the very class, and clients in other languages
a reason they can switch on. Statuses that no Keyhole server sent (a broken connection, a deadline, a proxy in between)
are mapped by their code alone.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import NoReturn, cast

import grpc
from google.protobuf.message import DecodeError

from keyhole import errors
from keyhole.errors import KeyholeError
from keyhole.v1 import error_pb2

METADATA_KEY = "keyhole-error-bin"

# Metadata travels in HTTP/2 headers, whose default limit is 8 KiB: a message that names a thousand states must not lose
# the whole status.
_MAX_MESSAGE = 2048
# The same text, for clients that know no Keyhole: each byte of a letter that is not ASCII takes three there.
_MAX_DETAILS = 512
_MAX_FACT = 256
_MAX_FACTS = 8

# What a status without a Keyhole error in it means. Codes that are not here are InternalError.
_FOREIGN: dict[grpc.StatusCode, tuple[type[KeyholeError], str]] = {
    grpc.StatusCode.UNAVAILABLE: (
        errors.ServerLost,
        "can't be reached; check that it runs and that the address is right, with its port for gRPC, not for HTTP",
    ),
    grpc.StatusCode.CANCELLED: (errors.ServerLost, "ended the call; it is probably shutting down"),
    grpc.StatusCode.DEADLINE_EXCEEDED: (errors.DeadlineExceeded, "did not answer within the deadline"),
    grpc.StatusCode.UNIMPLEMENTED: (
        errors.Unsupported,
        "does not know the method; check that it is a Keyhole server of this version",
    ),
    grpc.StatusCode.INVALID_ARGUMENT: (errors.MalformedRequest, "did not understand the request"),
    grpc.StatusCode.RESOURCE_EXHAUSTED: (errors.Overloaded, "takes no more for now"),
    grpc.StatusCode.UNAUTHENTICATED: (errors.Unauthenticated, "does not know who this is; bring valid credentials"),
    grpc.StatusCode.PERMISSION_DENIED: (errors.PermissionDenied, "refused the caller; something stands in between"),
}

# What gRPC says where the other side speaks something else, or TLS fails, in the order in which it is looked for;
# docs/security.md has the list of the latter.
_OTHER_NAME = (
    "showed a certificate for another name; connect to a name that is in it, name one of its names in tls_server_name, "
    "or have it issued for this one"
)
_GRPC_PORT = "connect to the proxy's gRPC port, 7400 where nothing else is set"
_OTHER_WORDS: dict[str, str] = {
    "certificate has expired": "showed a certificate that has expired; renew it there: its files are read again",
    "certificate is not yet valid": "showed a certificate that is not valid yet; check the clocks of both machines",
    "Hostname Verification Check failed": _OTHER_NAME,
    "is not in peer certificate": _OTHER_NAME,
    "WRONG_VERSION_NUMBER": "does not speak TLS; turn TLS on there, or off here",
    "CERTIFICATE_VERIFY_FAILED": (
        "showed a certificate of an authority that is not trusted here; name that authority's file in tls_ca"
    ),
    "Failed to create security handshaker": (
        "can't be asked over TLS: the certificate or the key of this side can't be used; name the two files that were "
        "issued together"
    ),
    "http1.x server": (
        "speaks HTTP and not gRPC: it is a port for reads over HTTP or for metrics, or no Keyhole process; "
        f"{_GRPC_PORT}"
    ),
    # The same over TLS, where both sides agree on what they speak before they do.
    "missing selected ALPN": (
        "speaks TLS and not gRPC: it is probably a port for reads over HTTP or for metrics, or no Keyhole process; "
        f"{_GRPC_PORT}"
    ),
    "Expected SETTINGS frame": f"does not speak gRPC: it is the port of something else; {_GRPC_PORT}",
    "andshake failed": "and this side do not agree on TLS; the logs of both say more",
    "Socket closed": (
        "closed the connection at once: it has just stopped, it speaks TLS and this side doesn't, it takes no more "
        "connections, or it wants a certificate (tls_certificate) of an authority that it trusts, and a valid one"
    ),
}

# Those of them that a restart, or a moment, may mend: all others stand until a person changes something.
_PASSING = frozenset({"andshake failed", "Socket closed"})

# What gRPC says where it has tried all addresses of a target; behind it stands why the last one failed.
_NO_ADDRESS = "failed to connect to all addresses"

# What gRPC says of a message that is too large.
_MESSAGE_SIZES = re.compile(r"larger than max \((\d+) vs. (\d+)\)")

# What gRPC says where a connection was closed, or a stream reset, with a status of its own in place of UNAVAILABLE. The
# first is its asyncio API's, of a write to a stream whose connection has just been closed.
_BROKEN_STREAMS = ("Internal error from Core", "Stream removed", "RST_STREAM")


def to_proto(error: KeyholeError) -> error_pb2.Error:
    """The error as a message, cut to what fits into metadata."""
    facts = dict(list(error.facts.items())[:_MAX_FACTS])
    return error_pb2.Error(
        reason=reason_number(type(error)),
        message=_cut(error.message, _MAX_MESSAGE),
        retryable=error.retryable,
        facts={name: _cut(value, _MAX_FACT) for name, value in facts.items()},
    )


def from_proto(message: error_pb2.Error) -> KeyholeError:
    """The error that `to_proto` was given. A reason that this version does not know keeps its retryability."""
    kind = _classes().get(message.reason)
    if kind is None:
        kind = errors.NoServer if message.retryable else errors.InternalError
    return _make(kind, message.message, dict(message.facts))


def code(error: KeyholeError) -> grpc.StatusCode:
    """The gRPC status code of the error's class."""
    return grpc.StatusCode[error.code]


async def abort(context: grpc.aio.ServicerContext[object, object], error: KeyholeError) -> NoReturn:
    """Ends a call of a servicer with the error. Servicers raise instead: the interceptor calls this."""
    metadata = ((METADATA_KEY, to_proto(error).SerializeToString()),)
    await context.abort(code(error), _cut(error.message, _MAX_DETAILS), metadata)


def from_rpc_error(error: grpc.RpcError, target: str = "") -> KeyholeError:
    """The error that ended a call, for callers of both the synchronous and the asyncio API.

    Args:
        error: As raised by gRPC. Raise the result `from` it.
        target: Who was called, for the message.
    """
    sent = _sent_error(error)
    if sent is not None:
        return sent
    status: grpc.StatusCode = error.code() if hasattr(error, "code") else grpc.StatusCode.UNKNOWN
    details = (error.details() if hasattr(error, "details") else None) or str(error)
    return _from_status(status, details, target)


def _from_status(status: grpc.StatusCode, details: str, target: str) -> KeyholeError:
    who = f"server {target}" if target else "the server"
    kind, meaning = _FOREIGN.get(status, (errors.InternalError, f"failed with {status.name}; its log says more"))
    if status in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN) and any(of in details for of in _BROKEN_STREAMS):
        kind, meaning = _FOREIGN[grpc.StatusCode.UNAVAILABLE]
    if status is grpc.StatusCode.UNAVAILABLE:
        sign = _sign(details)
        meaning = _OTHER_WORDS[sign] if sign else meaning
    facts = {"status": status.name, "details": details} | ({"address": target} if target else {})
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED and (sizes := _MESSAGE_SIZES.search(details)):
        kind, meaning = errors.TooLarge, "or this side refuses a message of that size; send or ask for less at once"
        facts |= {"bytes": sizes[1], "limit": sizes[2]}
    return _make(kind, f"{who} {meaning} ({_cut(details, 300)})", facts)


def was_sent(error: grpc.RpcError) -> bool:
    """Whether a Keyhole process has ended the call: so it lives."""
    return _sent_error(error) is not None


def may_pass(error: KeyholeError) -> bool:
    """Whether the cause of a ServerLost may be gone in a moment: no where both sides speak differently, or distrust."""
    sign = _sign(error.facts.get("details", ""))
    return not sign or sign in _PASSING


def is_last_of_several(error: KeyholeError) -> bool:
    """Whether gRPC could connect to no address of a target, and why the last one failed may pass: of others nothing is
    said.
    """
    return _NO_ADDRESS in error.facts.get("details", "") and may_pass(error)


def _sign(details: str) -> str:
    return next((sign for sign in _OTHER_WORDS if sign in details), "")


def reason_number(kind: type[KeyholeError]) -> error_pb2.Reason.ValueType:
    """The class's number in the proto's enum."""
    return error_pb2.Reason.Value(f"REASON_{kind.reason}")


def _sent_error(error: grpc.RpcError) -> KeyholeError | None:
    metadata = error.trailing_metadata() if hasattr(error, "trailing_metadata") else None
    pairs = cast("Iterable[tuple[str, bytes]]", metadata or ())
    for key, value in pairs:
        if key == METADATA_KEY:
            try:
                return from_proto(error_pb2.Error.FromString(value))
            except DecodeError:
                return None
    return None


def _make(kind: type[KeyholeError], message: str, facts: dict[str, str]) -> KeyholeError:
    # Not as keyword arguments: the wire may name a fact "message".
    error = kind(message)
    error.facts = facts
    return error


def _cut(text: str, limit: int) -> str:
    """At most so many bytes in UTF-8."""
    encoded = text.encode(errors="replace")
    return text if len(encoded) <= limit else encoded[: limit - 3].decode(errors="ignore") + "…"


@functools.cache
def _classes() -> dict[error_pb2.Reason.ValueType, type[KeyholeError]]:
    return {reason_number(kind): kind for kind in errors.by_reason().values()}
