"""Values of another application's state beside a task's rows: asked of its client proxy, many keys at a time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from keyhole.client import Client
from keyhole.client.bounds import Duration, StalePolicy
from keyhole.encoding.arrow_entries import as_arrow
from keyhole.encoding.arrow_times import to_python
from keyhole.errors import KeyMismatch
from keyhole.model.read import Answer
from keyhole.rpc.frames import portions
from keyhole.security.credentials import Credentials
from keyhole.spark.worker.worker_setup import hasten_rows

# How large values are is known once the first ones are there.
_FIRST_KEYS, _MOST_KEYS, _GROWTH = 64, 4_096, 4
# Of the values that are asked for at once, as far as that is known before; and of those in one batch of Arrow's.
_BYTES = 16 << 20

GetMany = Callable[[Sequence[Any]], Sequence[Answer]]


def looked_up(
    state: tuple[str, str],
    proxy: str,
    key: Sequence[str],
    target: str,
    value: pa.DataType,
    stale: StalePolicy,
    timeout: Duration,
    credentials: Credentials,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """In a task: the rows with the state's values beside them. One client serves all tasks of a worker.

    Args:
        state: Its application, and its name.
        key: The key's columns.
        target: The name of the column of the values.
        value: The type of that column.
    """
    hasten_rows()
    client = client_of(proxy, timeout, credentials)

    def get_many(keys: Sequence[Any]) -> Sequence[Answer]:
        return client.get_many(*state, keys, stale=stale)

    yield from with_values(get_many, key, pa.field(target, value), batches)


def with_values(
    get_many: GetMany, key: Sequence[str], target: pa.Field, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The rows with the values of their keys. Large values are asked for few at a time, and stand in small batches.

    Args:
        get_many: Gives the answers to keys, of which none comes twice.
        key: The key's columns.
        target: The column of the values; null where there is none.
    """
    portion = _FIRST_KEYS
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            rows = batch.slice(start, portion)
            start += rows.num_rows
            keys = list(zip(*(to_python(rows.column(name), name, KeyMismatch) for name in key), strict=True))
            asked = list(dict.fromkeys(one for one in keys if None not in one))
            answers = get_many([one if len(one) > 1 else one[0] for one in asked])
            found = [(one, as_arrow(answer.value)) for one, answer in zip(asked, answers, strict=True) if answer.found]
            values = pa.array([value for _, value in found], target.type)
            sizes = [values.slice(place, 1).nbytes for place in range(len(values))]
            place_of = {one: place for place, (one, _) in enumerate(found)}
            places = [place_of.get(one) for one in keys]
            # Many rows may have the same large value.
            for part in portions((0 if place is None else sizes[place] for place in places), _BYTES):
                of_part = values.take(pa.array(places[part], pa.int32()))
                yield rows.slice(part.start, part.stop - part.start).append_column(target, of_part)
            mean = values.nbytes // max(1, len(values)) + 1
            portion = max(1, min(_GROWTH * portion, _MOST_KEYS, _BYTES // mean))


@functools.lru_cache(maxsize=8)
def client_of(proxy: str, timeout: Duration, credentials: Credentials) -> Client:
    """For the life of the Python worker process."""
    return Client(proxy, timeout=timeout, credentials=credentials)
