"""What a scan gives of the values of a page, by its selection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.row_codec import RowCodec
from keyhole.encoding.selected_entries import given_descriptor
from keyhole.errors import Unsupported
from keyhole.model.selection import Selection
from keyhole.v1 import query_pb2 as pb


class SelectedRows:
    """Reads what servers send of a state's rows.

    Raises:
        ValueMismatch: The state has no field that is selected by, or one of another type.
    """

    def __init__(self, codec: StateCodec, select: Selection) -> None:
        self._keys_only = select.keys_only
        given = given_descriptor(codec.descriptor, select)
        self._decode: Callable[[bytes], Any] = codec.decode_row
        if given is not codec.descriptor:
            self._decode = RowCodec(given).decode

    def check_heeded(self, page: pb.ScanResponse, request: pb.ScanRequest) -> None:
        """Raises Unsupported: The page has what was not asked for, of a server that knows of no selection."""
        if request.HasField("selection") and not page.selected:
            raise Unsupported(
                f"server {page.source.server} is of an earlier version, which knows no where, fields, keys_only, "
                "order and range of keys; update it, or leave them out"
            )

    def values(self, page: pb.ScanResponse) -> Sequence[Any]:
        """One of each row; None for keys alone. Raises ValueMismatch, StaleDescriptor: as RowCodec.decode."""
        return self.decoded(page.values)

    def decoded(self, rows: Sequence[bytes]) -> Sequence[Any]:
        """The same of rows as a page has them. Raises as `values`."""
        return [None] * len(rows) if self._keys_only else list(map(self._decode, rows))
