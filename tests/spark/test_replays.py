"""A batch that Spark runs again and that gives other rows: found out, logged or refused, and never committed twice."""

from __future__ import annotations

import time
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from keyhole import Client
from keyhole.errors import ReplayDiffers
from keyhole.spark import queryable
from tests.support.streams import RunQuery, Service, Stream

KEYS = ["a", "b", "c"]
ROWS = [{"k": key, "v": number} for number, key in enumerate(KEYS)]


class Stamped:
    """When the rows were added: another time whenever a batch is run, though it says that nothing but rows shows."""

    commutative = True

    def create(self) -> list[int]:
        return []

    def add(self, accumulator: list[int], row: Any) -> list[int]:
        return [*accumulator, time.time_ns()]

    def merge(self, one: list[int], other: list[int]) -> list[int]:
        return sorted([*one, *other])

    def result(self, accumulator: list[int]) -> list[list[int]]:
        return [accumulator]


class Unknown(Exception):
    """Raised where an epoch is complete and Spark doesn't know it yet."""


@pytest.mark.parametrize("strict", [False, True])
def test_an_aggregate_that_depends_on_time_is_found_out_when_its_batch_is_run_again(
    stream: Stream,
    run_query: RunQuery,
    service: Service,
    application: str,
    caplog: pytest.LogCaptureFixture,
    strict: bool,
) -> None:
    def sink() -> queryable.Sink:
        return queryable.aggregating(
            "stamped",
            key="k",
            aggregator=Stamped(),
            result="times array<bigint>",
            strict=strict,
            key_groups=1,
            config=service.config(application),
        )

    def times() -> list[tuple[int, ...]]:
        with Client(service.proxy) as client:
            return [answer.value.times for answer in client.get_many(application, "stamped", KEYS)]

    data, first, again = stream("k string, v long", [ROWS, ROWS]), sink(), sink()

    def stops_at_once(batch: DataFrame, batch_id: int) -> None:
        first(batch, batch_id)
        raise Unknown

    with pytest.raises(StreamingQueryException, match="Unknown"):
        run_query(data, "append", stops_at_once, name="stamping")
    committed = times()
    assert [len(of) for of in committed] == [1, 1, 1]
    if strict:
        with pytest.raises(StreamingQueryException, match=r"stamped key group 0.* start the job with strict=False"):
            run_query(data, "append", again, name="stamping")
        assert isinstance(again.failure, ReplayDiffers)
        assert times() == committed
    else:
        run_query(data, "append", again, name="stamping")
        assert [(len(of), of[0]) for of in times()] == [(2, before[0]) for before in committed]
    (told,) = [record for record in caplog.records if record.message == "a replay differs"]
    assert (told.__dict__["which"], told.__dict__["epoch"]) == ("stamped key group 0", 1)
