"""What can become of an attempt to commit an epoch on one owner, which restores after whatever went wrong."""

from __future__ import annotations

import enum
from contextlib import suppress

from keyhole.errors import KafkaUnreachable, OutcomeUnknown, StoreFull
from keyhole.stores.base import Batch
from keyhole.testing.changelog import NextCommit
from services.state_server.write.commit import EpochToCommit
from tests.support.bench import Bench
from tests.support.states import KEY_GROUPS


class Fate(enum.Enum):
    """What happens to an attempt to commit an epoch; it is tried again until it goes well."""

    GOES_WELL = enum.auto()
    KAFKA_AWAY = enum.auto()
    COMMITTED_UNANSWERED = enum.auto()
    LOST_UNANSWERED = enum.auto()
    CRASH_BEFORE_STORE = enum.auto()
    REPLAYED = enum.auto()
    STORE_LOST = enum.auto()


class Fated:
    """A bench to which these happen."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self._grants = 1

    def commit(self, epoch: EpochToCommit, fate: Fate) -> None:
        """Once, whatever comes of it."""
        kafka, state = self.bench.kafka, self.bench.state
        match fate:
            case Fate.KAFKA_AWAY:
                kafka.down = True
                with suppress(KafkaUnreachable):  # which nobody notices who has nothing to write
                    self.bench.commit(epoch)
                kafka.down = False
            case Fate.COMMITTED_UNANSWERED | Fate.LOST_UNANSWERED:
                committed = fate is Fate.COMMITTED_UNANSWERED
                kafka.next_commit = (
                    NextCommit.IS_COMMITTED_BUT_NOT_ANSWERED if committed else NextCommit.IS_LOST_AND_NOT_ANSWERED
                )
                try:
                    self.bench.commit(epoch)
                except OutcomeUnknown:
                    self.restore()
                kafka.next_commit = NextCommit.SUCCEEDS
            case Fate.CRASH_BEFORE_STORE:
                apply = state.store.apply
                state.store.apply = _full  # type: ignore[method-assign]
                try:
                    self.bench.commit(epoch)
                except StoreFull:
                    state.store.apply = apply  # type: ignore[method-assign]
                    self.restore()
                state.store.apply = apply  # type: ignore[method-assign]
            case Fate.REPLAYED:
                self.bench.commit(epoch)
            case Fate.STORE_LOST:
                self.lose_store()
            case Fate.GOES_WELL:
                pass

    def lose_store(self) -> None:
        """What is there afterwards is what the changelog alone gives."""
        self.bench.state.forget(range(KEY_GROUPS), "the test says so")
        self.restore()

    def restore(self) -> None:
        """Under a new grant."""
        self._grants += 1
        self.bench.restore_under(f"grant-{self._grants}")


def _full(batch: Batch) -> None:
    raise StoreFull("full")
