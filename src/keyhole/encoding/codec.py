"""Encodes and decodes the keys of one state, and reads its rows: every client and server of it has one codec. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from keyhole.encoding.key_codec import KeyCodec, end_of_prefix, key_encoder, storage_key_encoder
from keyhole.encoding.key_ranges import EncodedKeys
from keyhole.encoding.key_values import KeyValue
from keyhole.encoding.row_codec import RowCodec
from keyhole.encoding.storage_key import GROUP_BYTES, prefix_of
from keyhole.errors import MalformedRequest, Unsupported
from keyhole.model.state import StateDescriptor


class EntryRange(NamedTuple):
    """The range of storage keys that some entries of one key take.

    Attributes:
        prefix: What the storage keys of all entries of the key begin with; what follows is the map key, encoded.
        start: Inclusive.
        stop: Exclusive; None: the end of the key group.
        map_keys: Of a key group: of each key the entries from the first of these on, and before the second, encoded;
            empty: no bound.
    """

    prefix: bytes
    start: bytes
    stop: bytes | None
    map_keys: tuple[bytes, bytes] = (b"", b"")

    @property
    def is_of_map_keys(self) -> bool:
        """Whether some map keys under each key are meant."""
        return any(self.map_keys)

    def narrowed(self, keys: EncodedKeys) -> EntryRange:
        """Those of them whose key, with the map key, is in a range."""
        group = self.prefix[:GROUP_BYTES]
        start, stop = max(self.start, group + keys.first), self.stop
        if keys.end is not None:
            stop = group + keys.end if stop is None else min(stop, group + keys.end)
        return self._replace(start=start, stop=stop)

    def has_map_key(self, map_key: bytes) -> bool:
        """Whether an encoded map key is among those that are meant."""
        first, last = self.map_keys
        return first <= map_key and (not last or map_key < last)


class StateCodec:
    """Encodes the keys of one state, and decodes its keys and rows. Thread-safe.

    Raises:
        ValueMismatch: No row of the state can be read; see RowCodec.

    Attributes:
        storage_key: Key (one value, or a tuple of one per column, then one per column of the map key) -> storage key;
            raises as KeyCodec.check. The hot path of every client: specialised for one string or one whole number.
        encoded_key: The same key -> the storage key without its key group, in a small part of the time.
        rows: What reads its rows.
        decode_row: RowCodec.decode of these.
    """

    def __init__(self, descriptor: StateDescriptor) -> None:
        self.descriptor = descriptor
        self.keys = KeyCodec(descriptor.scan_key)
        self.entries = KeyCodec(descriptor.entry_key)
        whole = KeyCodec((*descriptor.scan_key, *descriptor.entry_key))
        self.storage_key = storage_key_encoder(whole, len(descriptor.scan_key), descriptor.key_groups)
        self.encoded_key = key_encoder(whole)
        self._prefix = storage_key_encoder(self.keys, len(descriptor.scan_key), descriptor.key_groups)
        self.rows = RowCodec(descriptor)
        self.decode_row = self.rows.decode

    def key(self, storage_key: bytes) -> tuple[KeyValue, ...]:
        """Returns the values of the key, without those of the map key. Raises MalformedRequest."""
        return self.keys.decode_first(storage_key[GROUP_BYTES:])[0]

    def entry(self, storage_key: bytes) -> tuple[tuple[KeyValue, ...], tuple[KeyValue, ...]]:
        """Returns the values of the key, and those of the map key. Raises MalformedRequest."""
        key, rest = self.keys.decode_first(storage_key[GROUP_BYTES:])
        return key, self.entries.decode(rest)

    def prefix_length(self, storage_key: bytes) -> int:
        """Returns how many bytes of a storage key the key group and the key take. Raises MalformedRequest."""
        _, rest = self.keys.decode_first(storage_key[GROUP_BYTES:])
        return len(storage_key) - len(rest)

    def prefix(self, key: object) -> bytes:
        """What the storage keys of all entries of a key begin with. Raises as KeyCodec.check."""
        return self._prefix(key)

    def entry_range(self, key: object, start: Sequence[Any], stop: Sequence[Any]) -> EntryRange:
        """The entries of a key whose map key is at least `start` and below `stop`.

        Args:
            start, stop: The first columns of a map key, or all of them; empty: no bound.

        Raises:
            KeyMismatch, NullKey: A value does not fit its column.
        """
        prefix = self.prefix(key)
        end = prefix + self.entries.encode_first(stop) if stop else end_of_prefix(prefix)
        return EntryRange(prefix, prefix + self.entries.encode_first(start), end)

    def key_range(
        self, start: Sequence[Any] = (), stop: Sequence[Any] = (), prefix: Sequence[Any] = ()
    ) -> tuple[bytes, bytes]:
        """The encoded keys, in any key group, that are at least `start` and below `stop`, or begin as `prefix` does.

        Args:
            start, stop: The first columns of a key, or all of them; empty: no bound.
            prefix: The first columns of a key; the last of them is the beginning of a text or of bytes. Empty: any.

        Returns:
            The first bytes, inclusive, and the last ones, exclusive; empty: no bound.

        Raises:
            KeyMismatch, NullKey: A value does not fit its column.
            MalformedRequest: A prefix together with a bound.
        """
        keys = self.keys if self.descriptor.scan_key else self.entries
        if not prefix:
            return keys.encode_first(start), keys.encode_first(stop)
        if start or stop:
            raise MalformedRequest("a prefix of keys is a range of its own; leave start and stop out")
        beginning = keys.encode_prefix(prefix)
        return beginning, end_of_prefix(beginning) or b""

    def map_range(self, start: Sequence[Any] = (), stop: Sequence[Any] = ()) -> tuple[bytes, bytes]:
        """The encoded map keys, under any key, that are at least `start` and below `stop`.

        Args:
            start, stop: The first columns of a map key, or all of them; empty: no bound.

        Returns:
            The first bytes, inclusive, and the last ones, exclusive; empty: no bound.

        Raises:
            KeyMismatch, NullKey: A value does not fit its column.
            Unsupported: The state has no map keys under its keys.
        """
        if not start and not stop:
            return b"", b""
        self._check_has_map_keys()
        return self.entries.encode_first(start), self.entries.encode_first(stop)

    def group_range(
        self,
        key_group: int,
        after: bytes = b"",
        start: bytes = b"",
        stop: bytes = b"",
        map_keys: tuple[bytes, bytes] = (b"", b""),
        *,
        descending: bool = False,
    ) -> EntryRange:
        """The entries of a key group, of all its keys or of a range of them.

        Args:
            after: The storage key of the last one that was read; empty: none was.
            start, stop: See `key_range`.
            map_keys: See `map_range`.
            descending: They are read from the last one down.

        Raises:
            MalformedRequest: There is no such key group, or `after` is no storage key of it.
            Unsupported: `map_keys` of a state that has none under its keys.
        """
        if any(map_keys):
            self._check_has_map_keys()
        name, prefix = self.descriptor.path, prefix_of(key_group)
        if key_group >= self.descriptor.key_groups:
            raise MalformedRequest(
                f"state {name} has the key groups 0 to {self.descriptor.key_groups - 1}, and not {key_group}"
            )
        if after and not (after.startswith(prefix) and len(after) > GROUP_BYTES):
            raise MalformedRequest(f"what a scan of state {name} is to go on behind is no storage key of its key group")
        low, high = prefix + start, prefix + stop if stop else None
        if after and descending:
            return EntryRange(prefix, low, after if high is None else min(high, after), map_keys)
        # The lowest key above it is one byte longer.
        return EntryRange(prefix, max(low, after + b"\0") if after else low, high, map_keys)

    def _check_has_map_keys(self) -> None:
        of = self.descriptor
        if not (of.scan_key and of.entry_key):
            raise Unsupported(
                f"state {of.path} is of kind {of.kind}, and has no map keys under its keys: give a range of keys",
                kind=of.kind,
            )

    def storage_keys(self, keys: Iterable[tuple[KeyValue, ...]]) -> list[bytes]:
        """Encodes keys that are given as the values of their columns, of one column too. Raises as KeyCodec.check."""
        return [self.storage_key(key if len(key) != 1 else key[0]) for key in keys]
