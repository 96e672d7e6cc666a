"""Not now: sending it again, inside the deadline, can help."""

from __future__ import annotations

from keyhole.errors.root import KeyholeError


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
    """A queue is full, or a limit is reached; the fact `retry_after_seconds`, if any, says when to try again."""

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
