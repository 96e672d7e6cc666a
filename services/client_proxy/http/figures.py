"""Aggregates of a state over HTTP: key group by key group, put together here."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, NamedTuple

from keyhole.encoding.aggregation import BoundAggregate, Partial, TopEntry
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.storage_key import prefix_of
from keyhole.errors import Unsupported
from keyhole.model.aggregates import AggregateKind, AskedAggregate
from keyhole.model.selection import Selection
from keyhole.rpc.convert_aggregates import aggregate_to_proto, partial_from_proto
from keyhole.rpc.convert_predicates import selection_to_proto
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import state_pb2
from services.client_proxy.grpc.query_servicer import ProxyServicer


class Computed(NamedTuple):
    """The aggregates by their text.

    Attributes:
        values: What a reader in Python gets; of a top None.
        tops: Its entries.
        sources: By key group.
    """

    values: dict[str, Any]
    tops: dict[str, list[TopEntry]]
    sources: list[state_pb2.Source]


async def computed(
    servicer: ProxyServicer,
    codec: StateCodec,
    options: pb.ReadOptions,
    aggregates: Mapping[str, AskedAggregate],
    select: Selection,
    deadline: Any,
) -> Computed:
    """What all key groups have computed, each as of one epoch.

    Raises:
        ValueMismatch: The state has no such field, or this is not computed of its type.
        KeyholeError: As Scan, for any key group.
    """
    descriptor = codec.descriptor
    bound = {text: BoundAggregate(descriptor, of) for text, of in aggregates.items()}
    partials = [Partial() for _ in bound]
    sources: list[state_pb2.Source] = []
    for key_group in range(descriptor.key_groups):
        request = pb.ScanRequest(
            state=pb.StateRef(application=descriptor.application, state=descriptor.state),
            key_group=pb.KeyGroupScan(key_group=key_group),
            options=options,
            topic_id=descriptor.topic_id,
            selection=selection_to_proto(select),
            aggregates=[aggregate_to_proto(of) for of in aggregates.values()],
        )
        last = pb.ScanResponse()
        scan: Any = servicer.Scan(request, deadline)
        async with aclosing(scan) as pages:
            async for last in pages:
                if last.map_keys:
                    break
        if not last.aggregates:
            raise Unsupported(f"server {last.source.server} is of an earlier version, which computes no aggregates")
        for of, partial, found in zip(bound.values(), partials, last.aggregates, strict=True):
            of.merge(partial, partial_from_proto(of, found, prefix_of(key_group)))
        sources.append(last.source)
    results = dict(zip(bound, zip(bound.values(), partials, strict=True), strict=True))
    return Computed(
        {text: None if of.of.kind is AggregateKind.TOP else of.result(part) for text, (of, part) in results.items()},
        {text: part.top for text, (of, part) in results.items() if of.of.kind is AggregateKind.TOP},
        sources,
    )
