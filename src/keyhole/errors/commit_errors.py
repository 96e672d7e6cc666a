"""What goes wrong between the coordinator and the servers as an epoch is committed."""

from __future__ import annotations

from keyhole.errors.root import KeyholeError


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
