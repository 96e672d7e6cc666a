"""Lookups of a job by keys with times, whatever the session's time zone; the client is a stand-in."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest

from keyhole.encoding.row import row_class
from keyhole.errors import KeyMismatch
from keyhole.model.read import Answer, Role, Source, Stale
from keyhole.security.credentials import PLAIN
from keyhole.spark.worker import looking_up

_SOURCE = Source("a", Role.OWNER, 1, None, None, 1, 1, False)
_MOMENTS = [
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(2026, 11, 21, 12, tzinfo=UTC),
    datetime(9999, 12, 31, 23, tzinfo=UTC),
]
_VALUE = pa.struct([("times", pa.list_(pa.timestamp("us", "UTC")))])


class Client:
    """Answers every key with the times in it."""

    def get_many(self, application: str, state: str, keys: Sequence[Any], stale: Stale) -> list[Answer]:
        row = row_class([("times", object)])
        return [Answer(True, row((key[0], *_MOMENTS)), _SOURCE) for key in keys]


def _found(monkeypatch: pytest.MonkeyPatch, times: pa.Array) -> list[Any]:
    monkeypatch.setattr(looking_up, "client_of", lambda *_: Client())
    rows = pa.record_batch({"at": times, "on": pa.array([date.min] * len(times), pa.date32())})
    batches = looking_up.looked_up(
        ("app", "state"), "proxy", ["at", "on"], "found", _VALUE, Stale.ALWAYS, 1.0, PLAIN, [rows]
    )
    return [found for batch in batches for found in batch.column("found").to_pylist()]


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Tokyo"])
def test_the_first_and_the_last_times_are_looked_up_and_found_in_any_session(
    monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    times = pa.array([*_MOMENTS, None], pa.timestamp("us", "UTC")).cast(pa.timestamp("us", zone))
    assert _found(monkeypatch, times) == [*({"times": [moment, *_MOMENTS]} for moment in _MOMENTS), None]


def test_a_time_outside_of_these_years_is_refused_by_its_columns_name(monkeypatch: pytest.MonkeyPatch) -> None:
    times = pa.array([1 << 60], pa.int64()).cast(pa.timestamp("us", "Asia/Tokyo"))
    with pytest.raises(KeyMismatch, match="column at has a date or timestamp outside the years 1 to 9999"):
        _found(monkeypatch, times)
