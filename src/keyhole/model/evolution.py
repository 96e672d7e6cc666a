"""How a state may change while it lives. Pure.

Of its value:

    add        a field of a new name: rows that were written before have its default, or null
    drop       a field that is not declared any more
    reorder    the fields, as they are declared
    widen      tinyint to smallint to int to bigint, float to double, also inside arrays, maps and structs

Rows are not rewritten. Each says by its version which schema it is of, and is read step by step through all that came
after. A field that was dropped and added again is another one: nothing of the first can come back, whatever types they
have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from keyhole.errors import StateChanged, ValueMismatch
from keyhole.model.state import StateDescriptor, ValueField, ValueSchema
from keyhole.model.type_names import parsed

_WHOLE = ("tinyint", "smallint", "int", "bigint")
_FLOATING = ("float", "double")
_TOKEN = re.compile(r"decimal\([^)]*\)|[<>:,]|[^<>:,]+")


def evolved(stored: StateDescriptor, wanted: StateDescriptor) -> StateDescriptor:
    """The descriptor that the state has from now on: `wanted`, and the stored schema, or a version of its own after it.

    A field that may have been null once goes on being nullable. A default counts in the version that adds its field,
    and is passed over later.

    Args:
        stored: As the control topic has it.
        wanted: As the job declares it; the version of its schema does not count.

    Raises:
        StateChanged: A field changes in a way that is none of the above, or the reducer of a field changes; the message
            names all of these fields, and says what to do.
    """
    before = {field.name: field for field in stored.value.fields}
    problems = {**_type_problems(before, wanted), **_reducer_problems(stored, wanted)}
    if problems:
        raise StateChanged(
            f"state {wanted.path} can't be changed in place: {'; '.join(problems.values())}. Or "
            "give the state another name",
            state=wanted.path,
            fields=", ".join(problems),
        )
    fields = tuple(_settled(before.get(field.name), field) for field in wanted.value.fields)
    value, earlier = stored.value, stored.earlier
    if fields != value.fields:
        value, earlier = ValueSchema(value.version + 1, fields), (*earlier, value)
    return msgspec.structs.replace(wanted, value=value, earlier=earlier, topic_id=stored.topic_id)


def succeeds(descriptor: StateDescriptor, known: StateDescriptor) -> bool:
    """Whether a descriptor is of the same state as the one that is known, and is not older: versions only grow."""
    return (
        descriptor.topic_id == known.topic_id
        and descriptor.value.version >= known.value.version
        and descriptor.class_version >= known.class_version
    )


def written_otherwise(stored: Mapping[str, StateDescriptor], states: Iterable[StateDescriptor]) -> bool:
    """Whether rows are written otherwise from now on than before: by another schema, by another version of the job's
    class, or deletions with an order.

    Args:
        stored: As the control topic has them, by name.
        states: As they are from now on.
    """
    return any(
        before.value != of.value
        or bool(before.keep_deleted_ms) is not bool(of.keep_deleted_ms)
        or max(1, before.class_version) != max(1, of.class_version)
        for of in states
        if (before := stored.get(of.state)) is not None
    )


def _settled(before: ValueField | None, field: ValueField) -> ValueField:
    if before is None:
        # Without a default it is null in the rows that were written before it.
        return msgspec.structs.replace(field, nullable=field.nullable or not field.default)
    return ValueField(field.name, field.type, before.nullable or field.nullable, before.default)


def _type_problems(before: Mapping[str, ValueField], wanted: StateDescriptor) -> dict[str, str]:
    return {
        field.name: _type_problem(field, old.type)
        for field in wanted.value.fields
        if (old := before.get(field.name)) is not None and not widens(old.type, field.type)
    }


def _type_problem(field: ValueField, before: str) -> str:
    what = f"field {field.name!r} was {before} and is {field.type}"
    try:
        parsed(before)
    except ValueMismatch as error:
        # An earlier version has let it be declared; there are no rows of it.
        return f"{what} ({error.message}); add it under another name"
    return (
        f"{what} (a field can only get wider: whole numbers up to bigint, float to double); cast it to {before}, or "
        "add it under another name"
    )


def _reducer_problems(stored: StateDescriptor, wanted: StateDescriptor) -> dict[str, str]:
    before, after = _reducers(stored), _reducers(wanted)
    return {
        name: (
            f"field {name!r} was reduced by {before[name]} and is by {reducer}, which what it holds does not fit; go "
            f"back to {before[name]}, or add it under another name"
        )
        for name, reducer in after.items()
        if before.get(name, reducer) != reducer
    }


def _reducers(descriptor: StateDescriptor) -> dict[str, str]:
    names = [field.name for field in descriptor.value.fields]
    return dict(zip(names, descriptor.reducers, strict=True)) if descriptor.reducers else {}


def widens(before: str, after: str) -> bool:
    """Whether every value of one type is a value of the other, stored alike. By Spark's names; also of equal types."""
    one, other = _TOKEN.findall(before), _TOKEN.findall(after)
    if len(one) != len(other):
        return False
    following = [*one[1:], ""]
    # What stands before a colon is the name of a field in a struct.
    return all(a == b or (then != ":" and _wider(a, b)) for a, b, then in zip(one, other, following, strict=True))


def _wider(before: str, after: str) -> bool:
    return any(
        before in family and after in family and family.index(before) < family.index(after)
        for family in (_WHOLE, _FLOATING)
    )
