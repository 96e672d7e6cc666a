"""What a proxy's processes have refused, as the console shows it."""

from __future__ import annotations

from keyhole.errors import EpochNotReached, NotReady
from keyhole.testing.clock import ManualClock
from services.client_proxy.console.refusals import MOST_SHOWN, ShownRefusals, refusals_of, turned_away
from services.client_proxy.counts import ProxyCounts
from services.client_proxy.siblings import CountedReads, ProcessFacts, RefusedReads


def facts(*reads: CountedReads, **away: int) -> ProcessFacts:
    return ProcessFacts(b"", reads, (), away)


def reads(state: str, *refused: RefusedReads) -> CountedReads:
    return CountedReads("shop" if state else "", state, 0, 0, 0, 0, refused)


def test_what_was_refused_is_summed_up_over_processes_and_the_last_comes_first() -> None:
    facts_of_all = [
        facts(reads("orders", RefusedReads("NOT_READY", 3, 5_000), RefusedReads("TOO_STALE", 1, 9_000)), denied=2),
        facts(
            reads("orders", RefusedReads("NOT_READY", 4, 7_000)),
            reads("secret", RefusedReads("NO_SERVER", 1, 1)),
            keys=0,
        ),
        facts(reads("", RefusedReads("UNKNOWN_STATE", 6, 8_000)), denied=1, rate=5),
    ]
    assert refusals_of(facts_of_all, lambda application, state: state != "secret") == [
        ShownRefusals("shop", "orders", "TOO_STALE", 1, 9_000),
        ShownRefusals("", "", "UNKNOWN_STATE", 6, 8_000),
        ShownRefusals("shop", "orders", "NOT_READY", 7, 7_000),
    ]
    assert turned_away(facts_of_all) == {"denied": 3, "rate": 5}


def test_no_more_than_so_many_are_shown() -> None:
    facts_of_all = [facts(*(reads(f"s{number}", RefusedReads("NOT_READY", 1, number)) for number in range(80)))]
    shown = refusals_of(facts_of_all, lambda application, state: True)
    assert [of.state for of in shown] == [f"s{number}" for number in reversed(range(80 - MOST_SHOWN, 80))]


def test_a_proxy_counts_what_it_refuses_by_reason_with_the_time_of_the_last() -> None:
    clock = ManualClock()
    counts, known = ProxyCounts(clock), {("shop", "orders"): None}
    orders = counts.of(("shop", "orders"), known)
    counts.failed(orders, [NotReady("it restores"), NotReady("it restores"), EpochNotReached("not yet")])
    first = clock.now_ms()
    clock.advance(2)
    counts.refused(orders, "NOT_READY", 5)
    counts.refused(counts.of(("made", "up"), known), "UNKNOWN_APPLICATION", 1)
    (elsewhere, counted) = counts.by_state()
    assert (counted.failed, set(counted.refused)) == (
        8,
        {RefusedReads("NOT_READY", 7, first + 2_000), RefusedReads("EPOCH_NOT_REACHED", 1, first)},
    )
    assert (elsewhere.application, elsewhere.state) == ("", "")
    assert elsewhere.refused == (RefusedReads("UNKNOWN_APPLICATION", 1, first + 2_000),)
