"""What a data frame of a state is asked for, from Spark's words to the scan's: no Spark session, no server."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pyspark.sql import types as spark

from keyhole.encoding.predicate_text import parsed_where
from keyhole.errors import InvalidConfiguration
from keyhole.model.predicates import field
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.security.credentials import PLAIN, Credentials
from keyhole.spark.worker.state_reading import ReadingOptions, StateToRead, options_of

_VALUE = (ValueField("n", "bigint"), ValueField("x", "double"), ValueField("place", "struct<floor:int>"))
STATE = StateDescriptor(
    "shop", "counts", "q", StateKind.VALUE, 10, (KeyColumn("k", KeyType.STRING),), ValueSchema(1, _VALUE)
)
ASKED = {"path": "shop/counts", "proxy": "localhost:7400"}


def reading(**options: str) -> StateToRead:
    return StateToRead(options_of({**ASKED, **options}), STATE, spark.StructType())


def test_comparisons_are_read_line_by_line_and_go_to_the_tasks() -> None:
    options = options_of({**ASKED, "where": " n > 3 \n\nplace.floor is null\n"})
    assert options.where == ("n > 3", "place.floor is null")
    asked = StateToRead(options, STATE, spark.StructType(), parsed_where(STATE, options.where))
    assert pickle.loads(pickle.dumps(asked)).where == (field("n") > 3) & field("place", "floor").is_null()


@pytest.mark.parametrize(("tasks", "parts"), [("1", [10]), ("3", [3, 3, 4]), ("10", [1] * 10), ("99", [1] * 10)])
def test_the_tasks_share_all_key_groups_and_no_two_read_the_same(tasks: str, parts: list[int]) -> None:
    epoch, planned = reading(tasks=tasks, snapshot="false").planned()
    assert epoch == 0
    assert [len(of) for of in planned] == parts
    assert [group for of in planned for group in of] == list(range(10))


def test_options_are_read_by_their_names_and_those_of_security_too() -> None:
    assert options_of(ASKED) == ReadingOptions(("shop", "counts"), "localhost:7400", 0, True, (), 8, 60.0, PLAIN)
    given = {**ASKED, "as_of": "7", "snapshot": "off", "tasks": "0", "timeout": "2.5"}
    secured = {"tls_ca": "/ca.pem", "token_file": "/token"}
    assert options_of(given | secured) == ReadingOptions(
        ("shop", "counts"),
        "localhost:7400",
        7,
        False,
        (),
        1,
        2.5,
        Credentials(tls_ca="/ca.pem", token_file="/token"),
    )
    assert options_of({**ASKED, "tls": "false", "token_file": "/token"}).credentials == Credentials(
        tls=False, token_file="/token"
    )


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"path": ""}, "no state is named"),
        ({"proxy": ""}, "option proxy is missing"),
        ({"prxy": "x"}, "no option 'prxy'; there are proxy"),
        ({"as_of": "1.5"}, "as_of is '1.5'"),
        ({"tasks": "-1"}, "tasks is '-1'"),
        ({"snapshot": "maybe"}, "snapshot is 'maybe'"),
        ({"timeout": "soon"}, "timeout is 'soon'"),
        ({"timeout": "inf"}, "timeout is 'inf'"),
        ({"path": "counts"}, "names no state"),
    ],
)
def test_a_wrong_option_is_refused_by_its_name(options: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidConfiguration, match=why):
        options_of(ASKED | options)
