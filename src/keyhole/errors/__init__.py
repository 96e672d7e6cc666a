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

Each branch has a file here. All are imported from here, and are called `keyhole.errors.<class>` in tracebacks.
"""

from __future__ import annotations

from keyhole.errors.commit_errors import (
    CommitError,
    EpochFailed,
    Fenced,
    OutcomeUnknown,
    StageLost,
)
from keyhole.errors.conflict_errors import (
    ChangelogRecreated,
    CheckpointMismatch,
    ConflictError,
    ProtocolMismatch,
    ReplayDiffers,
    SavepointDamaged,
    SavepointMismatch,
    StateChanged,
    StateConflict,
    StoreConflict,
    StoreFormat,
    StoreFull,
    StoreLocked,
    TopicMismatch,
)
from keyhole.errors.machine_errors import (
    JarsUnavailable,
    JavaMissing,
    MachineError,
    PortTaken,
)
from keyhole.errors.request_errors import (
    DuplicateKey,
    EpochGone,
    InvalidConfiguration,
    KeyMismatch,
    KeyTooLong,
    MalformedRequest,
    NullKey,
    PermissionDenied,
    RequestError,
    ResumeGone,
    TooLarge,
    Unauthenticated,
    UnknownApplication,
    UnknownState,
    Unsupported,
    ValueMismatch,
)
from keyhole.errors.root import (
    InternalError,
    KeyholeError,
)
from keyhole.errors.unavailable_errors import (
    ClientClosed,
    DeadlineExceeded,
    Draining,
    EpochNotReached,
    KafkaUnreachable,
    NoServer,
    NotOwner,
    NotReady,
    Overloaded,
    ServerLost,
    StaleDescriptor,
    StillRunning,
    TooSlow,
    TooStale,
    UnavailableError,
    Unconfirmed,
)

__all__ = [
    "ChangelogRecreated",
    "CheckpointMismatch",
    "ClientClosed",
    "CommitError",
    "ConflictError",
    "DeadlineExceeded",
    "Draining",
    "DuplicateKey",
    "EpochFailed",
    "EpochGone",
    "EpochNotReached",
    "Fenced",
    "InternalError",
    "InvalidConfiguration",
    "JarsUnavailable",
    "JavaMissing",
    "KafkaUnreachable",
    "KeyMismatch",
    "KeyTooLong",
    "KeyholeError",
    "MachineError",
    "MalformedRequest",
    "NoServer",
    "NotOwner",
    "NotReady",
    "NullKey",
    "OutcomeUnknown",
    "Overloaded",
    "PermissionDenied",
    "PortTaken",
    "ProtocolMismatch",
    "ReplayDiffers",
    "RequestError",
    "ResumeGone",
    "SavepointDamaged",
    "SavepointMismatch",
    "ServerLost",
    "StageLost",
    "StaleDescriptor",
    "StateChanged",
    "StateConflict",
    "StillRunning",
    "StoreConflict",
    "StoreFormat",
    "StoreFull",
    "StoreLocked",
    "TooLarge",
    "TooSlow",
    "TooStale",
    "TopicMismatch",
    "Unauthenticated",
    "UnavailableError",
    "Unconfirmed",
    "UnknownApplication",
    "UnknownState",
    "Unsupported",
    "ValueMismatch",
    "by_reason",
]


def by_reason() -> dict[str, type[KeyholeError]]:
    """All concrete classes by their reason; InternalError stands for INTERNAL."""

    def leaves(kind: type[KeyholeError]) -> list[type[KeyholeError]]:
        below = kind.__subclasses__()
        return [leaf for child in below for leaf in leaves(child)] if below else [kind]

    return {kind.reason: kind for kind in leaves(KeyholeError)}


# Whoever reads a traceback imports the class by this name; so do pickles, and what finds our errors in the log of a
# process that has failed (keyhole.local.failures, keyhole.spark.running).
for _name in __all__:
    globals()[_name].__module__ = __name__
