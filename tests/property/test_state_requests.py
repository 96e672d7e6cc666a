"""What a processor finds and leaves in Spark's state server, where keys wait for each other and where they don't."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.streaming.stateful_processor_api_client import StatefulProcessorApiClient
from pyspark.sql.streaming.stateful_processor_util import TransformWithStateInPandasFuncMode as Mode
from pyspark.sql.streaming.stateful_processor_util import TransformWithStateInPandasUdfUtils
from pyspark.sql.types import StructType

from keyhole.spark.worker.processor_task import MOST_WAITING_ROWS, RecordingProcessor, RecordingUdf, RowOutput
from keyhole.spark.worker.state_requests import MOST_KEYS, MOST_QUESTION_BYTES
from tests.support.spark_state_server import NOW, REFUSED, SparkStateServer

pytestmark = pytest.mark.core

KEY = StructType().add("key", "string")
VALUE = StructType().add("text", "string")
STATES = ("a", "b")

Step = tuple[str, str, str]
"""What is done, with which state, with which text."""

Task = list[tuple[str, list[Step]]]
"""The keys of a batch, and a row of each for each step."""


class Steps(StatefulProcessor):
    """Does what its rows say, and gives out what it finds."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._states = {state: handle.getValueState(state, VALUE) for state in STATES}

    def handleInputRows(self, key: tuple[str], rows: Iterator[Step], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        for act, state, text in rows:
            match act:
                case "get":
                    yield Row(key=key[0], found=repr(self._states[state].get()))
                case "exists":
                    yield Row(key=key[0], found=repr(self._states[state].exists()))
                case "update":
                    self._states[state].update((text,))
                case "clear":
                    self._states[state].clear()
                case "timer":
                    self._handle.registerTimer(NOW - 1 + len(text))
                case "time":
                    yield Row(key=key[0], found=repr(timerValues.getCurrentProcessingTimeInMs()))

    def handleExpiredTimer(  # noqa: N802
        self,
        key: tuple[str],
        timerValues: Any,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: N803
    ) -> Iterator[Row]:
        yield Row(key=key[0], found=repr(self._states["a"].get()))
        self._states["b"].update((str(expiredTimerInfo.getExpiryTimeInMs()),))

    def close(self) -> None:
        pass


class Run:
    """Batch after batch on one state server, each by a client of its own, as Spark's tasks have."""

    def __init__(self, directory: Path, name: str, *, together: bool) -> None:
        self.server = SparkStateServer(directory / name)
        self.waits = 0
        self._together = together

    def batch(self, task: Task) -> list[Row]:
        client = StatefulProcessorApiClient(self.server.path, KEY)
        flush = client.sockfile.flush

        def counting() -> None:
            self.waits += 1
            flush()

        client.sockfile.flush = counting  # type: ignore[method-assign]
        processor = Steps()
        udf: Any
        if self._together:
            udf = RecordingUdf(RecordingProcessor(processor, [], KEY, RowOutput()), "ProcessingTime", waits=True)
        else:
            udf = TransformWithStateInPandasUdfUtils(processor, "ProcessingTime")
        given: list[Row] = []
        try:
            for key, steps in task:
                given += udf.transformWithStateUDF(client, Mode.PROCESS_DATA, (key,), iter(steps))
            given += udf.transformWithStateUDF(client, Mode.PROCESS_TIMER, None, None)
            given += udf.transformWithStateUDF(client, Mode.COMPLETE, None, None)
        finally:
            client.sockfile.close()
            client._client_socket.close()
        return given


def both(batches: Sequence[Task]) -> tuple[Run, Run]:
    """By Spark's own way and by ours: what is given out and what is there afterwards is the same."""
    with tempfile.TemporaryDirectory() as name:
        plain = Run(Path(name), "plain", together=False)
        ours = Run(Path(name), "ours", together=True)
        try:
            for task in batches:
                assert ours.batch(task) == plain.batch(task)
                assert ours.server.values == plain.server.values
                assert ours.server.timers == plain.server.timers
        finally:
            plain.server.close()
            ours.server.close()
    return plain, ours


steps = st.tuples(
    st.sampled_from(["get", "get", "exists", "update", "update", "clear", "timer", "time"]),
    st.sampled_from(STATES),
    st.text(max_size=3),
)
tasks = st.lists(
    st.tuples(st.text(max_size=2), st.lists(steps, min_size=1, max_size=5)), max_size=40, unique_by=lambda of: of[0]
)


@given(st.lists(tasks, max_size=3))
def test_a_processor_finds_and_leaves_the_same_where_keys_wait_for_each_other(batches: list[Task]) -> None:
    both(batches)


def counting(keys: int, text: str = "") -> Task:
    return [(f"{number}{text}", [("get", "a", ""), ("update", "a", str(number))]) for number in range(keys)]


def test_a_thousand_keys_are_waited_for_some_dozens_of_times() -> None:
    plain, ours = both([counting(1000), counting(1000)])
    assert plain.waits > 2 * 3 * 1000
    assert ours.waits < 2 * 3 * 1000 / MOST_KEYS


def test_values_and_keys_that_fill_every_buffer_on_the_way_go_through() -> None:
    long = "k" * (MOST_QUESTION_BYTES // 3)
    big = "v" * 400_000
    keys = [(f"{number}{long if number % 3 else ''}") for number in range(3 * MOST_KEYS)]
    both([[(key, [("get", "a", ""), ("update", "a", big)]) for key in keys]] * 2)


def test_a_key_of_more_rows_than_may_wait_is_taken_row_by_row() -> None:
    many: list[Step] = [("update", "a", ""), ("get", "a", "")] * MOST_WAITING_ROWS
    both([[("before", many[:2]), ("long", many), ("behind", many[:2])]])

    taken = 0

    def rows() -> Iterator[Step]:
        nonlocal taken
        for step in many:
            taken += 1
            yield step

    with tempfile.TemporaryDirectory() as name:
        server = SparkStateServer(Path(name, "server"))
        udf = RecordingUdf(RecordingProcessor(Steps(), [], KEY, RowOutput()), "None", waits=True)
        client = StatefulProcessorApiClient(server.path, KEY)
        given = udf.transformWithStateUDF(client, Mode.PROCESS_DATA, ("long",), rows())
        next(given)
        assert taken == MOST_WAITING_ROWS, "as many as may wait, and no more before they are needed"
        client.sockfile.close()
        client._client_socket.close()
        server.close()


@pytest.mark.parametrize("together", [False, True])
def test_an_update_that_the_state_server_refuses_fails_the_task_by_its_words(tmp_path: Path, together: bool) -> None:
    run = Run(tmp_path, "server", together=together)
    with pytest.raises(PySparkRuntimeError, match="Error updating value state: not this one"):
        run.batch([("a", [("update", "a", REFUSED.decode())]), ("b", [("update", "a", "")])])
    run.server.close()


def test_what_is_asked_for_seldom_is_not_read_for_all_keys() -> None:
    task: Task = [
        (str(number), [("get", "a", ""), *([("get", "b", "")] if number % 10 == 9 else [])]) for number in range(200)
    ]
    _, ours = both([task])
    assert ours.server.gets["a"] == 200
    assert ours.server.gets["b"] == 20
