"""What a reader gets over HTTP, as JSON holds it: docs/clients-reference.md has the fields. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.key_reading import entry_reader
from keyhole.encoding.key_text import text_of, typed
from keyhole.encoding.row_codec import RowCodec
from keyhole.encoding.selected_entries import given_descriptor
from keyhole.encoding.storage_key import group_of, prefix_of
from keyhole.encoding.value_json import to_json
from keyhole.model.selection import Selection
from keyhole.model.state import StateDescriptor
from keyhole.rpc.convert import source_from_proto
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import state_pb2
from services.client_proxy.http.all_keys import FoundKeys
from services.client_proxy.http.figures import Computed


def source_json(message: state_pb2.Source, now: datetime) -> dict[str, Any]:
    """Who answered, and as of when."""
    source = source_from_proto(message)
    staleness = None if source.as_of is None else max(0.0, (now - source.as_of).total_seconds())
    return {
        "server": source.server,
        "role": str(source.role),
        "epoch": source.epoch,
        "commit_time": _moment(source.commit_time),
        "watermark": _moment(source.watermark),
        "as_of": _moment(source.as_of),
        "staleness_seconds": staleness,
        "lag_epochs": source.lag_epochs,
        "staged_epoch": source.staged_epoch or None,
        "unconfirmed": source.unconfirmed,
        "generation": source.generation,
        "assignment_version": source.assignment_version,
    }


def answer_json(answer: pb.Answer, now: datetime, *, integers_as_text: bool) -> dict[str, Any]:
    """The answer to one key, whose value came as JSON."""
    return {
        "found": answer.found,
        "value": _value(answer.value, integers_as_text=integers_as_text) if answer.found else None,
        "source": source_json(answer.source, now),
    }


def entries_json(
    codec: StateCodec,
    entries: Sequence[tuple[bytes, bytes]],
    source: state_pb2.Source,
    following: bytes | None,
    now: datetime,
    select: Selection,
    *,
    integers_as_text: bool,
) -> dict[str, Any]:
    """The answer to a scan: encoded map keys, and rows.

    Args:
        select: What the rows have.
        following: The encoded map key that `next` gives; None: there are no more entries.

    Raises:
        StaleDescriptor: A row is of a newer schema than the codec knows.
    """
    value = _reader(codec, select, integers_as_text=integers_as_text)
    found = [
        {
            "map_key": _spelled(typed(_single(codec.entries.decode(map_key))), integers_as_text=integers_as_text),
            "value": value(row),
        }
        for map_key, row in entries
    ]
    return {
        "entries": found,
        "next": None if following is None else text_of(_single(codec.entries.decode(following))),
        "source": source_json(source, now),
    }


def aggregates_json(
    codec: StateCodec, found: Computed, now: datetime, select: Selection, *, integers_as_text: bool
) -> dict[str, Any]:
    """The answer to a request for aggregates.

    Raises:
        StaleDescriptor: A row is of a newer schema than the codec knows.
    """
    copies: dict[bytes, tuple[int, state_pb2.Source]] = {}
    place = [_place(copies, source) for source in found.sources]
    values: dict[str, Any] = {}
    for text, value in found.values.items():
        if isinstance(value, list):
            rows = [(entry.key, entry.row, place[group_of(entry.key)]) for entry in value]
            values[text] = _found_json(codec, rows, select, integers_as_text=integers_as_text)
        else:
            values[text] = _spelled(_figure(value), integers_as_text=integers_as_text)
    return {"values": values, "sources": [source_json(source, now) for _, source in copies.values()]}


def _place(copies: dict[bytes, tuple[int, state_pb2.Source]], source: state_pb2.Source) -> int:
    """Which of the copies it is; of the answers of one, the oldest time of which is given."""
    same = state_pb2.Source()
    same.CopyFrom(source)
    same.as_of_ms = 0
    known = same.SerializeToString(deterministic=True)
    at, oldest = copies.get(known, (len(copies), source))
    copies[known] = at, min(oldest, source, key=lambda one: one.as_of_ms)
    return at


def _figure(value: Any) -> Any:
    """A sum may have more digits than whole numbers of JSON have elsewhere."""
    return str(value) if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63 else to_json(value)


def all_keys_json(
    codec: StateCodec, found: FoundKeys, now: datetime, select: Selection, *, integers_as_text: bool
) -> dict[str, Any]:
    """The answer to a scan of all keys.

    Args:
        select: What the rows have.

    Raises:
        StaleDescriptor: A row is of a newer schema than the codec knows.
    """
    entries = _found_json(codec, found.rows, select, integers_as_text=integers_as_text)
    return {"entries": entries, "next": found.next, "sources": [source_json(source, now) for source in found.sources]}


def _found_json(
    codec: StateCodec, rows: Sequence[tuple[bytes, bytes, int]], select: Selection, *, integers_as_text: bool
) -> list[dict[str, Any]]:
    """Entries by storage key, and which source gave them."""
    entries, value = [], _reader(codec, select, integers_as_text=integers_as_text)
    keys = keys_reader(codec, integers_as_text=integers_as_text)
    for storage_key, row, source in rows:
        entry = keys(storage_key)
        entry["value"] = value(row)
        entries.append({**entry, "source": source})
    return entries


def changes_json(codec: StateCodec, changes: pb.WatchedChanges, *, integers_as_text: bool) -> list[dict[str, Any]]:
    """Rows and changes of a watch, whose values came as JSON; null: deleted. What was before is there where it is
    known.
    """
    prefix, found = prefix_of(changes.key_group), []
    keys = keys_reader(codec, integers_as_text=integers_as_text)
    befores = list(changes.befores)
    for at, (key, value) in enumerate(zip(changes.keys, changes.values, strict=True)):
        entry = keys(prefix + key)
        entry["value"] = _value(value, integers_as_text=integers_as_text) if value else None
        if befores:
            entry["before"] = _value(befores[at], integers_as_text=integers_as_text) if befores[at] else None
        found.append(entry)
    return found


def keys_reader(codec: StateCodec, *, integers_as_text: bool) -> Callable[[bytes], dict[str, Any]]:
    """Makes of a storage key the fields of its key, and of its map key where the state has one."""
    read = entry_reader(codec)

    def fields(storage_key: bytes) -> dict[str, Any]:
        key, map_key = read(storage_key)
        entry = {"key": _spelled(typed(key), integers_as_text=integers_as_text)}
        if map_key is not None:
            entry["map_key"] = _spelled(typed(map_key), integers_as_text=integers_as_text)
        return entry

    return fields


def moment_json(ms: int) -> str | None:
    """A time as milliseconds since 1970; 0: none."""
    return _moment(datetime.fromtimestamp(ms / 1000, UTC) if ms else None)


def descriptor_json(descriptor: StateDescriptor) -> dict[str, Any]:
    """All of it; as `keyhole describe --json`."""
    described: dict[str, Any] = msgspec.to_builtins(descriptor)
    return described


def encoded(body: Any) -> bytes:
    """The body as JSON, in UTF-8."""
    return msgspec.json.encode(body)


def _reader(codec: StateCodec, select: Selection, *, integers_as_text: bool) -> Callable[[bytes], Any]:
    """Makes JSON of what a scan gives of a row; of keys alone null."""
    if select.keys_only:
        return lambda _: None
    rows = codec.rows if select.fields is None else RowCodec(given_descriptor(codec.descriptor, select))
    return lambda row: _value(rows.to_json(row).encode(), integers_as_text=integers_as_text)


def _single(values: tuple[Any, ...]) -> Any:
    return values[0] if len(values) == 1 else values


def _moment(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _value(json_row: bytes, *, integers_as_text: bool) -> Any:
    if not integers_as_text:
        return msgspec.Raw(json_row)
    return _spelled(msgspec.json.decode(json_row), integers_as_text=True)


def _spelled(value: Any, *, integers_as_text: bool) -> Any:
    """Whole numbers as text, where that is wanted: many readers of JSON know no number above 2^53 exactly."""
    if not integers_as_text:
        return value
    match value:
        case bool():
            return value
        case int():
            return str(value)
        case list():
            return [_spelled(item, integers_as_text=True) for item in value]
        case dict():
            return {name: _spelled(item, integers_as_text=True) for name, item in value.items()}
        case _:
            return value
