"""`keyhole scan`: the entries of one key, or all keys of a state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from keyhole import Client, KeyedEntry, StateDescriptor
from keyhole.cli.reads import Bounds, OutputFormat, role_of, seconds_since, staged_epoch
from keyhole.cli.wrong_usage import WrongUsage
from keyhole.client.options import RangeOptions, SelectOptions
from keyhole.encoding.aggregate_text import parsed_aggregates
from keyhole.encoding.key_text import parse_bound, parse_key, typed
from keyhole.encoding.predicate_text import parsed_where
from keyhole.encoding.value_json import to_json
from keyhole.errors import EpochNotReached, KeyholeError, KeyMismatch, UnavailableError
from keyhole.model.read import Source
from keyhole.model.state import KeyColumn
from keyhole.model.state_path import state_path
from keyhole.rpc.scan_requests import check_has_entries
from keyhole.terminal.json_output import print_json

MOST_OF_ALL = 1_000
"""How many entries are listed of all keys, unless a limit says otherwise."""


@dataclass(frozen=True)
class Range:
    """Which entries, as typed; None: no bound. `after` is of all keys alone, the first three are of one key."""

    start: str | None
    stop: str | None
    descending: bool
    limit: int | None
    after: str | None = None
    ordered: bool = False
    prefix: str | None = None
    map_start: str | None = None
    map_stop: str | None = None


@dataclass(frozen=True)
class WantedEntries:
    """Which of these entries, what of each, or what is computed of them, as typed. `fields` None: all. `latest`: also
    what is staged and not committed.
    """

    where: Sequence[str] = ()
    fields: Sequence[str] | None = None
    keys_only: bool = False
    aggregate: Sequence[str] = ()
    latest: bool = False

    def options(self, descriptor: StateDescriptor, bounds: Bounds) -> SelectOptions:
        """As scans of a client take them, but for `aggregate`. Raises ValueMismatch, MalformedRequest: It can't be."""
        return {
            **bounds.options,
            "where": parsed_where(descriptor, self.where),
            "fields": self.fields,
            "keys_only": self.keys_only,
            "consistency": "latest" if self.latest else "committed",
        }

    def staged_epoch(self, sources: Iterable[Source]) -> dict[str, int | None]:
        """What is shown of these sources: see keyhole.cli.reads.staged_epoch."""
        return staged_epoch(sources, latest=self.latest)


EVERYTHING = WantedEntries()


def scan(
    client: Client,
    output: OutputFormat,
    path: str,
    key: str | None,
    within: Range,
    bounds: Bounds,
    wanted: WantedEntries = EVERYTHING,
) -> None:
    """The entries of one key, in order, all as of one epoch; without a key all of the state.

    Raises:
        KeyMismatch: The key, or a bound, does not fit the state.
        WrongUsage: --after, --ordered, --prefix, --map-from or --map-to where the entries of one key come; or
            aggregates of one key, of so many entries, or in an order.
        ValueMismatch, MalformedRequest: What is wanted does not fit it, or is no comparison.
        Unsupported: The state has one value per key, and a key is named.
        KeyholeError: As Client.scan and Client.scan_all.
    """
    application, state = state_path(path)
    descriptor = client.describe_state(application, state)
    if wanted.aggregate:
        _aggregate(client, output, descriptor, key, within, bounds, wanted)
        return
    if key is None and descriptor.scan_key:
        _scan_all(client, output, path, descriptor, within, bounds, wanted)
        return
    if within.ordered or within.prefix is not None:
        raise WrongUsage("--ordered and --prefix are of all keys of a state; the entries of one key come in order")
    if within.map_start is not None or within.map_stop is not None:
        raise WrongUsage("--map-from and --map-to are of all keys of a state: of one, give --from and --to")
    if within.after is not None:
        raise WrongUsage(f"state {path} is listed whole, in order: leave --after out, and go on by --from")
    check_has_entries(descriptor)
    one = _scanned_key(descriptor, path, key)
    entries = client.scan(
        application,
        state,
        one,
        start=None if within.start is None else parse_bound(descriptor.entry_key, within.start),
        stop=None if within.stop is None else parse_bound(descriptor.entry_key, within.stop),
        descending=within.descending,
        limit=within.limit,
        **wanted.options(descriptor, bounds),
    )
    names = ", ".join(column.name for column in descriptor.entry_key)
    rows = [{"map_key": typed(entry.map_key)} | _value(entry.value) for entry in entries]
    if output.as_json:
        source = entries.source
        as_json = {
            "entries": rows,
            "epoch": entries.epoch,
            "server": source.server,
            "role": role_of(source),
            "staleness_seconds": seconds_since(source.as_of),
            **wanted.staged_epoch([source]),
        }
        print_json(as_json)
        return
    title = f"{path} {key}" if descriptor.scan_key else path
    output.rows(rows, f"{title}: {len(entries):,} entries by {names}, epoch {entries.epoch}")
    if entries.epoch == 0:
        output.before_the_first_epoch(path)


def _aggregate(
    client: Client,
    output: OutputFormat,
    descriptor: StateDescriptor,
    key: str | None,
    within: Range,
    bounds: Bounds,
    wanted: WantedEntries,
) -> None:
    if key is not None or within.ordered or within.descending or within.limit is not None or within.after is not None:
        raise WrongUsage(
            "--aggregate is of all keys of a state, or of a range of them: leave KEY, --ordered, --descending, --limit "
            "and --after out, and say by --where, --from, --to, --prefix, --map-from and --map-to which entries count"
        )
    found = client.aggregate(
        descriptor.application,
        descriptor.state,
        parsed_aggregates(descriptor, wanted.aggregate),
        **_of_range(descriptor, within, wanted.options(descriptor, bounds)),
    )
    with_map_key = bool(descriptor.entry_key and descriptor.scan_key)
    tops = {
        name: [_row(entry, wanted, with_map_key=with_map_key, as_json=output.as_json) for entry in value]
        for name, value in found.values.items()
        if isinstance(value, list)
    }
    figures = {name: to_json(value) for name, value in found.values.items() if name not in tops}
    if output.as_json:
        as_json = {"values": figures | tops, "epochs": sorted({source.epoch for source in found.sources})}
        print_json(as_json | wanted.staged_epoch(found.sources))
        return
    path = descriptor.path
    if figures:
        output.rows([figures], path)
    for name, rows in tops.items():
        output.rows(rows, f"{path}: {name}")
    if all(source.epoch == 0 for source in found.sources):
        output.before_the_first_epoch(path)


def _scan_all(
    client: Client,
    output: OutputFormat,
    path: str,
    descriptor: StateDescriptor,
    within: Range,
    bounds: Bounds,
    wanted: WantedEntries,
) -> None:
    with client.scan_all(
        descriptor.application,
        descriptor.state,
        **_of_range(descriptor, within, wanted.options(descriptor, bounds)),
        ordered=within.ordered,
        descending=within.descending,
        limit=within.limit or MOST_OF_ALL,
        after=within.after,
    ) as found:
        rows: list[dict[str, Any]] = []
        broken: KeyholeError | None = None
        try:
            for entry in found:
                row = _row(entry, wanted, with_map_key=bool(descriptor.entry_key), as_json=output.as_json)
                rows.append(row)
        except UnavailableError as error:
            if not rows:
                raise
            broken = error
    if output.as_json:
        print_json({"entries": rows, "next": found.token})
    else:
        order = "in order" if within.ordered or within.descending else "in no order"
        _show(output, path, descriptor, rows, found.token, order)
        if not rows and found.done:
            _say_if_before_the_first_epoch(client, output, path)
    if broken is not None:
        raise broken


def _say_if_before_the_first_epoch(client: Client, output: OutputFormat, path: str) -> None:
    """A scan that has found nothing has no entry that would say of which epoch it is."""
    try:
        client.snapshot(path)
    except EpochNotReached:
        output.before_the_first_epoch(path)
    except KeyholeError:
        pass  # nothing is known of it, and the scan has its answer


def _of_range(descriptor: StateDescriptor, within: Range, options: SelectOptions) -> RangeOptions:
    """These options, of a range of keys. Raises KeyMismatch: One does not fit its columns."""
    # The keys of a broadcast state are its map keys. Of a state without map keys the client says so.
    key, map_key = descriptor.scan_key or descriptor.entry_key, descriptor.entry_key

    def parsed(columns: Sequence[KeyColumn], text: str | None) -> Any:
        return text if text is None or not columns else parse_bound(columns, text)

    return {
        **options,
        "start": parsed(key, within.start),
        "stop": parsed(key, within.stop),
        "prefix": parsed(key, within.prefix),
        "map_start": parsed(map_key, within.map_start),
        "map_stop": parsed(map_key, within.map_stop),
    }


def _show(
    output: OutputFormat,
    path: str,
    descriptor: StateDescriptor,
    rows: list[dict[str, Any]],
    token: str | None,
    order: str,
) -> None:
    names = ", ".join(column.name for column in (*descriptor.scan_key, *descriptor.entry_key))
    output.rows(rows, f"{path}: {len(rows):,} entries by {names}, {order}")
    if token is not None:
        Console(stderr=True).print(f"there may be more: --after {token}", markup=False, highlight=False, soft_wrap=True)


def _row(entry: KeyedEntry, wanted: WantedEntries, *, with_map_key: bool, as_json: bool) -> dict[str, Any]:
    row = {"key": typed(entry.key)}
    if with_map_key:
        row["map_key"] = typed(entry.map_key)
    row |= _value(entry.value)
    if as_json:
        row |= {"epoch": entry.source.epoch, "server": entry.source.server, "role": role_of(entry.source)}
        row |= wanted.staged_epoch([entry.source])
    return row


def _value(value: Any) -> dict[str, Any]:
    return {} if value is None else {"value": to_json(value)}


def _scanned_key(descriptor: StateDescriptor, path: str, key: str | None) -> Any:
    if key and not descriptor.scan_key:
        raise KeyMismatch(f"state {path} is of kind {descriptor.kind}, and listed whole: leave the key out, or get it")
    return parse_key(descriptor.scan_key, key or "") if descriptor.scan_key else ()
