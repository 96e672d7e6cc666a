"""What a task's rows amount to, where they count in the order in which they come."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.columnar import STORAGE_KEY, VALUE
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind
from keyhole.spark.worker.fold import folded
from tests.support.states import descriptor, key, row

MAP = descriptor(kind=StateKind.MAP, map_key=(KeyColumn("m", KeyType.INT),))
ENTRIES = StateCodec(MAP)
WHOLE = ENTRIES.prefix("a")
ONE, TWO, OTHER = ENTRIES.storage_key(("a", 1)), ENTRIES.storage_key(("a", 2)), ENTRIES.storage_key(("b", 1))

Changes = Iterable[tuple[bytes, bytes | None]]


def fold(of: StateDescriptor, *batches: Changes) -> list[tuple[bytes, bytes | None]]:
    given = []
    for batch in batches:
        keys, rows = zip(*batch, strict=True)
        given.append(pa.record_batch({STORAGE_KEY: pa.array(keys, pa.binary()), VALUE: pa.array(rows, pa.binary())}))
    return [
        change
        for batch in folded(given, of)
        for change in zip(batch.column(STORAGE_KEY).to_pylist(), batch.column(VALUE).to_pylist(), strict=True)
    ]


def test_of_an_entrys_rows_the_last_one_stays_in_whichever_batch_it_comes() -> None:
    first, second = [(ONE, row(1.0)), (OTHER, row(2.0)), (ONE, row(3.0))], [(OTHER, None), (TWO, row(4.0))]
    assert dict(fold(MAP, first, second)) == {ONE: row(3.0), TWO: row(4.0), OTHER: None}
    assert fold(descriptor(), [(key("k"), row(1.0)), (key("k"), None)]) == [(key("k"), None)]


def test_what_clears_a_key_takes_the_entries_before_it_along_and_none_of_those_behind_it() -> None:
    before, behind = [(ONE, row(1.0)), (OTHER, row(1.0))], [(WHOLE, None), (TWO, row(2.0))]
    assert dict(fold(MAP, before, behind)) == {WHOLE: None, TWO: row(2.0), OTHER: row(1.0)}
