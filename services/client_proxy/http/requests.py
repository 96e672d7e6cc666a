"""What a reader asks for over HTTP: query parameters and bodies, from text to the words of gRPC. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import msgspec

from keyhole.client.bounds import bounds_of
from keyhole.encoding.aggregate_text import parsed_aggregates
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.key_text import key_of, parse_bound, parse_key, spelled_number, spelled_whole
from keyhole.encoding.predicate_text import parsed_where
from keyhole.errors import MalformedRequest, Unsupported
from keyhole.hints import ready
from keyhole.model.aggregates import AskedAggregate, checked_aggregates
from keyhole.model.read import Stale
from keyhole.model.selection import Selection, named_fields, selection
from keyhole.model.state import KeyColumn
from keyhole.rpc.convert import bounds_from_proto, bounds_to_proto, key_to_proto
from keyhole.rpc.convert_predicates import selection_to_proto
from keyhole.rpc.scan_requests import check_has_entries
from keyhole.v1 import query_pb2 as pb

MOST_SECONDS = 300.0
DEFAULT_ENTRIES, MOST_ENTRIES = 1_000, 10_000

_READ = ("stale", "max_staleness", "min_epoch", "as_of", "timeout", "integers")
_SCAN = ("from", "to", "limit", "descending")
_WHERE, _FIELDS, _KEYS_ONLY = _SELECT = ("where", "fields", "keys_only")
_AFTER, _OF = "after", "of"
_ORDERED, _PREFIX = "ordered", "prefix"
_MAP_BOUNDS = ("map_from", "map_to")
_ALL_KEYS = (_AFTER, _ORDERED, _PREFIX, *_MAP_BOUNDS)
_RANGE = ("from", "to", _PREFIX, *_MAP_BOUNDS)
_MAP_KEY = "map_key"
_CONSISTENCY = "consistency"
_OF_ONE = {"committed": pb.CONSISTENCY_COMMITTED, "latest": pb.CONSISTENCY_LATEST}
_OF_MANY = {**_OF_ONE, "snapshot": pb.CONSISTENCY_SNAPSHOT}
_MOST_NUMBER = (1 << 63) - 1


class Parameters(NamedTuple):
    """The query parameters of a read.

    Attributes:
        options: As over gRPC; values come as JSON.
        timeout_seconds: None: the proxy's default.
        integers_as_text: Whole numbers of values and map keys are spelled as strings.
        others: What only some reads have, by name.
        where: The comparisons that entries of a scan must pass, all of them.
        of: The aggregates that are asked for.
    """

    options: pb.ReadOptions
    timeout_seconds: float | None
    integers_as_text: bool
    others: dict[str, str]
    where: tuple[str, ...] = ()
    of: tuple[str, ...] = ()

    @property
    def scans(self) -> bool:
        """One of them is a scan's."""
        return bool(self.where) or any(name in self.others for name in (*_SCAN, *_SELECT))


def parameters(
    pairs: Iterable[tuple[str, str]],
    *,
    one_key: bool = False,
    all_keys: bool = False,
    many: bool = False,
    figures: bool = False,
) -> Parameters:
    """Reads them.

    Args:
        one_key: Those of a scan, or of a look-up of one entry, are known too.
        all_keys: Those of a scan, and the place where it goes on, are known too.
        many: Those of a read of many keys are known too.
        figures: Those of aggregates are known too.

    Raises:
        MalformedRequest: One that there is not, is given twice, or can't be read; the message names it.
    """
    scan = (*_SCAN, *_SELECT)
    own: tuple[str, ...] = (*scan, _MAP_KEY) if one_key else (*scan, *_ALL_KEYS) if all_keys else ()
    own = (_OF, *_RANGE, *_SELECT) if figures else own
    known = (*_READ, *own, *((_CONSISTENCY,) if own or many else ()))
    given: dict[str, str] = {}
    several: dict[str, list[str]] = {_WHERE: [], _OF: []}
    for name, value in pairs:
        if name not in known:
            # Not the name: a key may have been put there by mistake.
            raise MalformedRequest(f"a query parameter is not known; there are {', '.join(known)}")
        if name in several:
            several[name].append(value)
            continue
        if name in given:
            raise MalformedRequest(f"the query parameter {name} is given twice")
        given[name] = value
    staleness = _number(given, "max_staleness", most=float(1 << 32))
    bounds = bounds_of(
        given.get("stale", Stale.WHEN_NEEDED),  # type: ignore[arg-type]  # checked there
        None if staleness is None else timedelta(seconds=staleness),
        _whole(given, "min_epoch", 0),
        _whole(given, "as_of", 0),
    )
    options = pb.ReadOptions(format=pb.VALUE_FORMAT_JSON)
    if (wanted := bounds_to_proto(bounds)) is not None:
        options.MergeFrom(wanted)
    consistency = given.get(_CONSISTENCY, "committed")
    levels = _OF_MANY if many else _OF_ONE
    if consistency not in levels:
        raise MalformedRequest(f"the query parameter consistency is neither {' nor '.join(levels)}")
    options.consistency = levels[consistency]
    bounds_from_proto(options)  # they may contradict each other
    integers = given.get("integers", "number")
    if integers not in ("number", "text"):
        raise MalformedRequest("the query parameter integers is neither number nor text")
    others = {name: value for name, value in given.items() if name not in _READ}
    seconds = _number(given, "timeout", most=MOST_SECONDS)
    return Parameters(options, seconds, integers == "text", others, tuple(several[_WHERE]), tuple(several[_OF]))


def lookup_key(codec: StateCodec, key: str, asked: Parameters) -> pb.Key:
    """The key of one value, of `/v1/application/state/KEY?map_key=...`.

    Raises:
        KeyMismatch: It doesn't fit the state's columns.
        Unsupported: A map key, and the state has none.
    """
    descriptor = codec.descriptor
    columns = (*descriptor.scan_key, *descriptor.entry_key)
    if _MAP_KEY not in asked.others:
        return key_to_proto(columns, parse_key(columns, key))
    check_has_entries(descriptor)
    if not descriptor.scan_key:
        raise Unsupported("a broadcast state has no map key; leave map_key out")
    first, second = parse_key(descriptor.scan_key, key), parse_key(descriptor.entry_key, asked.others[_MAP_KEY])
    return key_to_proto(columns, (*_columns(first), *_columns(second)))


def is_scan(codec: StateCodec, asked: Parameters, *, whole: bool) -> bool:
    """Whether entries are asked for, or one value.

    Args:
        whole: No key is given.

    Raises:
        Unsupported: Both, or entries of a state that has none.
        MalformedRequest: Neither.
    """
    descriptor = codec.descriptor
    of_one = _MAP_KEY in asked.others
    if asked.scans or whole:
        check_has_entries(descriptor)
        if of_one:
            raise MalformedRequest("map_key names one entry; leave it out to scan, or leave from, to, ... out")
        return True
    # Of a state with entries a key alone means all of them; those of a broadcast state are its keys.
    return bool(descriptor.entry_key and descriptor.scan_key) and not of_one


def scan_request(codec: StateCodec, key: str | None, asked: Parameters) -> tuple[pb.ScanRequest, int]:
    """A scan for one entry more than there may be in the answer, and how many may be.

    Raises:
        KeyMismatch: A value doesn't fit its columns.
        MalformedRequest: A parameter that can't be.
        Unsupported: See is_scan.
    """
    descriptor, others = codec.descriptor, asked.others
    if (key is None) != (not descriptor.scan_key):
        raise Unsupported(
            f"state {descriptor.path} is of kind {descriptor.kind}: "
            + ("it is scanned whole, without a key" if key is not None else "name the key whose entries are wanted")
        )
    for name in _ALL_KEYS:
        if name in others:
            raise MalformedRequest(f"a broadcast state is in the order of its keys; go on by from or to, not by {name}")
    limit = _limit(others)
    request = pb.ScanRequest(
        key=pb.Key() if key is None else key_to_proto(descriptor.scan_key, parse_key(descriptor.scan_key, key)),
        to=_bound(descriptor.entry_key, others.get("to")),
        descending=_flag(others, "descending"),
        limit=limit + 1,
        options=packed(asked.options),
        topic_id=descriptor.topic_id,
        selection=selection_to_proto(selected(codec, asked)),
    )
    getattr(request, "from").CopyFrom(_bound(descriptor.entry_key, others.get("from")))
    return request, limit


def selected(codec: StateCodec, asked: Parameters) -> Selection:
    """Which entries of a scan are asked for, and what of each.

    Raises:
        MalformedRequest: A parameter that can't be.
        ValueMismatch: The state has no such field, or it is of another type.
    """
    fields = asked.others.get(_FIELDS)
    where = parsed_where(codec.descriptor, asked.where)
    return selection(where, None if fields is None else named_fields(fields), keys_only=_flag(asked.others, _KEYS_ONLY))


def aggregates(codec: StateCodec, asked: Parameters) -> Mapping[str, AskedAggregate]:
    """The aggregates that are asked for, by their text.

    Raises:
        MalformedRequest: One that can't be read, or there is none.
        ValueMismatch: The state has no such field.
    """
    if not asked.of:
        raise MalformedRequest("the query parameter of says what is computed, as of=count or of=max(FIELD)")
    return checked_aggregates(parsed_aggregates(codec.descriptor, asked.of))


def packed(options: pb.ReadOptions) -> pb.ReadOptions:
    """The same, but for rows as they are stored: who asks for many turns them into JSON page by page."""
    asked = pb.ReadOptions()
    asked.CopyFrom(options)
    asked.format = pb.VALUE_FORMAT_UNSPECIFIED
    return asked


class KeyRange(NamedTuple):
    """Bounds of encoded keys, and of the map keys under each: inclusive and exclusive; empty: none."""

    start: bytes = b""
    stop: bytes = b""
    map_start: bytes = b""
    map_stop: bytes = b""

    def within(self, key_group: int, after: bytes = b"", *, descending: bool = False) -> pb.KeyGroupScan:
        """Of a key group, behind a storage key."""
        return pb.KeyGroupScan(key_group=key_group, after=after, descending=descending, **self._asdict())


class AllKeys(NamedTuple):
    """A scan of all keys: how many may be in the answer, what to go on behind (empty: nothing), and which keys."""

    limit: int
    after: str
    within: KeyRange
    ordered: bool
    descending: bool

    @property
    def is_bounded(self) -> bool:
        """Whether a server must know of ranges, or of orders."""
        return self.descending or any(self.within)


def all_keys(codec: StateCodec, asked: Parameters) -> AllKeys:
    """What is asked for of all keys. Raises MalformedRequest: A parameter that can't be; and as `key_range`."""
    others = asked.others
    descending = _flag(others, "descending")
    ordered = _flag(others, _ORDERED) or descending
    return AllKeys(_limit(others), others.get(_AFTER, ""), key_range(codec, asked), ordered, descending)


def key_range(codec: StateCodec, asked: Parameters) -> KeyRange:
    """Which keys are asked for.

    Raises:
        MalformedRequest: A prefix together with a bound.
        KeyMismatch: A bound that does not fit the key.
        Unsupported: A bound of map keys, of a state that has none under its keys.
    """
    others, entry_key = asked.others, codec.descriptor.entry_key
    columns = codec.descriptor.scan_key or entry_key
    first, last, prefix = (
        _columns(parse_bound(columns, others[name])) if name in others else () for name in ("from", "to", _PREFIX)
    )
    # Where there is none, `map_range` says so.
    map_bounds = [
        _columns(parse_bound(entry_key, others[name]) if entry_key else others[name]) if name in others else ()
        for name in _MAP_BOUNDS
    ]
    return KeyRange(*codec.key_range(first, last, prefix), *codec.map_range(*map_bounds))


def _flag(others: dict[str, str], name: str) -> bool:
    given = others.get(name, "false")
    if given not in ("true", "false"):
        raise MalformedRequest(f"the query parameter {name} is neither true nor false")
    return given == "true"


def _limit(others: dict[str, str]) -> int:
    limit = _whole(others, "limit", DEFAULT_ENTRIES)
    if not 1 <= limit <= MOST_ENTRIES:
        raise MalformedRequest(f"limit is {limit}; it must be from 1 to {MOST_ENTRIES:,}: ask for the rest by `next`")
    return limit


@ready
class _EntryKey(msgspec.Struct, forbid_unknown_fields=True):
    key: Any
    map_key: Any


@ready
class _BatchGet(msgspec.Struct, forbid_unknown_fields=True):
    keys: list[Any]


def batch_keys(body: bytes) -> list[Any]:
    """What `:batchGet` was given. Raises MalformedRequest."""
    try:
        return msgspec.json.decode(body, type=_BatchGet).keys
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise MalformedRequest('the body is not {"keys": [...]} in JSON') from None  # the cause may hold a key


def batch_key(codec: StateCodec, given: object) -> pb.Key:
    """One of them: the key's columns (then those of the map key), or an object of both. Raises KeyMismatch, NullKey."""
    descriptor = codec.descriptor
    columns = (*descriptor.scan_key, *descriptor.entry_key)
    if not isinstance(given, dict):
        return key_to_proto(columns, key_of(columns, given))
    try:
        entry = msgspec.convert(given, _EntryKey)
    except msgspec.ValidationError:
        raise MalformedRequest('a key is an object without exactly the fields "key" and "map_key"') from None
    check_has_entries(descriptor)
    first, second = key_of(descriptor.scan_key, entry.key), key_of(descriptor.entry_key, entry.map_key)
    return key_to_proto(columns, (*_columns(first), *_columns(second)))


def _columns(values: Any) -> tuple[Any, ...]:
    return values if isinstance(values, tuple) else (values,)


def _bound(columns: Sequence[KeyColumn], text: str | None) -> pb.Key:
    if text is None:
        return pb.Key()
    values = _columns(parse_bound(columns, text))
    return key_to_proto(columns[: len(values)], values)


def _number(given: dict[str, str], name: str, most: float) -> float | None:
    if name not in given:
        return None
    try:
        number = float(spelled_number(given[name]))
    except ValueError:
        number = math.nan
    if not 0 < number <= most:
        raise MalformedRequest(f"the query parameter {name} must be a number of seconds above 0, at most {most:g}")
    return number


def _whole(given: dict[str, str], name: str, default: int) -> int:
    text = given.get(name, str(default))
    try:
        number = spelled_whole(text) if len(text) < 20 else -1
    except ValueError:
        number = -1
    if not 0 <= number <= _MOST_NUMBER:
        raise MalformedRequest(f"the query parameter {name} must be a whole number, 0 or more")
    return number
