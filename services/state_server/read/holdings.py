"""What one server holds of a state, as it sends it to those who route by it, or ask what there is."""

from __future__ import annotations

from keyhole.v1 import query_pb2, state_pb2
from services.state_server.read.copies import Copy
from services.state_server.read.table import Table


def holdings(table: Table, descriptor: state_pb2.StateDescriptor, *, sizes: bool) -> list[query_pb2.StateHolding]:
    """One per role. `sizes` reads them from the store; they are of both. It also says which updates are not applied."""
    size = table.store.size() if sizes else None

    def holding(copy: Copy, ready: bool) -> query_pb2.StateHolding:
        return query_pb2.StateHolding(
            descriptor=descriptor,
            server=table.server,
            key_groups=sorted(copy.groups),
            source=copy.whole_source(),
            entries=size.entries if size else 0,
            bytes=size.bytes if size else 0,
            ready=ready,
            restored_records=table.progress.restored,
            records_to_restore=table.progress.total,
        )

    found = []
    if table.given.assigned or not table.given.followed:
        found.append(holding(table.owned, table.given.ready))
        if sizes and table.feed is not None and table.given.assigned:
            lag = table.feed.lag()
            found[0].lag_updates, found[0].updates_lag_ms = lag.updates, int(lag.seconds * 1000)
    # Also while they are being taken over: until then they are answered from what was followed.
    if table.given.followed or table.standby.groups:
        found.append(holding(table.standby, table.given.followed <= table.standby.groups))
    return found
