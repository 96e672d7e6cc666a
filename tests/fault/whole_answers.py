"""What a scan of a whole state has told of each key, so that what must be true of any read is asked of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from keyhole.encoding.storage_key import group_of
from tests.fault.history import Claim, KeysOf, Read, Scanned
from tests.fault.recount import SHAPES, Shown, whole
from tests.fault.states import CODECS
from tests.fault.workload import names


@cache
def key_group(state: str, key: str) -> int:
    """Of a state of which keys are scanned: none of workload.OPERATORS."""
    codec = CODECS[state]
    return 0 if codec.descriptor.key_groups == 1 else group_of(codec.prefix(key))


def keys_by_group(state: str, of: KeysOf) -> Mapping[int, list[str]]:
    """The keys that are asked for, whether they are there or not."""
    found: dict[int, list[str]] = {}
    for key in filter(of.has, names(state)):
        found.setdefault(key_group(state, key), []).append(key)
    return found


def claims_by_group(scanned: Scanned) -> Mapping[int, list[Claim]]:
    """What the entries of each key group say of themselves. Of a key group without any entry nobody says anything."""
    found: dict[int, dict[Claim, None]] = {}
    for key, _, _, claim in scanned.entries:
        found.setdefault(key_group(scanned.state, key), {})[scanned.claims[claim]] = None
    return {group: list(claims) for group, claims in found.items()}


def as_read(scanned: Scanned) -> Read:
    """All keys that were asked for and whose key group has said something, as if they had been read one by one: what
    they have of what was asked for.

    A key of which nothing came is told to have nothing, by its key group's first claim.
    """
    claims = claims_by_group(scanned)
    shown, said = shown_by_key(scanned), dict[str, Claim]()
    for key, _, _, claim in scanned.entries:
        said.setdefault(key, scanned.claims[claim])
    keys = [key for group, of in keys_by_group(scanned.state, scanned.of).items() if group in claims for key in of]
    nothing: Shown = () if SHAPES[scanned.state].entries else None
    return Read(
        scanned.reader,
        scanned.began,
        scanned.ended,
        scanned.state,
        scanned.asked,
        tuple(whole(scanned.state, key, scanned.of.where) for key in keys),
        tuple(shown.get(key, nothing) for key in keys),
        tuple(said.get(key) or claims[key_group(scanned.state, key)][0] for key in keys),
    )


def shown_by_key(scanned: Scanned) -> Mapping[str, Shown]:
    """As a Get of the key would have it, or a Scan of its entries. Of these what came twice is there twice."""
    if not SHAPES[scanned.state].entries:
        return {key: fields for key, _, fields, _ in scanned.entries}
    found: dict[str, list[tuple[int, ...]]] = {}
    for key, map_key, fields, _ in scanned.entries:
        found.setdefault(key, []).append((map_key or 0, *fields))
    return {key: tuple(sorted(entries)) for key, entries in found.items()}
