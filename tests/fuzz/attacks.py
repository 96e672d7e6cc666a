"""What is sent. Each attack opens what it needs, does its harm, and leaves; none knows what comes of it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections.abc import Awaitable, Callable

import grpc
from google.protobuf.message import Message

from keyhole.rpc.channels import aio_channel
from keyhole.security.credentials import Credentials
from keyhole.v1 import query_pb2, state_server_pb2, stats_pb2

Attack = Callable[[random.Random, str, Credentials], Awaitable[None]]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SECONDS = 2.0
_SERVICES = [
    service
    for module in (query_pb2, state_server_pb2, stats_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
]
_MODULES = {"Query": query_pb2, "StateServer": state_server_pb2, "Stats": stats_pb2}


async def random_bytes(chance: random.Random, target: str, credentials: Credentials) -> None:
    """No HTTP/2 at all."""
    await send(target, [chance.randbytes(chance.choice((1, 9, 100, 20_000))) for _ in range(chance.randint(1, 4))])


async def half_a_handshake(chance: random.Random, target: str, credentials: Credentials) -> None:
    """A beginning, then silence, or the end."""
    whole = PREFACE + frame(4, 0, 0, b"")
    await send(target, [whole[: chance.randrange(len(whole))]])


async def random_frames(chance: random.Random, target: str, credentials: Credentials) -> None:
    """Frames of every type there is, with any flags, streams and contents."""
    frames = [PREFACE, frame(4, 0, 0, b"")]
    for _ in range(chance.randint(1, 30)):
        payload = chance.randbytes(chance.choice((0, 4, 5, 8, 30, 3_000)))
        frames.append(frame(chance.randrange(12), chance.randrange(256), chance.randrange(8), payload))
    await send(target, frames)


async def mutated_frames(chance: random.Random, target: str, credentials: Credentials) -> None:
    """A good call, bit by bit not quite so: lengths, types, flags, streams, headers, the message's prefix."""
    message = query_pb2.ListStatesRequest().SerializeToString()
    data = struct.pack(">BI", 0, len(message)) + message
    frames = [frame(4, 0, 0, b""), frame(1, 4, 1, headers("/keyhole.v1.Query/ListStates")), frame(0, 1, 1, data)]
    changed = bytearray(b"".join(frames * chance.randint(1, 5)))
    for _ in range(chance.randint(1, 12)):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    await send(target, [PREFACE, bytes(changed)])


async def floods(chance: random.Random, target: str, credentials: Credentials) -> None:
    """Many pings, settings, resets or streams that are begun and given up (rapid reset)."""
    kind = chance.randrange(4)
    frames = [PREFACE, frame(4, 0, 0, b"")]
    for number in range(500):
        stream = 2 * number + 1
        if kind == 0:
            frames.append(frame(6, 0, 0, bytes(8)))
        elif kind == 1:
            frames.append(frame(4, 0, 0, struct.pack(">HI", chance.randrange(1, 7), chance.randrange(1 << 20))))
        else:
            frames.append(frame(1, 4, stream, headers("/keyhole.v1.Query/Lookup")))
            frames.append(frame(3, 0, stream, struct.pack(">I", 8)))
    await send(target, frames)


async def large_headers(chance: random.Random, target: str, credentials: Credentials) -> None:
    """More than a call may have."""
    async with aio_channel(target, credentials) as channel:
        metadata = tuple((f"x-{number}", "v" * chance.choice((10, 1_000, 30_000))) for number in range(20))
        with contextlib.suppress(grpc.RpcError):
            await channel.unary_unary("/keyhole.v1.Query/Status")(b"", metadata=metadata, timeout=_SECONDS)


async def calls(chance: random.Random, target: str, credentials: Credentials) -> None:
    """Every method there is, with nothing, random bytes, random messages, and such that were changed."""
    async with aio_channel(target, credentials) as channel:
        for _ in range(chance.randint(1, 40)):
            service = chance.choice(_SERVICES)
            method = chance.choice(list(service.methods))
            kind = getattr(_MODULES[service.name], method.input_type.name)
            path = f"/{service.full_name}/{method.name}"
            messages = [content(chance, kind()) for _ in range(chance.choice((1, 1, 2, 10)))]
            try:
                await _call(chance, channel, path, method, messages)
            except grpc.RpcError:
                pass
            except asyncio.CancelledError:
                # gRPC's way to say that the call is cancelled, which isn't the attacker itself.
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise


async def _call(
    chance: random.Random, channel: grpc.aio.Channel, path: str, method: object, messages: list[bytes]
) -> None:
    several, streamed = getattr(method, "client_streaming"), getattr(method, "server_streaming")  # noqa: B009
    shape = f"{'stream' if several else 'unary'}_{'stream' if streamed else 'unary'}"
    given = iter(messages) if several else messages[0]
    call = getattr(channel, shape)(path)(given, timeout=chance.choice((0.01, 0.3, _SECONDS)))
    if chance.random() < 0.2:
        await asyncio.sleep(0)
        call.cancel()
        return
    if not streamed:
        await call
        return
    for _ in range(chance.randint(1, 5)):
        if await call.read() is grpc.aio.EOF:
            return
    call.cancel()


def content(chance: random.Random, message: Message) -> bytes:
    """Random bytes, or a message of that kind, whole, cut or with some bits changed."""
    how = chance.randrange(4)
    if how == 0:
        return chance.randbytes(chance.choice((0, 3, 50, 5_000)))
    fill(chance, message, 0)
    content = bytearray(message.SerializeToString())
    if how == 1 and content:
        for _ in range(chance.randint(1, 5)):
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    if how == 2:
        del content[chance.randrange(len(content) + 1) :]
    return bytes(content)


def fill(chance: random.Random, message: Message, depth: int) -> None:
    """Any values, those that could be right among them."""
    for field in message.DESCRIPTOR.fields:
        below_it = field.message_type
        if chance.random() < 0.3 or depth > 4 or (below_it is not None and below_it.GetOptions().map_entry):
            continue
        several = field.is_repeated
        for _ in range(chance.choice((1, 1, 3)) if several else 1):
            if field.message_type is not None:
                below = getattr(message, field.name)
                fill(chance, below.add() if several else below, depth + 1)
                continue
            value = _value(chance, field)
            if several:
                getattr(message, field.name).append(value)
            else:
                setattr(message, field.name, value)


def _value(chance: random.Random, field: object) -> object:
    kind = getattr(field, "cpp_type")  # noqa: B009
    enum = getattr(field, "enum_type")  # noqa: B009
    if enum is not None:
        return chance.choice([value.number for value in enum.values])
    if kind == getattr(field, "CPPTYPE_BOOL"):  # noqa: B009
        return chance.random() < 0.5
    if kind == getattr(field, "CPPTYPE_STRING"):  # noqa: B009
        text = getattr(field, "type") == getattr(field, "TYPE_STRING")  # noqa: B009
        known: list[str] = ["app", "counts", "main", "", "a", "\x00", "x" * 300, "..", "*"]
        return chance.choice(known) if text else chance.choice([b"", b"\0\0a", chance.randbytes(40)])
    narrow = kind in (getattr(field, "CPPTYPE_INT32"), getattr(field, "CPPTYPE_UINT32"))  # noqa: B009
    signed = kind in (getattr(field, "CPPTYPE_INT32"), getattr(field, "CPPTYPE_INT64"))  # noqa: B009
    top = 1 << (31 if narrow else 63)
    return chance.choice([0, 1, 2, 1000, top - 1, *([-1, -top] if signed else [])])


async def send(target: str, parts: list[bytes]) -> None:
    host, _, port = target.rpartition(":")
    with contextlib.suppress(OSError, asyncio.TimeoutError, asyncio.IncompleteReadError):
        async with asyncio.timeout(_SECONDS):
            reader, writer = await asyncio.open_connection(host, int(port))
            try:
                for part in parts:
                    writer.write(part)
                    await writer.drain()
                await reader.read(1 << 16)
            finally:
                writer.transport.abort()


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def headers(path: str) -> bytes:
    """HPACK without compression: literals that are never indexed."""
    pairs = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "fuzz"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ]
    return b"".join(b"\x10" + _text(name) + _text(value) for name, value in pairs)


def _text(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


ATTACKS: tuple[Attack, ...] = (
    random_bytes,
    half_a_handshake,
    random_frames,
    mutated_frames,
    floods,
    large_headers,
    calls,
    calls,
)
