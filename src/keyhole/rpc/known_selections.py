"""What scans that select alike have in common: a predicate is compiled once, and not for each key group of a scan."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from keyhole.encoding.selected_entries import SelectedEntries
from keyhole.model.state import StateDescriptor
from keyhole.rpc.scan_requests import selected_entries
from keyhole.v1 import query_pb2

_MOST, _MOST_BYTES = 256, 2 << 20
"""So many, and so many bytes of messages. A predicate may have thousands of values."""


class _CompiledSelection(NamedTuple):
    descriptor: StateDescriptor
    select: SelectedEntries
    size: int


class KnownSelections:
    """Those that were asked for last. Event loop."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str, int, bytes], _CompiledSelection] = OrderedDict()
        self._size = 0

    def of(self, descriptor: StateDescriptor, request: query_pb2.ScanRequest) -> SelectedEntries:
        """What is given of the entries. Raises as `selected_entries`.

        Args:
            descriptor: Of the state as it is now; of another one than before, it is made anew.
        """
        message = request.selection.SerializeToString()
        if not message:
            return selected_entries(descriptor, request)
        key = (descriptor.application, descriptor.state, request.options.format, message)
        known = self._known.get(key)
        if known is not None and known.descriptor is descriptor:
            self._known.move_to_end(key)
            return known.select
        made = _CompiledSelection(descriptor, selected_entries(descriptor, request), len(message))
        if known is not None:
            self._forget(key)
        if made.size <= _MOST_BYTES:
            self._known[key] = made
            self._size += made.size
        while self._size > _MOST_BYTES or len(self._known) > _MOST:
            self._forget(next(iter(self._known)))
        return made.select

    def _forget(self, key: tuple[str, str, int, bytes]) -> None:
        self._size -= self._known.pop(key).size
