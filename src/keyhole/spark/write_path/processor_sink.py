"""The sink of a queryable processor: its exposed states, each under its name, and its own rows beside them."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from pyspark.sql import DataFrame

from keyhole.encoding.columnar import OP
from keyhole.errors import InvalidConfiguration
from keyhole.spark.changes import own_rows
from keyhole.spark.processor import QueryableProcessor
from keyhole.spark.sink import OnRows, Sink
from keyhole.spark.worker.stage import WriteRows
from keyhole.spark.write_path.builder import StateOptions, build, parted, query_sink
from keyhole.spark.write_path.sink_states import SinkState


def processor_sink(
    processor: QueryableProcessor, rows: OnRows | None, write: WriteRows | None, options: StateOptions
) -> Sink:
    """As queryable.exposed, which says what each argument is. Raises InvalidConfiguration."""
    if not isinstance(processor, QueryableProcessor):
        raise InvalidConfiguration(
            f"exposed takes a QueryableProcessor, not a {type(processor).__name__}: put it into "
            "QueryableProcessor(processor, key=..., expose={...})"
        )
    if own := sorted({"op", "delete_when", "codec", "defaults"} & options.keys()):
        raise InvalidConfiguration(f"{', '.join(own)} can't be given: the processor says what is done to its states")
    if "index" in options:
        raise InvalidConfiguration("index can't be given: states that a processor exposes have none")
    of_query, of_states = parted(options)
    parts: list[SinkState] = []
    for state in processor.states:
        alone: Any = {**of_states, "op": OP, "config": of_query.get("config")}
        map_key, value = tuple(state.map_key.names), tuple(state.value.names)
        ttl = processor.ttls[state.name]
        sink = build(state.kind, state.name, alone, ttl=ttl, key=processor.key, map_key=map_key, value=value)
        # With the first one: own rows are written once, in whatever passes the states are staged.
        to = None if parts else write
        parts += [dataclasses.replace(part, changes=True, write=to) for part in sink.parts_alone()]
    on_rows = None if rows is None else functools.partial(_own_rows, rows)
    return query_sink(parts, of_query, on_rows)


def _own_rows(rows: OnRows, batch: DataFrame, batch_id: int) -> None:
    rows(own_rows(batch), batch_id)
