"""Copies of a state against its changelog: what differs is found, and nothing else is reported."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.errors import KeyholeError, ServerLost, UnknownApplication, UnknownState
from keyhole.model.read import Role
from keyhole.v1 import state_pb2
from keyhole.v1 import state_server_pb2 as pb
from keyhole.verify.differences import compare
from keyhole.verify.fetched_copies import Server
from keyhole.verify.verify import Verdict, describe, verify
from tests.support.applications import Application
from tests.support.states import group, key, row

NUMBERS: dict[str, float | None] = {f"key-{number}": float(number) for number in range(40)}
OWNER, STANDBY = Server("server-a", "a:1"), Server("server-b", "b:1")


@dataclass
class FakeServers:
    """Copies that hold what the changelog held when they were filled."""

    application: Application
    held: dict[Server, dict[int, dict[bytes, bytes]]] = field(default_factory=dict)
    offsets: dict[Server, dict[int, int]] = field(default_factory=dict)
    asked: list[tuple[Server, Collection[int]]] = field(default_factory=list)
    refused: dict[Server, KeyholeError] = field(default_factory=dict)
    before: Callable[[], None] = lambda: None

    def fill(self, server: Server, numbers: dict[str, float | None]) -> None:
        rows: dict[int, dict[bytes, bytes]] = {number: {} for number in range(4)}
        for name, number in numbers.items():
            if number is not None:
                rows[group(name)][key(name)] = row(number)
        self.held[server] = rows
        self.offsets[server] = {number: marker + 1 for number, marker in enumerate(self.application.markers)}

    def __call__(self, server: Server, key_groups: Collection[int]) -> Iterator[pb.DumpChunk]:
        self.asked.append((server, key_groups))
        self.before()
        if server in self.refused:
            raise self.refused[server]
        if server not in self.held:
            raise ServerLost("gone")
        for number in sorted(key_groups or self.held[server]):
            items = sorted(self.held[server][number].items())
            about = {
                "key_group": number,
                "role": state_pb2.ROLE_OWNER if server == OWNER else state_pb2.ROLE_STANDBY,
                "offset": self.offsets[server][number],
                "epoch": 3,
            }
            for k, v in items:
                yield pb.DumpChunk(storage_keys=[k], rows=[v], **about)  # type: ignore[arg-type]  # by their names
            yield pb.DumpChunk(last=True, **about)  # type: ignore[arg-type]  # the same

    def verify(self, *servers: Server) -> Verdict:
        return verify(
            self.application.of, servers, self.application.changelog, self, deadline_seconds=1, pause_seconds=0
        )


@pytest.fixture
def servers() -> FakeServers:
    """An owner and a standby that have epoch 3."""
    application = Application()
    application.run(3, NUMBERS)
    made = FakeServers(application)
    made.fill(OWNER, NUMBERS)
    made.fill(STANDBY, NUMBERS)
    return made


def test_copies_that_agree_give_no_finding_and_are_asked_once(servers: FakeServers) -> None:
    verdict = servers.verify(OWNER, STANDBY)
    assert not verdict.findings
    assert {(copy.server, copy.role, copy.key_group) for copy in verdict.copies} == {
        (server, role, number) for server, role in ((OWNER, Role.OWNER), (STANDBY, Role.STANDBY)) for number in range(4)
    }
    assert len(servers.asked) == 2


def test_a_missing_an_extra_and_a_different_row_are_told_of_the_copy_that_has_them(servers: FakeServers) -> None:
    number = group("key-1")
    held = servers.held[STANDBY][number]
    del held[key("key-1")]
    extra = key("key-1")[:2] + b"zzz\0\0"
    held[extra] = row(1)
    changed = next(k for k in sorted(held) if k not in (key("key-1"), extra))
    held[changed] = row(-1)
    (finding,) = servers.verify(OWNER, STANDBY).findings
    assert (finding.copy.server, finding.copy.key_group, finding.copy.epoch) == (STANDBY, number, 3)
    found = finding.differences
    assert (found.missing, found.extra, found.different) == ([key("key-1")], [extra], [changed])


def test_a_copy_that_lags_is_compared_with_what_it_has_read(servers: FakeServers) -> None:
    servers.application.run(4, {"key-1": -1.0, "key-2": None, "new": 5.0})
    servers.fill(OWNER, NUMBERS | {"key-1": -1.0, "key-2": None, "new": 5.0})
    assert not servers.verify(STANDBY, OWNER).findings


def test_what_compaction_has_removed_since_is_no_difference(servers: FakeServers) -> None:
    changes: dict[str, float | None] = {"key-1": -1.0, "key-2": None, "new": 5.0}
    servers.application.run(4, changes)
    servers.application.kafka.compact(servers.application.of.topic)
    servers.fill(OWNER, NUMBERS | changes)
    assert not servers.verify(STANDBY, OWNER).findings
    # It was looked at twice: the standby's rows are gone from the changelog.
    assert len(servers.asked) == 3


def test_a_true_difference_in_a_copy_that_lags_is_still_found(servers: FakeServers) -> None:
    servers.application.run(4, {"key-1": -1.0})
    servers.application.kafka.compact(servers.application.of.topic)
    servers.held[STANDBY][group("key-3")][key("key-3")] = row(99)
    (finding,) = servers.verify(STANDBY).findings
    assert finding.differences.different == [key("key-3")]


def test_a_difference_that_is_gone_at_the_second_look_is_not_reported(servers: FakeServers) -> None:
    servers.held[OWNER][0].clear()

    def mend() -> None:
        if len(servers.asked) == 2:
            servers.fill(OWNER, NUMBERS)

    servers.before = mend
    assert not servers.verify(OWNER).findings
    assert servers.asked[1] == (OWNER, {0})


def test_a_copy_beyond_the_changelogs_end_is_a_finding(servers: FakeServers) -> None:
    servers.offsets[OWNER][1] += 100
    (finding,) = servers.verify(OWNER).findings
    assert (finding.copy.key_group, finding.ahead) == (1, True)


def test_a_server_that_does_not_answer_is_named_and_the_others_are_compared(servers: FakeServers) -> None:
    gone = Server("server-c", "c:1")
    verdict = servers.verify(gone, OWNER)
    assert verdict.unreachable == {"server-c": "gone"}
    assert {copy.server for copy in verdict.copies} == {OWNER}
    assert verdict.not_compared == ()


def test_a_server_that_answers_that_it_has_none_of_the_state_is_not_unreachable(servers: FakeServers) -> None:
    other = Server("server-c", "c:1")
    for error in (UnknownApplication("holds another one"), UnknownState("holds others")):
        servers.refused = {other: error}
        verdict = servers.verify(other, OWNER)
        assert (verdict.unreachable, verdict.findings) == ({}, ())


def test_key_groups_of_which_nobody_has_a_copy_to_show_are_named(servers: FakeServers) -> None:
    for number in (1, 3):
        del servers.held[OWNER][number]
    del servers.held[STANDBY][3]
    assert servers.verify(OWNER).not_compared == (1, 3)
    assert servers.verify(OWNER, STANDBY).not_compared == (3,)


def test_a_server_that_is_lost_before_the_second_look_is_unreachable(servers: FakeServers) -> None:
    servers.held[STANDBY][0].clear()

    def lose() -> None:
        if len(servers.asked) == 3:
            del servers.held[STANDBY]

    servers.before = lose
    verdict = servers.verify(OWNER, STANDBY)
    assert (verdict.findings, verdict.unreachable) == ((), {"server-b": "gone"})


def test_nothing_compared_is_not_all_well(servers: FakeServers) -> None:
    with pytest.raises(UnknownState, match="nothing was compared; server-c: gone"):
        servers.verify(Server("server-c", "c:1"))
    with pytest.raises(UnknownState, match="counts"):
        describe("app", "sums", servers.application.changelog, 1)


@given(st.dictionaries(st.integers(0, 20), st.integers(0, 2)), st.dictionaries(st.integers(0, 20), st.integers(0, 2)))
def test_the_comparison_is_that_of_two_dictionaries(expected: dict[int, int], held: dict[int, int]) -> None:
    def ascending(numbers: dict[int, int]) -> Iterator[tuple[bytes, bytes]]:
        return iter(sorted((bytes([k]), bytes([v])) for k, v in numbers.items()))

    found = compare(ascending(expected), ascending(held))
    assert found.missing == [bytes([k]) for k in sorted(expected.keys() - held.keys())]
    assert found.extra == [bytes([k]) for k in sorted(held.keys() - expected.keys())]
    both = sorted(expected.keys() & held.keys())
    assert found.different == [bytes([k]) for k in both if expected[k] != held[k]]


def test_copies_at_many_positions_are_compared_each_at_its_own() -> None:
    draw, application = random.Random(4), Application()
    servers, numbers = FakeServers(application), dict[str, float | None]()
    members = [Server(f"server-{number}", "") for number in range(4)]
    for epoch in range(3, 12):
        changes = {f"key-{draw.randrange(30)}": draw.choice([None, float(epoch)]) for _ in range(8)}
        application.run(epoch, changes)
        numbers |= changes
        servers.fill(draw.choice(members), numbers)
    assert not servers.verify(*servers.held).findings
    victim = next(iter(servers.held))
    number, rows = next((number, rows) for number, rows in servers.held[victim].items() if rows)
    rows.pop(next(iter(rows)))
    (finding,) = servers.verify(*servers.held).findings
    assert (finding.copy.server, finding.copy.key_group) == (victim, number)
