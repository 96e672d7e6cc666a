"""What a reader's bounds allow of one copy: `min_epoch`, `max_staleness`, and a confirmed owner."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from keyhole.encoding.storage_key import group_of
from keyhole.errors import EpochGone, EpochNotReached, TooStale, Unconfirmed
from keyhole.model.read import ReadBounds, Stale
from services.state_server.read.standing import Lease, Standing


class BoundsCheck:
    """See the module's text. Used by the event loop's thread alone.

    Args:
        name: Application and state, as errors name them.
        lease: Of the state's query.
        by_lease: The copy is as old as that, and no standing says another age: the owner's, where epochs are committed.
    """

    def __init__(self, server: str, name: str, lease: Lease, *, by_lease: bool) -> None:
        self._server = server
        self._name = name
        self._lease = lease
        self._by_lease = by_lease

    def check(self, keys: Sequence[bytes], standings: Sequence[Standing], bounds: ReadBounds) -> None:
        """Whether what the copy stands for, at the keys that are read, is good enough.

        Args:
            keys: Or what they begin with.
            standings: Of each; one alone: of all.

        Raises:
            Unconfirmed: Nothing stale is wanted, and the lease has passed: a newer owner may exist.
            EpochNotReached, TooStale: At least one of the standings isn't.
        """
        if bounds.stale is Stale.NEVER and self._lease.expired:
            raise self._unconfirmed()
        if bounds.min_epoch:
            self.check_epoch(min(standing.stamp.epoch for standing in standings), bounds.min_epoch, "min_epoch")
        if bounds.min_epochs:
            named = dict(bounds.min_epochs)
            of_each = standings if len(standings) == len(keys) else itertools.repeat(standings[0])
            for key, standing in zip(keys, of_each, strict=False):
                self.check_epoch(standing.stamp.epoch, named.get(group_of(key), 0), "min_epoch")
        if bounds.max_staleness_ms:
            # An owner has all epochs there are, as long as nobody has replaced it: that it knows as of its lease. Of
            # updates it may lack some, and goes on having them where its coordinator is gone.
            age_ms = self._lease.age_seconds * 1000 if self._by_lease else max(map(self._age_ms, standings))
            self._check_age(age_ms, bounds.max_staleness_ms)

    def check_epoch(self, epoch: int, least: int, option: str) -> None:
        """Raises EpochNotReached where a reader asks, by this option, for a later epoch than the copy has come to."""
        if epoch < least:
            raise EpochNotReached(
                f"state {self._name} is at epoch {epoch} on server {self._server}; {option} asks for {least}",
                epoch=epoch,
            )

    def gone(self, as_of: int, oldest: int) -> EpochGone:
        """The error for an epoch that the copy has come past."""
        return EpochGone(
            f"epoch {as_of} of state {self._name} is no longer kept on server {self._server}, which has epochs from "
            f"{oldest} on: read a newer one, or give the state a larger keep_epochs",
            oldest=oldest,
        )

    def _check_age(self, age_ms: float, most_ms: int) -> None:
        if age_ms > most_ms:
            said = "of unknown age" if age_ms == float("inf") else f"{age_ms:.0f} ms old"
            raise TooStale(
                f"what server {self._server} holds of state {self._name} is {said}; "
                f"max_staleness asks for {most_ms} ms",
                age_ms=age_ms,
            )

    def _age_ms(self, standing: Standing) -> float:
        if not standing.as_of_ms:
            return float("inf")
        clock = self._lease.clock
        heard_ms = (clock.monotonic() - standing.heard_monotonic) * 1000
        return max(heard_ms, clock.now_ms() - standing.as_of_ms)

    def _unconfirmed(self) -> Unconfirmed:
        age = self._lease.age_seconds
        heard = f"for {age:.1f} s" if age != float("inf") else "at all"
        return Unconfirmed(
            f"server {self._server} owns that key group of state {self._name}, but has not heard of its coordinator "
            f"{heard}: a newer owner may exist. Read with stale=when_needed, or wait until the job runs again",
            server=self._server,
        )
