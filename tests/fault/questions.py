"""Questions as messages, and what is told in them."""

from __future__ import annotations

import functools
import operator
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from keyhole import Source, field
from keyhole.model.predicates import Field, Predicate
from keyhole.v1 import query_pb2, state_pb2
from tests.fault.asked_where import Where
from tests.fault.history import OWNER, STANDBY, Asked, Claim
from tests.fault.recount import SHAPES, EntryOf, Question, ScanOf, Shown
from tests.fault.states import CODECS
from tests.fault.workload import MAP_KEYS, OPERATORS, names

_MOST_KEYS = 6
# Of lists, which are cleared now and then and begin again from 0.
_POSITIONS = 40

_STALE = {
    "never": query_pb2.STALE_NEVER,
    "when_needed": query_pb2.STALE_WHEN_NEEDED,
    "always": query_pb2.STALE_ALWAYS,
}
_ROLES = {state_pb2.ROLE_OWNER: OWNER, state_pb2.ROLE_STANDBY: STANDBY}


def drawn(draw: random.Random, state: str) -> tuple[Question, ...]:
    """What a reader asks next, in one request: several Gets, or one Scan."""
    shape = SHAPES[state]
    if (shape.entries or shape.scans_keys) and (not shape.gets or draw.random() < 0.5):
        return (_scan(draw, state),)
    among = names(state)
    keys = draw.sample(among, draw.randint(1, min(_MOST_KEYS, len(among))))
    return tuple(EntryOf(key, draw.randrange(MAP_KEYS)) if shape.entries else key for key in keys)


def _scan(draw: random.Random, state: str) -> ScanOf:
    if SHAPES[state].scans_keys:
        key, bounds = "", draw.choices(names(), k=2)
        start: int | str = bounds[0]
        stop: int | str = bounds[1]
    else:
        key = draw.choice(names())
        most = MAP_KEYS if SHAPES[state].gets else _POSITIONS
        start, stop = draw.randrange(most), draw.randrange(most + 1)
    return ScanOf(
        key,
        start if draw.random() < 0.3 else None,
        stop if draw.random() < 0.3 else None,
        descending=draw.random() < 0.5,
        limit=draw.choice((0, 0, 1, 3)),
    )


_COMPARED: Mapping[str, Callable[[Field, Sequence[Any]], Predicate]] = {
    "==": lambda of, values: of == values[0],
    "!=": lambda of, values: of != values[0],
    "<": lambda of, values: of < values[0],
    "<=": lambda of, values: of <= values[0],
    ">": lambda of, values: of > values[0],
    ">=": lambda of, values: of >= values[0],
    "between": lambda of, values: of.between(*values),
    "in": lambda of, values: of.is_in(values),
}


def predicate(state: str, where: Where | None) -> Predicate | None:
    """As a client takes it."""
    if where is None:
        return None
    columns = ("k", "m", *(of.name for of in CODECS[state].descriptor.value.fields))
    parts = (_COMPARED[of.by](field(columns[of.column]), of.values) for of in where.parts)
    asked = functools.reduce(operator.or_ if where.any_of else operator.and_, parts)
    return ~asked if where.opposite else asked


def get_many(application: str, state: str, keys: Sequence[str | EntryOf], asked: Asked) -> query_pb2.GetManyRequest:
    """Gets of keys, or of entries."""
    options = _options(asked)
    if asked.snapshot:
        options.consistency = query_pb2.CONSISTENCY_SNAPSHOT
    return query_pb2.GetManyRequest(
        state=query_pb2.StateRef(application=application, state=state),
        keys=[_key_of(state, key) if isinstance(key, str) else _key(key.key, key.map_key) for key in keys],
        options=options,
    )


def scan(application: str, state: str, of: ScanOf, asked: Asked) -> query_pb2.ScanRequest:
    """A Scan."""
    bounds = {"from": _key(of.start), "to": _key(of.stop)}
    return query_pb2.ScanRequest(
        state=query_pb2.StateRef(application=application, state=state),
        key=_key(of.key or None),
        descending=of.descending,
        limit=of.limit,
        options=_options(asked),
        **bounds,  # type: ignore[arg-type]  # `from` is a word of Python's
    )


def _key_of(state: str, key: str) -> query_pb2.Key:
    return _key(int(key) if state in OPERATORS else key)


def _key(*values: int | str | None) -> query_pb2.Key:
    return query_pb2.Key(
        parts=[
            query_pb2.KeyPart(string=value) if isinstance(value, str) else query_pb2.KeyPart(integer=value)
            for value in values
            if value is not None
        ]
    )


def _options(asked: Asked) -> query_pb2.ReadOptions:
    return query_pb2.ReadOptions(
        min_epoch=asked.min_epoch,
        stale=_STALE[asked.stale],
        max_staleness_ms=asked.max_staleness_ms,
        as_of_epoch=asked.as_of_epoch,
        consistency=query_pb2.CONSISTENCY_LATEST if asked.latest else query_pb2.CONSISTENCY_UNSPECIFIED,
    )


def claim(source: state_pb2.Source) -> Claim:
    return Claim(
        source.server,
        _ROLES[source.role],
        source.epoch,
        source.generation,
        source.assignment_version,
        source.unconfirmed,
        source.as_of_ms,
        source.lag_epochs,
        source.staged_epoch,
    )


def claim_of(source: Source) -> Claim:
    """As a client has it."""
    return Claim(
        source.server,
        source.role,
        source.epoch,
        source.generation,
        source.assignment_version,
        source.unconfirmed,
        0 if source.as_of is None else round(source.as_of.timestamp() * 1000),
        source.lag_epochs,
        source.staged_epoch,
    )


def row_of(answer: query_pb2.Answer) -> Shown:
    """The fields, as stored; at position 0 stands the schema's version."""
    return _fields(answer.value) if answer.found else None


def entries_of(state: str, pages: Sequence[query_pb2.ScanResponse]) -> Shown:
    """The entries of all pages."""
    decode = CODECS[state].entries.decode
    return tuple(
        (*decode(map_key), *_fields(value))  # type: ignore[misc]  # numbers and strings
        for page in pages
        for map_key, value in zip(page.map_keys, page.values, strict=True)
    )


def _fields(row: bytes) -> tuple[int, ...]:
    return tuple(msgspec.msgpack.decode(row)[1:])
