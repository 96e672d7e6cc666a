"""Runs a processor's `init` in the driver, before there is a query, to see what it declares."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from pyspark.sql.streaming.stateful_processor import (
    ListState,
    MapState,
    StatefulProcessor,
    StatefulProcessorHandle,
    ValueState,
)
from pyspark.sql.types import StructType

from keyhole.spark.declaration.ttl import Ttl
from keyhole.spark.exposed import ExposedState
from keyhole.spark.worker.recording import Recorder, RecordingHandle


def check_init(processor: StatefulProcessor, exposed: Sequence[ExposedState]) -> Mapping[str, Ttl | None]:
    """Runs `init` and `close` on a copy of the processor, as Spark does in a process of its own when a query starts.

    What they raise, Spark's error of that time would only say in its causes. States can be declared and nothing else,
    which is all that Spark lets them do then.

    Returns:
        By exposed state, the ttl that `init` gives it; None: none. States have the names that readers know.

    Raises:
        InvalidConfiguration: `init` doesn't declare the states as they are exposed.
        Exception: What `init` and `close` raise.
    """
    other = copy.deepcopy(processor)
    handle = RecordingHandle(_Declaring(), {state.variable: state for state in exposed}, Recorder((), StructType()))
    other.init(handle)
    ttls = handle.check_all_declared()
    other.close()
    return ttls


class _Declaring(StatefulProcessorHandle):
    """Gives out states that have their schemas and no content."""

    def __init__(self) -> None:
        pass

    def getValueState(self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None) -> ValueState:  # noqa: N802, N803
        return ValueState(_client(schema=schema), stateName)

    def getListState(self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None) -> ListState:  # noqa: N802, N803
        return ListState(_client(schema=schema), stateName)

    def getMapState(  # noqa: N802
        self,
        stateName: str,  # noqa: N803
        userKeySchema: StructType | str,  # noqa: N803
        valueSchema: StructType | str,  # noqa: N803
        ttlDurationMs: int | None = None,  # noqa: N803
    ) -> MapState:
        return MapState(_client(user_key_schema=userKeySchema, value_schema=valueSchema), stateName)

    def deleteIfExists(self, stateName: str) -> None:  # noqa: N802, N803
        pass


def _client(**schemas: StructType | str) -> Any:
    return SimpleNamespace(
        **{name: StructType.fromDDL(schema) if isinstance(schema, str) else schema for name, schema in schemas.items()}
    )
