"""What a watch asks for, from the wire's words to storage keys."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.key_codec import end_of_prefix
from keyhole.encoding.storage_key import group_of
from keyhole.encoding.watch_token import WatchPlace, watch_place
from keyhole.errors import MalformedRequest, StaleDescriptor, TooLarge
from keyhole.rpc.convert import key_from_proto
from keyhole.v1 import query_pb2 as pb

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

    def range_of(self, place: bytes, after: bytes) -> tuple[bytes, bytes | None] | None:
        """From where, and up to where, the entries of one of `places` stand that are above a storage key; None: none.

        Args:
            after: Empty: all of them.
        """
        start = max(place, after + b"\0") if after else place
        stop = end_of_prefix(place) if place in self.prefixes else place + b"\0"
        return None if stop is not None and start >= stop else (start, stop)


@dataclass(frozen=True)
class WatchAsked:
    """A WatchRequest, checked.

    Attributes:
        keys: None: all of the state.
        digest: What tells its keys from others, in its tokens.
        key_groups: That are watched.
        place: To go on behind; None: begin.
        snapshot: Begin with the rows that are there.
    """

    keys: WatchedKeys | None
    digest: int
    key_groups: frozenset[int]
    place: WatchPlace | None
    snapshot: bool
    before: bool
    latest_only: bool
    as_json: bool
    progress_seconds: float


def watch_asked(codec: StateCodec, request: pb.WatchRequest) -> WatchAsked:
    """What is asked for.

    Raises:
        StaleDescriptor: The caller, or the token, means a state that was made anew since.
        KeyMismatch, NullKey: A key does not fit its columns.
        TooLarge: It names more than MOST_KEYS keys.
        MalformedRequest: There is no such key group; or the token is none, or of other keys.
    """
    descriptor = codec.descriptor
    name = f"{descriptor.application}/{descriptor.state}"
    if request.topic_id not in ("", descriptor.topic_id):
        raise StaleDescriptor(f"state {name} was made anew; describe it again", topic_id=descriptor.topic_id)
    if len(request.keys) > MOST_KEYS:
        raise TooLarge(
            f"a watch of state {name} names {len(request.keys):,} keys, and may name {MOST_KEYS:,}; share them among "
            "several watches, or watch the whole state",
            limit=MOST_KEYS,
        )
    keys = _watched_keys(codec, request.keys) if request.keys else None
    digest = 0 if keys is None else zlib.crc32(b"".join(b"%d:%s" % (len(key), key) for key in keys.places))
    groups = frozenset(range(descriptor.key_groups)) if keys is None else keys.key_groups
    if request.key_groups:
        if beyond := [of for of in request.key_groups if of >= descriptor.key_groups]:
            raise MalformedRequest(f"state {name} has no key group {beyond[0]}")
        groups &= frozenset(request.key_groups)
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
