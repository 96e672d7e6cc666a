"""What is said of the copies of one key group, from what their servers say of themselves. Pure."""

from __future__ import annotations

from keyhole.protocol.server_view import StateName
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import state_pb2


def micros(seconds: float) -> int:
    """Whole microseconds, at least 0."""
    return max(0, round(seconds * 1_000_000))


def copy_in(status: pb.ServerStatus, name: StateName, key_group: int) -> pb.KeyGroupCopy:
    """What one server holds of a key group; without a source where that is nothing. An owner's copy before a standby's:
    while a server takes a key group over it has both.
    """
    copy = pb.KeyGroupCopy(
        server=status.server,
        address=status.address,
        replica=status.replica,
        draining=status.draining,
        unreachable=status.unreachable,
    )
    held = [
        of
        for of in status.holdings
        if (of.descriptor.application, of.descriptor.state) == name and key_group in of.key_groups
    ]
    if held:
        holding = min(held, key=lambda of: of.source.role != state_pb2.ROLE_OWNER)
        copy.source.CopyFrom(holding.source)
        copy.ready = holding.ready
        copy.restored_records, copy.records_to_restore = holding.restored_records, holding.records_to_restore
    return copy
