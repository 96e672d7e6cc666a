"""What a scan gives of the values of a page, by its selection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.row_codec import RowCodec
from keyhole.encoding.selected_entries import given_descriptor
from keyhole.model.selection import Selection


class SelectedRows:
    """Reads what servers send of a state's rows.

    Raises:
        ValueMismatch: The state has no field that is selected by, or one of another type.

    Attributes:
        value: Decodes one row. Raises ValueMismatch, StaleDescriptor: as RowCodec.decode.
    """

    def __init__(self, codec: StateCodec, select: Selection) -> None:
        self._keys_only = select.keys_only
        given = given_descriptor(codec.descriptor, select)
        self.value: Callable[[bytes], Any] = codec.decode_row
        if given is not codec.descriptor:
            self.value = RowCodec(given).decode

    def values(self, rows: Sequence[bytes]) -> Sequence[Any]:
        """One of each row of a page; None for keys alone. Raises ValueMismatch, StaleDescriptor: as RowCodec.decode."""
        return [None] * len(rows) if self._keys_only else list(map(self.value, rows))
