"""Whatever a value's schema becomes, step by step, every row is read as a model reads it that rewrites all rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.row_codec import encode_row
from keyhole.model.epoch import START, Position
from keyhole.model.evolution import evolved
from keyhole.model.state import StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.rpc.convert import descriptor_from_proto, descriptor_to_proto
from keyhole.stores.base import Advance, Batch
from keyhole.stores.memory import MemoryEngine
from services.state_server.write.merge import merge_of
from tests.support.states import EPOCH, descriptor

NAMES = st.sampled_from(["a", "b", "c", "class", "_0", "max(t)"])
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "tinyint": st.integers(-128, 127),
    "int": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
    "binary": st.binary(max_size=3),
    "array<int>": st.lists(st.none() | st.integers(-5, 5), max_size=3).map(tuple),
    "array<bigint>": st.lists(st.none() | st.integers(-(2**40), 2**40), max_size=3).map(tuple),
}
WIDER = {
    "tinyint": ["tinyint", "int", "bigint"],
    "int": ["int", "bigint"],
    "float": ["float", "double"],
    "array<int>": ["array<int>", "array<bigint>"],
}
Model = dict[str, Any]
"""A row by field name, in no order."""


class Step(NamedTuple):
    """What a job declares, and the rows that are written while it runs."""

    fields: dict[str, str]
    defaults: Model
    rows: list[Model]


@st.composite
def chains(draw: st.DrawFn) -> list[Step]:
    """Each step may be any that is allowed after the one before."""
    steps: list[Step] = []
    before: dict[str, str] = {}
    for _ in range(draw(st.integers(1, 6))):
        names = draw(st.lists(NAMES, min_size=1, unique=True))
        fields = {
            name: draw(st.sampled_from(WIDER.get(before[name], [before[name]]) if name in before else sorted(VALUES)))
            for name in names
        }
        defaults = {name: draw(st.none() | VALUES[kind]) for name, kind in fields.items() if draw(st.booleans())}
        row = st.fixed_dictionaries({name: st.none() | VALUES[kind] for name, kind in fields.items()})
        steps.append(Step(fields, defaults, draw(st.lists(row, max_size=3))))
        before = fields
    return steps


def declared(step: Step, **changes: object) -> StateDescriptor:
    def field(name: str) -> ValueField:
        default = step.defaults.get(name)
        return ValueField(name, step.fields[name], True, b"" if default is None else msgspec.msgpack.encode(default))

    return descriptor(value=ValueSchema(1, tuple(map(field, step.fields))), **changes)


@given(chains())
def test_rows_of_any_version_are_read_as_a_model_that_rewrites_them_all(steps: list[Step]) -> None:
    state: StateDescriptor | None = None
    written: list[bytes] = []
    models: list[Model] = []
    for step in steps:
        state = declared(step) if state is None else evolved(state, declared(step))
        models = [{name: row.get(name, step.defaults.get(name)) for name in step.fields} for row in models]
        version = state.value.version
        written += [encode_row(version, [row[name] for name in step.fields]) for row in step.rows]
        models += step.rows
        codec = StateCodec(state)
        rows = [codec.decode_row(row) for row in written]
        assert [row.asdict() for row in rows] == [descriptor_like(model) for model in models]
        assert [list(row) for row in rows] == [list(step.fields)] * len(models)
        assert [list(msgspec.json.decode(codec.rows.to_json(row))) for row in written] == [list(row) for row in rows]
        assert descriptor_from_proto(descriptor_to_proto(state)) == state
        assert msgspec.json.decode(msgspec.json.encode(state), type=StateDescriptor) == state


def descriptor_like(model: Model) -> Model:
    """As Row.asdict gives it."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in model.items()}


SUMS = st.dictionaries(NAMES, st.none() | st.integers(-100, 100), min_size=1)
"""Fields, and their defaults."""


@given(st.lists(st.tuples(SUMS, st.lists(st.integers(-100, 100), max_size=2)), min_size=1, max_size=6))
def test_sums_go_on_from_rows_of_any_version(steps: list[tuple[Model, list[int]]]) -> None:
    """Every epoch brings the same number to every field of one key."""
    state: StateDescriptor | None = None
    store = MemoryEngine().open("app", "counts", "topic")
    key, position, model = b"\0\0k", START, Model()
    for defaults, epochs in steps:
        step = Step(dict.fromkeys(defaults, "bigint"), defaults, [])
        wanted = declared(step, kind=StateKind.REDUCING, reducers=("sum",) * len(defaults))
        state = wanted if state is None else evolved(state, wanted)
        if model:
            model = {name: model.get(name, default) for name, default in defaults.items()}
        merge = merge_of(state)
        for number in epochs:
            staged = {key: encode_row(state.value.version, [number] * len(defaults))}
            changes = merge.with_stored(staged, store.snapshot(), EPOCH)
            after = Position(position.epoch + 1, position.epoch + 1, 1, 0)
            puts = [(name, row) for name, row in changes if row is not None]
            store.apply(Batch(puts=puts, deletes=[], advances={0: Advance(position, after)}))
            position = after
            model = {name: number + (model.get(name) or 0) for name in defaults}
        (row,) = store.snapshot().get_many([key])
        assert (row is None) == (not model)
        if row is not None:
            assert StateCodec(state).decode_row(row).asdict() == model
