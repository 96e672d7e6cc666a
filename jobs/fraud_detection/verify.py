"""`python -m jobs.fraud_detection.verify`: takes the payments again, batch by batch, with the rules that each read."""

from __future__ import annotations

import dataclasses
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from jobs.fraud_detection.model import Aggregation, Payment, Rule
from jobs.fraud_detection.recount import Recount, aggregation_of, payment_of, rule_of, spent
from keyhole import Client
from keyhole.demo.batch_logs import BatchLogs
from keyhole.demo.recount import RecountVerdict, VerifiedJob, asked, entries, main, records_before, topic_ends, unkept

# As the job has it, of which nothing here may know.
APPLICATION, ALERTS, TOTALS, RECENT = "fraud-detection", "alerts", "totals", "recent"
RULES, AGGREGATIONS, SPENT = "rules", "aggregations", "spent"
HISTORY = "HISTORY"

_CATCH_UP_SECONDS = 60.0

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_Entry = TypeVar("_Entry", bound="tuple[Any, ...]")

Expected = Mapping[Any, Mapping[Any, tuple[int, ...]]]
"""By key and map key, the fields of the value."""


class Compared(NamedTuple):
    """How many keys of a state were counted, how many of them agree, and how many more there are."""

    keys: int
    agreed: int
    surplus: int


class Published(Generic[_Entry]):
    """What is in the topic of the rules, or of the aggregations, and whether what is none was kept.

    Args:
        parse: From a record to the entry; None: it is none.
    """

    def __init__(self, subject: VerifiedJob, topic: str, parse: Callable[[bytes | None], _Entry | None]) -> None:
        wrong: set[tuple[int | None, int | None]] = set()
        self.entries: list[tuple[int, _Entry]] = []
        for message in records_before(subject.bootstrap_servers, topic, topic_ends(subject.bootstrap_servers, topic)):
            offset, entry = message.offset(), parse(message.value())
            if offset is None or entry is None:
                wrong.add((message.partition(), offset))
            else:
                self.entries.append((offset, entry))
        self.rejected = {topic: len(wrong)}
        self.unkept = unkept(dataclasses.replace(subject, topic=topic), wrong)


class Table(Generic[_Entry]):
    """What each batch of payments was given of the rules, or of the aggregations.

    Args:
        logs: Of the payments' query.
        state: Its name.
        updates: The log of the query that feeds it.
        published: By offset.
    """

    def __init__(
        self, logs: BatchLogs, state: str, updates: BatchLogs, published: Sequence[tuple[int, _Entry]]
    ) -> None:
        self._logs = logs
        self._state = f"{APPLICATION}.{state}"
        self._updates = updates
        self._published = published
        self.read = self.agreed = 0

    def given_to(self, batch: int) -> list[_Entry]:
        """By the topic's records up to the epoch that the batch read; counts whether that is what it read."""
        epoch, stream = self._logs.broadcast(self._state, batch)
        pinned = pa.ipc.open_stream(stream).read_all()
        end = self._updates.ends(epoch - 1)[0] if epoch else 0
        last: dict[Any, tuple[int, _Entry]] = {of[0]: (offset, of) for offset, of in self._published if offset < end}
        self.read += 1
        as_read = {tuple(row.values()) for row in pinned.to_pylist()}
        self.agreed += as_read == {(*of, offset) for offset, of in last.values()}
        return [of for _, of in last.values()]


def check(subject: VerifiedJob, client: Client) -> RecountVerdict:
    """Every alert, every total, every account's payments of the last minute, what each batch read, all dead letters."""
    messages = list(records_before(subject.bootstrap_servers, subject.topic, subject.ends))
    taken = [payment_of(message.value()) for message in messages]
    of_rules = Published(subject, subject.more_topics["RULES_TOPIC"], rule_of)
    of_aggregations = Published(subject, subject.more_topics["AGGREGATIONS_TOPIC"], aggregation_of)
    logs = subject.batches
    rules = Table(logs, RULES, subject.beside(RULES), of_rules.entries)
    aggregations = Table(logs, AGGREGATIONS, subject.beside(AGGREGATIONS), of_aggregations.entries)
    recount, watermarks_ms = counted(logs, subject.epoch, taken, rules, aggregations)
    alerts, totals = alerts_of(recount), totals_of(recount)
    accounts = {payment.account for payment in taken if payment is not None}
    kept = {account: client.scan(APPLICATION, RECENT, account, min_epoch=subject.epoch) for account in accounts}
    as_kept = sum(
        {entry.map_key: entry.value.cents for entry in found}
        == recount.recent(account, watermarks_ms[min(found.epoch, len(watermarks_ms)) - 1])
        for account, found in kept.items()
    )
    surplus = max(0, entries(client, APPLICATION, RECENT) - sum(map(len, kept.values())))
    sums = compared_sums(client, subject, [payment for payment in taken if payment is not None])
    rejected = {(m.partition(), m.offset()) for m, payment in zip(messages, taken, strict=True) if payment is None}
    tables, topics = (rules, aggregations), (of_rules, of_aggregations)
    return RecountVerdict(
        subject.epoch,
        keys=sum(map(len, [*alerts.values(), *totals.values()]))
        + len(accounts)
        + sum(of.read for of in tables)
        + sums.keys,
        agreed=agreeing(client, subject, ALERTS, alerts)
        + agreeing(client, subject, TOTALS, totals)
        + as_kept
        + sum(of.agreed for of in tables)
        + sums.agreed,
        surplus=surplus + too_many(client, ALERTS, alerts) + too_many(client, TOTALS, totals) + sums.surplus,
        events=len(messages),
        rejected={subject.topic: len(rejected)} | of_rules.rejected | of_aggregations.rejected,
        unkept=unkept(subject, rejected) + sum(of.unkept for of in topics),
    )


def compared_sums(client: Client, subject: VerifiedJob, payments: Iterable[Payment]) -> Compared:
    """What each account has spent, the history included, once its query has taken all payments."""
    batch = subject.beside(SPENT).await_ends(subject.ends, _CATCH_UP_SECONDS)
    expected = spent(history_in(subject.settings.get(HISTORY)), payments)
    answers = asked(client, APPLICATION, SPENT, {account: account for account in expected}, batch + 1)
    agreed = sum(
        answer.found and (answer.value.payments, answer.value.cents) == expected[account]
        for account, answer in answers.items()
    )
    return Compared(len(expected), agreed, max(0, entries(client, APPLICATION, SPENT) - len(expected)))


def history_in(folder: str | None) -> list[tuple[str, int]]:
    """Account and cents of each payment; no folder: there are none."""
    if not folder:
        return []
    return [(row["account"], row["cents"]) for row in pq.read_table(folder, columns=["account", "cents"]).to_pylist()]


def counted(
    logs: BatchLogs,
    epoch: int,
    taken: Sequence[Payment | None],
    rules: Table[Rule],
    aggregations: Table[Aggregation],
) -> tuple[Recount, list[int]]:
    """What the states should say, and the watermark of each batch; the last one is of the batches to come.

    Args:
        taken: By the offset in the topic, which has one partition; None: no payment.
    """
    recount, watermarks_ms = Recount(), []
    done = 0
    for batch in range(epoch):
        (end,) = logs.ends(batch).values()
        read = rules.given_to(batch), aggregations.given_to(batch)
        watermarks_ms.append(recount.watermark_ms)
        recount.take([payment for payment in taken[done:end] if payment is not None], *read)
        done = end
    return recount, [*watermarks_ms, recount.watermark_ms]


def alerts_of(recount: Recount) -> Expected:
    """By account, as readers get it."""
    found: defaultdict[str, dict[tuple[int, int], tuple[int, ...]]] = defaultdict(dict)
    for alert in recount.alerts:
        found[alert.account][alert.time_ms, alert.payment] = (alert.cents,)
    return found


def totals_of(recount: Recount) -> Expected:
    """By aggregation and account or merchant, likewise."""
    found: defaultdict[tuple[str, str], dict[datetime, tuple[int, ...]]] = defaultdict(dict)
    for (aggregation, of, window_ms), total in recount.totals.items():
        found[aggregation, of][_EPOCH + timedelta(milliseconds=window_ms)] = total
    return found


def agreeing(client: Client, subject: VerifiedJob, state: str, expected: Expected) -> int:
    """How many entries readers get as expected."""
    agreed = 0
    for key, of in expected.items():
        entries = client.scan(APPLICATION, state, key, min_epoch=subject.epoch)
        agreed += sum(of.get(entry.map_key) == tuple(entry.value.asdict().values()) for entry in entries)
    return agreed


def too_many(client: Client, state: str, expected: Expected) -> int:
    """How many entries the state has that are not expected."""
    return max(0, entries(client, APPLICATION, state) - sum(map(len, expected.values())))


if __name__ == "__main__":
    sys.exit(main(check))
