"""`keyhole codegen`: types for the values of states, whatever their columns are called."""

from __future__ import annotations

import ast
import sys
import types
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec

from keyhole.cli.codegen.python_types import python_types
from keyhole.cli.codegen.typescript_types import typescript_types
from keyhole.client.typed_values import TypedValues
from keyhole.encoding.row import FrozenMap, row_class
from keyhole.model.read import Answer, Role, Source
from keyhole.model.state import StateDescriptor, ValueField, ValueSchema
from tests.support.hostile_names import NAMES, OF_FIELDS
from tests.support.of_all import of_all
from tests.support.readings import descriptor

_SOURCE = Source("server-0", Role.OWNER, 7, None, None, 1, 1, unconfirmed=False)
_EVERY_TYPE = {
    "yes": ("boolean", True),
    "whole": ("bigint", 1 << 62),
    "number": ("double", 1.5),
    "price": ("decimal(10,2)", Decimal("1.50")),
    "text": ("string", "a"),
    "raw": ("binary", b"\0"),
    "day": ("date", date(2026, 11, 27)),
    "at": ("timestamp", datetime(2026, 11, 27, tzinfo=UTC)),
    "local": ("timestamp_ntz", datetime(2026, 11, 27)),  # noqa: DTZ001 - it has no time zone
    "numbers": ("array<int>", (1, None)),
    "counts": ("map<string,bigint>", FrozenMap({"a": 1})),
    "places": ("array<struct<city:string,size:int>>", ()),
    "place": ("struct<city:string,inner:struct<a:int>>", None),
}


def _state(name: str, fields: dict[str, str], nullable: bool = True) -> StateDescriptor:
    value = ValueSchema(1, tuple(ValueField(field, kind, nullable) for field, kind in fields.items()))
    return msgspec.structs.replace(descriptor(name), value=value)


def _module(*states: StateDescriptor) -> Any:
    """What was written, imported."""
    text = python_types("weather", states)
    module = types.ModuleType(f"written_{abs(hash(text))}")
    sys.modules[module.__name__] = module  # where annotations are looked up
    exec(compile(text, module.__name__, "exec"), module.__dict__)
    for of in list(vars(module).values()):
        if isinstance(of, type) and issubclass(of, msgspec.Struct):
            msgspec.msgpack.Decoder(of)
    return module


def _can_be(name: str) -> bool:
    """Whether msgspec lets a field have the name; of one that can't be, a comment tells."""
    return not any(character in '"\\' or character < " " for character in name)


def _value(module: Any, name: str, **fields: Any) -> Any:
    row = row_class((field, Any) for field in fields)(*fields.values())
    return TypedValues("weather/state", getattr(module, name)).answer(Answer(True, row, _SOURCE)).value


def test_a_state_is_a_class_and_its_path_a_constant() -> None:
    module = _module(descriptor("max-readings"))
    assert module.MAX_READINGS == "weather/max-readings"
    assert _value(module, "MaxReadings", celsius=1.5, count=7) == module.MaxReadings(1.5, 7)
    assert "a value state by sensor string: schema version 1" in module.MaxReadings.__doc__
    assert "client.state(MAX_READINGS, value=MaxReadings)" in module.__doc__


def test_values_of_every_type_are_what_readers_get() -> None:
    module = _module(_state("every", {name: kind for name, (kind, _) in _EVERY_TYPE.items()}))
    given = {name: value for name, (_, value) in _EVERY_TYPE.items()}
    place = row_class([("city", str), ("inner", Any)])("Basel", row_class([("a", int)])(7))
    found = _value(module, "Every", **given | {"place": place})
    assert found.place == module.EveryPlace("Basel", module.EveryPlaceInner(7))
    assert (found.counts, found.numbers, found.places) == ({"a": 1}, [1, None], [])
    same = ("yes", "whole", "number", "price", "text", "raw", "day", "at", "local")
    assert {name: getattr(found, name) for name in same} == {name: given[name] for name in same}
    empty = _value(module, "Every", **dict.fromkeys(given))
    assert all(getattr(empty, name) is None for name in given)


def test_a_field_that_is_never_null_is_not_declared_as_one_that_may_be() -> None:
    assert "celsius: float\n" in python_types("weather", [_state("a", {"celsius": "double"}, nullable=False)])
    assert "celsius: Whole;" in typescript_types("weather", [_state("a", {"celsius": "bigint"}, nullable=False)])


@of_all([*NAMES, "max(t)", "a.b", "7", "a b", "int", "float", "dict", "_datetime", "Any", '"""', "*/", "\\"])
def test_a_field_of_any_name_is_read_by_that_name(name: str) -> None:
    module = _module(_state("any", {name: "bigint", "other": "array<int>", f"{name}_": "double"}))
    found = _value(module, "Any", **{name: 7, "other": (1,), f"{name}_": 1.5})
    assert msgspec.to_builtins(found) == {"other": [1]} | ({name: 7, f"{name}_": 1.5} if _can_be(name) else {})


def test_fields_of_structs_have_any_name_too() -> None:
    kind = f"struct<{','.join(f'{name}:bigint' for name in OF_FIELDS)}>"
    module = _module(_state("any", {"of": kind}))
    of = row_class((name, int) for name in OF_FIELDS)(*range(len(OF_FIELDS)))
    found = msgspec.to_builtins(_value(module, "Any", of=of))
    assert found == {"of": {name: number for number, name in enumerate(OF_FIELDS) if _can_be(name)}}


def test_states_whose_names_differ_by_little_have_classes_of_their_own() -> None:
    states = [_state(name, {"v": "int"}) for name in ("a-b", "a_b", "aB", "A", "a", "None", "7", "class", "_")]
    module = _module(*states)
    paths = [value for value in vars(module).values() if isinstance(value, str) and value.startswith("weather/")]
    assert sorted(paths) == sorted(f"weather/{state.state}" for state in states)
    written = ast.parse(python_types("weather", states))
    assert len({node.name for node in written.body if isinstance(node, ast.ClassDef)}) == len(states)


def test_typescript_has_what_http_answers() -> None:
    fields = {name: kind for name, (kind, _) in _EVERY_TYPE.items()} | {"max(t)": "double"}
    text = typescript_types("weather", [_state("max-readings", fields)])
    for line in (
        "export interface MaxReadings<Whole = number> {",
        "  yes: boolean | null;",
        "  whole: Whole | null;",
        '  number: number | "NaN" | "Infinity" | "-Infinity" | null;',
        "  price: string | null;",
        "  numbers: Array<Whole | null> | null;",
        "  counts: Array<[string, Whole | null]> | null;",
        '  "max(t)": number | "NaN" | "Infinity" | "-Infinity" | null;',
        '  "weather/max-readings": MaxReadings<Whole>;',
    ):
        assert line in text.splitlines()
