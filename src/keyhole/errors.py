"""Every error that Keyhole raises, as one tree.

    KeyholeError
    ├── RequestError          the request is wrong: sending it again can't help
    │   ├── UnknownApplication, UnknownState
    │   ├── KeyMismatch, NullKey, KeyTooLong, ValueMismatch, DuplicateKey
    │   ├── MalformedRequest, Unsupported, TooLarge, EpochGone, ResumeGone
    │   ├── Unauthenticated, PermissionDenied
    │   └── InvalidConfiguration
    ├── ConflictError         the application contradicts what is stored: a person must choose
    │   ├── StateConflict, StateChanged
    │   ├── TopicMismatch, ChangelogRecreated
    │   ├── CheckpointMismatch, ReplayDiffers, ProtocolMismatch
    │   ├── StoreFormat, StoreLocked, StoreFull, StoreConflict
    │   └── SavepointMismatch, SavepointDamaged
    ├── UnavailableError      not now: sending it again, inside the deadline, can help
    │   ├── NotOwner, NotReady, StaleDescriptor
    │   ├── EpochNotReached, TooStale, Unconfirmed
    │   ├── StillRunning
    │   ├── NoServer, ServerLost, Draining, Overloaded, TooSlow
    │   ├── KafkaUnreachable
    │   └── DeadlineExceeded, ClientClosed        (not retryable: there is no time, or no client, left)
    ├── CommitError           between the coordinator and the servers
    │   ├── Fenced, EpochFailed                   (not retryable)
    │   └── StageLost, OutcomeUnknown
    ├── MachineError          PortTaken, JavaMissing, JarsUnavailable
    └── InternalError         a bug of Keyhole's

The message of an error is for a person: what is wrong, and what to do. `facts` hold the same for a program. Neither
holds a key or a value. Which reason and which gRPC status a class has is part of the class; rpc/status.py carries them
over the wire and nothing else does.
"""

from __future__ import annotations

from typing import ClassVar


class KeyholeError(Exception):
    """The root. `reason` is the name in the proto's enum Reason without its prefix; `code` a gRPC status code's name.

    Args:
        message: What is wrong and what to do about it. No key, no value.
        facts: The same facts by name, for programs; carried over the wire.
    """

    reason: ClassVar[str] = "INTERNAL"
    code: ClassVar[str] = "INTERNAL"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.facts = {name: str(value) for name, value in facts.items()}

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process boundaries (a Spark task's to its driver): keep the facts.
        return _rebuild, (type(self), self.message, self.facts)


def _rebuild(kind: type[KeyholeError], message: str, facts: dict[str, str]) -> KeyholeError:
    return kind(message, **facts)


class RequestError(KeyholeError):
    """The request is wrong; sending it again can't help."""

    code = "INVALID_ARGUMENT"


class UnknownApplication(RequestError):
    """No server has heard of the application."""

    reason, code = "UNKNOWN_APPLICATION", "NOT_FOUND"


class UnknownState(RequestError):
    """The application has no state of this name; the message names those it has."""

    reason, code = "UNKNOWN_STATE", "NOT_FOUND"


class KeyMismatch(RequestError):
    """A key with another number of columns, or of another type, than the state's."""

    reason = "KEY_MISMATCH"


class NullKey(RequestError):
    """A key column is null."""

    reason = "NULL_KEY"


class KeyTooLong(RequestError):
    """The encoded key is longer than the store takes."""

    reason = "KEY_TOO_LONG"


class ValueMismatch(RequestError):
    """A value that does not fit the state's schema."""

    reason = "VALUE_MISMATCH"


class DuplicateKey(RequestError):
    """Two rows of one key in one epoch, and nothing says which of them counts."""

    reason = "DUPLICATE_KEY"


class MalformedRequest(RequestError):
    """Bytes that are not what the protocol says."""

    reason = "MALFORMED_REQUEST"


class TooLarge(RequestError):
    """A value, or what one call or scan asks for, is larger than it may be; the facts have the limit."""

    reason, code = "TOO_LARGE", "OUT_OF_RANGE"


class EpochGone(RequestError):
    """The epoch that the caller asks for is no longer kept. The fact `oldest` names the first one that is."""

    reason, code = "EPOCH_GONE", "FAILED_PRECONDITION"


class Unsupported(RequestError):
    """Something the protocol has a place for and this version does not do."""

    reason, code = "UNSUPPORTED", "UNIMPLEMENTED"


class ResumeGone(RequestError):
    """A watch can't go on from its token without missing changes: the changelog may not have all of them any more."""

    reason, code = "RESUME_GONE", "OUT_OF_RANGE"


class Unauthenticated(RequestError):
    """The caller does not show who it is, or what it shows isn't valid (any more)."""

    reason, code = "UNAUTHENTICATED", "UNAUTHENTICATED"


class PermissionDenied(RequestError):
    """The caller may not do this. The error is the same whether or not there is what it asks for."""

    reason, code = "PERMISSION_DENIED", "PERMISSION_DENIED"


class InvalidConfiguration(RequestError):
    """A setting that is unknown, missing, malformed, or contradicts another."""

    reason = "INVALID_CONFIGURATION"


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


class UnavailableError(KeyholeError):
    """It isn't there now; sending it again inside the deadline can help."""

    code = "UNAVAILABLE"
    retryable = True


class NotOwner(UnavailableError):
    """The server does not own the key group (any more)."""

    reason = "NOT_OWNER"


class NotReady(UnavailableError):
    """The key group is being restored; the facts say how far it is."""

    reason = "NOT_READY"


class StaleDescriptor(UnavailableError):
    """The state has been made anew since the caller described it, or has rows of a newer schema."""

    reason, code = "STALE_DESCRIPTOR", "FAILED_PRECONDITION"


class EpochNotReached(UnavailableError):
    """The server's last committed epoch is before the caller's `min_epoch`."""

    reason = "EPOCH_NOT_REACHED"


class TooStale(UnavailableError):
    """No copy that may answer is as fresh as the caller's `max_staleness` asks for."""

    reason = "TOO_STALE"


class Unconfirmed(UnavailableError):
    """The caller wants no stale answer, and the owner has not heard of its coordinator for the lease time."""

    reason = "UNCONFIRMED"


class StillRunning(UnavailableError):
    """A query is to be retired, and a run of it is alive, or was within the lease."""

    reason, code = "STILL_RUNNING", "FAILED_PRECONDITION"


class NoServer(UnavailableError):
    """No state server serves the key group now."""

    reason = "NO_SERVER"


class ServerLost(UnavailableError):
    """The connection to a server broke, or could not be made."""

    reason = "SERVER_LOST"


class Draining(UnavailableError):
    """The server is shutting down and takes nothing new."""

    reason = "DRAINING"


class Overloaded(UnavailableError):
    """A bounded queue is full."""

    reason, code = "OVERLOADED", "RESOURCE_EXHAUSTED"


class TooSlow(UnavailableError):
    """A watch was let go: its reader took changes more slowly than they came."""

    reason = "TOO_SLOW"


class KafkaUnreachable(UnavailableError):
    """No Kafka broker answers within the time that was given."""

    reason = "KAFKA_UNREACHABLE"


class DeadlineExceeded(UnavailableError):
    """The caller's deadline passed; the message names what it was waiting for."""

    reason, code, retryable = "DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED", False


class ClientClosed(UnavailableError):
    """The client was closed while the request was under way, or before."""

    reason, code, retryable = "CLIENT_CLOSED", "CANCELLED", False


class CommitError(KeyholeError):
    """An epoch's commit did not go as asked."""

    code = "ABORTED"


class Fenced(CommitError):
    """A newer run, or a newer owner, has taken over; this one must stop."""

    reason, code = "FENCED", "PERMISSION_DENIED"


class EpochFailed(CommitError):
    """An epoch could not be committed within its deadline. Running its batch again is safe."""

    reason = "EPOCH_FAILED"


class StageLost(CommitError):
    """The server does not hold exactly the rows it is asked to commit; it has committed nothing."""

    reason, retryable = "STAGE_LOST", True


class OutcomeUnknown(CommitError):
    """The end of a Kafka transaction was not seen. The server must restore; the marker decides."""

    reason, retryable = "OUTCOME_UNKNOWN", True


class MachineError(KeyholeError):
    """The machine lacks something that is needed: a port, a file, a program, room."""

    code = "FAILED_PRECONDITION"


class PortTaken(MachineError):
    """Another process listens on the port."""

    reason = "PORT_TAKEN"


class JavaMissing(MachineError):
    """No Java, or one that is too old or lacks a module that Spark needs."""

    reason = "JAVA_MISSING"


class JarsUnavailable(MachineError):
    """The JVM jars can't be fetched and are not in the cache."""

    reason = "JARS_UNAVAILABLE"


class InternalError(KeyholeError):
    """A bug of Keyhole's. Report it; there is nothing that a caller could do about it."""


def by_reason() -> dict[str, type[KeyholeError]]:
    """All concrete classes by their reason; InternalError stands for INTERNAL."""

    def leaves(kind: type[KeyholeError]) -> list[type[KeyholeError]]:
        below = kind.__subclasses__()
        return [leaf for child in below for leaf in leaves(child)] if below else [kind]

    return {kind.reason: kind for kind in leaves(KeyholeError)}
