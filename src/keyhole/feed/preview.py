"""Whether records of a topic can be fed as somebody says, before a state is made of them. Pure.

orders has {"customer": "c1", "amount": 12.5}, and is given --reduce amuont=sum
    -> "no record has a field amuont (is it amount?)"
"""

from __future__ import annotations

from collections.abc import Sequence

from keyhole.config.spelling import with_the_nearest
from keyhole.errors import InvalidConfiguration, RequestError
from keyhole.feed.deleting_records import NO_ROWS, Deletions
from keyhole.feed.feed_options import RecordFormat
from keyhole.feed.mapping import RecordMapper
from keyhole.feed.record_encoding import JSON, RecordEncoding
from keyhole.feed.rows import SourceRecord
from keyhole.model.state import StateDescriptor

_UNCHECKED = "say --unchecked, if other records are to come"


def check_records(
    records: Sequence[SourceRecord],
    descriptor: StateDescriptor,
    record_format: RecordFormat,
    topic: str,
    encoding: RecordEncoding = JSON,
    columns: Sequence[str] = (),
    deletions: Deletions = NO_ROWS,
) -> None:
    """Passes where at least one of the records can be fed, and each column is in one of them; and where there are none.

    Raises:
        InvalidConfiguration: All would be dead letters, or a column would always be null. The message says why, and
            quotes no value.
        RegistryAway: It can't be known, as the schema registry does not answer.
    """
    if not records:
        return
    mapper = RecordMapper(descriptor, record_format, "preview", encoding, columns, deletions)
    reasons = [reason for record in records if (reason := _refusal(mapper, record)) is not None]
    # Before that: without a column of the key all are refused, and the nearest name says more.
    if not record_format.of_changes:
        _check_columns(records, descriptor, topic, encoding, columns, deletions)
    if len(reasons) == len(records):
        raise InvalidConfiguration(
            f"none of the last {len(records)} records of topic {topic!r} can be fed, the last one as {reasons[-1]}. "
            f"Check --format, --key and the types of the columns; or {_UNCHECKED}",
            topic=topic,
        )


def _refusal(mapper: RecordMapper, record: SourceRecord) -> str | None:
    try:
        mapper.updates(record)
    except RequestError as error:
        return error.message
    return None


def _check_columns(
    records: Sequence[SourceRecord],
    descriptor: StateDescriptor,
    topic: str,
    encoding: RecordEncoding,
    columns: Sequence[str],
    deletions: Deletions,
) -> None:
    found: set[str] = set()
    puts = False
    for record in records:
        if record.value is not None:
            try:
                row = encoding.row(record.value)
            except RequestError:
                continue
            found |= row.keys()
            puts |= not deletions.said_by(row)
    named = [column.name for column in (*descriptor.key, *descriptor.map_key)]
    # Of a row that deletes, its key and its order count.
    named += (columns or [field.name for field in descriptor.value.fields]) if puts else []
    # Rows that stay need not have the column by which others delete.
    if deletions.column and with_the_nearest(deletions.column, found) != deletions.column:
        named.append(deletions.column)
    missing = [name for name in named if name not in found]
    if found and missing:
        spelled = with_the_nearest(missing[0], found)
        raise InvalidConfiguration(
            f"none of the last {len(records)} records of topic {topic!r} has a field {spelled}. A column is called as "
            f"its field in the records. Correct it; or {_UNCHECKED}",
            topic=topic,
            column=missing[0],
        )
