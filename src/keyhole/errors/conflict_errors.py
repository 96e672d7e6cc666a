"""The application contradicts what is stored: a person must choose."""

from __future__ import annotations

from keyhole.errors.root import KeyholeError


class ConflictError(KeyholeError):
    """The application contradicts what is stored; going on would lose or mix data, so a person must choose."""

    code = "FAILED_PRECONDITION"


class StateConflict(ConflictError):
    """A second state under a name that the application already has, or one that another query, or process, feeds."""

    reason, code = "STATE_CONFLICT", "ALREADY_EXISTS"


class StateChanged(ConflictError):
    """The number of key groups, the key or the schema differs from the stored state's."""

    reason = "STATE_CHANGED"


class TopicMismatch(ConflictError):
    """A changelog topic with other settings, or another number of partitions, than the state needs."""

    reason = "TOPIC_MISMATCH"


class ChangelogRecreated(ConflictError):
    """The changelog topic is not the one the state was written to."""

    reason = "CHANGELOG_RECREATED"


class CheckpointMismatch(ConflictError):
    """Spark's checkpoint is not the one that the last complete epoch came from (deleted, replaced or set back)."""

    reason = "CHECKPOINT_MISMATCH"


class ReplayDiffers(ConflictError):
    """An epoch was run again and gave other rows than were committed. Raised only where `strict` is set."""

    reason = "REPLAY_DIFFERS"


class ProtocolMismatch(ConflictError):
    """Two processes of versions that don't understand each other."""

    reason = "PROTOCOL_MISMATCH"


class StoreFormat(ConflictError):
    """A store directory written by another format version, or not a store at all."""

    reason = "STORE_FORMAT"


class StoreLocked(ConflictError):
    """Another process has the store open."""

    reason = "STORE_LOCKED"


class StoreFull(ConflictError):
    """The disk, or the store's limit, is full. What was committed is unharmed."""

    reason, code = "STORE_FULL", "RESOURCE_EXHAUSTED"


class StoreConflict(ConflictError):
    """A write that does not extend what the store holds (another offset, an older epoch)."""

    reason = "STORE_CONFLICT"


class SavepointMismatch(ConflictError):
    """A savepoint does not fit where it is to be restored, or the job that is to start from it."""

    reason = "SAVEPOINT_MISMATCH"


class SavepointDamaged(ConflictError):
    """Files of a savepoint are missing, or are not those that were written."""

    reason, code = "SAVEPOINT_DAMAGED", "DATA_LOSS"
