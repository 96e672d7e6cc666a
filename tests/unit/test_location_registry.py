"""The registry tests of Flink's queryable state (KvStateLocationRegistryTest, KvStateRegistryTest): F80 to F85."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from keyhole.encoding.codec import StateCodec
from keyhole.model.read import Role
from keyhole.model.state import StateDescriptor
from keyhole.protocol.routing import build, diff
from keyhole.protocol.server_view import Holding, ServerView
from tests.support import readings


def _state(state: str, key_groups: int, **others: str) -> StateDescriptor:
    return msgspec.structs.replace(readings.descriptor(state, **others), key_groups=key_groups)


def _holding(of: StateDescriptor, *groups: int, generation: int = 1) -> Holding:
    return Holding(of, frozenset(groups), Role.OWNER, generation, 1, ready=True)


def test_key_groups_are_found_once_they_are_told_and_not_any_more_once_they_are_given_up_f80() -> None:
    """F80: two states of 32 and 13 key groups, each key group on one of three servers."""
    states = [_state("one", 32), _state("two", 13)]
    owner = {(of.state, group): "abc"[group % 3] for of in states for group in range(of.key_groups)}

    def views(held: set[tuple[str, int]]) -> list[ServerView]:
        return [
            ServerView(
                address,
                holdings=tuple(
                    _holding(of, *(g for g in range(of.key_groups) if (of.state, g) in held and g % 3 == index))
                    for of in states
                ),
            )
            for index, address in enumerate("abc")
        ]

    held: set[tuple[str, int]] = set()
    for name in sorted(owner):
        held.add(name)
        tables = build(views(held))
        for of in states:
            addresses = tables[readings.APPLICATION, of.state].owners.addresses
            assert addresses == tuple(owner[of.state, g] if (of.state, g) in held else "" for g in range(of.key_groups))
    for name in sorted(owner):
        held.discard(name)
        assert not build(views(held))[readings.APPLICATION, name[0]].owners.addresses[name[1]]


def test_of_two_states_under_one_name_readers_get_one_and_never_a_mixture_f81() -> None:
    """F81: a duplicate name. The job is refused (tests/spark/test_job_failures.py); routing never mixes."""
    first, second = _state("one", 4), _state("one", 8, topic_id="topic-2")
    views = [
        ServerView("a", holdings=(_holding(first, *range(4)),)),
        ServerView("b", holdings=(_holding(second, 0, 1),)),
    ]
    table = build(views)[readings.APPLICATION, "one"]
    assert (table.descriptor, set(table.first.addresses)) in [(first, {"a"}), (second, {"b", ""})]
    newer = ServerView("b", holdings=(_holding(second, 0, 1, generation=2),))
    assert build([views[0], newer])[readings.APPLICATION, "one"].descriptor == second


def test_giving_up_what_was_never_held_changes_nothing_f82_f83() -> None:
    """F82, F83: unregistering before registering, and of key groups that are another's."""
    of = _state("one", 4)
    before = build([ServerView("a", holdings=(_holding(of, *range(4)),)), ServerView("b")])
    for nothing in (
        ServerView("b"),
        ServerView("b", holdings=(_holding(of),)),
        ServerView("b", lost="gone"),
        ServerView("c", lost="gone"),
    ):
        after = build([ServerView("a", holdings=(_holding(of, *range(4)),)), nothing])
        assert not any(diff(before, after))


def test_ten_threads_share_a_codec_and_each_gets_its_own_rows_f84() -> None:
    """F84: serializers are never shared by threads; ours keep nothing between two calls."""
    codec = StateCodec(readings.descriptor())

    def work(thread: int) -> bool:
        for number in range(500):
            name, celsius = f"sensor-{thread}-{number}", float(1000 * thread + number)
            if codec.key(codec.storage_key(name)) != (name,):
                return False
            if codec.decode_row(readings.row(celsius)).celsius != celsius:
                return False
        return True

    with ThreadPoolExecutor(10) as pool:
        assert all(pool.map(work, range(10)))


@pytest.mark.parametrize("word", [ServerView("b"), ServerView("b", lost="gone")])
def test_what_happens_to_one_application_is_not_told_of_another_f85(word: ServerView) -> None:
    """F85: listeners are notified per job."""
    mine, other = _state("one", 4), _state("one", 4, application="other")
    a = ServerView("a", holdings=(_holding(mine, *range(4)),))
    b = ServerView("b", holdings=(_holding(other, *range(4)),))
    before, after = build([a, b]), build([a, word])
    change = diff(before, after)
    assert {name[0] for name in (*change.removed, *change.moved)} == {"other"}
    assert after[readings.APPLICATION, "one"] == before[readings.APPLICATION, "one"]
