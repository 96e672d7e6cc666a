"""Settings' files in TOML, as the structs that they are decoded to. Pure."""

from __future__ import annotations

from typing import TypeVar

import msgspec

_T = TypeVar("_T")


def decode_toml(content: bytes, kind: type[_T]) -> _T:
    """A file's content.

    Raises:
        msgspec.DecodeError: It is no TOML of this kind, or not UTF-8; then the message quotes nothing of it.
    """
    try:
        return msgspec.toml.decode(content, type=kind)
    except UnicodeDecodeError:
        raise msgspec.DecodeError("it is not UTF-8") from None
