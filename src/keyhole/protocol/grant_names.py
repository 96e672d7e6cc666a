"""The names of grants, which are Kafka's transactional.ids. Pure."""

from __future__ import annotations

import re

from keyhole.protocol.receipts import Target

_SERIAL = re.compile(r"\d+$")


def transactional_id(application: str, query: str, target: Target, generation: int, serial: int) -> str:
    """A grant's name: says who may write what, and is never used twice (`serial` grows within a generation)."""
    return f"keyhole.{application}.{query}.{target.server}.{target.incarnation}.{generation}.{serial}"


def serial_of(grant: str) -> int:
    """The serial that a grant's name ends in."""
    digits = _SERIAL.search(grant)
    return int(digits[0]) if digits else 0
