"""All keys of a state over HTTP, page by page: `next` is the token behind which the following page goes on."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any, NamedTuple

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.scan_token import ScanPlace, place_of
from keyhole.encoding.storage_key import prefix_of
from keyhole.errors import UnavailableError
from keyhole.model.selection import Selection
from keyhole.rpc.convert_predicates import selection_to_proto
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import state_pb2
from services.client_proxy.grpc.query_servicer import ProxyServicer


class FoundKeys(NamedTuple):
    """A page.

    Attributes:
        rows: Storage key, row, and which of `sources` gave it.
        next: None: there are no more.
    """

    rows: list[tuple[bytes, bytes, int]]
    sources: list[state_pb2.Source]
    next: str | None


async def found_keys(
    servicer: ProxyServicer,
    name: tuple[str, str],
    codec: StateCodec,
    options: pb.ReadOptions,
    limit: int,
    after: str,
    deadline: Any,
    most_bytes: int,
    select: Selection,
) -> FoundKeys:
    """Key group by key group, each as of one epoch, until the page is full, or the time is over.

    Args:
        after: The token of the page before; empty: there was none.
        most_bytes: The page is full beyond it.
        select: Which entries, and what of each.

    Raises:
        MalformedRequest, StaleDescriptor: The token is none, or of another state.
        KeyholeError: As Scan, where it has come no further than it began. Else that far is an answer, also where there
            was nothing: the next request says why there is no more for now.
    """
    descriptor = codec.descriptor
    place = began = place_of(after, descriptor) if after else ScanPlace()
    rows: list[tuple[bytes, bytes, int]] = []
    sources: list[state_pb2.Source] = []
    size = 0
    while place.key_group < descriptor.key_groups:
        request = pb.ScanRequest(
            state=pb.StateRef(application=name[0], state=name[1]),
            key_group=pb.KeyGroupScan(key_group=place.key_group, after=place.after),
            limit=limit - len(rows),
            options=options,
            topic_id=descriptor.topic_id,
            selection=selection_to_proto(select),
        )
        prefix = prefix_of(place.key_group)
        scan: Any = servicer.Scan(request, deadline)
        try:
            async with aclosing(scan) as pages:
                async for page in pages:
                    if not page.values:
                        continue
                    if not sources or sources[-1] != page.source:
                        sources.append(page.source)
                    rows += [
                        (prefix + key, row, len(sources) - 1)
                        for key, row in zip(page.map_keys, page.values, strict=True)
                    ]
                    place = ScanPlace(place.key_group, rows[-1][0])
                    size += page.ByteSize()
                    if size > most_bytes or len(rows) >= limit:
                        return FoundKeys(rows, sources, place.token(descriptor))
        except UnavailableError:
            if place == began:
                raise
            return FoundKeys(rows, sources, place.token(descriptor))
        place = ScanPlace(place.key_group + 1)
    return FoundKeys(rows, sources, None)
