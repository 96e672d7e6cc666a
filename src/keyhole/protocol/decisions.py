"""What the coordinator decides of batches and epochs, as functions on frozen values: no sockets, no clocks, no Kafka.

docs/protocol.md describes the protocol; each function here is one of its decisions. Who owns what is plan.py's, whose a
state is registration.py's.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from keyhole.errors import CheckpointMismatch, InternalError
from keyhole.protocol.bootstrap import first_of_stream, unused_epoch
from keyhole.protocol.control import CompleteRecord, QueryRecord
from keyhole.protocol.receipts import GroupReceipt, PartitionReceipt, Target

OnNewCheckpoint = Literal["refuse", "continue", "reset"]

_SERIAL = re.compile(r"\d+$")


def check_start(
    query: str,
    known: QueryRecord | None,
    complete: CompleteRecord | None,
    spark_query_id: str,
    batch_id: int,
    offsets_hash: int,
    on_new_checkpoint: OnNewCheckpoint,
) -> QueryRecord:
    """Decides which epoch the first batch of a run is.

    A run may begin with the batch after the last complete epoch, or with that epoch itself (Spark had not yet written
    its commit log), read from the same offsets. Everything else means that the checkpoint was deleted, replaced or set
    back: its batches would be taken for replays of committed ones, and swallowed. After a bootstrap any new checkpoint
    goes on.

    Args:
        offsets_hash: Of the batch's source offsets.

    Raises:
        CheckpointMismatch: With the ways out.
    """
    last = complete.epoch if complete else 0
    if known is not None and known.bootstraps and (last >= known.first_epoch or on_new_checkpoint != "reset"):
        continues = on_new_checkpoint == "continue"
        return first_of_stream(query, known, complete, spark_query_id, batch_id, continues=continues)
    same = known is not None and known.spark_query_id == spark_query_id
    if known is not None and same and known.base + batch_id in _next_epochs(known, last):
        if complete is None or known.base + batch_id > last or complete.offsets_hash == offsets_hash:
            return known
        what = f"its batch {batch_id}, which was that epoch, now begins or ends at other source offsets"
    elif known is not None and same:
        batches = " or ".join(str(epoch - known.base) for epoch in _next_epochs(known, last))
        what = f"it expects batch {batches} of its checkpoint, not batch {batch_id}"
    else:
        what = (
            f"that comes from another Spark checkpoint (Spark query {known.spark_query_id if known else 'unknown'}) "
            f"than the one it starts with now (Spark query {spark_query_id})"
        )
    if on_new_checkpoint == "refuse" and (last > 0 or same):
        raise CheckpointMismatch(_mismatch(query, last, what), query=query, epoch=last)
    epoch = unused_epoch(known, last)
    # Where nothing was ever complete, some key groups may hold a part of an epoch that will never be. Nobody can miss
    # it, and it must not count beside what the same records make once more.
    if on_new_checkpoint == "reset" or (known is not None and last == 0):
        return QueryRecord(spark_query_id, base=epoch - batch_id, reset_epoch=epoch, first_epoch=epoch)
    kept = known.bootstrap if known is not None else ""
    return QueryRecord(spark_query_id, base=epoch - batch_id, first_epoch=epoch, bootstrap=kept)


def _next_epochs(record: QueryRecord, last: int) -> tuple[int, ...]:
    """What the next batch of a checkpoint can be: the last complete epoch again, or the one after it."""
    return (last, last + 1) if last >= record.first_epoch else (record.first_epoch,)


def _mismatch(query: str, last: int, what: str) -> str:
    return (
        f"query {query!r} has completed epoch {last}, and {what}. The checkpoint was deleted, replaced or set back; "
        "its batches can't be told from committed ones. Put the checkpoint back, or restore a savepoint, or start with "
        'on_new_checkpoint="continue" (keep the states, add to them) or "reset" (empty them with the first epoch)'
    )


def check_batch(query: str, record: QueryRecord, complete: CompleteRecord | None, batch_id: int) -> int:
    """The epoch of a later batch of the same run.

    Raises:
        CheckpointMismatch: It does not follow the last complete one.
    """
    epoch, last = record.base + batch_id, complete.epoch if complete else 0
    if epoch not in _next_epochs(record, last):
        raise CheckpointMismatch(
            f"query {query!r} has completed epoch {last}, but its batch {batch_id} would be epoch {epoch}; restart it",
            query=query,
            epoch=last,
        )
    return epoch


@dataclass(frozen=True)
class ServerCommit:
    """What one server must hold of one state to commit: the winning attempts, and their sum per key group."""

    winners: tuple[tuple[int, int], ...]
    groups: tuple[GroupReceipt, ...]


@dataclass(frozen=True)
class Proceed:
    """All rows of the epoch are staged. By server, by state: what it must commit."""

    commits: Mapping[str, Mapping[str, ServerCommit]]


@dataclass(frozen=True)
class Restage:
    """Another round is needed; `suspects` are the servers that did not take their rows, with the reason."""

    suspects: Mapping[str, str]


def decide(
    receipts: Sequence[PartitionReceipt], partitions: Mapping[str, int], targets: Sequence[Target]
) -> Proceed | Restage:
    """Judges a round: do the receipts cover every partition of every state exactly once, and is all of it staged?

    Raises:
        InternalError: A partition is missing or came twice, or a key group came from two partitions (the rows of a key
            would have no order): the batch was not partitioned by the key.
    """
    seen: dict[str, list[int]] = {}
    for receipt in receipts:
        seen.setdefault(receipt.state, []).append(receipt.partition)
    if seen.keys() != partitions.keys() or not all(_consecutive(seen[state], partitions[state]) for state in seen):
        wanted = sum(partitions.values())
        raise InternalError(
            f"the receipts of {len(receipts)} partitions don't cover the {wanted} of the batch once each"
        )
    suspects = {
        server.server: server.error[1] for receipt in receipts for server in receipt.servers if server.error is not None
    }
    if suspects:
        return Restage(suspects)
    _check_one_partition_per_group(receipts)
    return Proceed({target.server: _commits_of(target.server, receipts, partitions) for target in targets})


def _consecutive(numbers: Sequence[int], count: int) -> bool:
    """As many, each once. They begin anywhere: Spark counts on where one job computes several states."""
    first = min(numbers)
    return sorted(numbers) == list(range(first, first + count))


def _check_one_partition_per_group(receipts: Sequence[PartitionReceipt]) -> None:
    origin: dict[tuple[str, int], int] = {}
    for receipt in receipts:
        for group in (group for server in receipt.servers for group in server.groups):
            if origin.setdefault((receipt.state, group.key_group), receipt.partition) != receipt.partition:
                raise InternalError(
                    f"key group {group.key_group} of state {receipt.state} came from two partitions of one batch"
                )


def _commits_of(server: str, receipts: Sequence[PartitionReceipt], states: Iterable[str]) -> dict[str, ServerCommit]:
    commits = {}
    for state in states:
        mine = [(r, s) for r in receipts if r.state == state for s in r.servers if s.server == server]
        commits[state] = ServerCommit(
            winners=tuple(sorted((receipt.partition, receipt.attempt_id) for receipt, _ in mine)),
            groups=tuple(sorted((g for _, s in mine for g in s.groups), key=lambda group: group.key_group)),
        )
    return commits


def transactional_id(application: str, query: str, target: Target, generation: int, serial: int) -> str:
    """A grant's name: says who may write what, and is never used twice (`serial` grows within a generation)."""
    return f"keyhole.{application}.{query}.{target.server}.{target.incarnation}.{generation}.{serial}"


def serial_of(grant: str) -> int:
    """The serial that a grant's name ends in."""
    digits = _SERIAL.search(grant)
    return int(digits[0]) if digits else 0


def offsets_hash(offsets: str) -> int:
    """64 bits of a batch's source offsets, as Spark writes them."""
    return int.from_bytes(hashlib.blake2b(offsets.encode(), digest_size=8).digest(), "big")
