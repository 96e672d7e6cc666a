"""What may become of a value's schema, and what rows of earlier ones are read as."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import msgspec
import pytest

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.row_codec import encode_row
from keyhole.errors import StaleDescriptor, StateChanged, ValueMismatch
from keyhole.model.epoch import START, Position
from keyhole.model.evolution import evolved, succeeds, widens
from keyhole.model.state import StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.stores.base import Advance, Batch, Snapshot
from keyhole.stores.memory import MemoryEngine
from services.state_server.write.merge import merge_of
from tests.support.states import EPOCH, descriptor


def declared(*fields: ValueField | tuple[str, str], **changes: object) -> StateDescriptor:
    """As a job declares it: always version 1."""
    made = tuple(field if isinstance(field, ValueField) else ValueField(*field) for field in fields)
    return descriptor(value=ValueSchema(1, made), **changes)


def reducing(**reducers: str) -> StateDescriptor:
    """Fields of bigints."""
    fields = [(name, "bigint") for name in reducers]
    return declared(*fields, kind=StateKind.REDUCING, reducers=tuple(reducers.values()))


def chain(*versions: StateDescriptor) -> StateDescriptor:
    """The last one, evolved from the others one after the other."""
    stored, *later = versions
    for wanted in later:
        stored = evolved(stored, wanted)
    return stored


def default(value: object) -> bytes:
    return msgspec.msgpack.encode(value)


def holding(rows: dict[bytes, bytes]) -> Snapshot:
    """What is stored of key group 0."""
    store = MemoryEngine().open("app", "counts", "topic")
    store.apply(Batch(puts=sorted(rows.items()), deletes=[], advances={0: Advance(START, Position(1, 1, 1, 0))}))
    return store.snapshot()


N = ("n", "bigint")


class TestEvolved:
    def test_the_same_fields_keep_their_version(self) -> None:
        stored = chain(declared(N), declared(N, ("m", "string")))
        assert evolved(stored, declared(N, ("m", "string"))) == stored
        assert stored.value.version == 2

    @pytest.mark.parametrize(
        "fields",
        [
            [N, ("s", "string"), ("new", "int")],
            [N],
            [("s", "string"), N],
            [("new", "date"), ("s", "string")],
        ],
        ids=["added", "dropped", "reordered", "all of it"],
    )
    def test_other_fields_are_a_version_of_their_own_after_the_one_that_is_stored(
        self, fields: list[tuple[str, str]]
    ) -> None:
        stored = descriptor(value=ValueSchema(3, (ValueField(*N), ValueField("s", "string"))), topic_id="t")
        found = evolved(stored, declared(*fields))
        assert (found.value.version, [(field.name, field.type) for field in found.value.fields]) == (4, fields)
        assert (found.earlier, found.topic_id) == ((stored.value,), "t")

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ("tinyint", "smallint"),
            ("smallint", "int"),
            ("int", "bigint"),
            ("tinyint", "bigint"),
            ("float", "double"),
            ("array<int>", "array<bigint>"),
            ("map<int,float>", "map<bigint,double>"),
            ("struct<int:int,b:array<float>>", "struct<int:bigint,b:array<double>>"),
        ],
    )
    def test_a_type_may_get_wider(self, before: str, after: str) -> None:
        assert evolved(declared(("v", before)), declared(("v", after))).value.version == 2
        assert not widens(after, before)

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ("bigint", "int"),
            ("double", "float"),
            ("int", "double"),
            ("int", "string"),
            ("decimal(10,2)", "decimal(12,2)"),
            ("date", "timestamp"),
            ("struct<a:int>", "struct<b:int>"),
            ("struct<int:int>", "struct<bigint:int>"),
            ("struct<a:int>", "struct<a:int,b:int>"),
            ("array<int>", "int"),
            ("int", "array<int>"),
        ],
    )
    def test_any_other_type_is_refused_by_the_fields_name_with_what_to_do(self, before: str, after: str) -> None:
        with pytest.raises(StateChanged) as caught:
            evolved(declared(N, ("v", before)), declared(N, ("v", after)))
        assert f"field 'v' was {before} and is {after}" in caught.value.message
        assert "under another name" in caught.value.message
        assert caught.value.facts == {"state": "app/counts", "fields": "v"}

    def test_all_fields_that_are_wrong_are_named(self) -> None:
        with pytest.raises(StateChanged, match=r"'a' was.*'b' was") as caught:
            evolved(declared(("a", "int"), ("b", "int"), N), declared(("a", "string"), ("b", "date"), N))
        assert caught.value.facts["fields"] == "a, b"

    def test_a_field_that_may_have_been_null_stays_nullable(self) -> None:
        never, perhaps = declared(ValueField("n", "int", False)), declared(ValueField("n", "int", True))
        assert evolved(never, perhaps).value == ValueSchema(2, perhaps.value.fields)
        assert evolved(perhaps, never) == perhaps

    def test_a_new_field_is_nullable_unless_it_has_a_default(self) -> None:
        wanted = declared(N, ValueField("a", "int", False), ValueField("b", "int", False, default(5)))
        _, a, b = evolved(declared(N), wanted).value.fields
        assert (a.nullable, b.nullable) == (True, False)

    def test_a_default_counts_where_its_field_is_added_and_not_later(self) -> None:
        first = chain(declared(N), declared(N, ValueField("m", "int", True, default(5))))
        assert evolved(first, declared(N, ValueField("m", "int", True, default(6)))) == first
        assert evolved(first, declared(N, ("m", "int"))) == first

    def test_fields_that_are_reduced_come_and_go_with_their_reducers(self) -> None:
        found = chain(reducing(a="sum", b="max"), reducing(c="min", b="max", d="sum"))
        assert [field.name for field in found.value.fields] == ["c", "b", "d"]
        assert found.reducers == ("min", "max", "sum")

    def test_another_reducer_is_refused_by_the_fields_name(self) -> None:
        with pytest.raises(StateChanged, match=r"field 'b' was reduced by max and is by min, .* back to max") as caught:
            evolved(reducing(a="sum", b="max"), reducing(b="min", a="sum"))
        assert caught.value.facts["fields"] == "b"

    def test_an_older_descriptor_or_that_of_another_topic_does_not_succeed_one(self) -> None:
        known = chain(descriptor(topic_id="t"), declared(("m", "int")))
        assert succeeds(known, known)
        assert not succeeds(descriptor(topic_id="t"), known)
        assert not succeeds(msgspec.structs.replace(known, topic_id="u"), known)


class TestRead:
    def test_a_row_is_read_as_one_of_the_newest_schema_whichever_it_is_of(self) -> None:
        newest = chain(
            declared(("a", "int"), ("b", "string"), ("c", "float")),
            declared(("c", "double"), ("a", "bigint"), ValueField("unit", "string", True, default("C"))),
            declared(("unit", "string"), ("a", "bigint"), ("at", "date"), ("c", "double")),
        )
        codec = StateCodec(newest)
        wanted = {"unit": "C", "a": 1, "at": None, "c": 2.5}
        rows = [
            codec.decode_row(encode_row(1, [1, "gone", 2.5])),
            codec.decode_row(encode_row(2, [2.5, 1, "C"])),
            codec.decode_row(encode_row(3, ["C", 1, None, 2.5])),
        ]
        assert [row.asdict() for row in rows] == [wanted] * 3
        assert rows[0] == rows[1] == rows[2]
        assert codec.rows.to_json(encode_row(1, [1, "gone", 2.5])) == '{"unit":"C","a":1,"at":null,"c":2.5}'
        assert codec.rows.stored_fields(encode_row(1, [1, "gone", 2.5])) == ("C", 1, None, 2.5)

    def test_a_single_field_is_read_too(self) -> None:
        codec = StateCodec(chain(declared(N, ("m", "int")), declared(("m", "int")), declared(("k2", "date"))))
        assert codec.decode_row(encode_row(1, [1, 2])).asdict() == {"k2": None}
        assert codec.decode_row(encode_row(2, [2])).asdict() == {"k2": None}

    def test_what_was_dropped_does_not_come_back_with_a_field_of_its_name(self) -> None:
        """Its type may be another one."""
        newest = chain(declared(N, ("m", "string")), declared(N), declared(N, ValueField("m", "int", True, default(7))))
        codec = StateCodec(newest)
        assert codec.decode_row(encode_row(1, [1, "other"])).asdict() == {"n": 1, "m": 7}
        assert codec.decode_row(encode_row(2, [1])).asdict() == {"n": 1, "m": 7}
        assert codec.decode_row(encode_row(3, [1, 2])).asdict() == {"n": 1, "m": 2}

    def test_fields_and_defaults_are_read_as_their_types_are(self) -> None:
        added = (
            ValueField("d", "date", True, default(3)),
            ValueField("x", "decimal(10,2)", True, default("1.50")),
            ValueField("l", "array<int>", True, default([1, None])),
            ValueField("m", "map<string,date>", True, default([["k", 3]])),
            ValueField("s", "struct<a:int,b:timestamp>", True, default([1, 0])),
        )
        codec = StateCodec(chain(declared(("at", "date")), declared(("at", "date"), *added)))
        row = codec.decode_row(encode_row(1, [5]))
        assert (row.at, row.d, row.x, row.l) == (dt.date(1970, 1, 6), dt.date(1970, 1, 4), Decimal("1.50"), (1, None))
        assert (dict(row.m), row.s.a, row.s.b) == (
            {"k": dt.date(1970, 1, 4)},
            1,
            dt.datetime(1970, 1, 1, tzinfo=dt.UTC),
        )

    @pytest.mark.parametrize("data", [encode_row(1, [1, 2]), encode_row(2, [1]), encode_row(0, [1]), b"", b"\xc1"])
    def test_a_row_that_is_of_none_of_the_schemas_is_refused(self, data: bytes) -> None:
        with pytest.raises(ValueMismatch, match="app/counts"):
            StateCodec(chain(declared(N), declared(N, ("m", "int")))).decode_row(data)

    def test_a_row_of_a_newer_schema_says_that_the_description_is_old(self) -> None:
        for codec in (StateCodec(declared(N)), StateCodec(chain(declared(N), declared(N, ("m", "int"))))):
            for read in (codec.decode_row, codec.rows.to_json):
                with pytest.raises(StaleDescriptor, match="is of schema version 3"):
                    read(encode_row(3, [1, 2, 3]))

    def test_more_versions_than_a_byte_holds_are_read(self) -> None:
        schemas = tuple(ValueSchema(version, (ValueField(*N),)) for version in range(1, 400))
        codec = StateCodec(descriptor(value=schemas[-1], earlier=schemas[:-1]))
        assert [codec.decode_row(encode_row(version, [version])).n for version in (1, 127, 128, 256, 399)] == [
            1,
            127,
            128,
            256,
            399,
        ]


class TestMerge:
    def test_sums_go_on_from_rows_of_earlier_schemas(self) -> None:
        of = chain(reducing(a="sum", b="sum"), reducing(b="sum", c="sum"))
        stored = holding({b"\0\0x": encode_row(1, [1, 10]), b"\0\0y": encode_row(2, [20, 200])})
        rows = {b"\0\0x": encode_row(2, [1, 5]), b"\0\0y": encode_row(2, [1, 5]), b"\0\0z": encode_row(2, [1, 5])}
        assert merge_of(of).with_stored(rows, stored, EPOCH) == [
            (b"\0\0x", encode_row(2, [11, 5])),
            (b"\0\0y", encode_row(2, [21, 205])),
            (b"\0\0z", encode_row(2, [1, 5])),
        ]

    def test_a_default_is_what_a_sum_begins_with(self) -> None:
        wanted = declared(
            N, ValueField("m", "bigint", True, default(100)), kind=StateKind.REDUCING, reducers=("sum", "sum")
        )
        of = chain(reducing(n="sum"), wanted)
        stored = holding({b"\0\0x": encode_row(1, [1])})
        assert merge_of(of).with_stored({b"\0\0x": encode_row(2, [1, 5])}, stored, EPOCH) == [
            (b"\0\0x", encode_row(2, [2, 105]))
        ]

    def test_the_value_beside_a_maximum_is_null_until_a_row_has_brought_one(self) -> None:
        of = chain(reducing(at="max"), reducing(at="max", v="max_by(at)"))
        stored = holding({b"\0\0x": encode_row(1, [5]), b"\0\0y": encode_row(1, [5])})
        rows = {b"\0\0x": encode_row(2, [4, 40]), b"\0\0y": encode_row(2, [6, 60])}
        assert merge_of(of).with_stored(rows, stored, EPOCH) == [
            (b"\0\0x", encode_row(2, [5, None])),
            (b"\0\0y", encode_row(2, [6, 60])),
        ]

    def test_the_highest_row_is_found_among_rows_of_all_schemas(self) -> None:
        of = chain(declared(("v", "string"), ("n", "int"), order_by="n"), declared(("n", "bigint"), order_by="n"))
        stored = holding({b"\0\0x": encode_row(1, ["a", 5]), b"\0\0y": encode_row(1, ["a", 5])})
        rows = {b"\0\0x": encode_row(2, [4]), b"\0\0y": encode_row(2, [1 << 40])}
        assert merge_of(of).with_stored(rows, stored, EPOCH) == [(b"\0\0y", encode_row(2, [1 << 40]))]

    def test_a_row_of_no_schema_of_the_state_can_not_be_merged(self) -> None:
        merge = merge_of(chain(reducing(a="sum"), reducing(a="sum", b="sum")))
        for row in (encode_row(3, [1, 2, 3]), encode_row(0, [1]), encode_row(1, ["secret"]), b""):
            with pytest.raises(ValueMismatch) as caught:
                merge.staged(row, encode_row(2, [1, 1]))
            assert "secret" not in str(caught.value)
