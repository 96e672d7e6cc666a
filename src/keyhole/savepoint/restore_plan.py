"""How a savepoint becomes an application again: names, key groups, control records. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from keyhole.changelog.settings import CONTROL, topic_name
from keyhole.errors import SavepointMismatch
from keyhole.model.epoch import EpochStamp
from keyhole.model.state import MAX_KEY_GROUPS, StateDescriptor, StateKind
from keyhole.protocol.control import (
    CompleteRecord,
    GenerationRecord,
    QueryRecord,
    SavepointRecord,
    record,
    savepoints,
)
from keyhole.protocol.seen import FeedPosition
from keyhole.protocol.start import UPDATES
from keyhole.savepoint.manifest import SavedQuery, SavedState, Savepoint
from keyhole.savepoint.moved_lane import QueriedTopic, check_source, check_states, position_from
from keyhole.savepoint.subject import unusable

# As a job's names are checked (keyhole.model.names).
_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")


@dataclass(frozen=True)
class RestoreOptions:
    """What is to be otherwise than it was.

    Attributes:
        application: Its new name; empty: the old one.
        key_groups: By state (its name in the savepoint), how many it has from now on.
        states: The new names of states, by the old one.
        queries: The new names of queries, by the old one.
        checkpoints: By query (its name in the savepoint), the folder that Spark's checkpoint is laid down in.
        real_time: By query (its name in the savepoint) that goes on in the real-time lane, the topic that it reads.
    """

    application: str = ""
    key_groups: Mapping[str, int] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    queries: Mapping[str, str] = field(default_factory=dict)
    checkpoints: Mapping[str, str] = field(default_factory=dict)
    real_time: Mapping[str, QueriedTopic] = field(default_factory=dict)


@dataclass(frozen=True)
class PlannedState:
    """A state: what was saved, and what it is to be (its topic does not exist yet)."""

    saved: SavedState
    descriptor: StateDescriptor


@dataclass(frozen=True)
class PlannedQuery:
    """A query: what was saved, its name from now on, and where its checkpoint goes.

    Attributes:
        feed: Of a query that goes on in the real-time lane, which has no checkpoint: from where its key groups do.
        source: The topic that such a query reads.
    """

    saved: SavedQuery
    query: str
    checkpoint: str
    feed: FeedPosition | None = None
    source: QueriedTopic | None = None

    @property
    def stamp(self) -> EpochStamp:
        """What its markers are known by. In the real-time lane epochs are offsets of the updates, of which are none."""
        stamp = self.saved.complete.stamp
        return stamp if self.feed is None else EpochStamp(0, stamp.generation, stamp.commit_time_ms, 0)


@dataclass(frozen=True)
class Plan:
    """A restore. `fingerprint` is that of the savepoint and all the names and numbers: equal for a repeated restore."""

    savepoint: str
    application: str
    states: tuple[PlannedState, ...]
    queries: tuple[PlannedQuery, ...]
    fingerprint: str

    def query_of(self, state: PlannedState) -> PlannedQuery:
        """The query that feeds the state."""
        (query,) = (query for query in self.queries if query.query == state.descriptor.query)
        return query


def plan_restore(savepoint: Savepoint, options: RestoreOptions) -> Plan:
    """What a restore with these options is to do.

    Raises:
        SavepointMismatch: They don't fit the savepoint; the message names which.
    """
    states = [saved.descriptor.state for saved in savepoint.states]
    queries = [saved.query for saved in savepoint.queries]
    _check_known("state", [*options.key_groups, *options.states], states)
    _check_known("query", [*options.queries, *options.checkpoints, *options.real_time], queries)
    application = options.application or savepoint.application
    _check_names("application", [application])
    _check_names("query", [options.queries.get(query, query) for query in queries])
    _check_names("state", [options.states.get(state, state) for state in states])
    _check_checkpoints(savepoint, options)
    planned = tuple(
        PlannedState(saved, _descriptor(saved.descriptor, application, options))
        for saved in savepoint.states
        # Of an earlier version, which has let it be declared: it has no rows.
        if saved.rows or unusable(saved.descriptor) is None
    )
    chosen = tuple(_planned_query(saved, options) for saved in savepoint.queries)
    for query in chosen:
        if query.feed is not None:
            check_states([of.descriptor for of in planned if of.descriptor.query == query.query], query.query)
    return Plan(savepoint.id, application, planned, chosen, _fingerprint(savepoint, planned, options.real_time))


def _planned_query(saved: SavedQuery, options: RestoreOptions) -> PlannedQuery:
    name = options.queries.get(saved.query, saved.query)
    if (source := options.real_time.get(saved.query)) is not None:
        return PlannedQuery(saved, name, "", position_from(saved, name, source), source)
    return PlannedQuery(saved, name, options.checkpoints[saved.query])


def _check_known(what: str, named: Iterable[str], known: Collection[str]) -> None:
    for name in named:
        if name not in known:
            raise SavepointMismatch(
                f"the savepoint has no {what} {name!r}; it has {', '.join(sorted(known))}", name=name
            )


def _check_names(what: str, names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SavepointMismatch(f"two {what} names of the savepoint would both become {twice[0]!r}", name=twice[0])
    for name in names:
        if _NAME.fullmatch(name) is None or (what == "state" and name == CONTROL):
            raise SavepointMismatch(
                f"{what} name {name!r} can't be: it must be 1 to 100 letters, digits, '_' or '-', and a state's not "
                f"{CONTROL!r}",
                name=name,
            )


def _check_checkpoints(savepoint: Savepoint, options: RestoreOptions) -> None:
    """One folder for each Spark query: those of one streaming query share it, and no others do."""
    folder_of: dict[str, str] = {}
    for saved in savepoint.queries:
        folder = options.checkpoints.get(saved.query)
        if saved.query in options.real_time:
            if folder is not None:
                raise SavepointMismatch(
                    f"query {saved.query!r} goes on in real time, where it begins with a checkpoint of its own: leave "
                    f"out --checkpoint {saved.query}=DIRECTORY",
                    query=saved.query,
                )
            continue
        if folder is None:
            raise SavepointMismatch(
                f"say where the Spark checkpoint of query {saved.query!r} goes: --checkpoint {saved.query}=DIRECTORY. "
                "From there the job goes on",
                query=saved.query,
            )
        spark = saved.record.spark_query_id
        shared = folder_of.setdefault(spark, folder) != folder
        if shared or any(other != spark and taken == folder for other, taken in folder_of.items()):
            raise SavepointMismatch(
                f"query {saved.query!r} can't have its checkpoint at {folder}: queries of one Spark query share a "
                "folder, and those of different ones don't",
                query=saved.query,
            )


def _descriptor(old: StateDescriptor, application: str, options: RestoreOptions) -> StateDescriptor:
    groups = options.key_groups.get(old.state, old.key_groups)
    if not 1 <= groups <= MAX_KEY_GROUPS:
        raise SavepointMismatch(
            f"state {old.state!r} can't have {groups} key groups: 1 to {MAX_KEY_GROUPS}", state=old.state
        )
    if old.kind is StateKind.BROADCAST and groups != 1:
        raise SavepointMismatch(
            f"state {old.state!r} can't have {groups} key groups: a broadcast state always has 1", state=old.state
        )
    name = options.states.get(old.state, old.state)
    topic_name(application, name)  # raises where Kafka would refuse it
    return msgspec.structs.replace(
        old,
        application=application,
        state=name,
        query=options.queries.get(old.query, old.query),
        key_groups=groups,
        topic_id="",
        updates_topic_id="",
    )


def _fingerprint(savepoint: Savepoint, planned: Iterable[PlannedState], real_time: Mapping[str, QueriedTopic]) -> str:
    moved = [[query, of.topic_id] for query, of in sorted(real_time.items())]
    text = msgspec.json.encode([savepoint.id, *(state.descriptor for state in planned), *moved])
    return hashlib.sha256(text).hexdigest()


def check_target(plan: Plan, records: Mapping[str, bytes]) -> bool:
    """Whether the target is new (False), or has a restore of this very plan that was broken off (True).

    Args:
        records: Of its control topic; none where there is no topic.

    Raises:
        SavepointMismatch: The application has states, or another restore was begun there, or this one has ended. Or a
            query can't go on in the real-time lane, as its topic has lost records.
    """
    begun = savepoints(records)
    if begun and all(other.finished and other.fingerprint == plan.fingerprint for other in begun):
        raise SavepointMismatch(
            f"application {plan.application!r} is restored from this savepoint already: start the job",
            application=plan.application,
        )
    holds = sorted({key.partition("/")[0] for key in records if key.startswith(("state/", "complete/", "query/"))})
    if holds:
        raise SavepointMismatch(
            f"application {plan.application!r} is in use: its control topic has records of {' and '.join(holds)}. "
            f"Choose another name (--application), or drop its queries first (keyhole drop)",
            application=plan.application,
        )
    if any(other.fingerprint != plan.fingerprint for other in begun):
        raise SavepointMismatch(
            f"a restore of savepoint {begun[0].savepoint} into application {plan.application!r} is under way, or was "
            "broken off, with other options: let it come to its end, or run it again with its own options; or end it "
            f"and delete the topics keyhole.{plan.application}.* first",
            application=plan.application,
        )
    for query in plan.queries:
        if query.source is not None:
            check_source(query.saved, query.source)
    return bool(begun)


def begin_records(plan: Plan) -> dict[str, bytes | None]:
    """The records that say, from before the first row until after the last, that the application can't be started
    yet.
    """
    return {
        key: value
        for query in plan.queries
        for key, value in record("savepoint", query.query, _savepoint_record(plan, query, finished=False)).items()
    }


def final_records(
    plan: Plan, topic_ids: Mapping[str, str], markers: Mapping[str, list[int]], now_ms: int
) -> dict[str, bytes | None]:
    """What makes it an application: the next run of each query goes on after its complete epoch.

    Args:
        topic_ids: By state (new names), of the topics that were made.
        markers: By state (new names), the offset of each key group's marker.
    """
    records: dict[str, bytes | None] = {}
    for state in plan.states:
        name = state.descriptor.state
        records |= record("state", name, msgspec.structs.replace(state.descriptor, topic_id=topic_ids[name]))
    for query in plan.queries:
        of = {state.descriptor.state for state in plan.states if state.descriptor.query == query.query}
        complete: CompleteRecord = msgspec.structs.replace(
            query.saved.complete,
            markers={name: list(offsets) for name, offsets in markers.items() if name in of},
            told_ms=now_ms,
        )
        written = query.saved.record
        if query.feed is not None:
            complete = CompleteRecord.of(query.stamp, 0, {}, "")
            written = QueryRecord(UPDATES, base=0)
        generation = GenerationRecord(complete.generation, f"savepoint-{plan.savepoint}")
        records |= record("generation", query.query, generation)
        records |= record("query", query.query, written)
        records |= record("complete", query.query, complete)
        records |= record("savepoint", query.query, _savepoint_record(plan, query, finished=True))
    return records


def _savepoint_record(plan: Plan, query: PlannedQuery, *, finished: bool) -> SavepointRecord:
    states = tuple(state.descriptor.state for state in plan.states if state.descriptor.query == query.query)
    return SavepointRecord(plan.savepoint, plan.fingerprint, states, finished)
