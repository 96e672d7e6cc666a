"""Lists, maps, aggregates and what expires, case by case; any rows at all: tests/property/test_kinds.py."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.envelope import STAMP_BYTES, Base, decode_aggregate
from keyhole.encoding.key_codec import encode_integer
from keyhole.errors import DuplicateKey
from keyhole.model.epoch import EpochStamp
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind
from keyhole.stores.memory import MemoryEngine
from services.state_server.write.commit import EpochToCommit, StateToCommit
from services.state_server.write.merge import changes, merge_of
from services.state_server.write.staged import StagedAttempt
from tests.support.bench import Bench
from tests.support.models import aggregated
from tests.support.states import EPOCH, KEY_GROUPS, content, descriptor, names_in, row

NAME, OTHER = names_in(0, 2)
LIST = descriptor(kind=StateKind.LIST)
MAP = descriptor(kind=StateKind.MAP, map_key=(KeyColumn("m", KeyType.INT),))
PREFIX = StateCodec(LIST).prefix(NAME)


class Owner:
    """Commits epochs of one state, one at each second unless told otherwise."""

    def __init__(self, of: StateDescriptor) -> None:
        self.of = of
        self.bench = Bench(of)
        self.epoch = 0

    def run(self, rows: Mapping[bytes, bytes | None], at_seconds: float | None = None, *, replace: bool = False) -> int:
        """Returns the checksum of key group 0; 0: it was not touched."""
        self.epoch += 1
        attempt = StagedAttempt("app/counts", KEY_GROUPS, 511, merge_of(self.of))
        attempt.add(list(rows), list(rows.values()))
        at_ms = round(1000 * (self.epoch if at_seconds is None else at_seconds))
        states = {"counts": StateToCommit([attempt], attempt.receipts(), replace)}
        committed = self.bench.commit(EpochToCommit(EpochStamp(self.epoch, 1, at_ms, at_ms), 0, states))
        return committed[0].checksum if 0 in committed else 0

    def held(self) -> dict[int, float]:
        """The one field by position, or by map key; of NAME."""
        codec, width = StateCodec(self.of), 8 if self.of.kind is StateKind.LIST else 4
        found = {}
        for name, stored in content(self.bench.state.store).items():
            if name.startswith(PREFIX):
                number = int.from_bytes(name[-width:], "big") - (1 << 8 * width - 1)
                found[number] = codec.decode_row(stored[STAMP_BYTES:] if self.of.ttl_ms else stored)["n"]
        return found


def elements(*numbers: float, first: int = 0) -> dict[bytes, bytes | None]:
    return {PREFIX + encode_integer(at, 8): row(n) for at, n in enumerate(numbers, start=first)}


def entry(number: int) -> bytes:
    return PREFIX + encode_integer(number, 4)


class TestLists:
    """Kind LIST."""

    def test_elements_come_after_those_that_are_there_whatever_numbers_the_task_gave_them(self) -> None:
        owner = Owner(LIST)
        owner.run(elements(1.0, 2.0, first=700))
        owner.run(elements(3.0, first=5))
        assert owner.held() == {0: 1.0, 1: 2.0, 2: 3.0}

    def test_the_numbers_that_the_task_gave_them_are_no_part_of_the_checksum(self) -> None:
        sums = {Owner(LIST).run(elements(1.0, 2.0, first=first)) for first in (0, 700)}
        assert len(sums) == 1
        assert sums != {Owner(LIST).run(elements(1.0, 3.0))}

    def test_what_clears_a_list_spares_what_the_epoch_appends(self) -> None:
        owner = Owner(LIST)
        owner.run(elements(1.0, 2.0, 3.0))
        owner.run({PREFIX: None, **elements(4.0, 5.0)})
        assert owner.held() == {0: 4.0, 1: 5.0}
        owner.run({PREFIX: None})
        assert owner.held() == {}

    def test_of_more_elements_than_it_may_have_the_last_ones_stay(self) -> None:
        owner = Owner(descriptor(kind=StateKind.LIST, max_length=3))
        owner.run(elements(1.0, 2.0))
        owner.run(elements(3.0, 4.0))
        assert owner.held() == {1: 2.0, 2: 3.0, 3: 4.0}
        owner.run(elements(*map(float, range(5, 10))))
        assert owner.held() == {6: 7.0, 7: 8.0, 8: 9.0}
        owner.run({PREFIX: None, **elements(*map(float, range(5)))})
        assert owner.held() == {2: 2.0, 3: 3.0, 4: 4.0}

    def test_a_batch_that_replaces_the_state_numbers_its_elements_anew(self) -> None:
        owner = Owner(LIST)
        owner.run(elements(1.0, 2.0))
        owner.run(elements(3.0, first=9), replace=True)
        assert owner.held() == {0: 3.0}

    def test_neighbouring_keys_have_lists_of_their_own(self) -> None:
        of = descriptor(kind=StateKind.LIST, key=(KeyColumn("k", KeyType.BIGINT),), key_groups=1)
        names = [StateCodec(of).prefix(number) + encode_integer(0, 8) for number in range(-1, 3)]
        empty = MemoryEngine().open("app", "counts", "topic").snapshot()
        rows = {name: row(float(at)) for at, name in enumerate(names)}
        assert dict(changes(rows, empty, 0, merge_of(of), EPOCH, replace=False)) == rows

    def test_two_elements_of_one_number_are_refused(self) -> None:
        attempt = StagedAttempt("app/counts", KEY_GROUPS, 511, merge_of(LIST))
        with pytest.raises(DuplicateKey):
            attempt.add([entry(0), entry(0)], [row(1.0), row(2.0)])

    def test_positions_go_on_while_anything_is_left_and_begin_anew_when_all_has_expired_and_is_gone(self) -> None:
        owner = Owner(descriptor(kind=StateKind.LIST, ttl_ms=2500))
        owner.run(elements(1.0), 1)
        owner.run(elements(2.0), 3)
        owner.run(elements(3.0), 4)
        assert owner.held() == {1: 2.0, 2: 3.0}
        owner.run({}, 9)
        assert owner.held() == {}
        owner.run(elements(4.0), 10)
        assert owner.held() == {0: 4.0}

    def test_an_append_to_elements_that_have_expired_in_the_same_epoch_comes_after_them(self) -> None:
        owner = Owner(descriptor(kind=StateKind.LIST, ttl_ms=2500))
        owner.run(elements(1.0, 2.0), 1)
        owner.run(elements(3.0), 9)
        assert owner.held() == {2: 3.0}

    def test_a_hole_that_a_clock_set_back_has_left_costs_elements_and_never_gives_too_many(self) -> None:
        owner = Owner(descriptor(kind=StateKind.LIST, ttl_ms=2500, max_length=3))
        owner.run(elements(1.0), 5)
        owner.run(elements(2.0), 1)
        owner.run(elements(3.0), 5)
        assert owner.held() == {0: 1.0, 2: 3.0}
        owner.run(elements(4.0), 6)
        assert owner.held() == {2: 3.0, 3: 4.0}


class TestMaps:
    """A map key."""

    def test_what_clears_a_key_takes_the_entries_it_had_and_spares_what_the_epoch_writes(self) -> None:
        owner = Owner(MAP)
        owner.run({entry(1): row(1.0), entry(2): row(2.0), entry(3): row(3.0)})
        owner.run({PREFIX: None, entry(2): row(9.0), entry(3): None, entry(4): row(4.0)})
        assert owner.held() == {2: 9.0, 4: 4.0}

    def test_of_a_reducing_map_what_comes_after_a_clear_is_not_added_to_what_was_before(self) -> None:
        owner = Owner(descriptor(kind=StateKind.REDUCING, reducers=("sum",), map_key=MAP.map_key))
        owner.run({entry(1): row(1.0), entry(2): row(2.0)})
        owner.run({PREFIX: None, entry(1): row(5.0)})
        assert owner.held() == {1: 5.0}
        owner.run({entry(1): row(5.0)})
        assert owner.held() == {1: 10.0}

    def test_another_key_is_left_alone(self) -> None:
        owner = Owner(MAP)
        other = StateCodec(MAP).prefix(OTHER)
        owner.run({entry(1): row(1.0), other + encode_integer(1, 4): row(2.0)})
        owner.run({other: None})
        assert owner.held() == {1: 1.0}

    def test_a_clear_takes_also_what_has_expired(self) -> None:
        owner = Owner(descriptor(kind=StateKind.MAP, map_key=MAP.map_key, ttl_ms=2500))
        owner.run({entry(1): row(1.0)}, 1)
        owner.run({PREFIX: None, entry(2): row(2.0)}, 9)
        assert owner.held() == {2: 2.0}


class TestExpired:
    """What is merged onto what has expired."""

    @pytest.mark.parametrize(("at_seconds", "total"), [(3.499, 3.0), (3.5, 2.0)])
    def test_a_sum_begins_anew(self, at_seconds: float, total: float) -> None:
        owner = Owner(descriptor(kind=StateKind.REDUCING, reducers=("sum",), map_key=MAP.map_key, ttl_ms=2500))
        owner.run({entry(1): row(1.0)}, 1)
        owner.run({entry(1): row(2.0)}, at_seconds)
        assert owner.held() == {1: total}

    @pytest.mark.parametrize(("at_seconds", "kept"), [(3.499, 5.0), (3.5, 2.0)])
    def test_a_row_that_ranks_below_it_is_taken(self, at_seconds: float, kept: float) -> None:
        owner = Owner(descriptor(kind=StateKind.MAP, map_key=MAP.map_key, order_by="n", ttl_ms=2500))
        owner.run({entry(1): row(5.0)}, 1)
        owner.run({entry(1): row(2.0)}, at_seconds)
        assert owner.held() == {1: kept}

    @pytest.mark.parametrize(("at_seconds", "before"), [(3.499, b"one"), (3.5, None)])
    def test_an_aggregate_remembers_no_accumulator(self, at_seconds: float, before: bytes | None) -> None:
        owner = Owner(descriptor(kind=StateKind.AGGREGATING, ttl_ms=2500))
        owner.run({PREFIX: aggregated(row(1.0), b"one")}, 1)
        owner.run({PREFIX: aggregated(row(2.0), b"two")}, at_seconds)
        (stored,) = content(owner.bench.state.store).values()
        entry = decode_aggregate(stored[STAMP_BYTES:])
        assert (entry.epoch, entry.accumulator, entry.before) == (2, b"two", before)
        assert (entry.as_of(2), entry.as_of(3)) == (before and Base(before, 1), Base(b"two", 1))


def test_of_an_aggregate_the_digest_alone_is_checked_when_it_is_run_again() -> None:
    """What it was merged with is another one then, or the rows came in another order."""
    merge = merge_of(descriptor(kind=StateKind.AGGREGATING))
    one, two = aggregated(row(1.0), b"one"), aggregated(row(2.0), b"two")
    assert merge.digest(PREFIX, one) == merge.digest(PREFIX, two)
    assert merge.digest(PREFIX, one) != merge.digest(PREFIX, b"othr" + one[4:])
