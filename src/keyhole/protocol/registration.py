"""Whose a state is, and what may become of it: what is on record, against what the job declares. Pure.

A state is fed by the query that declared it first, and what is stored stays readable, whatever is declared anew.
"""

from __future__ import annotations

from collections.abc import Iterable

from keyhole.encoding.indexed_fields import indexed_fields
from keyhole.encoding.row_codec import check_usable
from keyhole.errors import StateChanged, StateConflict
from keyhole.model.evolution import evolved
from keyhole.model.state import KeyColumn, StateDescriptor, StateKind, ValueField

_ENCODED = ("value", "binary")
"""The field that a codec makes (keyhole.spark.declaration.value_codec)."""


def settled(stored: StateDescriptor | None, wanted: StateDescriptor) -> StateDescriptor:
    """The state as it is to be, from what the control topic knows of it (None: nothing) and what the job declares.

    Its value may have evolved (keyhole.model.evolution); `ttl_ms`, `max_length`, `keep_deleted_ms` and `index` are as
    declared.

    Raises:
        StateConflict: Another query of the application feeds it.
        StateChanged: It can't become that; the message says what differs and what to do.
        ValueMismatch: No server or reader could use it: once it is on record, it could not be taken back. Or it has an
            index that can't be.
    """
    if stored is not None:
        _check_unchanged(stored, wanted)
        wanted = evolved(stored, wanted)
    check_usable(wanted)
    indexed_fields(wanted)
    return wanted


def _check_unchanged(stored: StateDescriptor, wanted: StateDescriptor) -> None:
    check_feeder(stored, wanted)
    _check_class_version(stored, wanted)
    name = wanted.path
    differences = [
        f"{what} was {before}, is {after}"
        for what, before, after in (
            ("kind", stored.kind, wanted.kind),
            ("key_groups", stored.key_groups, wanted.key_groups),
            ("key", columns_text(stored.key), columns_text(wanted.key)),
            ("map_key", columns_text(stored.map_key) or "none", columns_text(wanted.map_key) or "none"),
            ("order_by", stored.order_by or "none", wanted.order_by or "none"),
            # What is stored holds when it expires, by that clock, or doesn't; how long entries live may change.
            ("ttl", _expiry(stored), _expiry(wanted)),
            # Rows from before would be read as null: nothing of them is in the field that is there from then on.
            # Epochs and updates are counted apart, and so are those of two updates topics.
            ("lane", _lane(stored), _lane(wanted)),
            ("codec", _made_by_codec(stored, of=wanted), _made_by_codec(wanted, of=wanted)),
        )
        if before != after
    ]
    if differences:
        regrouped = (
            "; or have the other number of key groups from a savepoint, in an application of another name: keyhole "
            f"savepoint create, then keyhole savepoint restore ... --key-groups {wanted.state}={wanted.key_groups}"
            # A savepoint has no state that is fed by updates.
            if stored.key_groups != wanted.key_groups and not stored.updates_topic_id
            else ""
        )
        raise StateChanged(
            f"state {name} can't be changed in place: {'; '.join(differences)}. Restore the old declaration, or give "
            f"the state another name{regrouped}",
            state=name,
        )


def _made_by_codec(state: StateDescriptor, of: StateDescriptor) -> str:
    """Of what an earlier release has recorded it is not known: the bytes of a field of that name can be a codec's.

    Args:
        of: The state as it is declared.
    """
    if state.kind is StateKind.AGGREGATING:
        return "none"
    known = state.class_version > 0
    perhaps = of.class_version > 0 and any((field.name, field.type) == _ENCODED for field in state.value.fields)
    return "set" if known or perhaps else "none"


def _check_class_version(stored: StateDescriptor, wanted: StateDescriptor) -> None:
    if 0 < wanted.class_version < (version := stored.class_version):
        name = wanted.path
        raise StateChanged(
            f"state {name} has been written by version {version} of its class, and the job has version "
            f"{wanted.class_version}, which can't read what that one has stored. Run the job with version {version} or "
            f"a later one (to take a change back, make it version {version + 1}), restore a savepoint from before in "
            "an application of another name, or give the state another name",
            state=name,
            version=version,
        )


def check_feeder(stored: StateDescriptor, wanted: StateDescriptor) -> None:
    """Raises StateConflict where another query of the application feeds the state."""
    if stored.query != wanted.query:
        name = wanted.path
        raise StateConflict(
            f"state {name} is fed by query {stored.query!r}; query {wanted.query!r} can't feed it too. "
            "Choose another state name, or give the query its old name",
            state=name,
            query=stored.query,
        )


def columns_text(columns: Iterable[KeyColumn | ValueField]) -> str:
    """Names and types, as people are shown them; of no columns: nothing."""
    return ", ".join(f"{column.name} {column.type}" for column in columns)


def _lane(state: StateDescriptor) -> str:
    """The other one is for another application, from a savepoint. An id of its own is another topic of updates."""
    return f"real time, by updates topic {state.updates_topic_id}" if state.updates_topic_id else "batch"


def _expiry(state: StateDescriptor) -> str:
    return f"set, by {state.ttl_clock.replace('_', ' ')}" if state.ttl_ms else "none"
