"""A scan as the client asks for it, and its answer put together from pages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from keyhole.client.options import MapKey
from keyhole.client.scanned_entries import ScannedEntries
from keyhole.client.wire.cut_off import is_cut_off
from keyhole.client.wire.link import Link
from keyhole.client.wire.links import CallAttempts, Links
from keyhole.client.wire.newer_schema import await_newer
from keyhole.client.wire.selected_rows import SelectedRows
from keyhole.client.wire.state_reads import StateReads
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.storage_key import group_of
from keyhole.errors import (
    DeadlineExceeded,
    InternalError,
    KeyholeError,
    KeyMismatch,
    MalformedRequest,
    StaleDescriptor,
    UnavailableError,
    Unsupported,
    ValueMismatch,
)
from keyhole.model.given import flag_of, whole_of
from keyhole.model.read import Entry, ReadBounds, Source
from keyhole.model.selection import EVERYTHING, Selection
from keyhole.model.state import KeyColumn
from keyhole.rpc.convert import bounds_to_proto, key_to_proto, source_from_proto
from keyhole.rpc.convert_predicates import selection_to_proto
from keyhole.rpc.scan_requests import check_has_entries, check_heeded
from keyhole.v1 import query_pb2 as pb

# What the wire has room for.
_MOST = (1 << 64) - 1


def checked_limit(limit: int | None) -> int | None:
    """The same; None: no limit. Raises MalformedRequest: It is below 1, or more than the wire has room for."""
    whole = None if limit is None else whole_of(limit)
    if limit is not None and (whole is None or not 1 <= whole <= _MOST):
        raise MalformedRequest(
            f"limit is {limit!r}; it must be a whole number of 1 or more, and None means all entries"
        )
    return whole


@dataclass(frozen=True)
class Scan:
    """What AsyncClient.scan was asked for; `limit` None: all."""

    application: str
    state: str
    key: Any
    start: MapKey | None
    stop: MapKey | None
    bounds: ReadBounds
    descending: bool
    limit: int | None
    select: Selection = EVERYTHING

    def __post_init__(self) -> None:
        checked_limit(self.limit)
        flag_of("descending", self.descending)

    def request(self, codec: StateCodec) -> pb.ScanRequest:
        """The scan as a request.

        Raises:
            Unsupported: The state has no entries.
            KeyMismatch, NullKey, ValueMismatch: A value, or a field that is selected by, does not fit it.
        """
        check_has_entries(codec.descriptor)
        bounds = self.bounds
        if bounds.min_epochs:
            bounds = bounds.among([group_of(codec.prefix(self.key))])
        request = pb.ScanRequest(
            state=pb.StateRef(application=self.application, state=self.state),
            key=key_to_proto(codec.keys.columns, self.key),
            to=_bound(codec.entries.columns, self.stop),
            descending=self.descending,
            limit=self.limit or 0,
            options=bounds_to_proto(bounds),
            topic_id=codec.descriptor.topic_id,
            selection=selection_to_proto(self.select),
        )
        # A field of this name can't be an argument.
        getattr(request, "from").CopyFrom(_bound(codec.entries.columns, self.start))
        return request


def _bound(columns: Sequence[KeyColumn], bound: MapKey | None) -> pb.Key:
    if bound is None:
        return pb.Key()
    given = len(bound) if isinstance(bound, (tuple, list)) else 1
    return key_to_proto(columns[:given], bound)


class Scanner:
    """Reads scans to their end, within a deadline, over however many calls that takes.

    One that was cut off is begun again from its first entry: the rest that another copy has, or the same one a moment
    later, may be of another epoch than what was read. Nobody has seen that yet.
    """

    def __init__(self, links: Links) -> None:
        self._links = links
        self._loop = asyncio.get_running_loop()

    async def entries(self, scan: Scan, reads: Callable[[], StateReads], deadline: float) -> ScannedEntries:
        """All entries that are asked for, of one copy and one epoch.

        Args:
            reads: Of the scan's state.
            deadline: On the event loop's clock.

        Raises:
            KeyholeError: See AsyncClient.scan.
            asyncio.CancelledError: Also where the channel is closed.
        """
        attempts = CallAttempts(self._links, deadline)
        while True:
            of = reads()
            codec = await of.codec(deadline)
            link = await attempts.link()
            answer = _JoinedPages()
            try:
                answer.entries_of(codec, scan.select)
                await self._read(link, scan.request(codec), answer, deadline)
            except (StaleDescriptor, ValueMismatch, KeyMismatch, Unsupported) as error:
                # The state may have changed since it was described.
                of.outdated(codec)
                await await_newer(self._links, lambda: reads().codec(deadline), codec, error, deadline)
            except UnavailableError as error:
                # A proxy tries the copies that don't begin; what breaks off in the middle is begun again here.
                if not is_cut_off(error) and (answer.source is None or not error.retryable):
                    raise attempts.error_for_caller(error) from error.__cause__
                await attempts.again(error, link)
            else:
                return answer.whole(link.target, scan.key)

    async def _read(self, link: Link, request: pb.ScanRequest, answer: _JoinedPages, deadline: float) -> None:
        call = link.stub.Scan(request, timeout=max(0.001, deadline - self._loop.time()))
        try:
            async for page in call:
                link.heard()
                answer.add(page, request)
        except grpc.RpcError as error:
            failure: KeyholeError = link.failed(error)
            if isinstance(failure, DeadlineExceeded):
                raise answer.too_late(failure) from error
            raise failure from error
        finally:
            call.cancel()


class _JoinedPages:
    """Of one call, put together from its pages as they come."""

    def __init__(self) -> None:
        self.source: Source | None = None
        self._entries: list[Entry] = []

    def entries_of(self, codec: StateCodec, select: Selection) -> None:
        """What they are of, before the first page. Raises ValueMismatch: They are selected by what it has not."""
        self._of = codec.descriptor, select
        self._decode_key, self._single = codec.entries.decode, len(codec.entries.columns) == 1
        self._selecting = SelectedRows(codec, select)

    def add(self, page: pb.ScanResponse, request: pb.ScanRequest) -> None:
        """Raises ValueMismatch, StaleDescriptor, Unsupported: A row is not of the codec's schemas, or newer than these;
        or the server knows of no selections.
        """
        check_heeded(request, page)
        self.source = self.source or source_from_proto(page.source)
        decode_key, single = self._decode_key, self._single
        for encoded, value in zip(page.map_keys, self._selecting.values(page.values), strict=True):
            map_key = decode_key(encoded)
            self._entries.append(Entry(map_key[0] if single else map_key, value))

    def whole(self, target: str, key: Any) -> ScannedEntries:
        """Once there are no more pages."""
        if self.source is None:
            raise InternalError(f"{target} answered a scan without a page, by a bug of its")
        return ScannedEntries(tuple(self._entries), self.source, key, *self._of)

    def too_late(self, error: DeadlineExceeded) -> DeadlineExceeded:
        """The error that the caller gets."""
        if self.source is None:
            return error
        late = DeadlineExceeded(
            f"{len(self._entries):,} entries were read within the deadline, and there may be more; give it more time, "
            f"or ask for fewer at once ({error.message})"
        )
        late.facts = error.facts
        return late
