"""What a queryable processor refuses where it is made, and the columns of its output. Without a running Spark."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import ArrayType, DayTimeIntervalType, MapType, StringType, StructType

from keyhole.config import JobConfig
from keyhole.errors import InvalidConfiguration, KeyholeError, ValueMismatch
from keyhole.model.state import TtlClock
from keyhole.spark import queryable
from keyhole.spark.changes import changes_schema
from keyhole.spark.declaration.ttl import Ttl
from keyhole.spark.exposed import ExposedList, ExposedMap, ExposedValue, exposed_in, grouping_key, output_schema
from keyhole.spark.processor import QueryableProcessor
from tests.support.hostile_names import OF_KEYS


class Nothing(StatefulProcessor):
    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
        return iter([])


CELSIUS = StructType().add("celsius", "double")
HOUR = StructType().add("hour", "timestamp")
SECOND, HOUR_LONG = timedelta(seconds=1), timedelta(hours=1)


class Declaring(Nothing):
    def init(self, handle: Any) -> None:
        self.ready = True
        handle.deleteIfExists("before")
        handle.getValueState("last", CELSIUS, 1000)
        handle.getListState("alerts", CELSIUS)
        handle.getMapState("hours", HOUR, CELSIUS)


def exposing(**arguments: Any) -> QueryableProcessor:
    given = {"processor": Declaring(), "key": "sensor", "expose": {"last": ExposedValue(CELSIUS)}} | arguments
    return QueryableProcessor(**given)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"key": ()}, InvalidConfiguration, "key names the columns"),
        ({"key": ["a", "a"]}, InvalidConfiguration, "key names the columns .* each once"),
        ({"expose": {}}, InvalidConfiguration, "expose names no state"),
        ({"expose": ["last"]}, InvalidConfiguration, "expose is a list; give it as"),
        ({"key": 3}, InvalidConfiguration, "key must be the name of a column, as text, or a list of names"),
        ({"processor": object()}, InvalidConfiguration, r"processor .object. has no init, handleInputRows, close"),
        ({"processor": Nothing}, InvalidConfiguration, "processor is the class Nothing; give an object of it, Nothing"),
        (
            {"expose": {"last": ExposedValue(CELSIUS), "Last": ExposedValue(CELSIUS)}},
            InvalidConfiguration,
            "differ by case alone: last, Last",
        ),
        (
            {"expose": {"first": ExposedValue(CELSIUS, name="last"), "last": ExposedValue(CELSIUS)}},
            InvalidConfiguration,
            "two exposed states have one name: last, last; give one of them another",
        ),
        (
            {"expose": {"a": ExposedValue(CELSIUS, name="n"), "b": ExposedList(CELSIUS, name="N")}},
            InvalidConfiguration,
            "differ by case alone: n, N",
        ),
        (
            {"expose": {"last": ExposedValue(CELSIUS, name="")}},
            InvalidConfiguration,
            "'last' is exposed under the name ''; give it one as text, or leave name out",
        ),
        (
            {"expose": {"last": ExposedMap(CELSIUS, HOUR, name=3)}},
            InvalidConfiguration,
            "'last' is .* the name 3; give",
        ),
        ({"expose": {"last": CELSIUS}}, InvalidConfiguration, "'last' is exposed as a StructType; say ExposedValue"),
        ({"expose": {"last": ExposedValue(StructType())}}, InvalidConfiguration, "'last': its schema must name"),
        ({"expose": {"last": ExposedMap(StructType(), CELSIUS)}}, InvalidConfiguration, "'last': its schema must name"),
        ({"key": "Celsius"}, InvalidConfiguration, r"'celsius' names more than one of its columns.*key's \(Celsius\)"),
        ({"expose": {"hours": ExposedMap(HOUR, HOUR)}}, InvalidConfiguration, "'hour' names more than one"),
        (
            {"expose": {"l": ExposedList(StructType().add("_keyhole_op", "string"))}},
            InvalidConfiguration,
            "names that begin with _keyhole_ are Keyhole's; rename '_keyhole_op'",
        ),
        (
            {"expose": {"l": ExposedList(StructType().add("for", DayTimeIntervalType()))}},
            ValueMismatch,
            "state 'l': field 'for' is of type interval day to second; .* can't be exposed",
        ),
    ],
)
def test_what_cannot_be_exposed_is_refused_where_it_is_said(
    arguments: dict[str, Any], error: type[KeyholeError], message: str
) -> None:
    with pytest.raises(error, match=message):
        _ = exposing(**arguments).states


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"index": ["celsius"]}, "index can't be given: states that a processor exposes have none"),
        ({"index": "celsius"}, "index can't be given"),
        ({"op": "op", "defaults": {}}, "defaults, op can't be given: the processor says"),
    ],
)
def test_options_that_exposed_states_can_not_have_are_refused_by_name(options: Any, message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        queryable.exposed(exposing(), **options)


def test_the_output_has_the_processors_columns_and_tells_the_schemas_of_what_it_holds_packed() -> None:
    own = StructType().add("sensor", "string", nullable=False, metadata={"comment": "own"})
    key = StructType().add("sensor", "string", nullable=False).add("day", "date")
    states = exposing(expose={"last": ExposedValue(CELSIUS), "hours": ExposedMap(HOUR, CELSIUS)}).states
    schema = output_schema(own, key, states)
    assert [(field.name, field.dataType.simpleString()) for field in schema.fields] == [
        ("sensor", "string"),
        ("_keyhole_state", "string"),
        ("_keyhole_changes", "binary"),
    ]
    assert all(field.nullable for field in schema.fields)
    assert schema["sensor"].metadata == {"comment": "own"}
    exposed = exposed_in(StructType.fromJson(json.loads(schema.json())))
    assert exposed is not None
    assert {state: changes.simpleString() for state, changes in exposed.items()} == {
        "last": "struct<_keyhole_op:string,sensor:string,day:date,celsius:double>",
        "hours": "struct<_keyhole_op:string,sensor:string,day:date,hour:timestamp,celsius:double>",
    }
    assert grouping_key(schema) == {0: "_keyhole_key_sensor", 1: "_keyhole_key_day"}
    assert grouping_key(exposed["last"]) == {0: "sensor", 1: "day"}
    assert grouping_key(own) == {}


def test_a_state_that_the_batchs_processor_does_not_expose_is_refused_by_name() -> None:
    key = StructType().add("sensor", "string")
    batch = output_schema(key, key, exposing().states)
    assert changes_schema("last", batch).names == ["_keyhole_op", "sensor", "celsius"]
    with pytest.raises(InvalidConfiguration, match="no changes of state 'hours': its processor doesn't expose it"):
        changes_schema("hours", batch)


@pytest.mark.parametrize(
    ("expose", "message"),
    [
        ({"last": ExposedValue(CELSIUS), "alerts": ExposedList(CELSIUS), "hours": ExposedMap(HOUR, CELSIUS)}, None),
        (
            {"last": ExposedList(CELSIUS)},
            "'last' is exposed as list of .*, but the processor's init declares a value of",
        ),
        ({"hours": ExposedMap(CELSIUS, HOUR)}, "'hours' is exposed as map of .* to .*, but"),
        (
            {"first": ExposedValue(CELSIUS)},
            "'first' is exposed, but the processor's init declares no state of this name",
        ),
        ({"before": ExposedValue(CELSIUS)}, "'before' is exposed, and the processor's init deletes it"),
        # By other names: also by that of another of its states, and of one that is exposed itself.
        ({"last": ExposedValue(CELSIUS, name="alerts")}, None),
        ({"last": ExposedValue(CELSIUS, name="alerts"), "alerts": ExposedList(CELSIUS, name="last")}, None),
        (
            {"Last": ExposedValue(CELSIUS, name="last")},
            r"'Last' \(exposed as 'last'\) is exposed, but .* no state of this",
        ),
        (
            {"alerts": ExposedValue(CELSIUS, name="a")},
            r"'alerts' \(exposed as 'a'\) is exposed as value of .*, but .* declares a list of",
        ),
        ({"before": ExposedValue(CELSIUS, name="a")}, r"'before' \(exposed as 'a'\) is exposed, and .* deletes it"),
        ({"last": ExposedValue(CELSIUS, HOUR_LONG, name="a")}, r"'last' \(exposed as 'a'\) is exposed with a ttl"),
    ],
)
def test_what_init_declares_is_known_before_there_is_a_query(expose: dict[str, Any], message: str | None) -> None:
    processor = Declaring()
    with nullcontext() if message is None else pytest.raises(InvalidConfiguration, match=message):
        _ = exposing(processor=processor, expose=expose).ttls
    assert not hasattr(processor, "ready"), "it was a copy"


def test_the_init_of_a_copy_runs_once_however_often_it_is_asked() -> None:
    inits = []

    class Counted(Declaring):
        def __deepcopy__(self, memo: object) -> Counted:
            inits.append(1)
            return self

    processor = exposing(processor=Counted())
    assert processor.ttls is processor.ttls
    assert len(inits) == 1


def test_an_exposed_state_has_the_ttl_that_the_processor_gives_it_or_else_its_own() -> None:
    expose = {
        "last": ExposedValue(CELSIUS),
        "alerts": ExposedList(CELSIUS, ttl=HOUR_LONG, ttl_clock="event_time"),
        "hours": ExposedMap(HOUR, CELSIUS),
    }
    processors = Ttl(1_000, TtlClock.PROCESSING_TIME)
    assert exposing(expose=expose).ttls == {
        "last": processors,
        "alerts": Ttl(3_600_000, TtlClock.EVENT_TIME),
        "hours": None,
    }
    assert exposing(expose={"last": ExposedValue(CELSIUS, ttl=SECOND)}).ttls == {"last": processors}


@pytest.mark.parametrize(
    ("exposed", "message"),
    [
        (
            ExposedValue(CELSIUS, ttl=HOUR_LONG),
            r"ttl of 1:00:00 by processing_time, and .* one of 0:00:01 by processing_time; leave",
        ),
        (ExposedValue(CELSIUS, ttl=SECOND, ttl_clock="event_time"), "ttl of 0:00:01 by event_time, and the processor"),
        (ExposedValue(CELSIUS, ttl=timedelta(0)), "state 'last': ttl is .* it must be a timedelta of 1 ms or more"),
        (ExposedValue(CELSIUS, ttl=60), "state 'last': ttl is 60; it must be a timedelta"),  # type: ignore[arg-type]
        (ExposedValue(CELSIUS, ttl=SECOND, ttl_clock="wall"), "ttl_clock is 'wall'; it must be one of"),  # type: ignore[arg-type]
        (ExposedValue(CELSIUS, ttl_clock="event_time"), "state 'last': ttl_clock is given and ttl is not"),
    ],
)
def test_a_ttl_that_is_not_the_processors_or_none_at_all_is_refused_by_the_states_name(
    exposed: ExposedValue, message: str
) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        _ = exposing(expose={"last": exposed}).ttls


def test_a_state_that_readers_know_by_another_name_has_that_everywhere_outside_of_the_processor() -> None:
    given = {"last": ExposedValue(CELSIUS, name="newest"), "hours": ExposedMap(HOUR, CELSIUS, name="last")}
    processor = exposing(expose=given)
    assert {state.name: (state.variable, state.kind) for state in processor.states} == {
        "newest": ("last", "value"),
        "last": ("hours", "map"),
    }
    assert {state: None if ttl is None else ttl.ms for state, ttl in processor.ttls.items()} == {
        "newest": 1000,
        "last": None,
    }
    key = StructType().add("sensor", "string")
    batch = output_schema(key, key, processor.states)
    assert changes_schema("last", batch).names == ["_keyhole_op", "sensor", "hour", "celsius"]
    sink = queryable.exposed(processor, config=JobConfig("app", ("127.0.0.1:7410",), "127.0.0.1:9092"))
    assert [part.declaration.state for part in sink.parts_alone()] == ["newest", "last"]


def test_a_column_that_spark_can_not_keep_is_refused_by_its_state_and_its_name() -> None:
    """Spark would end the first batch, with "Illegal initial character: $x" and not a word of the state."""
    refused = [name for name in OF_KEYS if not re.fullmatch(r"[^\W\d]\w*", name)]
    assert {"$schema", "a.b", "1", "a b", "-1"} < {*refused} < {*OF_KEYS}
    for name in ["", *OF_KEYS]:
        of = StructType().add(name, "long")
        exposes: list[Any] = [ExposedValue(of), ExposedList(of), ExposedMap(of, CELSIUS), ExposedMap(CELSIUS, of)]
        within = of, ArrayType(of), MapType(StringType(), of)
        exposes += [ExposedValue(StructType().add("v", kind)) for kind in within]
        for exposed in exposes:
            if name and name not in refused:
                assert exposing(expose={"last": exposed}).states
                continue
            with pytest.raises(
                InvalidConfiguration, match="state 'last': Spark can't keep a column or field"
            ) as caught:
                _ = exposing(expose={"last": exposed}).states
            assert caught.value.facts["column"] == name
