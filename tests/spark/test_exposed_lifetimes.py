"""How long the exposed states of a processor live: as the processor says, or as their declaration does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from keyhole import Client
from keyhole.model.state import TtlClock
from keyhole.spark import queryable
from tests.support.micro_batches import session_settings
from tests.support.streams import RunUntil, Service, Stream
from tests.support.waiting import LONG_SECONDS

pytestmark = pytest.mark.usefixtures("rocksdb")


class Forgetful(StatefulProcessor):
    """Three states that take every row; Spark forgets what is in the first one after a millisecond."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._brief = handle.getMapState("brief", "n bigint", "v bigint", 1)
        self._states = [handle.getValueState(name, "v bigint") for name in ("daily", "lasting")]

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        for row in rows:
            self._brief.updateValue((1,), (row.v,))
            for state in self._states:
                state.update((row.v,))
        return iter(())

    def close(self) -> None:
        pass


DAY = timedelta(days=1)
EXPOSED: Any = {
    "brief": queryable.ExposedMap("n bigint", "v bigint"),
    "daily": queryable.ExposedValue("v bigint", ttl=DAY),
    "lasting": queryable.ExposedValue("v bigint"),
}


def entries(client: Client, application: str) -> dict[str, int]:
    """What the server's stores hold, expired or not."""
    held = [holding for server in client.status() for holding in server.holdings]
    return {of.descriptor.state: of.entries for of in held if of.descriptor.application == application}


def test_each_exposed_state_lives_as_its_processor_or_its_declaration_says(
    spark: SparkSession, stream: Stream, run_until: RunUntil, service: Service, application: str
) -> None:
    exposing = queryable.QueryableProcessor(Forgetful(), key="k", expose=EXPOSED)
    sink = queryable.exposed(exposing, key_groups=4, config=service.config(application))
    data = stream("k string, v bigint", [[{"k": "a", "v": 1}], [{"k": "b", "v": 2}]])
    seen: list[tuple[dict[str, list[bool]], dict[str, int]]] = []
    enough = threading.Event()

    def feed(batch: DataFrame, batch_id: int) -> None:
        sink(batch, batch_id)
        with Client(service.proxy, timeout=LONG_SECONDS) as client:
            found = {
                state: [client.get(application, state, key).found for key in keys]
                for state, keys in {"brief": [("a", 1), ("b", 1)], "daily": "ab", "lasting": "ab"}.items()
            }
            seen.append((found, entries(client, application)))
        if batch_id == 2:
            enough.set()

    changes = exposing.transform(data, "k string", time_mode="processingTime")
    with session_settings(spark, {"spark.sql.shuffle.partitions": "2"}):
        run_until(changes, "update", feed, enough)
    both, first, neither = [True, True], [True, False], [False, False]
    assert seen[:3] == [
        # Hidden at once, and removed along with the next epochs, also with one that has no rows.
        ({"brief": neither, "daily": first, "lasting": first}, {"brief": 1, "daily": 1, "lasting": 1}),
        ({"brief": neither, "daily": both, "lasting": both}, {"brief": 1, "daily": 2, "lasting": 2}),
        ({"brief": neither, "daily": both, "lasting": both}, {"brief": 0, "daily": 2, "lasting": 2}),
    ]
    with Client(service.proxy, timeout=LONG_SECONDS) as client:
        ttls = {state: client.describe_state(application, state) for state in EXPOSED}
    assert {state: of.ttl_ms for state, of in ttls.items()} == {"brief": 1, "daily": 86_400_000, "lasting": 0}
    assert {of.ttl_clock for of in ttls.values()} == {TtlClock.PROCESSING_TIME}


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("clock", ["processing_time", "event_time"])
def test_the_ttl_given_to_all_is_of_those_that_have_none_of_their_own(
    service: Service, application: str, clock: Any
) -> None:
    exposing = queryable.QueryableProcessor(Forgetful(), key="k", expose=EXPOSED)
    config = service.config(application)
    sink = queryable.exposed(exposing, ttl=timedelta(hours=1), ttl_clock=clock, config=config)
    declared = {part.declaration.state: part.declaration for part in sink.parts_alone()}
    assert {state: (of.ttl_ms, of.ttl_clock) for state, of in declared.items()} == {
        "brief": (1, "processing_time"),
        "daily": (86_400_000, "processing_time"),
        "lasting": (3_600_000, clock),
    }
