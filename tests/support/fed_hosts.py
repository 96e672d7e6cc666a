"""A host that owns key groups of a state that is fed by updates, which tests drive step by step."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from keyhole.changelog.settings import updates_topic_name
from keyhole.encoding.storage_key import group_of
from keyhole.errors import TooStale
from keyhole.model.read import ReadBounds
from keyhole.model.state import StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.protocol.updates import PUT, FeedRules, Record, RulesRecord, UpdateRecord
from keyhole.testing.changelog import MemoryChangelog, MemoryKafka
from keyhole.testing.updates import MemoryUpdatesTopics, send
from tests.support.hosts import Hosted
from tests.support.states import KEY_GROUPS, descriptor, key, names_in
from tests.support.waiting import PATIENCE_SECONDS

STATE = "counts"
TOPIC = updates_topic_name("app", STATE)


class Fed(Hosted):
    """A host of a state of sums, which tests drive step by step; and its producer."""

    def __init__(self, kafka: MemoryKafka | None = None, **of: object) -> None:
        kafka = kafka or MemoryKafka()
        topic_id = MemoryChangelog(kafka, "app").updates_topics().ensure(STATE, KEY_GROUPS, "", 1.0)
        super().__init__(kafka=kafka, of=sums_fed(topic_id, **of), feeds_by_itself=False)
        self.sent = 0

    def rules(self, generation: int = 1) -> None:
        for group in range(KEY_GROUPS):
            self.send(group, RulesRecord(generation, FeedRules.of(self.of)))

    def send(self, group: int, record: Record) -> int:
        return send(self.kafka, "app", STATE, group, record)

    def add(self, name: str, amount: float, offset: int | None = None) -> int:
        """Returns the epoch that has it."""
        at = self.sent if offset is None else offset
        self.sent = max(self.sent, at + 1)
        return self.send(group_of(key(name)), UpdateRecord("s", 0, at, 0, PUT, 1, [name], None, [amount])) + 1

    async def steps(self, count: int = 3, *, until_done: bool = True) -> None:
        """What was sent is applied and shown. What a step begins to read, or to commit once time has passed, is done
        before the next, however slow the machine is; but for `until_done`.
        """
        feeding = self.host.feeding
        for _ in range(count):
            await feeding.step(0)
            under_way = [of for of in (feeding._beginnings._reading, feeding._due.under_way) if of is not None]
            if until_done and under_way:
                await asyncio.wait(under_way, timeout=PATIENCE_SECONDS)

    def updates_topics(self) -> MemoryUpdatesTopics:
        return MemoryChangelog(self.kafka, "app").updates_topics()

    async def ask(self) -> None:
        """Where the logs end is asked, and readers are told of it."""
        await asyncio.to_thread(self.host.feeding.ends.ask, self.updates_topics())
        await asyncio.sleep(0)
        await self.steps(1)

    def is_within(self, name: str, seconds: float) -> bool:
        """Whether readers of this key get an answer that is no older."""
        try:
            self.table.lookup([key(name)], ReadBounds(max_staleness_ms=max(1, round(seconds * 1000))))
        except TooStale:
            return False
        return True

    def sums(self, names: Iterable[str]) -> list[float | None]:
        found = self.read(*map(key, names))
        return [None if of is None else self.table.codec.decode_row(of)["n"] for of in found]


def sums_fed(topic_id: str, **of: object) -> StateDescriptor:
    values: dict[str, object] = {
        "kind": StateKind.REDUCING,
        "reducers": ("sum",),
        "updates_topic_id": topic_id,
        "value": ValueSchema(1, (ValueField("n", "double"),)),
    }
    return descriptor(**{**values, **of})


NAMES = [names_in(group, 1)[0] for group in range(KEY_GROUPS)]
"""One of each key group."""


async def begun(**of: object) -> Fed:
    """One that owns all key groups, with the first rules in their logs. `of`: what its state has beside sums."""
    fed = Fed(**of)  # type: ignore[arg-type]
    fed.rules()
    await fed.own()
    return fed


async def closed(fed: Fed) -> None:
    """Closes its host."""
    await fed.host.close()
