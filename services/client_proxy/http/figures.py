"""Aggregates of a state over HTTP: some key groups at a time, what each has computed put together here."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, NamedTuple

from keyhole.encoding.aggregation import BoundAggregate, Partial
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.storage_key import prefix_of
from keyhole.model.aggregates import AggregateKind, AskedAggregate
from keyhole.model.selection import Selection
from keyhole.rpc.convert_aggregates import aggregate_to_proto, partial_from_proto
from keyhole.rpc.convert_predicates import selection_to_proto
from keyhole.rpc.scan_requests import CALLS_AT_A_TIME, check_computed, scan_number
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import state_pb2
from services.client_proxy.grpc.query_servicer import ProxyServicer
from services.client_proxy.http.requests import KeyRange
from services.client_proxy.http.scanned_pages import scanned_pages


class Computed(NamedTuple):
    """The aggregates by their text.

    Attributes:
        values: What a reader in Python gets; of a top a list of TopEntry, which no other value is.
        sources: By key group.
    """

    values: dict[str, Any]
    sources: list[state_pb2.Source]


async def computed(
    servicer: ProxyServicer,
    codec: StateCodec,
    options: pb.ReadOptions,
    aggregates: Mapping[str, AskedAggregate],
    select: Selection,
    within: KeyRange,
    deadline: Any,
) -> Computed:
    """What all key groups have computed, each as of one epoch.

    Args:
        within: Of which keys.

    Raises:
        ValueMismatch: The state has no such field, or this is not computed of its type.
        KeyholeError: As Scan, for any key group.
    """
    descriptor = codec.descriptor
    bound = {text: BoundAggregate(descriptor, of) for text, of in aggregates.items()}
    partials = [Partial() for _ in bound]
    sources: dict[int, state_pb2.Source] = {}
    # One that is empty makes servers say whether they know of ranges.
    selection = selection_to_proto(select) or (pb.Selection() if any(within) else None)
    asked = [aggregate_to_proto(of) for of in aggregates.values()]
    number, waiting = scan_number(), iter(range(descriptor.key_groups))

    async def work() -> None:
        for key_group in waiting:
            request = pb.ScanRequest(
                state=pb.StateRef(application=descriptor.application, state=descriptor.state),
                key_group=within.within(key_group),
                options=options,
                topic_id=descriptor.topic_id,
                selection=selection,
                aggregates=asked,
                scan=number,
            )
            last = pb.ScanResponse()
            async with aclosing(scanned_pages(servicer, request, deadline)) as pages:
                async for last in pages:
                    if last.map_keys:
                        break
            check_computed(last)
            for of, partial, found in zip(bound.values(), partials, last.aggregates, strict=True):
                of.merge(partial, partial_from_proto(of, found, prefix_of(key_group)))
            sources[key_group] = last.source

    workers = [asyncio.ensure_future(work()) for _ in range(CALLS_AT_A_TIME)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    results = zip(bound.items(), partials, strict=True)
    values = {text: part.top if of.of.kind is AggregateKind.TOP else of.result(part) for (text, of), part in results}
    return Computed(values, [sources[key_group] for key_group in sorted(sources)])
