"""From an update of the real-time lane to a storage key and a row, as merging takes them; what fits no state's entry is
refused. Pure.
"""

from __future__ import annotations

from typing import Any

from keyhole.encoding.envelope import deletion
from keyhole.encoding.json_values import JsonRows, json_reader
from keyhole.encoding.key_codec import encode_integer
from keyhole.encoding.value_types import Convert, optional
from keyhole.errors import MalformedRequest, Unsupported, ValueMismatch
from keyhole.model.state import StateDescriptor, StateKind, TtlClock
from keyhole.protocol.updates import DELETE, UpdateRecord
from services.state_server.write.merging import StoredValue
from services.state_server.write.update_keys import UpdateKeys

POSITION_BYTES = 8
"""Of a list: what stands behind the key in an element's storage key."""


class UpdateReader:
    """From an update to a storage key and a row, as merging takes them. Pure.

    Args:
        keys: Of the state; None: of this reader alone.

    Raises:
        Unsupported: The state's kind can't be fed by updates.
    """

    def __init__(self, descriptor: StateDescriptor, keys: UpdateKeys | None = None) -> None:
        self._name = descriptor.path
        if (why := _unsupported(descriptor)) is not None:
            raise Unsupported(f"state {self._name} can't be fed by updates: {why}", state=descriptor.state)
        self._keys = keys or UpdateKeys(descriptor)
        self._rows = JsonRows(descriptor)
        self._is_list = descriptor.kind is StateKind.LIST
        self._has_map_key = bool(descriptor.map_key)
        self._order = self._order_of(descriptor) if descriptor.order_by else None
        self._remembers = bool(descriptor.keep_deleted_ms)

    def _order_of(self, descriptor: StateDescriptor) -> Convert:
        of = next(field.type for field in descriptor.value.fields if field.name == descriptor.order_by)
        return optional(json_reader(of))

    def clears(self, record: UpdateRecord) -> bool:
        """Whether it deletes all that a key has, of several entries."""
        several = self._is_list or (self._has_map_key and record.map_key is None)
        return several and record.operation == DELETE

    def read(self, record: UpdateRecord, offset: int) -> tuple[bytes, StoredValue]:
        """The storage key that the update is about, and its row; None deletes.

        Args:
            offset: Of the update: elements of a list come in the order of these.

        Raises:
            KeyMismatch, NullKey, ValueMismatch: It does not fit the state.
            MalformedRequest: An element is there, or lacks, that the operation has not, or needs.
        """
        key = self._keys.of(record.key, record.map_key if self._has_map_key else None)
        if record.operation == DELETE:
            return key, self._deletion(record)
        if record.value is None:
            raise MalformedRequest(
                f"an update of state {self._name} puts a row and has none; a deletion is operation 1"
            )
        row = self._rows.row(record.schema_version, record.value)
        if self._has_map_key and record.map_key is None:
            raise MalformedRequest(f"an update of state {self._name} has no map key")
        return (key + encode_integer(offset, POSITION_BYTES) if self._is_list else key), row

    def _deletion(self, record: UpdateRecord) -> StoredValue:
        row: StoredValue = None
        # With and without an order, where there is one: whoever writes by the rules before these must not be refused.
        # It would take the row's identity away from the run whose deletion has the order.
        if record.value is not None:
            ordered = self._ordered(record.value)
            row = ordered if self._remembers else None
        return row

    def _ordered(self, value: list[Any]) -> bytes:
        if self._order is None:
            raise MalformedRequest(f"a deletion in state {self._name} has a value, and deletions have no order there")
        if len(value) != 1:
            raise MalformedRequest(
                f"a deletion in state {self._name} has an order: give it as the only field of the value"
            )
        try:
            return deletion(self._order(value[0]))
        except (ValueError, OverflowError, ArithmeticError):
            # Not as the cause: it may hold the value.
            raise ValueMismatch(f"the order of a deletion in state {self._name} is not of its type") from None


def _unsupported(descriptor: StateDescriptor) -> str | None:
    if descriptor.kind is StateKind.AGGREGATING or descriptor.class_version:
        return "its values are made by a class of the job's, which no server has. Feed a reducing state"
    if descriptor.ttl_ms and descriptor.ttl_clock is TtlClock.EVENT_TIME:
        return "it expires by event time, and updates have no watermark. Let it expire by processing time"
    return None
