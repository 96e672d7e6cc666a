"""`keyhole watch`: a line for each change of some keys, or of a whole state, as they come."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from keyhole import Client, StateChange, StateDescriptor
from keyhole.cli.reads import OutputFormat
from keyhole.cli.wrong_usage import WrongUsage
from keyhole.encoding.key_text import parse_bound, parse_key, typed
from keyhole.encoding.predicate_text import parsed_where
from keyhole.encoding.value_json import to_json
from keyhole.errors import KeyMismatch
from keyhole.model.state_path import state_path
from keyhole.terminal.json_output import print_json
from keyhole.terminal.written_out import written_out


@dataclass(frozen=True)
class WatchedLines:
    """What is watched, and up to where.

    Attributes:
        keys: As typed; none: all of the state that is within the bounds.
        where: Comparisons, all of which must hold.
        fields: None: all.
        start, stop, prefix: Bounds, as typed; None: none.
        most: So many lines; None: until it is interrupted.
    """

    keys: Sequence[str]
    after: str | None
    rows: bool
    before: bool
    latest_only: bool
    most: int | None
    where: Sequence[str] = ()
    fields: Sequence[str] | None = None
    start: str | None = None
    stop: str | None = None
    prefix: str | None = None


def watch(client: Client, output: OutputFormat, path: str, wanted: WatchedLines) -> None:
    """Prints a line for each row that is there, and then for each change. Says at its end where another goes on.

    Raises:
        WrongUsage: Keys together with a range of them.
        KeyMismatch: A key, or a bound, does not fit the state.
        ValueMismatch, MalformedRequest: A comparison is of no field of it, or is none.
        KeyholeError: As Client.watch.
    """
    application, state = state_path(path)
    descriptor = client.describe_state(application, state)
    keys = [_key(descriptor, key) for key in wanted.keys]
    bounded = wanted.start is not None or wanted.stop is not None
    if ((wanted.keys or bounded) and wanted.prefix is not None) or (wanted.keys and bounded):
        raise WrongUsage("a watch is of keys, of a --prefix, or of a range by --from and --to: give one of these")
    columns = descriptor.scan_key or descriptor.key
    start, stop, prefix = (
        None if bound is None else parse_bound(columns, bound) for bound in (wanted.start, wanted.stop, wanted.prefix)
    )
    count = 0
    with client.watch(
        application,
        state,
        *keys,
        after=wanted.after,
        snapshot=wanted.rows,
        before=wanted.before,
        latest_only=wanted.latest_only,
        where=parsed_where(descriptor, wanted.where),
        fields=wanted.fields,
        start=start,
        stop=stop,
        prefix=prefix,
    ) as changes:
        try:
            for change in changes:
                _show(output, change)
                count += 1
                if count == wanted.most:
                    break
        finally:
            if changes.token is not None:
                says = f"goes on: --after {changes.token}"
                Console(stderr=True).print(says, markup=False, highlight=False, soft_wrap=True)


def _key(descriptor: StateDescriptor, text: str) -> Any:
    """With its map key, or without."""
    try:
        return parse_key((*descriptor.scan_key, *descriptor.entry_key), text)
    except KeyMismatch:
        if not (descriptor.scan_key and descriptor.entry_key):
            raise
        return parse_key(descriptor.scan_key, text)


def _show(output: OutputFormat, change: StateChange) -> None:
    row: dict[str, Any] = {"kind": "row" if change.snapshot else str(change.kind), "key": typed(change.key)}
    if change.map_key is not None:
        row["map_key"] = typed(change.map_key)
    row |= {"value": None if change.value is None else to_json(change.value), "epoch": change.epoch}
    if change.before_known:
        row["before"] = None if change.before is None else to_json(change.before)
    if output.as_json:
        row["commit_time"] = change.commit_time
        print_json(row)
        return
    key = " ".join(_said(row[name]) for name in ("key", "map_key") if name in row)
    value = "" if row["value"] is None else _in_json(row["value"])
    before = f"  was {_in_json(row['before'])}" if change.before_known else ""
    print(written_out(f"{row['kind']:6} {key}  {value}{before}  epoch {change.epoch}"), flush=True)


def _said(key: Any) -> str:
    """One column as it is, several as JSON, which can be typed again."""
    return _in_json(key) if isinstance(key, list) else str(key)


def _in_json(value: Any) -> str:
    """For a person: letters as they are."""
    return json.dumps(value, default=str, ensure_ascii=False)
