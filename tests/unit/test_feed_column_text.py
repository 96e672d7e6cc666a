"""How `keyhole feed` is told of columns whose names have the signs in them that part a name from what is behind it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole.cli.feed import feed_options
from keyhole.errors import InvalidConfiguration, ValueMismatch
from keyhole.feed.column_text import column_and_type, column_and_value, column_name, quoted, reduced_column
from keyhole.feed.feed_options import FeedOptions, describe
from keyhole.feed.mapping import RecordMapper
from keyhole.feed.rows import SourceRecord
from tests.support.examples import examples
from tests.support.hostile_names import OF_KEYS
from tests.support.known_commands import known_commands
from tests.support.of_all import of_all

ODD = ["net:eur", "a=b", ":", "=", '"', 'the "net"', "a:b=c", "max_by(a:b)", "größe:日", "a b", "sum=sum:sum"]


def options_of(*words: str) -> FeedOptions:
    return feed_options(known_commands().parse_args(["feed", "shop/odd", "--topic", "orders", *words]))


def update(options: FeedOptions, row: dict[str, object]) -> tuple[object, object, object]:
    """The key, the map key and the value that a record of this row comes to."""
    of = RecordMapper(describe(options), options.format, "src", columns=options.columns)
    (made,) = of.updates(SourceRecord(0, 1, None, json.dumps(row).encode()))
    return made.record.key, made.record.map_key, made.record.value


@of_all(dict.fromkeys([*ODD, *OF_KEYS]))
def test_a_column_of_any_name_can_be_key_map_key_value_order_index_or_reduced(name: str) -> None:
    spelled = quoted(name)
    of = options_of("--key", f"{spelled}:bigint", "--value", "n")
    assert update(of, {name: 7, "n": "x"}) == ([7], None, ["x"])
    of = options_of("--key", "id", "--map-key", spelled, "--value", f"{quoted(name + '2')}:double")
    assert update(of, {"id": "c", name: "m", name + "2": 1.5}) == (["c"], ["m"], [1.5])
    of = options_of("--key", "id", "--value", f"{spelled}:bigint", "--order-by", spelled, "--index", spelled)
    assert (describe(of).order_by, describe(of).index) == (name, (name,))
    assert update(of, {"id": "c", name: 5}) == (["c"], None, [5])
    of = options_of("--key", "id", "--reduce", f"{spelled}:bigint=sum", "--reduce", f"{quoted(name + '2')}=count")
    assert describe(of).reducers == ("sum", "count")
    assert update(of, {"id": "c", name: 5, name + "2": "x"}) == (["c"], None, [5, 1])
    of = options_of(
        "--key", "id", "--reduce", f"{quoted(name + '2')}=sum:{spelled}:bigint", "--reduce", f"n=last:{spelled}"
    )
    assert [field.name for field in describe(of).value.fields] == [name + "2", "n"]
    assert of.columns == (name, name)


@given(st.text(min_size=1), st.text(min_size=1), st.sampled_from(["sum", "max_by(a:b)", "max_by(a=b)"]))
@settings(max_examples=examples(60), deadline=None)
def test_what_is_quoted_is_read_back(name: str, column: str, reducer: str) -> None:
    assert column_name(quoted(name)) == name
    assert column_and_type(f"{quoted(name)}:decimal(9,2)") == (name, "decimal(9,2)")
    assert column_and_type(quoted(name)) == (name, "")
    assert column_and_value(f"{quoted(name)}={column}") == (name, column)
    assert reduced_column(f"{quoted(name)}={reducer}:{quoted(column)}:int") == (name, reducer, column, "int")
    assert reduced_column(f"n={reducer}:{quoted(column)}:int") == ("n", reducer, column, "int")
    assert reduced_column(f"{quoted(name)}:int={reducer}") == (name, reducer, name, "int")


def test_a_bare_name_means_what_it_did() -> None:
    assert column_and_type("place:struct<lat:double,lon:double>") == ("place", "struct<lat:double,lon:double>")
    assert column_name("a:b=c") == "a:b=c"
    assert column_and_value("a:b=c=d") == ("a:b", "c=d")
    assert column_and_value("a") is None
    assert reduced_column("a=b=sum") == ("a=b", "sum", "a=b", "")
    assert reduced_column("who=max_by(a=b)") == ("who", "max_by(a=b)", "who", "")
    assert reduced_column("place:struct<lat:double>=last") == ("place", "last", "place", "struct<lat:double>")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--key", "a:b", "--value", "n"], "'a' is of type b, .* whose name is 'a:b' is written as .* '\"a:b\"'"),
        (["--key", "id", "--map-key", "a:b", "--value", "n"], "whose name is 'a:b' is written as"),
        (["--key", "id", "--value", "a:b"], "column 'a': a state can't hold values of type b.*'\"a:b\"'"),
        (["--key", "id", "--reduce", "a:b=sum"], "column 'a': a state can't hold values of type b.*'\"a:b\"'"),
        (["--key", "id", "--reduce", "n=sum:a:b"], "column 'n': a state can't hold values of type b"),
        (["--key", "id", "--reduce", "a:b"], "names no reducer.* written as a JSON string"),
        (["--key", '"a', "--value", "n"], "'\"a' begins with a quotation mark and is no JSON string"),
        (["--key", "id", "--value", '"a"b'], "begins with a quotation mark and is no JSON string"),
        (["--key", "id", "--value", "n", "--order-by", '"n"x'], "begins with a quotation mark"),
        (["--key", "id", "--reduce", '"a"'], "names no reducer"),
        (["--key", "id", "--reduce", '"a":int=sum:b'], "is not field=reducer:column"),
    ],
    ids=" ".join,
)
def test_a_name_that_could_be_meant_otherwise_is_refused_with_how_to_spell_it(words: list[str], says: str) -> None:
    with pytest.raises((InvalidConfiguration, ValueMismatch), match=says):
        describe(options_of(*words))
