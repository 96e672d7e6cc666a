"""Bounds and sessions where an epoch is of one key group: no more is asked of one than what was seen of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.client.options import ReadOptions, asked_of, defaults
from keyhole.client.session_epochs import Seen
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.storage_key import group_of
from keyhole.errors import EpochNotReached, MalformedRequest
from keyhole.model.read import ReadBounds, Stale
from keyhole.rpc.convert import bounds_from_proto, bounds_to_proto
from keyhole.v1 import query_pb2
from tests.support.fed_hosts import NAMES, begun, closed
from tests.support.states import KEY_GROUPS, descriptor, key

STATE = ("app", "counts")
GROUPS = st.integers(0, KEY_GROUPS - 1)
EPOCHS = st.dictionaries(GROUPS, st.integers(0, 9))
FED = StateCodec(descriptor(updates_topic_id="updates"))


def least(bounds: ReadBounds, group: int) -> int:
    return max(bounds.min_epoch, dict(bounds.min_epochs).get(group, 0))


@given(EPOCHS, st.integers(0, 9), st.sets(GROUPS, min_size=1))
def test_bounds_among_some_key_groups_ask_the_same_of_them_and_of_one_alone_by_one_number(
    named: dict[int, int], of_all: int, groups: set[int]
) -> None:
    bounds = ReadBounds(of_all, Stale.ALWAYS, 5, tuple(sorted(named.items())))
    among = bounds.among(groups)
    assert {group: least(among, group) for group in groups} == {group: least(bounds, group) for group in groups}
    assert dict(among.min_epochs).keys() < groups
    assert (among.stale, among.max_staleness_ms) == (Stale.ALWAYS, 5)
    sent = query_pb2.ReadOptions.FromString((bounds_to_proto(among) or query_pb2.ReadOptions()).SerializeToString())
    assert bounds_from_proto(sent) == among


@given(st.lists(st.tuples(st.sets(GROUPS, min_size=1), EPOCHS, st.one_of(st.integers(0, 9), EPOCHS))))
def test_a_session_asks_of_each_key_group_what_it_has_seen_of_it_and_no_more(
    reads: list[tuple[set[int], dict[int, int], int | dict[int, int]]],
) -> None:
    seen, model = Seen({}), dict.fromkeys(range(KEY_GROUPS), 0)
    for number, (groups, answers, asked) in enumerate(reads):
        options = ReadOptions(min_epoch=asked)
        keys = [NAMES[group] for group in groups]
        seen.hold(STATE, options, keys, FED)
        bounds, _ = asked_of(options, defaults(5.0)).read()
        of_user = {group: asked if isinstance(asked, int) else asked.get(group, 0) for group in groups}
        assert {group: least(bounds, group) for group in groups} == {
            group: max(of_user[group], model[group]) for group in groups
        }
        epochs = {group: least(bounds, group) + answers.get(group, 0) for group in groups}
        seen.note(STATE, [(NAMES[group], epoch) for group, epoch in epochs.items()], FED)
        model |= epochs
        if number % 3 == 0:
            seen = Seen(seen.epochs)


def test_what_was_seen_of_the_state_as_a_whole_holds_for_all_key_groups_once_it_is_known_to_be_fed() -> None:
    seen = Seen({STATE: 3})
    seen.note(STATE, [(NAMES[1], 7)], FED)
    assert seen.epochs == {STATE: {0: 3, 1: 7, 2: 3, 3: 3}}
    options = ReadOptions()
    seen.hold(STATE, options, [NAMES[0], ("no", "key")], FED)
    assert options == {"min_epoch": 3}


def test_of_a_state_that_is_fed_by_epochs_one_number_holds_for_all_keys() -> None:
    seen = Seen({})
    batch = StateCodec(descriptor())
    seen.note(STATE, [(NAMES[0], 7), (NAMES[1], 6)], batch)
    options = ReadOptions(min_epoch={group_of(key(NAMES[1])): 9})
    seen.hold(STATE, options, [NAMES[0]], batch)
    assert (seen.epochs, options) == ({STATE: 7}, {"min_epoch": 9})


@pytest.mark.parametrize("codec", [FED, StateCodec(descriptor()), None])
def test_a_token_of_no_writes_asks_for_no_more_than_was_seen(codec: StateCodec | None) -> None:
    seen, options = Seen({STATE: 3}), ReadOptions(min_epoch={})
    seen.hold(STATE, options, [NAMES[0]], codec)
    assert options == {"min_epoch": 3}


def test_a_token_asks_nothing_of_other_key_groups_where_the_state_as_a_whole_was_seen() -> None:
    seen, options = Seen({STATE: 3}), ReadOptions(min_epoch={1: 991_824})
    assert seen.needs_key_groups(STATE, options)
    seen.hold(STATE, options, [NAMES[0]], FED)
    assert options == {"min_epoch": 3}


OTHER = StateCodec(descriptor(updates_topic_id="made anew"))


@pytest.mark.parametrize(("before", "after"), [(FED, OTHER), (FED, StateCodec(descriptor())), (OTHER, FED)])
@pytest.mark.parametrize("resumed", [False, True])
def test_of_a_state_that_was_made_anew_no_epoch_of_the_one_before_is_asked(
    before: StateCodec, after: StateCodec, resumed: bool
) -> None:
    seen = Seen({})
    seen.note(STATE, [(NAMES[0], 991_824)], before)
    if resumed and not after.descriptor.updates_topic_id:
        seen = Seen(seen.epochs)
    options = ReadOptions()
    seen.hold(STATE, options, [NAMES[0]], after)
    assert options.get("min_epoch", 0) == 0
    seen.note(STATE, [(NAMES[0], 5)], after)
    options = ReadOptions()
    seen.hold(STATE, options, [NAMES[0]], after)
    assert options == {"min_epoch": 5}, "and reads of this one never go backwards"


def test_epochs_may_be_numbers_of_numpy_and_what_is_none_is_refused_at_once() -> None:
    given = np.int64(7)
    for least in (given, {1: given}):
        options = ReadOptions(min_epoch=least)  # type: ignore[typeddict-item]
        Seen({STATE: 3}).hold(STATE, options, [NAMES[1]], FED)
        bounds, _ = asked_of(options, defaults(5.0)).read()
        assert bounds.among([1]).min_epoch == 7
        assert bounds_to_proto(bounds) is not None
    for wrong in (1.5, "7", 1 << 64, {1: 1.5}, {1: "7"}, {0.5: 1}, {1 << 16: 1}):
        with pytest.raises(MalformedRequest):
            asked_of(ReadOptions(min_epoch=wrong), defaults(5.0)).read()  # type: ignore[typeddict-item]


async def test_an_owner_holds_each_key_to_the_epoch_that_is_asked_of_its_key_group() -> None:
    fed = await begun()
    for _ in range(5):
        much = fed.add(NAMES[0], 1)
    little = fed.add(NAMES[1], 1)
    await fed.steps()
    keys = [key(NAMES[0]), key(NAMES[1]), key(NAMES[0])]
    fed.table.lookup(keys, ReadBounds(min_epoch=1, min_epochs=((0, much), (1, little), (2, 99))))
    for wrong in (((0, much + 1),), ((1, little + 1),)):
        with pytest.raises(EpochNotReached):
            fed.table.lookup(keys, ReadBounds(min_epochs=wrong))
    fed.table.lookup(keys[:1], ReadBounds(min_epochs=((1, little + 1),)))
    await closed(fed)
