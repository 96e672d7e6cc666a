"""Which epochs a state can be read as of: what was published stays readable for a while, and is let go of then."""

from __future__ import annotations

import msgspec
import pytest

from keyhole.encoding.codec import EntryRange
from keyhole.errors import EpochGone, EpochNotReached, Unconfirmed, Unsupported
from keyhole.model.epoch import START, Position
from keyhole.model.read import ReadBounds, Stale
from keyhole.stores.base import Advance, Batch, Snapshot
from keyhole.testing.clock import ManualClock
from services.state_server.read.table import Table
from tests.support.states import KEY_GROUPS, descriptor, group, key, names_in, row, standing, table

_ALL = frozenset(range(KEY_GROUPS))


def committed(to: Table, epoch: int, groups: frozenset[int] = _ALL, name: str = "a") -> None:
    """The epoch's number is the value of the key from then on."""
    before = to.store.snapshot().positions().get(group(name), START)
    after = Position(before.offset + 2, epoch, 1, 0, 1000 * epoch)
    to.store.apply(Batch(puts=[(key(name), row(float(epoch)))], advances={group(name): Advance(before, after)}))
    to.publish(to.store.snapshot(), groups, standing(epoch), {})


def seen(of: Table, as_of: int, name: str = "a", **bounds: object) -> bytes | None:
    (answer,) = of.lookup([key(name)], ReadBounds(as_of=as_of, **bounds)).rows  # type: ignore[arg-type]
    return answer


def scanned(of: Table, as_of: int, name: str = "a") -> list[bytes | None]:
    scan = of.scan(EntryRange(key(name)[:2], b"", None), ReadBounds(as_of=as_of))
    try:
        return [entry for _, entry in scan.entries]
    finally:
        scan.close()


def test_the_last_epochs_are_read_by_their_number_and_older_ones_are_gone() -> None:
    of = table()
    for epoch in (1, 2, 3, 4):
        committed(of, epoch)
    assert [seen(of, epoch) for epoch in (2, 3, 4)] == [row(2.0), row(3.0), row(4.0)]
    assert [scanned(of, epoch) for epoch in (2, 3, 4)] == [[row(2.0)], [row(3.0)], [row(4.0)]]
    for read in (seen, scanned):
        with pytest.raises(EpochGone, match=r"epoch 1 .* from 2 on") as gone:
            read(of, 1)
        assert gone.value.facts["oldest"] == "2"
        with pytest.raises(EpochNotReached, match=r"at epoch 4 .* as_of asks for 5"):
            read(of, 5)


def test_an_answer_of_an_earlier_epoch_says_what_it_is_as_of_and_what_it_lacks() -> None:
    of = table()
    for epoch in (1, 2, 3):
        committed(of, epoch)
    (source,) = of.lookup([key("a")], ReadBounds(as_of=1)).sources
    assert (source.epoch, source.commit_time_ms, source.as_of_ms, source.lag_epochs) == (1, 1000, 1000, 2)
    (last,) = of.lookup([key("a")]).sources
    assert (last.epoch, last.lag_epochs) == (3, 0)


def test_as_many_epochs_are_kept_as_the_state_says_and_a_new_number_counts_at_once() -> None:
    of = table(descriptor(keep_epochs=1))
    committed(of, 1)
    committed(of, 2)
    assert seen(of, 2) == row(2.0)
    with pytest.raises(EpochGone):
        seen(of, 1)
    assert of.evolve(msgspec.structs.replace(of.descriptor, keep_epochs=5))
    for epoch in (3, 4, 5, 6):
        committed(of, epoch)
    assert [seen(of, epoch) for epoch in (2, 3, 4, 5, 6)] == [row(float(epoch)) for epoch in (2, 3, 4, 5, 6)]
    assert of.evolve(msgspec.structs.replace(of.descriptor, keep_epochs=2))
    assert seen(of, 5) == row(5.0)
    with pytest.raises(EpochGone):
        seen(of, 4)


def test_what_is_published_again_of_an_epoch_takes_the_place_of_what_was() -> None:
    """A server gets more key groups: the epoch is the same, and there is more to read of it."""
    of = table()
    committed(of, 1, frozenset({group("a")}))
    other = next(name for name in names_in((group("a") + 1) % KEY_GROUPS))
    committed(of, 1, name=other)
    committed(of, 2)
    assert seen(of, 1) == row(1.0)
    assert seen(of, 1, other) == row(1.0)


def test_a_key_group_that_came_later_is_not_read_as_of_an_epoch_before() -> None:
    of = table()
    mine = frozenset({group("a")})
    committed(of, 1, mine)
    committed(of, 2)
    assert seen(of, 1) == row(1.0)
    with pytest.raises(EpochGone):
        seen(of, 1, names_in((group("a") + 1) % KEY_GROUPS)[0])


def test_a_key_group_that_was_ahead_of_an_epoch_is_not_read_as_of_it() -> None:
    """It held the next one already, which an earlier run had committed, and nobody has seen it before."""
    of = table()
    ahead, behind = names_in(0)[0], names_in(1)[0]
    positions = {0: Position(9, 5, 2, 0, 5000), 1: Position(3, 4, 1, 0, 4000)}
    of.publish(of.store.snapshot(), _ALL, standing(4), positions)
    assert seen(of, 5, ahead) is None
    assert seen(of, 4, behind) is None
    with pytest.raises(EpochGone):
        seen(of, 4, ahead)
    of.publish(of.store.snapshot(), _ALL, standing(5), {})
    assert seen(of, 4, behind) is None
    with pytest.raises(EpochGone):
        seen(of, 4, ahead)


def test_who_is_no_longer_the_owner_answers_of_no_epoch() -> None:
    of = table()
    of.given.taken_over()
    committed(of, 1)
    committed(of, 2)
    of.given.release(_ALL)
    with pytest.raises(Exception, match="does not own"):
        seen(of, 1)


def test_an_owner_that_is_not_confirmed_says_so_of_earlier_epochs_too() -> None:
    clock = ManualClock()
    of = table(clock=clock)
    committed(of, 1)
    committed(of, 2)
    assert seen(of, 1, stale=Stale.NEVER) == row(1.0)
    clock.advance(3.5)
    with pytest.raises(Unconfirmed):
        seen(of, 1, stale=Stale.NEVER)
    assert of.lookup([key("a")], ReadBounds(as_of=1)).sources[0].unconfirmed


def test_nothing_is_kept_of_what_is_fed_by_updates() -> None:
    of = table(descriptor(updates_topic_id="updates"))
    committed(of, 1)
    with pytest.raises(Unsupported, match="fed by updates"):
        seen(of, 1)


class Watched:
    """A snapshot that says whether it is open."""

    def __init__(self, of: Snapshot, still: set[Watched]) -> None:
        self._of, self._still = of, still
        still.add(self)

    def __getattr__(self, name: str) -> object:
        return getattr(self._of, name)

    def close(self) -> None:
        self._still.discard(self)
        self._of.close()


def test_a_snapshot_is_closed_once_neither_its_epoch_nor_a_scan_needs_it() -> None:
    of = table()
    still: set[Watched] = set()
    for epoch in (1, 2, 3):
        committed(of, epoch)
    of.owned.close()
    for epoch in (1, 2, 3, 3, 4):
        of.publish(Watched(of.store.snapshot(), still), _ALL, standing(epoch), {})  # type: ignore[arg-type]  # as one
    assert len(still) == 3
    scan = of.scan(EntryRange(key("a")[:2], b"", None), ReadBounds(as_of=2))
    for epoch in (5, 6, 7):
        of.publish(Watched(of.store.snapshot(), still), _ALL, standing(epoch), {})  # type: ignore[arg-type]  # as one
    assert len(still) == 4
    assert [entry for _, entry in scan.entries] == [row(3.0)]
    scan.close()
    assert len(still) == 3
    of.given.assign(frozenset())
    of.given.begin_take_over()
    assert len(still) <= 1  # nothing is owned: what was is not kept
    of.close()
    assert not still
