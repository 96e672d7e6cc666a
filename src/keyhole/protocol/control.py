"""The records of the control topic as frozen values. Pure. docs/changelog.md lists them for other languages.

state/<state>                       StateDescriptor, with its topic id and the query that feeds it
opened/<query>                      OpenedRecord: the barrier record of the run that has begun last
generation/<query>                  GenerationRecord: the run that holds the query now
query/<query>                       QueryRecord: which Spark checkpoint its epochs come from
complete/<query>                    CompleteRecord: the last complete epoch
assignment/<query>                  AssignmentRecord: which server owns which key group
grant/<query>/<transactional.id>    GrantRecord: a server that may write, or could until it is fenced
savepoint/<query>                   SavepointRecord: what the query was restored from, until its first run
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from keyhole.errors import ProtocolMismatch
from keyhole.hints import ready
from keyhole.model.epoch import EpochStamp
from keyhole.model.state import StateDescriptor

_Record = TypeVar("_Record", bound=msgspec.Struct)


@ready
class OpenedRecord(msgspec.Struct, frozen=True):
    """The run that has opened the control log last. It may have no generation yet, or was refused then.

    Attributes:
        process: Its id on the host.
        spark_query_id: Empty: it begins with a bootstrap.
    """

    run_id: str
    host: str = ""
    process: int = 0
    spark_query_id: str = ""

    @property
    def who(self) -> str:
        """Who it is, in words for a person, as far as that is known."""
        parts = [f"run id {self.run_id}"]
        if self.host:
            parts.append(f"process {self.process} on {self.host}")
        if self.spark_query_id:
            parts.append(f"Spark query {self.spark_query_id}")
        return ", ".join(parts)


@ready
class GenerationRecord(msgspec.Struct, frozen=True):
    """The run that holds a query now."""

    generation: int
    run_id: str


@ready
class QueryRecord(msgspec.Struct, frozen=True):
    """Where a query's epochs come from: epoch = base + Spark's batch id, for this Spark query id alone.

    Attributes:
        reset_epoch: The epoch that replaces all that its states held (`on_new_checkpoint="reset"`); 0: none.
        first_epoch: Where the epochs of this checkpoint begin; those before it came from another one.
        stateful: Spark keeps state of its own for the query: its checkpoint is part of a savepoint.
        evolved_epoch: The first epoch after the schema of a state has changed last; 0: none. An earlier version of the
            job may have committed it in some key groups, and its rows can't be compared with those.
        bootstrap: The name of the bootstrap that the states began with; empty: they began empty.
        sources: By state that is fed by updates, all sources by which topics have fed it: see fed_sources.py. Of one
            that is missing an earlier release has not said them.
    """

    spark_query_id: str
    base: int
    reset_epoch: int = 0
    first_epoch: int = 1
    stateful: bool = False
    evolved_epoch: int = 0
    bootstrap: str = ""
    sources: dict[str, tuple[str, ...]] = {}

    @property
    def bootstraps(self) -> bool:
        """Whether it is the record of the bootstrap itself, which has no checkpoint: no stream has followed yet."""
        return not self.spark_query_id


@ready
class CompleteRecord(EpochStamp, frozen=True):
    """The last epoch that is committed on every server. The fields of its stamp are the first of the record.

    Attributes:
        offsets_hash: Of the batch's source offsets.
        markers: By state, the changelog offset of each key group's last marker; -1: it has none.
        offsets: The batch's entry in Spark's offset log, as text; empty: unknown.
        told_ms: When this record was written; it is written again every second while the query is idle.
    """

    offsets_hash: int
    markers: dict[str, list[int]]
    offsets: str = ""
    told_ms: int = 0

    @classmethod
    def of(cls, stamp: EpochStamp, offsets_hash: int, markers: dict[str, list[int]], offsets: str) -> CompleteRecord:
        """That the epoch of this stamp is complete."""
        of_stamp = msgspec.structs.asdict(stamp)
        return cls(**of_stamp, offsets_hash=offsets_hash, markers=markers, offsets=offsets)

    @property
    def stamp(self) -> EpochStamp:
        """Of the epoch, apart from the record."""
        return EpochStamp(*(getattr(self, field) for field in EpochStamp.__struct_fields__))


@ready
class AssignmentRecord(msgspec.Struct, frozen=True):
    """Which server owns which key group, and which follow it: per state and key group indexes into `servers`.

    Attributes:
        generation: Of the run that made it; versions are compared within one.
        standbys: By state, per key group the servers that follow it; states without standbys are missing.
    """

    version: int
    servers: tuple[str, ...]
    owners: dict[str, tuple[int, ...]]
    standbys: dict[str, tuple[tuple[int, ...], ...]] = {}
    generation: int = 0


@ready
class GrantRecord(msgspec.Struct, frozen=True):
    """Permission for one incarnation of a server to write in one generation. `grant` is the transactional.id."""

    server: str
    incarnation: str
    generation: int
    grant: str


@ready
class SavepointRecord(msgspec.Struct, frozen=True):
    """What a query was restored from; its first run takes note, and removes it.

    Attributes:
        savepoint: Its id.
        fingerprint: Of the restore: the savepoint, and the names and key groups chosen.
        states: The query's states.
        finished: False while the restore is under way, or was broken off.
    """

    savepoint: str
    fingerprint: str
    states: tuple[str, ...]
    finished: bool


class QueryControl(msgspec.Struct, frozen=True):
    """All that the control topic says of one query, and of the application's states.

    Attributes:
        restoring: The savepoint that is being restored into the application, or of which that was broken off; empty:
            none.
        run_id: Of the run with that generation.
        opened: None: nobody has begun, or one of an earlier version.
    """

    states: dict[str, StateDescriptor]
    generation: int = 0
    run_id: str = ""
    opened: OpenedRecord | None = None
    query: QueryRecord | None = None
    complete: CompleteRecord | None = None
    assignment: AssignmentRecord | None = None
    grants: tuple[GrantRecord, ...] = ()
    savepoint: SavepointRecord | None = None
    restoring: str = ""


def read_control(records: Mapping[str, bytes], query: str) -> QueryControl:
    """The typed view of the control topic's latest records.

    Raises:
        ProtocolMismatch: A record that this version can't read.
    """

    def one(kind: type[_Record], key: str) -> _Record | None:
        return _decoded(kind, key, records[key]) if key in records else None

    generation = one(GenerationRecord, f"generation/{query}")
    return QueryControl(
        states={
            key.removeprefix("state/"): _decoded(StateDescriptor, key, value)
            for key, value in records.items()
            if key.startswith("state/")
        },
        generation=generation.generation if generation else 0,
        run_id=generation.run_id if generation else "",
        opened=one(OpenedRecord, f"opened/{query}"),
        query=one(QueryRecord, f"query/{query}"),
        complete=one(CompleteRecord, f"complete/{query}"),
        assignment=one(AssignmentRecord, f"assignment/{query}"),
        grants=tuple(
            _decoded(GrantRecord, key, value)
            for key, value in sorted(records.items())
            if key.startswith(f"grant/{query}/")
        ),
        savepoint=one(SavepointRecord, f"savepoint/{query}"),
        restoring=next((of.savepoint for of in savepoints(records) if not of.finished), ""),
    )


def generations(records: Mapping[str, bytes]) -> dict[str, int]:
    """The generation of each of the application's queries. Raises as `read_control`."""
    return {
        key.removeprefix("generation/"): _decoded(GenerationRecord, key, value).generation
        for key, value in records.items()
        if key.startswith("generation/")
    }


def savepoints(records: Mapping[str, bytes]) -> list[SavepointRecord]:
    """What the application's queries were restored from, or are being. Raises as `read_control`."""
    return [_decoded(SavepointRecord, key, value) for key, value in records.items() if key.startswith("savepoint/")]


def _decoded(kind: type[_Record], key: str, value: bytes) -> _Record:
    try:
        return msgspec.json.decode(value, type=kind)
    except msgspec.DecodeError as error:
        raise ProtocolMismatch(
            f"the control topic's record {key!r} can't be read ({error}): a later version of Keyhole has written it, "
            "or something that is not Keyhole. Run that version here, too; nothing was changed",
            record=key,
        ) from error


def record(kind: str, name: str, value: msgspec.Struct | None) -> dict[str, bytes | None]:
    """One record, ready for ControlLog.append; None deletes it."""
    return {f"{kind}/{name}": None if value is None else msgspec.json.encode(value)}
