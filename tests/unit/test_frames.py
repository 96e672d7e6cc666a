"""How much goes into one message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.changelog.settings import MAX_ROW_BYTES
from keyhole.errors import NotReady, TooLarge
from keyhole.rpc import status
from keyhole.rpc.frames import (
    FRAME_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_VALUE_BYTES,
    AskAgain,
    as_error,
    check_answer,
    cut_to_frame,
    failure_from_proto,
    failures_to_proto,
    of_key,
    portions,
    value_too_large,
)

_GRPC_DEFAULT_BYTES = 4 << 20


def test_what_can_be_stored_can_be_carried_and_frames_by_clients_with_grpcs_default_limit_too() -> None:
    assert MAX_ROW_BYTES <= MAX_VALUE_BYTES < MAX_MESSAGE_BYTES
    assert 2 * FRAME_BYTES <= _GRPC_DEFAULT_BYTES


@given(sizes=st.lists(st.integers(0, 12)), most=st.integers(1, 10))
def test_portions_are_all_items_in_order_and_none_is_too_large_but_by_one_item(sizes: list[int], most: int) -> None:
    cut = list(portions(sizes, most))
    assert [size for part in cut for size in sizes[part]] == sizes
    for part in cut:
        assert part.stop > part.start
        assert sum(sizes[part]) <= most or part.stop == part.start + 1


@given(sizes=st.lists(st.integers(0, 12)), most=st.integers(1, 10))
def test_a_cut_frame_has_its_first_value_and_no_more_than_fits(sizes: list[int], most: int) -> None:
    whole = [bytes([place]) * size for place, size in enumerate(sizes)]
    values = list(whole)
    failures = cut_to_frame("app/state", values, most)
    assert [value for place, value in enumerate(values) if place not in failures] == [
        value for place, value in enumerate(whole) if place not in failures
    ]
    assert all(values[place] == b"" and whole[place] for place in failures)
    assert all(isinstance(failure, AskAgain) and failure.full for failure in failures.values())
    kept = [value for value in values if value]
    assert sum(map(len, kept)) <= most or len(kept) == 1
    assert bool(kept) == any(whole)


def test_a_value_that_no_message_carries_says_so_and_takes_no_room() -> None:
    values = [bytes(MAX_VALUE_BYTES + 1), b"a", bytes(MAX_VALUE_BYTES), b"b"]
    failures = cut_to_frame("app/state", values)
    assert {place: type(error) for place, error in failures.items()} == {0: TooLarge, 2: AskAgain}
    assert values == [b"", b"a", b"", b"b"]
    error = as_error(failures[0])
    assert error.facts == {"state": "app/state", "bytes": "16777217", "limit": "16777216"}
    assert "app/state takes 16,777,217 bytes, and 16,777,216" in error.message


def test_keys_that_failed_together_share_one_message() -> None:
    failures = cut_to_frame("app/state", [b"xx", b"xx", b"xx"], 2) | {5: value_too_large("app/state", 7)}
    sent = failures_to_proto(failures)
    assert [list(failure.indexes) for failure in sent] == [[1, 2], [5]]
    assert [type(status.from_proto(failure.error)) for failure in sent] == [NotReady, TooLarge]


@pytest.mark.parametrize(
    ("failure", "facts"),
    [
        (AskAgain("not answered yet"), {"ask_again": "true"}),
        (AskAgain("no room", full=True), {"ask_again": "true", "full": "true"}),
    ],
)
def test_to_ask_again_is_two_facts_on_the_wire_and_a_type_on_both_sides(
    failure: AskAgain, facts: dict[str, str]
) -> None:
    (on_the_wire,) = failures_to_proto({3: failure})
    sent = status.from_proto(on_the_wire.error)
    assert (type(sent), sent.message, sent.facts) == (NotReady, failure.why, facts)
    back = failure_from_proto(on_the_wire.error)
    assert isinstance(back, AskAgain)
    assert (back.why, back.full) == (failure.why, failure.full)
    assert isinstance(failure_from_proto(status.to_proto(NotReady("restoring"))), NotReady)


def test_the_answer_to_a_call_is_whole_or_an_error_that_names_the_key_or_the_sum() -> None:
    check_answer("app/state", [bytes(MAX_VALUE_BYTES), b""], 2)
    with pytest.raises(TooLarge, match="key 2 of the 3 that were asked for: the value of a key of state") as one:
        check_answer("app/state", [b"", bytes(MAX_VALUE_BYTES + 1), b""], 3)
    assert one.value.facts == {"state": "app/state", "bytes": "16777217", "limit": "16777216", "index": "1"}
    with pytest.raises(TooLarge, match="these 2 keys of state app/state take more than 10 bytes"):
        check_answer("app/state", [b"x" * 6, b"x" * 5], 2, 10)
    with pytest.raises(TooLarge, match="these 3 keys"):
        check_answer("app/state", [b"x"], 3)


def test_only_what_is_too_large_says_which_key_it_is() -> None:
    error = NotReady("not answered yet")
    assert of_key(error, 3, 7) is error
