"""What the states of a query begin with, before its stream: one epoch of rows that come from no stream. Pure.

A bootstrap is known by its name. While its record is the query's, no stream has followed yet. The first stream that
does takes the name into its own record: so the same bootstrap is recognised as done for as long as the states have it.
"""

from __future__ import annotations

from keyhole.errors import CheckpointMismatch, StateConflict
from keyhole.protocol.control import CompleteRecord, QueryRecord

_NO_CHECKPOINT = ""


def done(known: QueryRecord | None, complete: CompleteRecord | None, name: str) -> bool:
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
    epoch = unused_epoch(known, last)
    return QueryRecord(_NO_CHECKPOINT, base=epoch, reset_epoch=epoch if reset else 0, first_epoch=epoch, bootstrap=name)


def first_of_stream(
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


def unused_epoch(known: QueryRecord | None, last: int) -> int:
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
