"""Which keys are read most, by samples: what is found, what is forgotten, and how much is remembered."""

from __future__ import annotations

import random

import pytest

from keyhole.encoding.codec import StateCodec
from keyhole.testing.clock import ManualClock
from services.client_proxy.console.hottest import hottest_json
from services.client_proxy.counts import ProxyCounts
from services.client_proxy.hot_keys import HotKeys
from services.client_proxy.siblings import CountedReads, HotKey, ProcessFacts
from tests.support.readings import APPLICATION, STATE, descriptor

NAME = (APPLICATION, STATE)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Samples are random: the same in each run."""
    random.seed(7)


def test_keys_that_are_read_often_are_found_among_many_others_with_about_their_share() -> None:
    hot, read, now = HotKeys(), 0, 100.0
    some = random.Random(1)
    for _ in range(3_000):
        keys = [b"hot" if some.random() < 0.2 else b"%d" % some.randrange(100_000) for _ in range(10)]
        read += len(keys)
        now += 0.1
        hot.sample(now, read, keys)
    (first, *others) = hot.hottest(now)
    assert first.storage_key == b"hot"
    assert 0.15 < first.reads / hot.reads < 0.25
    assert all(of.reads / hot.reads < 0.02 for of in others)  # by chance


def test_what_was_hot_is_forgotten_and_no_more_is_remembered_than_so_many_keys() -> None:
    hot, read = HotKeys(), 0
    for turn in range(1, 101):
        read += 1
        hot.sample(turn / 10, read, [b"was hot"])
    assert hot.hottest(10.0) == (HotKey(b"was hot", 100.0),)
    assert hot.hottest(70.5) == (HotKey(b"was hot", 50.0),)
    assert hot.hottest(10_000.0) == ()
    for number in range(1_000):
        read += 1
        hot.sample(20_000.0 + number, read, [b"%d" % number])
    assert len(hot._counted) <= 64
    read += 1
    hot.sample(21_001.0, read, [b"x" * 10_000])  # nobody's memory
    assert max(map(len, hot._counted)) < 10


def test_a_key_of_one_large_frame_is_not_taken_for_a_hot_one() -> None:
    hot = HotKeys()
    hot.sample(1.0, 500, [b"%d" % number for number in range(500)])
    assert hot.hottest(1.0) == ()


def test_a_proxy_takes_few_samples_however_much_is_read() -> None:
    clock = ManualClock()
    counts, known = ProxyCounts(clock), {NAME: None, (APPLICATION, "other"): None}
    of, other = counts.of(NAME, known), counts.of((APPLICATION, "other"), known)
    taken = {id(of): 0, id(other): 0}
    for _ in range(10_000):
        clock.advance(0.0001)
        for one in (of, other):
            due = one.hot.due
            counts.begun(one, [b"key"] * 5)
            taken[id(one)] += one.hot.due != due
    assert all(8 <= count <= 11 for count in taken.values())
    assert of.keys == 50_000
    assert 45_000 < of.hot.reads <= 50_000  # each sample stands for all since the one before


def test_what_processes_tell_is_put_together_and_made_readable() -> None:
    codec = StateCodec(descriptor())
    one, two = codec.storage_keys([("sensor-1",), ("sensor-2",)])

    def facts(sampled: float, *hottest: HotKey, state: str = STATE) -> ProcessFacts:
        return ProcessFacts(b"", (CountedReads(APPLICATION, state, 0, 0, 0, 0, (), sampled, hottest),), ())

    counts = [
        facts(60.0, HotKey(one, 20.0), HotKey(two, 10.0)),
        facts(40.0, HotKey(two, 30.0), HotKey(b"\xff", 9.0)),
        facts(1_000.0, HotKey(one, 1_000.0), state="another"),
    ]
    assert hottest_json(codec, counts) == {
        "reads": 100,
        "keys": [{"key": "sensor-2", "share": 0.4}, {"key": "sensor-1", "share": 0.2}],
    }
    assert hottest_json(codec, []) == {"reads": 0, "keys": []}
