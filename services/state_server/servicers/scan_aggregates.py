"""The answer to a scan that asks for aggregates in place of entries."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable

from keyhole.rpc.requested_aggregates import RequestedAggregates
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import state_pb2
from services.state_server.read.read_turns import ReadTurns
from services.state_server.read.scans import Page


async def aggregated(
    pages: Iterable[Page],
    asked: RequestedAggregates,
    source: state_pb2.Source,
    turns: ReadTurns,
    *,
    selected: bool,
) -> AsyncGenerator[pb.ScanResponse]:
    """A message without anything, once it is known that it takes more than a turn; then one with all aggregates.

    Raises:
        KeyholeError: As Scans.pages and RequestedAggregates.add.
    """
    for turn, page in enumerate(pages):
        if turn == 1:
            yield pb.ScanResponse(source=source, selected=selected)
        asked.add(page.keys, page.rows)
        await turns.next()
    yield pb.ScanResponse(source=source, selected=selected, aggregates=asked.messages())
