"""The request is wrong: sending it again can't help."""

from __future__ import annotations

from keyhole.errors.root import KeyholeError


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
