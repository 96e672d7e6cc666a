"""The aggregates that a scan's request asks for, computed where the entries are."""

from __future__ import annotations

from collections.abc import Sequence

from keyhole.encoding.aggregation import EntryAggregation
from keyhole.encoding.selected_entries import SelectedEntries
from keyhole.errors import MalformedRequest
from keyhole.model.state import StateDescriptor
from keyhole.rpc.convert_aggregates import aggregates_from_proto, partial_to_proto
from keyhole.rpc.frames import MAX_VALUE_BYTES
from keyhole.v1 import predicate_pb2, query_pb2


class RequestedAggregates:
    """Of one request.

    Args:
        select: What is given of the entries of a TOP.

    Raises:
        MalformedRequest: They are none, or are asked for together with a limit.
        ValueMismatch: The state has no such field, or this is not computed of its type.
    """

    def __init__(self, descriptor: StateDescriptor, request: query_pb2.ScanRequest, select: SelectedEntries) -> None:
        if request.limit:
            raise MalformedRequest("aggregates are of all entries of a range; leave limit out")
        self._aggregation = EntryAggregation(descriptor, aggregates_from_proto(request.aggregates), MAX_VALUE_BYTES)
        self._select = select

    def add(self, keys: Sequence[bytes], rows: Sequence[bytes]) -> None:
        """Entries that are selected. Raises as EntryAggregation.add."""
        self._aggregation.add(keys, rows)

    def messages(self) -> list[predicate_pb2.PartialAggregate]:
        """What was computed of all of them. Raises ValueMismatch, StaleDescriptor: as SelectedEntries.values."""
        return [
            partial_to_proto(of, partial, self._select.values([entry.row for entry in partial.top]))
            for of, partial in zip(self._aggregation.bound, self._aggregation.partials, strict=True)
        ]
