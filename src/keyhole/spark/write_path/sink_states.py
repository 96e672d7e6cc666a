"""The states of a sink: what each is, and which of them one pass over a batch stages. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from keyhole.spark.declaration.declared import Declaration
from keyhole.spark.declaration.value_codec import ValueCodec
from keyhole.spark.driver.layout import HashLayout
from keyhole.spark.exposed import packed_key
from keyhole.spark.operators import Subtasks
from keyhole.spark.worker.aggregating import Aggregator
from keyhole.spark.worker.stage import WriteRows


@dataclass(frozen=True)
class SinkState:
    """One state of a sink.

    Attributes:
        aggregator: Of an aggregating state.
        subtasks: Of an operator state.
        codec: What makes the value, where the job does that itself.
        select: From the batch to the state's rows; None: they are the batch's.
        increments: The rows are what is new, whatever the query's output mode.
        changes: The rows are what a queryable processor gives out. The state's are its change rows among them, in the
            order in which they come. Of those that write one entry the last one stays, and one that clears a key clears
            what came before it.
        write: What else is done with the own rows of that processor, in the tasks.
    """

    declaration: Declaration
    aggregator: Aggregator | None = None
    subtasks: Subtasks | None = None
    codec: ValueCodec | None = None
    select: Callable[[DataFrame], DataFrame] | None = None
    increments: bool = False
    changes: bool = False
    write: WriteRows | None = None


def passes_of(parts: Sequence[SinkState]) -> list[tuple[SinkState, ...]]:
    """The states by the pass of the batch that stages them: those of one processor stand in the same rows."""
    passes: dict[Hashable, list[SinkState]] = {}
    for part in parts:
        declaration = part.declaration
        alone = part.select is not None or not part.changes
        place = declaration.state if alone else (declaration.key, declaration.key_groups)
        passes.setdefault(place, []).append(part)
    return list(map(tuple, passes.values()))


def runs(parts: Sequence[SinkState], layout: HashLayout | None) -> int:
    """How often staging these states once would run the plan of a batch that is so partitioned."""
    passes = passes_of(parts)
    return len(passes) + sum(write_of(of) is not None and not _stay_in_place(of[0], layout) for of in passes)


def _stay_in_place(part: SinkState, layout: HashLayout | None) -> bool:
    """Whether the change rows of its processor are in the partitions in which they are staged."""
    if part.select is not None or layout is None:
        return False
    return layout.has_key_groups(packed_key(part.declaration.key), part.declaration.key_groups)


def write_of(parts: Sequence[SinkState]) -> WriteRows | None:
    """What else one pass does with the own rows of the states' processor; None: nothing."""
    return next((part.write for part in parts if part.write is not None), None)
