"""What callers may take by lookups: who is refused, by which limit, until when, and that others are not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from keyhole.backoff import retry_after_seconds
from keyhole.errors import DeadlineExceeded, InternalError, KeyholeError, MalformedRequest, Overloaded
from keyhole.metrics.labels import READ_LIMITS
from keyhole.rpc import read_admission
from keyhole.rpc.read_admission import Limit, ReadAdmission, ReadLimits, peer_of
from keyhole.rpc.status import from_proto, to_proto
from keyhole.security import authentication
from keyhole.security.authentication import ANYBODY, Caller, Presented
from keyhole.testing.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(autouse=True)
def anybody() -> Iterator[None]:
    yield
    authentication.become(ANYBODY)


def admission_of(clock: ManualClock, **limits: int) -> ReadAdmission:
    return ReadAdmission(ReadLimits(**limits, settings="KEYHOLE_X_"), clock, "this proxy")


def called_from(peer: str, left: float | None = None) -> Any:
    return SimpleNamespace(peer=lambda: peer, time_remaining=lambda: left)


A, B = called_from("ipv4:10.0.0.1:5000"), called_from("ipv4:10.0.0.2:5000")


def _refused(error: KeyholeError, setting: str, limit: int, seconds: float) -> None:
    assert (error.facts["cap"], error.facts["limit"]) == (f"KEYHOLE_X_{setting}", str(limit))
    assert setting in error.message
    # Also behind the wire.
    assert retry_after_seconds(from_proto(to_proto(error))) == seconds


def test_keys_of_one_caller_are_limited_and_others_have_their_own(clock: ManualClock) -> None:
    admission = admission_of(clock, caller_keys=100)
    with admission.call(A) as first, admission.call(A) as second, admission.call(B) as other:
        first.begin(60)
        second.begin(40)
        with pytest.raises(Overloaded, match=r"ipv4:10\.0\.0\.1: 100 keys are being looked up in this proxy") as no:
            second.begin(1)
        _refused(no.value, "MAX_CALLER_LOOKUP_KEYS", 100, 0.1)
        other.begin(100)
        assert admission.keys == 200
        first.end(60)
        second.begin(60)
        with pytest.raises(Overloaded):
            first.begin(1)
    assert admission.refused[Limit.CALLER_KEYS] == 2


def test_keys_of_all_together_are_limited(clock: ManualClock) -> None:
    admission = admission_of(clock, keys=100)
    with admission.call(A) as first, admission.call(B) as second:
        first.begin(60)
        with pytest.raises(Overloaded, match="all callers together: 60 keys") as no:
            second.begin(41)
        _refused(no.value, "MAX_LOOKUP_KEYS", 100, 0.1)
        second.begin(40)
    assert admission.refused == {**dict.fromkeys(READ_LIMITS, 0), "keys": 41}


def test_a_request_that_is_larger_than_a_limit_is_let_in_alone(clock: ManualClock) -> None:
    admission = admission_of(clock, caller_keys=10, keys=20, caller_rate=5, rate=6)
    with admission.call(A) as call:
        with call.lookup(1_000):
            assert admission.keys == 1_000
        assert admission.keys == 0


def test_a_rate_is_saved_up_for_a_second_and_the_refusal_says_when_to_come_again(clock: ManualClock) -> None:
    admission = admission_of(clock, caller_rate=100)
    with admission.call(A) as call, admission.call(B) as other:
        for _ in range(10):
            with call.lookup(10):
                pass
        with pytest.raises(Overloaded, match="10 more keys are beyond the 100 a second") as no:
            call.begin(10)
        _refused(no.value, "MAX_CALLER_LOOKUP_KEYS_PER_SECOND", 100, 0.01)
        other.begin(100)
        clock.advance(0.1)
        call.begin(10)
        with pytest.raises(Overloaded):
            call.begin(1)
        clock.advance(1000)
        call.begin(100)
        with pytest.raises(Overloaded):
            call.begin(1)


def test_who_is_refused_by_the_rate_of_all_has_not_used_its_own(clock: ManualClock) -> None:
    admission = admission_of(clock, caller_rate=100, rate=150)
    with (
        admission.call(A) as first,
        admission.call(B) as second,
        admission.call(called_from("ipv4:10.0.0.3:1")) as third,
    ):
        first.begin(100)
        second.begin(100)
        with pytest.raises(Overloaded, match="all callers together") as no:
            third.begin(100)
        _refused(no.value, "MAX_LOOKUP_KEYS_PER_SECOND", 150, 0.34)
        clock.advance(0.341)
        third.begin(100)
    assert admission.refused[Limit.RATE] == 100
    assert admission.refused[Limit.CALLER_RATE] == 0


def test_a_request_of_more_keys_than_may_be_takes_nothing_from_anybody(clock: ManualClock) -> None:
    admission = admission_of(clock, caller_rate=100, rate=100)
    with admission.call(A) as first, admission.call(B) as second:
        with pytest.raises(MalformedRequest, match="2,000,000 keys in one request; at most 16,384 may be"):
            first.begin(2_000_000)
        second.begin(99)
        first.begin(1)
    assert admission.refused == dict.fromkeys(READ_LIMITS, 0)


def test_what_one_caller_owes_holds_others_up_for_no_longer_than_what_it_may_save(clock: ManualClock) -> None:
    admission = admission_of(clock, caller_rate=100, rate=1_000)
    with admission.call(A) as large, admission.call(B) as other:
        large.begin(16_000)
        with pytest.raises(Overloaded, match="all callers together"):
            other.begin(1)
        clock.advance(0.102)
        other.begin(1)
        clock.advance(100.0)
        with pytest.raises(Overloaded, match=r"ipv4:10\.0\.0\.1: 1 more"):
            large.begin(1)


def test_a_new_connection_begins_with_what_its_caller_has_left(clock: ManualClock) -> None:
    admission = admission_of(clock, caller_rate=100)
    for port in range(5):
        with admission.call(called_from(f"ipv4:10.0.0.1:{port}")) as call, call.lookup(20):
            pass
    with admission.call(A) as call, pytest.raises(Overloaded):
        call.begin(1)


def test_calls_are_limited_also_those_that_ask_for_nothing(clock: ManualClock) -> None:
    admission = admission_of(clock, caller_calls=2, calls=3)
    with ExitStack() as open_calls:
        for of in (A, A):
            open_calls.enter_context(admission.call(of))
        with pytest.raises(Overloaded, match="2 calls that look keys up are under way in this proxy") as no:
            open_calls.enter_context(admission.call(A))
        _refused(no.value, "MAX_CALLER_LOOKUP_CALLS", 2, 1.0)
        open_calls.enter_context(admission.call(B))
        with pytest.raises(Overloaded, match="all callers together: 3 calls") as all_no:
            open_calls.enter_context(admission.call(called_from("ipv4:10.0.0.3:1")))
        _refused(all_no.value, "MAX_LOOKUP_CALLS", 3, 1.0)
        assert admission.calls == 3
    assert admission.calls == 0
    with admission.call(A):
        pass


def test_a_caller_is_who_shows_its_name_wherever_it_calls_from(clock: ManualClock) -> None:
    admission = admission_of(clock, caller_keys=10)
    authentication.become(Caller(None, ("token:one",), None, Presented()))
    with admission.call(A) as call, admission.call(B) as again:
        call.begin(10)
        with pytest.raises(Overloaded, match="token:one: 10 keys"):
            again.begin(1)
        authentication.become(Caller(None, ("token:two",), None, Presented()))
        with admission.call(A) as other:
            other.begin(10)


def test_a_proxy_has_no_limits_of_one_caller_and_counts_among_all(clock: ManualClock) -> None:
    class Platform(Caller):
        @property
        def is_anybody(self) -> bool:
            return False

        def may_everywhere(self, *verbs: Any) -> bool:
            return True

    admission = admission_of(clock, caller_calls=1, caller_keys=1, caller_rate=1, keys=100)
    authentication.become(Platform(None, ("certificate:proxy",), None, Presented()))
    with admission.call(A) as first, admission.call(A) as second:
        first.begin(60)
        second.begin(40)
        with pytest.raises(Overloaded, match="all callers together"):
            second.begin(1)


def test_what_comes_after_its_calls_deadline_is_dropped_and_counted(clock: ManualClock) -> None:
    admission = admission_of(clock)
    with admission.call(called_from("ipv4:10.0.0.1:1", 5.0)) as call:
        clock.advance(4.9)
        with call.lookup(3):
            pass
        clock.advance(0.1)
        with pytest.raises(DeadlineExceeded, match="nothing was looked up"):
            call.begin(7)
    assert (admission.expired, admission.keys) == (7, 0)


def test_lookups_that_end_behind_their_call_give_back_what_they_took(clock: ManualClock) -> None:
    admission = admission_of(clock, caller_keys=10)
    with admission.call(A) as gone:
        gone.begin(10)
    with admission.call(A) as call:
        with pytest.raises(Overloaded):
            call.begin(1)
        gone.end(10)
        call.begin(10)
        call.end(10)
    assert admission.keys == 0
    assert not admission._callers


@pytest.mark.parametrize("limits", [{"caller_keys": 10}, {"caller_keys": 10, "caller_rate": 100}])
def test_what_a_call_does_behind_its_end_is_refused_and_changes_nothing_for_its_caller_s_next_one(
    clock: ManualClock, limits: dict[str, int]
) -> None:
    admission = admission_of(clock, **limits)
    with admission.call(A) as gone:
        pass
    clock.advance(2)
    with admission.call(B):
        pass  # A has nothing under way, and has been forgotten
    with admission.call(A) as call:
        with pytest.raises(InternalError, match="behind the end of its call"):
            gone.begin(3)
        gone.end(0)
        call.begin(10)
        assert admission.keys == 10
        with admission.call(A) as another, pytest.raises(Overloaded, match=r"ipv4:10\.0\.0\.1: 10 keys"):
            another.begin(1)
        call.end(10)
    clock.advance(2)
    with admission.call(B):
        pass
    gone.end(0)  # nobody knows it any more
    assert admission.keys == 0


def test_callers_are_forgotten_and_never_remembered_without_end(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_admission, "_MOST_REMEMBERED", 50)
    admission = admission_of(clock, caller_rate=10, calls=1)
    for number in range(200):
        with admission.call(called_from(f"ipv4:10.0.0.{number}:1")) as call:
            call.begin(10)
            # Refused before it had anything.
            with pytest.raises(Overloaded), admission.call(called_from(f"ipv4:10.0.1.{number}:1")):
                pass
            call.end(10)
        assert len(admission._callers) <= 51
    clock.advance(1)
    with admission.call(A):
        pass
    assert not admission._callers


def test_every_limit_has_its_label_and_one_caller_is_the_same_on_all_ports() -> None:
    assert tuple(limit.value for limit in Limit) == READ_LIMITS
    for address, grpc_says in (("127.0.0.1", "ipv4:127.0.0.1:5000"), ("::1", "ipv6:%5B::1%5D:5000")):
        assert peer_of(address).rpartition(":")[0] == grpc_says.rpartition(":")[0]
    assert peer_of(None) == ""


@pytest.mark.parametrize("hint", ["soon", "-1", "nan", "inf", ""])
def test_a_hint_that_is_no_number_of_seconds_is_none(hint: str) -> None:
    assert retry_after_seconds(Overloaded("no", retry_after_seconds=hint)) is None
    assert retry_after_seconds(Overloaded("no")) is None
