"""The rules of the real-time lane, each by a history that breaks it; and its recount, without processes."""

from __future__ import annotations

import json
from collections.abc import Callable

import msgspec
import pytest

from tests.fault.fed_recount import FedRecount, Logged, Named
from tests.fault.fed_rules import FedHistory, check_fed
from tests.fault.history import CHANGELOG, OWNER, Asked, Claim, Ended, Held, History, Read
from tests.fault.workload import SUMS, names

pytestmark = pytest.mark.core

RULED = [3, 1, {}]
# Of the first key 5, then 7 again and again, beside a boundary below it; of the second one 1.
UPDATES = [
    [1, "t", 0, 9, 0, 0, 1, ["key-0"], None, [100, 1, 100]],
    RULED,
    [1, "t", 0, 0, 0, 0, 1, ["key-0"], None, [5, 1, 5]],
    [1, "t", 0, 2, 0, 0, 1, ["key-0"], None, [7, 1, 7]],
    [0, "t", 1, {"0": 3}],
    [1, "t", 0, 2, 0, 0, 1, ["key-0"], None, [7, 1, 7]],
    [1, "t", 0, 1, 0, 0, 1, ["key-1"], None, [1, 1, 1]],
]
SOURCE = [{"k": "key-0", "amount": 5}, {"k": "key-1", "amount": 1}, {"k": "key-0", "amount": 7}]
FINAL = {"key-0": (12, 2, 7), "key-1": (1, 1, 1)}


def logged(values: list[object]) -> list[Logged]:
    """A second lies between two records."""
    return [Logged(at, 1000 * at, json.dumps(value).encode()) for at, value in enumerate(values)]


def claim(epoch: int, role: str = OWNER, version: int = 1) -> Claim:
    return Claim("server-0", role, epoch, 1, version, unconfirmed=False, as_of_ms=0, lag_epochs=0)


def read(at: float, row: tuple[int, ...] | None, by: Claim, asked: Asked | None = None) -> Read:
    return Read("plain", at, at + 0.1, SUMS, asked or Asked(0), ("key-0",), (row,), (by,))


def history(*events: object, final: int = 0) -> FedHistory:
    held = [
        Held("server-0", role, SUMS, 7, {name: FINAL.get(name) for name in names(SUMS)}) for role in (OWNER, CHANGELOG)
    ]
    return FedHistory(History(1, final, (SUMS,), [*events, *held]), {0: logged(UPDATES)}, {0: logged(SOURCE)}, 0.0)


def violated(of: FedHistory) -> set[str]:
    return set(check_fed(of).violated)


def test_the_log_is_folded_by_first_occurrences_behind_the_rules() -> None:
    counts = FedRecount({0: logged(UPDATES)})
    rows = [counts.answer("key-0", epoch) for epoch in range(9)]
    assert rows == [None, None, None, (5, 1, 5), *[(12, 2, 7)] * 5]
    assert counts.counted.keys() == {Named(0, 0), Named(0, 1), Named(0, 2)}
    assert (counts.epochs("key-0", (5, 1, 5)), counts.epochs("key-0", (6, 1, 6))) == ((3, 3), None)


def test_what_has_the_last_timestamp_need_not_be_shown_yet() -> None:
    stamps = [1000, 2000, 2000, 2000, 3000]
    counts = FedRecount({0: [Logged(at, stamp, json.dumps(RULED).encode()) for at, stamp in enumerate(stamps)]})
    assert [counts.shown_by(0, at_ms) for at_ms in (999, 1000, 2000, 2999, 3000, 9000)] == [0, 0, 1, 1, 4, 4]


def test_a_history_that_is_right_breaks_no_rule() -> None:
    right = history(
        read(1.0, None, claim(2)),
        read(2.0, (5, 1, 5), claim(3)),
        read(3.0, (5, 1, 5), claim(3, "standby")),
        read(6.5, (12, 2, 7), claim(6), Asked(4, max_staleness_ms=1000)),
        Ended(7.0, "driver", "STATE_CONFLICT", "another one goes on"),
    )
    assert violated(right) == set()


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        (lambda: history(read(4.0, (19, 3, 7), claim(6))), "every_answer_has_the_row_of_its_epoch"),
        (lambda: history(read(4.0, (5, 1, 5), claim(4))), "every_answer_has_the_row_of_its_epoch"),
        (lambda: history(read(4.0, (5, 1, 5), claim(3), Asked(4))), "min_epoch_is_kept"),
        (
            lambda: history(read(4.0, (5, 1, 5), claim(3, "standby"), Asked(0, "never"))),
            "never_stale_means_the_confirmed_owner",
        ),
        (
            lambda: history(read(4.0, (12, 2, 7), claim(5)), read(5.0, (12, 2, 7), claim(4, version=2))),
            "what_was_applied_is_never_taken_back",
        ),
        (
            lambda: history(read(6.5, (5, 1, 5), claim(3), Asked(0, max_staleness_ms=1000))),
            "no_bounded_answer_lacks_what_is_older",
        ),
        (lambda: history(Ended(1.0, "server-0", "EXIT_-6", "")), "nothing_ends_by_itself"),
        (lambda: history(final=-1), "the_end_has_what_the_source_comes_to"),
        (
            lambda: history(Held("server-1", "standby", SUMS, 7, {"key-0": (5, 1, 5)})),
            "the_end_has_what_the_source_comes_to",
        ),
        (
            lambda: msgspec.structs.replace(history(), source={0: logged([*SOURCE[:2], {"k": "key-0", "amount": 8}])}),
            "each_row_of_the_source_stands_in_the_updates_and_no_other",
        ),
        (
            lambda: msgspec.structs.replace(history(), updates={0: logged(UPDATES[:-1])}),
            "each_row_of_the_source_stands_in_the_updates_and_no_other",
        ),
    ],
)
def test_each_rule_is_broken_by_what_it_forbids(broken: Callable[[], FedHistory], rule: str) -> None:
    assert rule in violated(broken())
