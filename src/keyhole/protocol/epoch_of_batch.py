"""Which epoch a batch is: a bootstrap, the first batch of a run, or a later one. Pure.

    epoch = base + batch id        base is of one checkpoint, in the query's record

A bootstrap is what the states of a query begin with, before its stream: one epoch of rows that come from no stream. It
is known by its name. While its record is the query's, no stream has followed yet. The first stream that does takes the
name into its own record: so the same bootstrap is recognised as done for as long as the states have it.
"""

from __future__ import annotations

from typing import Literal

from keyhole.errors import CheckpointMismatch, StateConflict
from keyhole.protocol.control import CompleteRecord, QueryRecord
from keyhole.protocol.epochs import EpochBatch

OnNewCheckpoint = Literal["refuse", "continue", "reset"]

_NO_CHECKPOINT = ""


def first_record(
    query: str,
    known: QueryRecord | None,
    complete: CompleteRecord | None,
    batch: EpochBatch,
    on_new_checkpoint: OnNewCheckpoint,
) -> QueryRecord:
    """The query's record from the first batch of a run on. Its epoch is `base + batch_id`.

    Args:
        known, complete: What is on record of the query, and of its last complete epoch.

    Raises:
        StateConflict, CheckpointMismatch: As check_bootstrap and check_start.
    """
    if batch.bootstrap:
        return check_bootstrap(query, known, complete, batch.bootstrap, reset=on_new_checkpoint == "reset")
    return check_start(
        query, known, complete, batch.spark_query_id, batch.batch_id, batch.offsets_hash, on_new_checkpoint
    )


def is_bootstrapped(known: QueryRecord | None, complete: CompleteRecord | None, name: str) -> bool:
    """Whether the states have begun with this bootstrap, all of it."""
    return known is not None and known.bootstrap == name and not _broken_off(known, complete)


def check_bootstrap(
    query: str, known: QueryRecord | None, complete: CompleteRecord | None, name: str, *, reset: bool
) -> QueryRecord:
    """Decides which epoch a bootstrap that is not done is: that in which it was broken off, or a new one.

    Args:
        reset: It may take the place of what the states hold.

    Raises:
        StateConflict: The states have begun already, otherwise.
    """
    if known is not None and known.bootstrap == name and _broken_off(known, complete):
        return known
    last = complete.epoch if complete else 0
    if (known is not None or last) and not reset:
        raise StateConflict(_lives(query, known, last, name), query=query, epoch=last)
    epoch = _unused_epoch(known, last)
    return QueryRecord(_NO_CHECKPOINT, base=epoch, reset_epoch=epoch if reset else 0, first_epoch=epoch, bootstrap=name)


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
        return _first_of_stream(query, known, complete, spark_query_id, batch_id, continues=continues)
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
    epoch = _unused_epoch(known, last)
    # Where nothing was ever complete, some key groups may hold a part of an epoch that will never be. Nobody can miss
    # it, and it must not count beside what the same records make once more.
    # A bootstrap stays done, also where the stream takes the place of what it made: a job that is merely started again
    # would make its states anew of it. One that was broken off is not done.
    kept = known.bootstrap if known is not None and not _broken_off(known, complete) else ""
    if on_new_checkpoint == "reset" or (known is not None and last == 0):
        return QueryRecord(spark_query_id, base=epoch - batch_id, reset_epoch=epoch, first_epoch=epoch, bootstrap=kept)
    return QueryRecord(spark_query_id, base=epoch - batch_id, first_epoch=epoch, bootstrap=kept)


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


def _first_of_stream(
    query: str,
    known: QueryRecord,
    complete: CompleteRecord | None,
    spark_query_id: str,
    batch_id: int,
    *,
    continues: bool,
) -> QueryRecord:
    """Decides which epoch the first batch of the stream after a bootstrap is.

    A new checkpoint follows it as it would begin an empty state: no batch of a stream is missing, or there already.

    Args:
        known: The bootstrap's own record.
        continues: The job says that the batches before this one are not missing.

    Raises:
        CheckpointMismatch: The bootstrap was broken off; or earlier batches of this checkpoint are not in the states.
    """
    if complete is None or _broken_off(known, complete):
        raise CheckpointMismatch(
            f"the bootstrap {known.bootstrap!r} of query {query!r} was begun and is not finished: call bootstrap "
            'again, with the same rows, or begin anew with on_new_checkpoint="reset"',
            query=query,
        )
    if batch_id > 0 and not continues:
        raise CheckpointMismatch(
            f"query {query!r} has been bootstrapped, and its stream begins with batch {batch_id} of a checkpoint that "
            "was in use before: what its batches before that one read is not in the states. Start it with a new "
            'checkpoint, or with on_new_checkpoint="continue" if the bootstrap has that',
            query=query,
            epoch=complete.epoch,
        )
    epoch = complete.epoch + 1
    return QueryRecord(spark_query_id, base=epoch - batch_id, first_epoch=epoch, bootstrap=known.bootstrap)


def _next_epochs(record: QueryRecord, last: int) -> tuple[int, ...]:
    """What the next batch of a checkpoint can be: the last complete epoch again, or the one after it."""
    return (last, last + 1) if last >= record.first_epoch else (record.first_epoch,)


def _unused_epoch(known: QueryRecord | None, last: int) -> int:
    """The first epoch that nobody else can have begun.

    The one after the last complete epoch may be committed on some servers: key groups there would take other rows for a
    replay, and swallow them.
    """
    if known is None and last == 0:
        return 1
    return 1 + max(last + 1, known.first_epoch if known is not None else 0)


def _broken_off(known: QueryRecord, complete: CompleteRecord | None) -> bool:
    return known.bootstraps and (complete is None or complete.epoch < known.first_epoch)


def _lives(query: str, known: QueryRecord | None, last: int, name: str) -> str:
    if known is not None and known.bootstraps:
        what = f"query {query!r} was bootstrapped already, as {known.bootstrap!r}"
    elif known is not None and not last:
        what = f"query {query!r} has begun with its stream"
    else:
        what = f"query {query!r} has completed epoch {last}"
    return (
        f"{what}: its states are not empty, and the bootstrap {name!r} would be mixed with what they hold. Give the "
        'states other names, or let it take the place of all that they hold with on_new_checkpoint="reset", and start '
        "the stream with a new checkpoint"
    )


def _mismatch(query: str, last: int, what: str) -> str:
    return (
        f"query {query!r} has completed epoch {last}, and {what}. The checkpoint was deleted, replaced or set back; "
        "its batches can't be told from committed ones. Put the checkpoint back, or restore a savepoint, or start with "
        'on_new_checkpoint="continue" (keep the states, add to them) or "reset" (empty them with the first epoch)'
    )
