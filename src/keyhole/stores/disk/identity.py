"""What a store on disk writes about itself, whichever engine it is of: whose it is, and how far it got. Pure."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from keyhole.errors import StoreFormat
from keyhole.model.epoch import Position

# Offset, epoch, generation, checksum (unsigned), commit time and watermark (signed), big-endian.
_POSITION = struct.Struct(">QQQQqq")
POSITION_BYTES = _POSITION.size


class NotUsableError(Exception):
    """Why a store must be emptied. The cache is then rebuilt from the changelog."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What the files of a store say they are."""

    application: str
    state: str
    topic_id: str

    def meta(self) -> dict[bytes, bytes]:
        facts = {"application": self.application, "state": self.state, "topic_id": self.topic_id}
        return {name.encode(): value.encode("utf-8", "surrogatepass") for name, value in facts.items()}


def described(identity: Identity, version: int) -> dict[bytes, bytes]:
    """What a new store writes down; `check_described` compares with it."""
    return {b"format": str(version).encode(), **identity.meta()}


def check_described(path: Path, found: Mapping[bytes, bytes], identity: Identity, version: int) -> None:
    """Compares what a store says it is with what it should be.

    Raises:
        StoreFormat: Another format version: it may not be touched.
        NotUsableError: It says nothing, or is another state's, or of another changelog.
    """
    meta = dict(found)
    stored = meta.pop(b"format", b"")
    if not stored:
        raise NotUsableError("damaged: it says no format version")
    if stored != str(version).encode():
        raise StoreFormat(
            f"the store at {path} is of format version {stored.decode(errors='replace')} and this server writes "
            f"{version}; run the version that wrote it, or delete it: it is only a cache, and is rebuilt from "
            "the changelog",
            path=path,
        )
    expected = identity.meta()
    if meta != expected:
        # The names are part of the path: only a copied directory has others.
        other = [name.decode() for name in expected if meta.get(name) != expected[name]]
        raise NotUsableError(f"it was written for another {' and '.join(other)}")


def encode_position(position: Position) -> bytes:
    """The position as it is stored: POSITION_BYTES bytes."""
    return _POSITION.pack(*position)


def decode_position(encoded: bytes) -> Position:
    """The position of the bytes that `encode_position` gave."""
    return Position(*_POSITION.unpack(encoded))
