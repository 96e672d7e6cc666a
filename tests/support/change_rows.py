"""What a queryable processor gives out, as its own rows and its change rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import Row

from keyhole.spark.exposed import CHANGES_COLUMN, STATE_COLUMN
from keyhole.spark.worker.pack import unpacked


def own(given: Iterable[Row]) -> list[Row]:
    """The processor's own, as they are."""
    return [row for row in given if STATE_COLUMN not in row]


def changes(given: Iterable[Mapping[str, Any] | Row]) -> list[tuple[str, dict[str, Any]]]:
    """(state, the columns of the change row) of each change, in the order in which a state's take effect."""
    return [
        (row[STATE_COLUMN], change)
        for row in given
        if STATE_COLUMN in row
        for rows in unpacked(pa.array([row[CHANGES_COLUMN]], pa.binary()))
        for change in rows.to_pylist()
    ]
