"""What is sent to a lookup port. See attacks."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from pathlib import Path

from keyhole.rpc.port_frames import VERSION, packed, packed_message
from keyhole.security.credentials import Credentials
from keyhole.v1 import query_pb2
from tests.fuzz.attacks import PREFACE, Attack, content, fill, send


async def other_protocols(chance: random.Random, target: str, credentials: Credentials) -> None:
    """HTTP/2, TLS, HTTP/1.1 and nothing known."""
    tls, http = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET / HTTP/1.1\r\n\r\n"
    others = (PREFACE, tls, http, chance.randbytes(300))
    await send(target, [chance.choice(others), chance.randbytes(chance.choice((0, 5, 3_000)))])


async def mutated_lookups(chance: random.Random, target: str, credentials: Credentials) -> None:
    """A good conversation, bit by bit not quite so, cut anywhere."""
    sent = bytearray(_opening(credentials) + b"".join(packed_message(_good(number)) for number in range(1, 30)))
    for _ in range(chance.randint(0, 6)):
        sent[chance.randrange(len(sent))] ^= 1 << chance.randrange(8)
    await send(target, [bytes(sent[: chance.randrange(1, len(sent))])])


async def any_lookups(chance: random.Random, target: str, credentials: Credentials) -> None:
    """Whole messages with any contents, behind an opening that may be right."""
    opening = query_pb2.LookupOpening()
    fill(chance, opening, 0)
    first = chance.choice((_opening(credentials), _opening(credentials), packed_message(opening)))
    await send(target, [first, *(packed(content(chance, query_pb2.LookupRequest())) for _ in range(20))])


async def lengths(chance: random.Random, target: str, credentials: Credentials) -> None:
    """Messages that are announced and never come, or not to their end."""
    size = chance.choice((0, 1, 1 << 10, 1 << 22, (1 << 22) + 1, 1 << 31, (1 << 32) - 1))
    opening = _opening(credentials) if chance.random() < 0.7 else b""
    await send(target, [opening + struct.pack(">I", size) + chance.randbytes(min(size, chance.choice((0, 9, 60_000))))])


async def floods_unread(chance: random.Random, target: str, credentials: Credentials) -> None:
    """Thousands of frames by somebody who reads none of the answers."""
    host, _, port = target.rpartition(":")
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(2.0):
            reader, writer = await asyncio.open_connection(host, int(port), limit=1)
            try:
                writer.write(_opening(credentials))
                for number in range(1, 5_000):
                    writer.write(packed_message(_good(number)))
                    await writer.drain()
                await reader.read(1)
            finally:
                writer.transport.abort()


def _opening(credentials: Credentials) -> bytes:
    path = credentials.token_file
    says = f"Bearer {Path(path).read_text().strip()}" if path else ""
    return packed_message(query_pb2.LookupOpening(version=VERSION, authorization=says))


def _good(number: int) -> query_pb2.LookupRequest:
    key = query_pb2.Key(parts=[query_pb2.KeyPart(string="a")])
    return query_pb2.LookupRequest(
        frame=number, state=query_pb2.StateRef(application="app", state="counts"), keys=[key] * 20
    )


PORT_ATTACKS: tuple[Attack, ...] = (other_protocols, mutated_lookups, any_lookups, lengths, floods_unread)
