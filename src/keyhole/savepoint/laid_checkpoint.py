"""Spark's checkpoint of a restored query: which files it gets, by which names, and that its place is free for them."""

from __future__ import annotations

from collections.abc import Sequence

from keyhole.errors import SavepointDamaged, SavepointMismatch
from keyhole.protocol.batch_decisions import broadcast_folder, subtasks_folder
from keyhole.savepoint.folder import Folder, copy_file
from keyhole.savepoint.manifest import SavedQuery
from keyhole.savepoint.operator_metadata import moving
from keyhole.savepoint.restore_plan import PlannedQuery, PlannedState
from keyhole.savepoint.spark_log import checkpoint_of

_METADATA = "metadata"


def check_checkpoint_place(states: Sequence[PlannedState], query: PlannedQuery) -> None:
    """Raises SavepointMismatch: there is something in it that a restore does not lay there.

    Args:
        states: All of the restore.
    """
    files = {name for name in Folder(query.checkpoint).files() if _is_of_spark(name)}
    # What a broken-off attempt has laid down is a part of what this one will.
    if not files <= _laid(states, query).keys():
        raise SavepointMismatch(
            f"{query.checkpoint} holds a checkpoint, or something else, already: give query {query.query!r} an "
            "empty folder",
            query=query.query,
        )


def lay_checkpoint(source: Folder, states: Sequence[PlannedState], query: PlannedQuery) -> None:
    """Writes the query's checkpoint, of the savepoint's files, or anew where it has none of it. May be repeated.

    `metadata` comes last: without it, Spark begins a new query in the folder, which Keyhole refuses.

    Raises:
        SavepointDamaged: A file is not one of Spark's.
    """
    target, checkpoint = Folder(query.checkpoint), query.saved.checkpoint
    if checkpoint is None:
        for name, data in _synthesised(query.saved).items():
            with target.writing(name) as file:
                file.write(data)
        return
    for laid, saved in sorted(_laid(states, query).items(), key=lambda names: names[0] == _METADATA):
        _lay_file(source, f"{checkpoint.prefix}/{saved}", target, laid)


def _laid(states: Sequence[PlannedState], query: PlannedQuery) -> dict[str, str]:
    """The files of the new checkpoint, and which saved ones they are.

    Each has its old name, and where that has the name of a state the new one as well: the job may go on reading the
    old application's broadcast state. Of two that would have one name it is that of the state which is called so.
    """
    names = _names(query)
    laid = {name: name for name in names}
    for state in states:
        old, new = state.saved.descriptor, state.descriptor
        for before, after in (
            (subtasks_folder(old.state), subtasks_folder(new.state)),
            (broadcast_folder(old.application, old.state), broadcast_folder(new.application, new.state)),
        ):
            laid |= {after + name.removeprefix(before): name for name in names if name.startswith(f"{before}/")}
    return laid


def _names(query: PlannedQuery) -> set[str]:
    checkpoint = query.saved.checkpoint
    if checkpoint is None:
        return set(_synthesised(query.saved))
    return {saved.path.removeprefix(f"{checkpoint.prefix}/") for saved in checkpoint.files}


def _lay_file(source: Folder, name: str, target: Folder, laid: str) -> None:
    """Copies a file of Spark's checkpoint, which says then that it lies where it does."""
    moved = moving(laid)
    if moved is None:
        copy_file(source, name, target, laid)
        return
    data = source.read(name)
    try:
        data = moved(data, target.path)
    except (ValueError, AttributeError, TypeError) as error:
        raise SavepointDamaged(f"file {name} of {source.path} is not one of Spark's: {error}", path=name) from error
    with target.writing(laid) as file:
        file.write(data)


def _synthesised(query: SavedQuery) -> dict[str, bytes]:
    complete = query.complete
    return checkpoint_of(query.record.spark_query_id, query.batch, complete.offsets, complete.watermark_ms)


def _is_of_spark(name: str) -> bool:
    return not name.rpartition("/")[2].startswith(".")
