"""When a topic that looks don't find is gone."""

from __future__ import annotations

from keyhole.changelog.kafka.absences import Absences


def test_a_topic_is_gone_once_two_looks_some_seconds_apart_have_not_found_it() -> None:
    absences = Absences()
    assert [absences.is_gone("a", now) for now in (10.0, 10.5, 11.9)] == [False] * 3
    assert not absences.is_gone("b", 11.9)
    assert absences.is_gone("a", 12.0)
    # One that was found begins anew, and so does one that nobody looked at for long.
    absences.found("a")
    assert not absences.is_gone("a", 13.0)
    assert not absences.is_gone("a", 100.0)
    assert absences.is_gone("a", 102.0)
