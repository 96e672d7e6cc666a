"""The options of a read, each of them named and explained once. What is not given has its default, and what is no
option is refused by its name. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict

from keyhole.client.bounds import Duration, StalePolicy, bounds_of, seconds_of
from keyhole.client.wire.key_bounds import ALL_KEYS, AskedKeys, KeyBounds, key_bounds
from keyhole.encoding.key_values import KeyValue
from keyhole.errors import InvalidConfiguration, MalformedRequest
from keyhole.model.given import flag_of, whole_of
from keyhole.model.predicates import Predicate
from keyhole.model.read import ReadBounds, Stale
from keyhole.model.selection import Selection, selection

Key: TypeAlias = KeyValue | Sequence[KeyValue]
"""One value, or a tuple or list of one per key column; to look an entry of a map state up, then one per map key
column."""

MapKey: TypeAlias = KeyValue | Sequence[KeyValue]
"""One value, or a tuple of one per column of the map key; as a bound, of the first columns."""


class ReadOptions(TypedDict, total=False):
    """What every read may be asked for beside its key."""

    stale: StalePolicy
    """Whether a copy other than the owner's may answer: "never", "when_needed" (the owner does not answer; the
    default), "always"."""
    max_staleness: Duration | None
    """The answer must hold all that was complete so long ago, in seconds or as a timedelta; None: any age."""
    min_epoch: int | Mapping[int, int]
    """The answer must hold this epoch or a later one; 0: any. Of a state that is fed by updates an epoch is of one key
    group: then also epochs by key group, as a WriteToken has them, and any epoch of those that are not named."""
    as_of: int | None
    """The answer is to be as of this very epoch, which a server keeps for a while (`keep_epochs`); None: as of the last
    one. Without `min_epoch` and `max_staleness`. Not of a state that is fed by updates."""
    timeout: Duration | None
    """How long the read may take, in seconds or as a timedelta; None: as long as the client was made with."""


class GetOptions(ReadOptions, total=False):
    """What a read of one key may be asked for."""

    consistency: Literal["committed", "latest"]
    """"committed": as of the last epoch of its server, the default. "latest": also what is staged on the owner and not
    committed, which may come to nothing; `Answer.committed` says whether that is so. Without `as_of` and
    `stale="always"`."""


class ManyOptions(ReadOptions, total=False):
    """What a read of many keys may be asked for."""

    consistency: Literal["committed", "snapshot", "latest"]
    """"committed": each key as of the last epoch of its server, the default. "snapshot": all keys of the call as of one
    and the same epoch, whichever servers have them. "latest": as of one key."""


class SelectOptions(ReadOptions, total=False):
    """Which entries a scan gives, and what of each; servers leave the others out. docs/predicates.md has what can be
    asked."""

    where: Predicate | None
    """Those of which it is true, as `field("max") > 30`. None: all of them."""
    fields: Sequence[str] | None
    """Names of fields of the value: values have these alone, in this order. None: all."""
    keys_only: bool
    """Keys without values, which are None."""
    consistency: Literal["committed", "latest"]
    """"committed": as of the last epoch of each server, the default. "latest": of each key group also what is staged on
    its owner and not committed, which may come to nothing; `Source.staged_epoch` says whether that is so. Without
    `as_of` and `stale="always"`."""


class RangeOptions(SelectOptions, total=False):
    """Which keys of a state a scan of all keys is of, or aggregates are."""

    start: Key | None
    """From which key on (inclusive); of several columns, the first ones will do. None: from the first one."""
    stop: Key | None
    """Up to which key (exclusive), as `start`. None: to the last one."""
    prefix: Key | None
    """Keys that begin so: a text or bytes; of several columns the first ones, and how the last of these begins."""
    map_start: MapKey | None
    """Of each key from which map key on (inclusive), or position of a list; of several columns, the first ones will do.
    None: from the first entry."""
    map_stop: MapKey | None
    """Of each key up to which map key (exclusive), as `map_start`. None: to the last entry."""


class AggregateOptions(RangeOptions, total=False):
    """What aggregates may be asked for: of which entries, and how old. `fields` and `keys_only` are of the entries of a
    top. The `timeout` is that of the whole: a minute, unless it is given."""


class ScanOptions(SelectOptions, total=False):
    """What a scan may be asked for beside its key."""

    start: MapKey | None
    """From which map key on (inclusive); of several columns, the first ones will do. None: from the first entry."""
    stop: MapKey | None
    """Up to which map key (exclusive), as `start`. None: to the last entry."""
    descending: bool
    """From the last entry on."""
    limit: int | None
    """The most entries; None: all."""


class ScanAllOptions(RangeOptions, total=False):
    """What a scan of all keys may be asked for. Its `timeout` is that of each key group, of which there are many: a
    minute, unless it is given."""

    limit: int | None
    """The most entries; None: all."""
    after: str | None
    """The `token` of an earlier scan: go on behind what that one has given. None: from the start."""
    ordered: bool
    """In the order of the keys, which takes longer than in none."""
    descending: bool
    """In the order of the keys, from the last one down."""
    key_groups: range | None
    """These key groups alone, for readers who share a state: `range(16)` and `range(16, 32)`. None: all."""
    part_of: int | None
    """A number of the caller's, from 1 to 2^64 - 1, which others don't use: scans with the same one are parts of one,
    and caps are of all of them together. None: it is a scan of its own."""


class WatchingOptions(TypedDict, total=False):
    """What a watch may be asked for beside its keys."""

    after: str | None
    """The `token` of an earlier watch of the same keys and predicate: go on behind what that one has given. None:
    begin."""
    where: Predicate | None
    """Entries of which it is true, as `field("max") > 30`. One of which it becomes true is a change, one of which it is
    true no more a deletion. None: all of them."""
    fields: Sequence[str] | None
    """Names of fields of the value: values have these alone, in this order. None: all."""
    start: Key | None
    """In place of keys: from which key on (inclusive); of several columns, the first ones will do. None: from the first
    one."""
    stop: Key | None
    """In place of keys: up to which key (exclusive), as `start`. None: to the last one."""
    prefix: Key | None
    """In place of keys: those that begin so, a text or bytes; of several columns the first ones, and how the last of
    these begins."""
    snapshot: bool
    """Begin with the rows that are there, the default; else only what changes from then on comes."""
    before: bool
    """With each change also what was there before, as far as it is known."""
    latest_only: bool
    """Where changes come faster than they are taken, the last one of each key stays, and not those before it."""
    timeout: Duration | None
    """For how long nobody may be there who answers, in seconds or as a timedelta; None: a minute."""


class MirrorOptions(TypedDict, total=False):
    """What a mirror may be made with beside its keys."""

    where: Predicate | None
    """Entries of which it is true, as `field("max") > 30`. None: all of them."""
    start: Key | None
    """In place of keys: from which key on (inclusive), as of a watch. None: from the first one."""
    stop: Key | None
    """In place of keys: up to which key (exclusive), as of a watch. None: to the last one."""
    prefix: Key | None
    """In place of keys: those that begin so, as of a watch."""
    max_entries: int
    """The most entries that it may have; a million, unless it is given. With more it ends with TooLarge."""
    max_bytes: int
    """The most bytes that it may take, about; 256 MiB, unless it is given. With more it ends with TooLarge."""
    timeout: Duration | None
    """For how long to wait for all rows when it begins, in seconds or as a timedelta; None: a minute."""


class RequestedRead(NamedTuple):
    """The options of a read as they were given, with the defaults of the others; not checked yet. Hashable: what is
    asked for alike travels together."""

    stale: StalePolicy
    max_staleness: Duration | None
    min_epoch: int | tuple[tuple[int, int], ...]
    timeout: Duration
    as_of: int = 0
    latest: bool = False

    def read(self) -> tuple[ReadBounds, float]:
        """The bounds, and the timeout in seconds.

        Raises:
            MalformedRequest: A policy, a bound or a timeout that there is not.
        """
        bounds = bounds_of(self.stale, self.max_staleness, self.min_epoch, self.as_of, latest=self.latest)
        return bounds, seconds_of("timeout", self.timeout)

    def again(self, as_of: int, min_epoch: int, timeout: float) -> RequestedRead:
        """The same read as of an epoch; with 0, of the last one, but not before `min_epoch`.

        Args:
            timeout: In seconds.
        """
        if as_of:
            return RequestedRead(self.stale, None, 0, timeout, as_of)
        own = self.min_epoch
        if min_epoch:
            own = max([min_epoch, *(epoch for _, epoch in own)] if isinstance(own, tuple) else [min_epoch, own])
        return self._replace(min_epoch=own, timeout=timeout)


Routing: TypeAlias = Literal["proxy", "direct"]
"""Whom a client asks for keys: "proxy", its target, which finds the servers; "direct", the servers themselves, and the
target for those that it can't reach."""


def is_direct(routing: Routing) -> bool:
    """Whether servers are asked directly. Raises InvalidConfiguration: a way of routing that there is not."""
    if routing not in ("proxy", "direct"):
        raise InvalidConfiguration(f"routing is {routing!r}; it must be one of proxy, direct")
    return routing == "direct"


def at_one_epoch(options: ManyOptions) -> bool:
    """Whether all answers are to be as of one epoch."""
    return options.get("consistency") == "snapshot"


def defaults(timeout: Duration) -> RequestedRead:
    """The options of a read that names none, of a client with this timeout."""
    return RequestedRead(Stale.WHEN_NEEDED, None, 0, timeout)


def selection_of(options: SelectOptions) -> Selection:
    """What a scan with these options gives. Raises MalformedRequest: There is nothing like it; see `selection`."""
    return selection(options.get("where"), options.get("fields"), keys_only=options.get("keys_only", False))


def watched_of(
    keys: Sequence[Key], options: WatchingOptions | MirrorOptions, known: type[Any] = WatchingOptions
) -> tuple[Selection, KeyBounds]:
    """What a watch of these keys with these options is of, or a mirror.

    Args:
        known: What it takes.

    Raises:
        TypeError: An option that it does not take; the message names it.
        MalformedRequest: There is nothing like it.
    """
    _check_known(options, known)
    given: Mapping[str, Any] = options
    within = key_bounds(given.get("start"), given.get("stop"), given.get("prefix"))
    if keys and within != ALL_KEYS:
        raise MalformedRequest("a watch is of keys, or of a prefix or a range of them; leave one of these out")
    if within.prefix and (within.start or within.stop):
        raise MalformedRequest("a prefix of keys is a range of its own; leave start and stop out")
    return selection(given.get("where"), given.get("fields"), keys_only=False), within


def flags_of(options: WatchingOptions) -> tuple[bool, bool, bool]:
    """Snapshot, before and latest_only. Raises MalformedRequest: one is neither true nor false."""
    asked: tuple[tuple[str, bool], ...] = (("snapshot", True), ("before", False), ("latest_only", False))
    given: Mapping[str, Any] = options
    snapshot, before, latest_only = (flag_of(name, given.get(name, default)) for name, default in asked)
    return snapshot, before, latest_only


def keys_asked(options: ScanAllOptions) -> AskedKeys:
    """What a scan of all keys with these options is of. Raises MalformedRequest: There is nothing like it."""
    descending = flag_of("descending", options.get("descending", False))
    ordered, key_groups = flag_of("ordered", options.get("ordered", False)) or descending, options.get("key_groups")
    if ordered and key_groups is not None:
        raise MalformedRequest("key_groups are read in no order; leave them, or ordered and descending, out")
    given = options.get("part_of")
    part_of = 0 if given is None else whole_of(given)
    if part_of is None or not (given is None or 1 <= part_of < 1 << 64):
        raise MalformedRequest(f"part_of is {given!r}; it must be a whole number from 1 to 2^64 - 1")
    return AskedKeys(selection_of(options), range_of(options), ordered, descending, key_groups, part_of)


def range_of(options: RangeOptions) -> KeyBounds:
    """Which keys these options are of. Whether they fit the state's is known only with its descriptor."""
    return key_bounds(
        options.get("start"),
        options.get("stop"),
        options.get("prefix"),
        options.get("map_start"),
        options.get("map_stop"),
    )


def asked_of(options: ReadOptions, default: RequestedRead, known: type[ReadOptions] = ReadOptions) -> RequestedRead:
    """The options of a read, with the defaults of those that are not given.

    Args:
        known: What the method takes.

    Raises:
        TypeError: An option that the method does not take; the message names it, and those that it takes.
        MalformedRequest: A consistency that the method does not have.
    """
    if not options:
        return default
    _check_known(options, known)
    timeout, as_of = options.get("timeout"), options.get("as_of")
    asked = RequestedRead(
        options.get("stale", default.stale),
        options.get("max_staleness"),
        _min_epoch(options.get("min_epoch", 0)),
        default.timeout if timeout is None else timeout,
        0 if as_of is None else as_of,
        _is_latest(options, known),
    )
    try:
        hash(asked)
    except TypeError:
        # What can't be hashed, as a list, is none of these options: this says which of them it is.
        asked.read()
        raise
    return asked


def _min_epoch(given: int | Mapping[int, int]) -> int | tuple[tuple[int, int], ...]:
    if not isinstance(given, Mapping):
        return given
    try:
        return tuple(sorted(given.items()))
    except TypeError:  # they are no numbers, which is said where they are read
        return tuple(given.items())


def _is_latest(options: Mapping[str, Any], known: type[ReadOptions]) -> bool:
    if "consistency" not in options:  # as nearly always
        return False
    consistency = options["consistency"]
    levels = ("committed", "snapshot", "latest") if known is ManyOptions else ("committed", "latest")
    if consistency not in levels:
        one_key = ": a snapshot is of many keys, by get_many" if consistency == "snapshot" else ""
        raise MalformedRequest(f"consistency is {consistency!r}; it must be one of {', '.join(levels)}{one_key}")
    return bool(consistency == "latest")


def _check_known(options: Iterable[str], known: type) -> None:
    for name in options:
        if name not in known.__annotations__:
            raise TypeError(f"unexpected keyword argument {name!r}; the options are {', '.join(known.__annotations__)}")
