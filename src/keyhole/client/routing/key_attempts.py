"""What became of one key on its way to a copy: whom it was sent to, and why it isn't answered yet. Pure."""

from __future__ import annotations

from keyhole.errors import (
    DeadlineExceeded,
    Draining,
    EpochNotReached,
    KeyholeError,
    NoServer,
    NotOwner,
    NotReady,
    ServerLost,
    StaleDescriptor,
    TooStale,
    Unconfirmed,
)

BOUND_ERRORS = (EpochNotReached, TooStale, Unconfirmed)
"""The copy is there, and is not what the reader asks for: the reader must learn which, not only that time is up."""

MENDABLE = (NotOwner, NotReady, ServerLost, NoServer, Draining, StaleDescriptor, *BOUND_ERRORS)
"""What another copy, or the same one in a moment, can mend. Not Overloaded: trying again makes it worse."""


class KeyAttempts:
    """Made when a key first has trouble: until then it is under way to one server.

    Attributes:
        missed: All that it was sent to have failed or kept silent, once or more often.
        asked: Those asked since all copies were last begun with.
        under_way: Those that may still answer.
        hopes: How many of these are still within their hop deadline.
    """

    __slots__ = ("asked", "bound", "cause", "hopes", "missed", "under_way")

    def __init__(self, address: str) -> None:
        self.asked = {address} if address else set()
        self.under_way = set(self.asked)
        self.hopes = len(self.asked)
        self.missed = False
        self.cause: KeyholeError | None = None
        self.bound: KeyholeError | None = None

    def sent(self, address: str) -> None:
        """It is under way to another server, too."""
        self.asked.add(address)
        self.under_way.add(address)
        self.hopes += 1

    def refused(self, address: str, error: KeyholeError, *, was_overdue: bool) -> None:
        """A server has said why it doesn't answer, or was lost."""
        self.under_way.discard(address)
        self.hopes -= not was_overdue
        if isinstance(error, BOUND_ERRORS):
            self.bound = _nearer(self.bound, error)
        else:
            self.cause = error

    def overdue(self, address: str) -> None:
        """A server keeps silent. It may answer yet; or it has refused this key, and keeps silent on others."""
        self.hopes -= address in self.under_way

    @property
    def reason(self) -> KeyholeError | None:
        """Why it isn't answered; None: nobody has said so."""
        return self.bound or self.cause

    def begin_again(self) -> None:
        """All copies may be asked once more, but for those that have not answered yet."""
        self.asked = set(self.under_way)

    def too_late(self, attempts: int, silent: KeyholeError | None = None) -> KeyholeError:
        """Why there was no answer within the deadline.

        Args:
            silent: What there is to say of a server that was asked last and did not answer in time.
        """
        if self.bound is not None:
            also = f"; another copy failed because {self.cause.message}" if self.cause else ""
            error = type(self.bound)(
                f"{self.bound.message} (no copy was any nearer to that within the deadline, in {attempts} "
                f"attempts{also})"
            )
            error.facts = self.bound.facts | {"attempts": str(attempts)}
            return error
        reason, message = (self.cause.reason, self.cause.message) if self.cause else ("NO_SERVER", "no server answered")
        last = f"{silent.message}. The attempt before" if silent else "the last"
        return DeadlineExceeded(
            f"no answer within the deadline, after {attempts} attempts; {last} failed because {message}",
            cause=reason,
            attempts=attempts,
        )


def _nearer(before: KeyholeError | None, error: KeyholeError) -> KeyholeError:
    """Of two copies that refuse alike, the one that is nearer to what the reader asks for."""
    if type(before) is not type(error) or before is None:
        return error
    if isinstance(error, EpochNotReached):
        return max(before, error, key=lambda one: _number(one, "epoch", 0))
    if isinstance(error, TooStale):
        return min(before, error, key=lambda one: _number(one, "age_ms", float("inf")))
    return error


def _number(error: KeyholeError, fact: str, missing: float) -> float:
    try:
        return float(error.facts[fact])
    except (KeyError, ValueError):
        return missing
