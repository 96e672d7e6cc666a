"""Refuses what is too large for a message of scans and watches: by its key, which nobody else could tell."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from keyhole.encoding.key_reading import entry_reader
from keyhole.encoding.key_text import typed
from keyhole.rpc.frames import first_too_large, value_too_large
from services.state_server.read.table import Table


def check_entries(table: Table, keys: Sequence[bytes], values: Sequence[bytes], what: str = "the value") -> None:
    """Passes where each value can be carried.

    Args:
        keys: Storage keys of the state.
        values: As they would be sent: as JSON a value takes more than it does in a store. As many as there are keys.
        what: A value is, for the message.

    Raises:
        TooLarge: One can't. The message, and the facts, name its key, the size and the limit.
    """
    if (at := first_too_large(values)) is None:
        return
    key, map_key = (None if part is None else _spelled(part) for part in entry_reader(table.codec)(keys[at]))
    facts = {"key": key} if map_key is None else {"key": key, "map_key": map_key}
    of = " ".join(f"{name.replace('_', ' ')} {text}" for name, text in facts.items())
    raise value_too_large(table.name, len(values[at]), f"{what} of {of}", **facts)


def _spelled(key: object) -> str:
    """A key, or a map key, as JSON has it."""
    return msgspec.json.encode(typed(key)).decode()
