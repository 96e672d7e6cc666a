"""The answer to a scan that asks for aggregates in place of entries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import closing

from keyhole.encoding.codec import EntryRange
from keyhole.encoding.selected_entries import SelectedEntries
from keyhole.rpc.convert import bounds_from_proto
from keyhole.rpc.requested_aggregates import RequestedAggregates
from keyhole.rpc.scan_requests import is_descending
from keyhole.v1 import query_pb2 as pb
from services.state_server.read.scans import Scans
from services.state_server.read.table import Table


async def aggregated(
    table: Table, scans: Scans, within: EntryRange, select: SelectedEntries, request: pb.ScanRequest
) -> AsyncGenerator[pb.ScanResponse]:
    """A page without anything, once it is known that it takes more than a turn; then one with all aggregates.

    Raises:
        KeyholeError: As Table.scan, Scans.open, Scans.pages and RequestedAggregates.
    """
    asked, bounds = RequestedAggregates(table.descriptor, request, select), bounds_from_proto(request.options)
    selected, begun = request.HasField("selection"), False
    with (
        scans.open(lambda: table.scan(within, bounds, descending=is_descending(request))) as scanned,
        closing(scans.pages(scanned, 0, select)) as pages,
    ):
        for page in pages:
            if begun:
                await asyncio.sleep(0)
            asked.add(page.keys, page.rows)
            if not begun:
                begun = True
                yield pb.ScanResponse(source=scanned.source, selected=selected)
        yield pb.ScanResponse(source=scanned.source, selected=selected, aggregates=asked.messages())
