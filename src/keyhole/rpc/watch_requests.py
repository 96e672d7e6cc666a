"""What a watch asks for, from the wire's words to storage keys."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.key_codec import end_of_prefix
from keyhole.encoding.storage_key import GROUP_BYTES, group_of, prefix_of
from keyhole.encoding.watch_token import WatchPlace, watch_place
from keyhole.errors import MalformedRequest, StaleDescriptor, TooLarge, Unsupported
from keyhole.model.selection import EVERYTHING, Selection
from keyhole.rpc.convert import key_from_proto
from keyhole.rpc.convert_predicates import selection_from_proto
from keyhole.v1 import query_pb2 as pb

Range: TypeAlias = tuple[bytes, bytes | None]
"""Storage keys: from one on (inclusive) up to another (exclusive); None: to the end of the key group."""

MOST_KEYS = 10_000
"""That one watch may name."""

_PROGRESS_MS, _LEAST_PROGRESS_MS = 5_000, 100


@dataclass(frozen=True)
class WatchedKeys:
    """The keys that a watch names, as storage keys.

    Attributes:
        exact: Each is an entry's, or a value's.
        prefixes: What the storage keys of all entries of a key begin with.
    """

    exact: frozenset[bytes]
    prefixes: frozenset[bytes]

    @functools.cached_property
    def by_key_group(self) -> dict[int, WatchedKeys]:
        """The same keys, by the key group that they are of."""
        parts: dict[int, tuple[set[bytes], set[bytes]]] = {}
        for of, keys in enumerate((self.exact, self.prefixes)):
            for key in keys:
                parts.setdefault(group_of(key), (set(), set()))[of].add(key)
        return {group: WatchedKeys(frozenset(exact), frozenset(prefixes)) for group, (exact, prefixes) in parts.items()}

    @property
    def places(self) -> Sequence[bytes]:
        """What is exact and what is a prefix, ascending."""
        return sorted(self.exact | self.prefixes)

    @property
    def key_groups(self) -> frozenset[int]:
        """Those that they are of."""
        return frozenset(map(group_of, self.exact | self.prefixes))

    @functools.cached_property
    def lengths(self) -> Sequence[int]:
        """How many bytes the prefixes take, each once."""
        return sorted({len(prefix) for prefix in self.prefixes})

    def has(self, storage_key: bytes) -> bool:
        """Whether the storage key is among them."""
        return storage_key in self.exact or any(storage_key[:length] in self.prefixes for length in self.lengths)

    def of(self, key_group: int) -> WatchedKeys:
        """Those of one key group, of which there are some."""
        return self.by_key_group[key_group]

    def ranges(self, key_group: int) -> Iterator[Range]:
        """From where (inclusive), and up to where, their entries in a key group stand, ascending."""
        of = self.of(key_group)
        for place in of.places:
            yield place, end_of_prefix(place) if place in of.prefixes else place + b"\0"


@dataclass(frozen=True)
class WatchedRange:
    """The keys that a watch is of, by their encoding: those of a range, in each key group.

    Attributes:
        start, stop: Encoded keys, or beginnings of some: inclusive, and exclusive; empty: no bound.
    """

    start: bytes
    stop: bytes

    def of(self, key_group: int) -> WatchedRange:
        """Itself: it is the same in each key group."""
        return self

    def range(self, key_group: int) -> Range:
        """Where its entries in a key group stand."""
        prefix = prefix_of(key_group)
        return prefix + self.start, prefix + self.stop if self.stop else None

    def ranges(self, key_group: int) -> Iterator[Range]:
        """The same as the only one."""
        yield self.range(key_group)

    def has(self, storage_key: bytes) -> bool:
        """Whether the storage key is in it."""
        key = storage_key[GROUP_BYTES:]
        return key >= self.start and (not self.stop or key < self.stop)


Watched: TypeAlias = WatchedKeys | WatchedRange


@dataclass(frozen=True)
class WatchAsked:
    """A WatchRequest, checked.

    Attributes:
        keys: None: all of the state.
        digest: What tells its keys and its predicate from others, in its tokens.
        key_groups: That are watched.
        place: To go on behind; None: begin.
        snapshot: Begin with the rows that are there.
        select: Which entries, and what of each.
        predicate: What tells the predicate from others; empty: there is none.
    """

    keys: Watched | None
    digest: int
    key_groups: frozenset[int]
    place: WatchPlace | None
    snapshot: bool
    before: bool
    latest_only: bool
    as_json: bool
    progress_seconds: float
    select: Selection = EVERYTHING
    predicate: bytes = b""


def watch_asked(codec: StateCodec, request: pb.WatchRequest) -> WatchAsked:
    """What is asked for.

    Raises:
        StaleDescriptor: The caller, or the token, means a state that was made anew since.
        KeyMismatch, NullKey: A key does not fit its columns.
        TooLarge: It names more than MOST_KEYS keys.
        MalformedRequest: There is no such key group; or the token is none, or of other keys. Keys together with a
            range of them; what is no predicate; or keys without values.
    """
    descriptor = codec.descriptor
    name = descriptor.path
    if request.topic_id not in ("", descriptor.topic_id):
        raise StaleDescriptor(f"state {name} was made anew; describe it again", topic_id=descriptor.topic_id)
    if len(request.keys) > MOST_KEYS:
        raise TooLarge(
            f"a watch of state {name} names {len(request.keys):,} keys, and may name {MOST_KEYS:,}; share them among "
            "several watches, or watch the whole state",
            limit=MOST_KEYS,
        )
    keys = _watched(codec, request)
    select = _selected(name, request)
    # The text of a predicate says the same at each proxy and server; what a row is cut to is not of the place.
    predicate = request.selection.where.SerializeToString(deterministic=True) if select.where is not None else b""
    every = frozenset(range(descriptor.key_groups))
    groups = keys.key_groups if isinstance(keys, WatchedKeys) else every
    if request.key_groups:
        if beyond := [of for of in request.key_groups if of >= descriptor.key_groups]:
            raise MalformedRequest(f"state {name} has no key group {beyond[0]}")
        groups &= frozenset(request.key_groups)
    digest = _digest(keys, predicate)
    place = watch_place(request.token, descriptor, digest) if request.token else None
    if place is not None and not groups <= place.marks.keys():
        raise MalformedRequest(f"the token of a watch of state {name} lacks key groups; begin the watch without it")
    progress_ms = max(_LEAST_PROGRESS_MS, request.progress_ms or _PROGRESS_MS)
    return WatchAsked(
        keys,
        digest,
        groups,
        place,
        snapshot=not request.no_snapshot,
        before=request.before,
        latest_only=request.latest_only,
        as_json=request.format == pb.VALUE_FORMAT_JSON,
        progress_seconds=progress_ms / 1000,
        select=select,
        predicate=predicate,
    )


def _digest(keys: Watched | None, predicate: bytes) -> int:
    """Of what is watched; 0: of all of the state."""
    parts: list[bytes] = []
    if isinstance(keys, WatchedKeys):
        parts += keys.places
    elif keys is not None:
        parts += [b"range", keys.start, keys.stop]
    if predicate:
        parts += [b"where", predicate]
    return zlib.crc32(b"".join(b"%d:%s" % (len(part), part) for part in parts))


def _selected(name: str, request: pb.WatchRequest) -> Selection:
    select = selection_from_proto(request.selection)
    if select.keys_only:
        raise MalformedRequest(
            f"a watch of state {name} has no keys_only: without a value nobody could tell a change from a deletion. "
            "Leave it out, or ask for one small field by `fields`"
        )
    return select


def _watched(codec: StateCodec, request: pb.WatchRequest) -> Watched | None:
    if not request.start and not request.stop:
        return _watched_keys(codec, request.keys) if request.keys else None
    if request.keys:
        raise MalformedRequest("a watch is of keys, or of a prefix or a range of them; leave one of these out")
    return WatchedRange(request.start, request.stop)


def check_watch_heeded(request: pb.WatchRequest, response: pb.WatchResponse, who: str) -> None:
    """Passes where what was selected is what came.

    Args:
        who: Has sent it.

    Raises:
        Unsupported: The response may have what was not asked for, of somebody who knows of no selection.
    """
    if request.HasField("selection") and not response.selected:
        raise Unsupported(
            f"{who} is of an earlier version, which knows no where, fields, prefix and range of keys of a watch; "
            "update it, or leave them out"
        )


def _watched_keys(codec: StateCodec, keys: Iterable[pb.Key]) -> WatchedKeys:
    of_key, of_entry = len(codec.descriptor.scan_key), len(codec.descriptor.entry_key)
    exact, prefixes = set[bytes](), set[bytes]()
    for key in map(key_from_proto, keys):
        if of_key and of_entry and len(key) == of_key:
            prefixes.add(codec.prefix(key if len(key) != 1 else key[0]))
        else:
            exact.update(codec.storage_keys([key]))
    return WatchedKeys(frozenset(exact), frozenset(prefixes))
