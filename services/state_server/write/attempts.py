"""Which task attempts of a query have rows on this server: those whose rows arrive, and those that are staged whole.

Event loop only; the rows of an attempt belong to the host's thread (staged.py), and don't change once it is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from keyhole.errors import StageLost
from services.state_server.write.staged import StagedAttempt, StagedGroup


class Attempt(NamedTuple):
    """Names a staged partition attempt."""

    state: str
    epoch: int
    round: int
    partition: int
    attempt_id: int


class StagedPart(NamedTuple):
    """The rows of an epoch of one key group, and whose they are."""

    epoch: int
    attempt: StagedAttempt
    rows: StagedGroup


class RoundAttempts:
    """Of the newest round alone: an older one can't be committed any more.

    Args:
        close: Gives an attempt's rows back, once nobody reads them.
    """

    def __init__(self, close: Callable[[StagedAttempt], None]) -> None:
        self._close = close
        self._arriving: set[StagedAttempt] = set()
        self._staged: dict[Attempt, StagedAttempt] = {}
        # By state and key group; None: it is made anew when it is asked for.
        self._by_group: dict[tuple[str, bytes], StagedPart] | None = None

    def names(self) -> list[Attempt]:
        """The attempts that are staged whole."""
        return list(self._staged)

    def held(self) -> list[StagedAttempt]:
        """Those that arrive and those that are staged whole: all that take memory."""
        return [*self._arriving, *self._staged.values()]

    def part(self, state: str, prefix: bytes) -> StagedPart | None:
        """What is staged of a key group, by its prefix: all its rows, as one partition has them. None: nothing is.

        Of several attempts of that partition, those of the last one, which may have none of the key group: which of
        them will be committed is not known yet.
        """
        if self._by_group is None:
            last = {(name.state, name.partition): (name, attempt) for name, attempt in self._staged.items()}
            self._by_group = {
                (name.state, group): StagedPart(name.epoch, attempt, rows)
                for name, attempt in last.values()
                for group, rows in attempt.groups.items()
            }
        return self._by_group.get((state, prefix))

    def begin(self, name: Attempt, make: Callable[[], StagedAttempt]) -> StagedAttempt:
        """One whose rows arrive from now on.

        Raises:
            StageLost: A newer round, or a newer epoch, has begun.
        """
        self._check_newest(name)
        attempt = make()
        self._arriving.add(attempt)
        return attempt

    def stage(self, name: Attempt, attempt: StagedAttempt) -> None:
        """All its rows are here. Older rounds are dropped.

        Raises:
            StageLost: A newer round, or a newer epoch, has begun meanwhile.
        """
        self._check_newest(name)
        self._arriving.discard(attempt)
        self._drop(lambda other: (other.epoch, other.round) < (name.epoch, name.round))
        self._staged[name] = attempt
        self._by_group = None

    def discard(self, attempt: StagedAttempt) -> None:
        """It did not come to its end."""
        self._arriving.discard(attempt)
        self._close(attempt)

    def winners(self, state: str, epoch: int, round_: int, winners: Sequence[tuple[int, int]]) -> list[StagedAttempt]:
        """The attempts that are to be committed, of each partition one.

        Raises:
            StageLost: One of them is not here.
        """
        found = [self._staged.get(Attempt(state, epoch, round_, *winner)) for winner in winners]
        if not all(found):
            raise StageLost(f"rows of epoch {epoch} are not staged here; this server must have them staged again")
        return [attempt for attempt in found if attempt is not None]

    def drop_committed(self, epoch: int) -> None:
        """What is staged of the epoch, and of those before it."""
        self._drop(lambda attempt: attempt.epoch <= epoch)

    def drop_staged(self) -> None:
        """All that is staged. What arrives is discarded by who receives it."""
        self._drop(lambda _: True)

    def _check_newest(self, name: Attempt) -> None:
        newest = max(((of.epoch, of.round) for of in self._staged), default=(0, 0))
        if (name.epoch, name.round) < newest:
            raise StageLost(f"round {name.round} of epoch {name.epoch} has been superseded")

    def _drop(self, which: Callable[[Attempt], bool]) -> None:
        for name in [name for name in self._staged if which(name)]:
            self._close(self._staged.pop(name))
            self._by_group = None
