"""The checker says yes to a right history and catches each way in which one can be wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from keyhole.protocol.failpoints import Step
from tests.fault.availability import availability
from tests.fault.checker import RULES, check
from tests.fault.history import (
    CHANGELOG,
    OWNER,
    STANDBY,
    Asked,
    Claim,
    Contradiction,
    Dealt,
    Ended,
    EpochStep,
    FailedRead,
    Held,
    History,
    Injected,
    Pinned,
    Read,
    Seen,
    Watched,
    load,
)
from tests.fault.mirroring_readers import MIRRORING
from tests.fault.recount import Recount, ScanOf, Shown, whole
from tests.fault.whole_rules import WHOLE_RULES
from tests.fault.workload import DRAWN, LEDGERS, NOTICES, ROSTERS, SPANS, SUMS, VALUES, Workload, names

# The harness itself, without processes.
pytestmark = pytest.mark.core

SEED = 9
EPOCHS = 40
RECOUNT = Recount(Workload(SEED))
OWNED = Claim("a", OWNER, 0, generation=1, version=1, unconfirmed=False, as_of_ms=0, lag_epochs=0)
FOLLOWED = msgspec.structs.replace(OWNED, server="b", role=STANDBY)
# A key whose sum changes with epoch 20, so that an answer that is off by one epoch differs.
KEY = next(key for key in names() if RECOUNT.answer(SUMS, key, 19) != RECOUNT.answer(SUMS, key, 20))


def two_keys(first: int, second: int, asked: Asked) -> Read:
    """Right answers of two epochs, in one request."""
    one, other = read(first, at(second) + 0.1), read(second)
    return msgspec.structs.replace(
        other, asked=asked, keys=one.keys + other.keys, rows=one.rows + other.rows, claims=one.claims + other.claims
    )


def entries(key: str, epoch: int) -> dict[Any, Any]:
    return {entry[0]: entry for entry in RECOUNT.answer(SPANS, ScanOf(key), epoch) or ()}  # type: ignore[index]


# A scan of several entries, some of which have another row after epoch TORN than before.
SPAN, TORN = next(
    (ScanOf(key), epoch)
    for epoch in range(20, EPOCHS)
    for key in names()
    if any(entries(key, epoch - 1).get(entry, row) != row for entry, row in entries(key, epoch).items())
)


def at(epoch: int) -> float:
    """When the epoch was complete; its commit begins half a second before."""
    return 100.0 + epoch


def read(
    epoch: int, began: float | None = None, of: Claim = OWNED, asked: Asked | None = None, state: str = SUMS
) -> Read:
    """A right answer, right after the epoch was complete."""
    began = at(epoch) + 0.1 if began is None else began
    claim = msgspec.structs.replace(of, epoch=epoch)
    question = whole(state, KEY)
    row = RECOUNT.answer(state, question, epoch)
    return Read("r", began, began + 0.01, state, asked or Asked(0), (question,), (row,), (claim,))


def mirrored(epoch: int, began: float, mirror: int = 1) -> Read:
    """A right answer of a mirror."""
    own = msgspec.structs.replace(OWNED, server="", role="mirror", generation=0, version=0)
    return msgspec.structs.replace(read(epoch, began, own), reader=f"{MIRRORING} {mirror}")


def held(state: str, epoch: int) -> dict[str, Shown]:
    return {key: RECOUNT.answer(state, whole(state, key), epoch) for key in names()}


def history() -> History:
    """A right one: an owner and a standby that answer after every epoch, and hold all at the end."""
    steps = [
        EpochStep(at(epoch) - offset, int(1000 * (at(epoch) - offset)), step, epoch, 77, tuple(DRAWN))
        for epoch in range(1, EPOCHS + 1)
        for offset, step in (
            (0.7, Step.DRIVER_BEFORE_STAGE),
            (0.5, Step.DRIVER_BEFORE_COMMIT),
            (0.0, Step.DRIVER_COMPLETE),
        )
    ]
    reads = [
        read(epoch, of=of, state=state) for epoch in range(EPOCHS + 1) for of in (OWNED, FOLLOWED) for state in DRAWN
    ]
    copies = [
        Held(where, role, state, EPOCHS, held(state, EPOCHS))
        for where, role in (("a", OWNER), ("b", STANDBY), (CHANGELOG, CHANGELOG))
        for state in DRAWN
    ]
    return History(SEED, EPOCHS, tuple(DRAWN), [*steps, *reads, *copies, *watched_whole()])


def test_epochs_count_as_under_faults_between_the_first_and_the_last_one_where_all_states_have_them() -> None:
    first, last = (Injected("kill", ("a",), at(epoch) - 0.2, at(epoch) + 0.2) for epoch in (5, 8))
    of = history()
    assert of.epochs_under_faults == 0
    of.events += [last, first]
    assert of.epochs_under_faults == 4
    again = EpochStep(at(7), int(1000 * at(7)), Step.DRIVER_COMPLETE, 7, 78, of.states)
    lacking = EpochStep(at(7), int(1000 * at(7)), Step.DRIVER_COMPLETE, 41, 78, of.states[:1])
    of.events += [again, lacking]
    assert of.epochs_under_faults == 4


def test_a_right_history_is_right() -> None:
    verdict = check(history())
    assert verdict.right, verdict.violations
    assert (verdict.epochs, verdict.answers, verdict.took_back) == (EPOCHS, 2 * len(DRAWN) * (EPOCHS + 1), 0)


def with_row(of: Read, epoch: int) -> Read:
    """Claims its epoch, and has the row of another one."""
    return msgspec.structs.replace(of, rows=(RECOUNT.answer(of.state, KEY, epoch),))


def doubled() -> Read:
    right = read(20)
    before, after = RECOUNT.answer(SUMS, KEY, 19), RECOUNT.answer(SUMS, KEY, 20)
    assert after is not None
    total, count = (before or (0, 0, 0))[:2]
    return msgspec.structs.replace(right, rows=((2 * after[0] - total, 2 * after[1] - count, after[2]),))


def scan(epoch: int, change: Callable[[tuple[Any, ...]], tuple[Any, ...]], question: ScanOf = SPAN) -> Read:
    """What is told is made of the right answer."""
    state = SPANS if question.key else NOTICES
    right = RECOUNT.answer(state, question, epoch)
    assert right is not None
    of = read(epoch, state=state)
    return msgspec.structs.replace(of, keys=(question,), rows=(change(right),))


def torn(rows: tuple[Any, ...]) -> tuple[Any, ...]:
    """Its entries are of two epochs."""
    return tuple(entries(SPAN.key, TORN - 1).get(entry[0], entry) for entry in rows)


def held_wrongly() -> Held:
    rows = held(SUMS, EPOCHS)
    return Held("c", STANDBY, SUMS, EPOCHS, rows | {KEY: RECOUNT.answer(SUMS, KEY, 19)})


def seen(epoch: int, *, snapshot: bool = False, key: str = KEY) -> Seen:
    return Seen(key, None, RECOUNT.answer(SUMS, key, epoch), epoch, snapshot)  # type: ignore[arg-type]  # fields


def watched(epoch: int, *changes: Seen, chain: int = 2, complete: int = 0) -> Watched:
    return Watched("watching", chain, at(epoch) + 0.1, at(epoch) + 0.2, SUMS, changes, complete)


def changed_by(epoch: int) -> list[Seen]:
    keys = [of for of in names() if RECOUNT.answer(SUMS, of, epoch) != RECOUNT.answer(SUMS, of, epoch - 1)]
    return [seen(epoch, key=key) for key in keys]


def watched_whole() -> list[Watched]:
    """A right watch of all epochs, left within one, and another that begins later."""
    there = [seen(19, snapshot=True, key=key) for key in names() if RECOUNT.answer(SUMS, key, 19) is not None]
    return [
        *(watched(epoch, *changed_by(epoch), chain=1, complete=epoch) for epoch in range(1, EPOCHS)),
        watched(19, *there[:2]),
        watched(19, *there[2:], complete=19),
        watched(20, *changed_by(20)[:1]),
        watched(21, *changed_by(20)[1:], *changed_by(21), complete=21),
    ]


def staged(epoch: int, began: float, *, over: int, asked: Asked | None = None) -> Read:
    """What that epoch's rows make of the one before, while they are staged; it says that they stand `over` an epoch."""
    right = read(epoch, began, asked=asked or Asked(0, latest=True))
    return msgspec.structs.replace(right, claims=(claimed(epoch=over, staged_epoch=epoch),))


def test_what_is_staged_is_right_as_of_its_own_epoch_and_may_be_taken_back() -> None:
    of = history()
    of.events += [staged(20, at(20) - 0.6, over=19), read(19, at(20) - 0.55)]
    # And while another server has published it already.
    of.events.append(staged(20, at(20) + 0.2, over=19))
    verdict = check(of)
    assert verdict.right, verdict.violations


def claimed(**changes: object) -> Claim:
    return msgspec.structs.replace(OWNED, **changes)


DOCTORED: dict[str, tuple[str, Callable[[], list[object]]]] = {
    "a lost epoch": ("every_answer_has_the_row_of_its_epoch", lambda: [with_row(read(20), 19)]),
    "a row that is not committed": ("every_answer_has_the_row_of_its_epoch", lambda: [with_row(read(19), 20)]),
    "an epoch applied twice": ("every_answer_has_the_row_of_its_epoch", lambda: [doubled()]),
    "a value out of thin air": (
        "every_answer_has_the_row_of_its_epoch",
        lambda: [msgspec.structs.replace(read(20, state=VALUES), rows=((1, 2),))],
    ),
    "a scan of two epochs": ("every_answer_has_the_row_of_its_epoch", lambda: [scan(TORN, torn)]),
    "a scan that lacks an entry": ("every_answer_has_the_row_of_its_epoch", lambda: [scan(20, lambda of: of[1:])]),
    "a scan in another order": (
        "every_answer_has_the_row_of_its_epoch",
        lambda: [scan(20, lambda of: of[::-1], ScanOf(""))],
    ),
    "a scan beyond its bounds": (
        "every_answer_has_the_row_of_its_epoch",
        lambda: [scan(20, lambda _: RECOUNT.answer(NOTICES, ScanOf(""), 20) or (), ScanOf("", limit=1))],
    ),
    "an owner that goes back, asked otherwise": (
        "no_owner_takes_back_what_was_told",
        lambda: [
            scan(TORN, lambda all_rows: all_rows[:1], msgspec.structs.replace(SPAN, limit=1)),
            msgspec.structs.replace(scan(TORN - 1, tuple), began=at(TORN) + 0.5, ended=at(TORN) + 0.6),
        ],
    ),
    "a staged epoch without its rows": (
        "every_answer_has_the_row_of_its_epoch",
        lambda: [with_row(staged(20, at(20) - 0.6, over=19), 19)],
    ),
    "what is staged, for a reader who has not asked for it": (
        "what_is_staged_is_told_to_who_asks_for_it_and_from_its_staging_on",
        lambda: [staged(20, at(20) - 0.6, over=19, asked=Asked(0))],
    ),
    "what is staged before it is": (
        "what_is_staged_is_told_to_who_asks_for_it_and_from_its_staging_on",
        lambda: [staged(20, at(20) - 0.9, over=19)],
    ),
    "what is staged over itself": (
        "what_is_staged_is_told_to_who_asks_for_it_and_from_its_staging_on",
        lambda: [staged(20, at(20) + 0.2, over=20)],
    ),
    "an epoch told before its commit": (
        "no_answer_is_told_before_its_epoch_was_being_committed",
        lambda: [read(20, at(20) - 0.6)],
    ),
    "an epoch that never was": (
        "no_answer_is_told_before_its_epoch_was_being_committed",
        lambda: [read(EPOCHS + 1, at(EPOCHS) + 1)],
    ),
    "another epoch than asked for": (
        "an_epoch_that_is_asked_for_is_that_epoch",
        lambda: [read(20, asked=Asked(0, as_of_epoch=19))],
    ),
    "two epochs in one snapshot": (
        "an_epoch_that_is_asked_for_is_that_epoch",
        lambda: [two_keys(19, 20, Asked(0, snapshot=True))],
    ),
    "an older epoch than asked for": ("min_epoch_is_kept", lambda: [read(20, asked=Asked(21))]),
    "a standby for a reader who wants none": (
        "never_stale_means_the_confirmed_owner",
        lambda: [read(20, of=FOLLOWED, asked=Asked(0, "never"))],
    ),
    "an unconfirmed owner for a reader who wants none": (
        "never_stale_means_the_confirmed_owner",
        lambda: [read(20, of=claimed(unconfirmed=True), asked=Asked(0, "never"))],
    ),
    "an answer staler than allowed": (
        "max_staleness_is_kept",
        lambda: [read(17, at(20), FOLLOWED, Asked(0, "always", 1500))],
    ),
    "an answer older than it says": (
        "as_of_is_true",
        lambda: [read(17, at(20), claimed(role=STANDBY, as_of_ms=int(1000 * at(19))))],
    ),
    "an owner that goes back": ("no_owner_takes_back_what_was_told", lambda: [read(19, at(20) + 0.5)]),
    "a new owner that goes back": (
        "no_owner_takes_back_what_was_told",
        lambda: [read(19, at(20) + 0.5, claimed(server="b", generation=2))],
    ),
    "a mirror that goes backwards": (
        "no_mirror_goes_backwards",
        lambda: [mirrored(20, at(20) + 0.1), mirrored(19, at(20) + 0.3)],
    ),
    "an epoch left out": (
        "epochs_complete_one_after_the_other",
        lambda: [EpochStep(at(EPOCHS) + 1, 0, Step.DRIVER_COMPLETE, EPOCHS + 2, 77, (SUMS,))],
    ),
    "an old driver that goes on": (
        "epochs_complete_one_after_the_other",
        lambda: [
            EpochStep(at(EPOCHS) + 1, 0, Step.DRIVER_COMPLETE, EPOCHS, 78, (SUMS,)),
            EpochStep(at(EPOCHS) + 2, 0, Step.DRIVER_COMPLETE, EPOCHS + 1, 77, (SUMS,)),
        ],
    ),
    "a batch that reads something else when it is run again": (
        "a_batch_that_is_run_again_reads_what_it_read_before",
        lambda: [Pinned(at(5) + 0.1, 5, 4), Pinned(at(6) + 0.1, 5, 5)],
    ),
    "a batch that reads less than the one before it": (
        "a_batch_that_is_run_again_reads_what_it_read_before",
        lambda: [Pinned(at(5) + 0.1, 5, 5), Pinned(at(6) + 0.1, 6, 4)],
    ),
    "a batch that reads what is not there yet": (
        "a_batch_that_is_run_again_reads_what_it_read_before",
        lambda: [Pinned(at(5) - 0.6, 5, 5)],
    ),
    "a batch that has other subtasks when it is run again": (
        "a_batch_that_is_run_again_has_the_subtasks_that_it_had_before",
        lambda: [Dealt(at(5), LEDGERS, 5, 2), Dealt(at(6), LEDGERS, 5, 3)],
    ),
    "a driver that mistrusts its checkpoint": (
        "nothing_ends_by_itself",
        lambda: [Ended(at(5), "driver", "CHECKPOINT_MISMATCH", "...")],
    ),
    "a server that crashed": ("nothing_ends_by_itself", lambda: [Ended(at(5), "server-1", "EXIT_1", "...")]),
    "a server that writes what it does not own": (
        "what_a_key_group_may_do_follows_from_its_state",
        lambda: [Contradiction(at(5), "server-1", "key group 1 is standby, and written by an epoch")],
    ),
    "a copy that lacks a row at the end": ("the_end_equals_the_recount", lambda: [held_wrongly()]),
    "a copy that stays behind": ("the_end_equals_the_recount", lambda: [Held("c", STANDBY, SUMS, EPOCHS - 1, {})]),
    "a change with the row of another epoch": (
        "a_watch_tells_the_rows_of_their_epochs",
        lambda: [watched(20, msgspec.structs.replace(seen(19), epoch=20), chain=3)],
    ),
    "a change before its commit": (
        "a_watch_tells_the_rows_of_their_epochs",
        lambda: [watched(18, seen(20), chain=3)],
    ),
    "a change that is told twice": (
        "a_watch_tells_each_change_once_and_in_order",
        lambda: [watched(20, seen(20), chain=3), watched(21, seen(20), chain=3)],
    ),
    "a row that is told after a change": (
        "a_watch_tells_each_change_once_and_in_order",
        lambda: [watched(20, seen(20), seen(21, snapshot=True), chain=3)],
    ),
    "an epoch that is passed over when a watch goes on": (
        "a_watch_misses_nothing",
        lambda: [watched(22, *changed_by(22)[:-1], complete=22)],
    ),
    "a row that was never told": ("a_watch_misses_nothing", lambda: [watched(20, seen(20), chain=3, complete=20)]),
    "two owners at the end": (
        "the_end_equals_the_recount",
        lambda: [Held("c", OWNER, SUMS, EPOCHS, {KEY: RECOUNT.answer(SUMS, KEY, EPOCHS)})],
    ),
}


@pytest.mark.parametrize(("rule", "more"), DOCTORED.values(), ids=DOCTORED)
def test_a_history_is_wrong_that_has(rule: str, more: Callable[[], list[object]]) -> None:
    doctored = history()
    doctored.events += more()  # type: ignore[arg-type]
    assert rule in check(doctored).violated


def spans_of(key: str, epoch: int) -> list[Seen]:
    return [
        Seen(key, map_key, tuple(fields), epoch, snapshot=True) for map_key, (_, *fields) in entries(key, epoch).items()
    ]


@pytest.mark.parametrize(("is_said", "left_out", "is_right"), [(True, 0, True), (False, 0, False), (True, 1, False)])
def test_what_a_later_epoch_of_its_key_group_has_deleted_is_not_among_a_watch_s_rows(
    *, is_said: bool, left_out: int, is_right: bool
) -> None:
    key, epoch = next(
        (key, epoch)
        for epoch in range(2, EPOCHS)
        for key in names()
        if entries(key, epoch - 1).keys() - entries(key, epoch).keys() and entries(key, epoch)
    )
    rows = [row for other in names() if other != key for row in spans_of(other, epoch - 1)]
    rows += spans_of(key, epoch)[left_out:]
    further = ((key, epoch),) if is_said else ()
    of = history()
    of.events.append(Watched("watching", 3, at(epoch) + 0.1, at(epoch) + 0.2, SPANS, tuple(rows), epoch - 1, further))
    assert ("a_watch_misses_nothing" not in check(of).violated) is is_right


def test_another_mirror_may_begin_with_an_earlier_epoch() -> None:
    two = history()
    two.events += [mirrored(20, at(20) + 0.1), mirrored(19, at(20) + 0.3, mirror=2)]
    assert check(two).right


def test_a_batch_that_is_run_again_may_read_what_it_read_before() -> None:
    again = history()
    again.events += [
        Pinned(at(0), 0, 0),
        Pinned(at(5) + 0.1, 5, 5),
        Pinned(at(6) + 0.1, 5, 5),
        Pinned(at(6) + 0.2, 6, 5),
    ]
    assert check(again).right


def test_a_batch_may_have_other_subtasks_than_the_one_before_and_than_those_of_another_operator() -> None:
    dealt = history()
    dealt.events += [
        Dealt(at(5), LEDGERS, 5, 2),
        Dealt(at(6), LEDGERS, 5, 2),
        Dealt(at(6), ROSTERS, 5, 3),
        Dealt(at(7), LEDGERS, 6, 3),
    ]
    assert check(dealt).right


def test_a_cluster_that_comes_to_no_rest_is_wrong() -> None:
    doctored = history()
    doctored.final_epoch = -1
    assert check(doctored).violated == {"the_end_equals_the_recount": 1}


def test_each_rule_has_a_history_that_breaks_it() -> None:
    # The others are of scans of whole states: test_whole_rules.py.
    assert {rule.__name__.strip("_") for rule in RULES if rule not in WHOLE_RULES} == {
        rule for rule, _ in DOCTORED.values()
    }


def test_one_of_two_drivers_may_mistrust_the_checkpoint_that_the_other_one_writes() -> None:
    two = history()
    two.events += [
        Injected("usurp", ("driver",), at(3), at(4)),
        Ended(at(5), "driver", "CHECKPOINT_MISMATCH", "..."),
    ]
    assert check(two).right


def test_a_driver_may_end_as_spark_has_not_waited_for_a_python_worker_and_a_server_may_not() -> None:
    why = ("INTERNAL", "[STREAM_FAILED] terminated with exception: Python worker failed to connect back.")
    for name, right in (("driver", True), ("server-1", False)):
        seen = history()
        seen.events.append(Ended(at(5), name, *why))
        assert check(seen).right is right


def test_a_cut_off_owner_may_answer_on_with_what_it_has() -> None:
    late = history()
    late.events += [
        read(EPOCHS, at(EPOCHS) + 1, claimed(server="b", generation=2)),
        read(EPOCHS - 20, at(EPOCHS) + 2, claimed(generation=0)),
    ]
    assert check(late).right


def test_an_owner_may_claim_less_of_an_untouched_key_group_but_it_is_counted() -> None:
    quiet = next(
        epoch for epoch in range(1, EPOCHS) if RECOUNT.answer(SUMS, KEY, epoch) == RECOUNT.answer(SUMS, KEY, epoch - 1)
    )
    back = history()
    back.events.append(read(quiet - 1, at(quiet) + 0.5))
    verdict = check(back)
    assert verdict.right
    assert verdict.took_back == 1


def test_as_of_is_not_judged_where_clocks_were_made_to_jump() -> None:
    jumped = history()
    jumped.events += [
        Injected("clock_jump", ("driver",), at(3), at(4)),
        read(17, at(20), claimed(role=STANDBY, as_of_ms=int(1000 * at(19)))),
    ]
    assert check(jumped).right


def test_a_history_is_saved_and_loaded_whole(tmp_path: Path) -> None:
    file = tmp_path / "history"
    whole = history()
    whole.events += [FailedRead("r", 1, 2, SUMS, Asked(0), "NOT_READY", ""), Injected("kill", ("a",), 1, 2)]
    whole.save(file)
    assert load(file) == whole


def test_availability_is_told_by_kind_of_fault_with_the_longest_gap() -> None:
    failed = [
        FailedRead("r", at(5) + 0.2, at(5) + 0.3, SUMS, Asked(0), "NO_SERVER", ""),
        FailedRead("r", at(5) + 0.4, at(5) + 0.5, SUMS, Asked(0), "NO_SERVER", ""),
        FailedRead("r", at(5) + 0.5, at(5) + 0.6, SUMS, Asked(0, "never"), "UNCONFIRMED", ""),
    ]
    seen = history()
    seen.events += [Injected("kill", ("a",), at(5), at(5) + 1, harmless=True), *failed]
    found = availability(seen)
    assert found["kill"].failed == found["harmless"].failed == 2
    assert found["kill"].reasons == {"NO_SERVER": 2}
    assert found["kill"].longest_gap_seconds == pytest.approx(0.91)
    assert found["none"].failed == 0
    assert found["none"].reads + found["kill"].reads == found["all"].reads
