"""What the benchmark of the real-time lane makes of what its source and its readers wrote down; without any of them."""

from __future__ import annotations

import pytest

from benchmarks.realtime.__main__ import PARTS, arguments
from benchmarks.realtime.events import probes_of
from benchmarks.realtime.figures import Age, ages, longest_by_batch, percentile, percentiles, summaries
from benchmarks.realtime.merging import summary

MS = 1_000_000


def test_an_event_is_as_old_as_the_first_answer_that_shows_it_or_a_later_one() -> None:
    sent = [10 * MS, 20 * MS, 30 * MS, 40 * MS]
    seen = [(6, 12 * MS), (7, 15 * MS), (9, 37 * MS)]
    found, unseen = ages(7, sent, seen)
    assert found == [Age(10 * MS, 5.0), Age(20 * MS, 17.0), Age(30 * MS, 7.0)]
    assert unseen == 1, "no answer has shown number 10"
    assert ages(7, sent, []) == ([], 4)


def test_a_percentile_is_a_value_that_was_measured() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile([3.0], 0.99)) == (50.0, 99.0, 3.0)
    assert percentile([*values, 1000.0], 0.99) == 100.0
    assert percentiles([Age(0, value) for value in values]) == {"p50_ms": 50.0, "p99_ms": 99.0, "max_ms": 100.0}


def test_the_longest_age_of_each_batch_is_among_what_was_sent_in_it() -> None:
    found = [Age(1, 900.0), Age(10, 2.0), Age(11, 3.0), Age(20, 7.0), Age(40, 1.0)]
    assert longest_by_batch(found, [10, 20, 30]) == [3.0, 7.0, 1.0]
    assert longest_by_batch(found, []) == []


def test_a_summary_has_the_spread_over_turns_and_the_ratio_to_the_bare_consumer_at_the_same_rate() -> None:
    p50s = {("bare", 1000): (2, 1, 9), ("feed", 1000): (6, 8, 7), ("feed", 10_000): (5, 5, 5)}
    results = [
        {"side": side, "rate": rate, "p50_ms": p50, "p99_ms": 10 * p50, "max_ms": 99, "samples": 4, "unseen": 1}
        | {"load": 0.5}
        for (side, rate), measured in p50s.items()
        for p50 in measured
    ]
    bare, feed, faster = summaries(results)
    assert feed["p50_ms"] == {"min": 6, "median": 7, "max": 8}
    assert (feed["p50_to_bare"], feed["p99_to_bare"], feed["samples"], feed["unseen"]) == (3.5, 3.5, 12, 3)
    assert [line.get("p50_to_bare") for line in (bare, faster)] == [None, None]


def test_lookups_while_updates_are_merged_are_compared_with_those_of_an_idle_server_by_their_medians() -> None:
    lines = [
        {"idle_lookups_per_second": idle, "together_lookups_per_second": together, "load": 1.0, "updates_per_second": 5}
        for idle, together in ((10, 8), (10, 2), (40, 9))
    ]
    line = summary([{**of, "left_when_written": 3} for of in lines])
    assert line["lookups_to_idle"] == 0.8
    assert line["updates_per_second"] == {"min": 5, "median": 5, "max": 5}


def test_parts_are_chosen_by_name_and_what_is_given_counts_more_than_quick() -> None:
    assert arguments([]).only == list(PARTS)
    options = arguments(["--quick", "--only", "feed,bare", "--seconds", "7"])
    assert (options.only, options.seconds, options.repeats) == (["feed", "bare"], 7.0, 1)
    with pytest.raises(SystemExit):
        arguments(["--only", "feed,flink"])


def test_there_are_a_hundred_probes_a_second_or_as_many_as_events() -> None:
    assert [probes_of(rate, 2.0) for rate in (10, 100, 1000, 10_000)] == [20, 200, 200, 200]
