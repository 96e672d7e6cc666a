"""How much memory the values of one record may take. Pure.

    an array of a million records with one field, of a byte each    a megabyte of bytes -> 230 of Python's objects

A record says how many items it has, and a schema how large each is made. So a small record can come to a large value.
What readers make is counted here before it is made.
"""

from __future__ import annotations

import sys

from keyhole.errors import MalformedRequest

MOST_BYTES = 128 << 20
"""So much may the values of a record take; a record of a megabyte, Kafka's default, seldom comes near it."""
ITEM_BYTES = 64
"""What a value takes that has no others within it, with its place in a list: a number, a short text."""


class Allowance:
    """What is left for the values of one record. Not thread-safe: each reading has its own.

    Args:
        what: The bytes are, for the message.
    """

    __slots__ = ("_left", "_what")

    def __init__(self, what: str) -> None:
        self._left = MOST_BYTES
        self._what = what

    def take(self, size: int) -> None:
        """Counts that many bytes. Raises MalformedRequest: the record has too many by now."""
        self._left -= size
        if self._left < 0:
            raise MalformedRequest(
                f"{self._what} would take more than {MOST_BYTES >> 20} MiB of memory, as it has too many items: write "
                "it as several records"
            )


def record_bytes(fields: int) -> int:
    """About what a record of so many fields takes, without what is in them."""
    return sys.getsizeof(dict.fromkeys(range(fields)))
