"""A feed run, a state server and the owner's loop on a real Kafka: what is sent is read, what is refused put aside."""

from __future__ import annotations

import asyncio
import contextlib

from confluent_kafka import Producer

from keyhole import AsyncClient
from keyhole.changelog.base import Partition
from keyhole.changelog.kafka.changelog import KafkaChangelog
from keyhole.changelog.kafka.reader import KafkaReader
from keyhole.changelog.settings import updates_topic_name
from keyhole.clock import SystemClock
from keyhole.config import JobConfig, StateServerConfig
from keyhole.coordinator.feed_run import FeedRun
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.storage_key import group_of
from keyhole.model.state import StateKind, ValueField, ValueSchema
from keyhole.protocol.failpoints import NoObserver
from keyhole.protocol.updates import PUT, UpdateRecord, encode
from keyhole.stores.memory import MemoryEngine
from services.state_server.app import StateServer
from tests.support.proxies import proxy_of
from tests.support.states import descriptor
from tests.support.waiting import LONG_SECONDS

VALUE = ValueSchema(1, (ValueField("n", "bigint"),))


def changelog_ends(reader: KafkaReader, state: str, group: int) -> int:
    with contextlib.closing(reader):
        return reader.ends({state: [group]}, LONG_SECONDS)[Partition(state, group)]


async def test_what_is_sent_is_read_and_the_next_server_goes_on_where_this_one_was(
    kafka: str, application: str
) -> None:
    of = descriptor(application=application, key_groups=2, kind=StateKind.REDUCING, reducers=("sum",), value=VALUE)
    changelog = KafkaChangelog(kafka, application)
    producer = Producer({"bootstrap.servers": kafka, "linger.ms": 0})
    topic, group = updates_topic_name(application, of.state), group_of(StateCodec(of).storage_key("a"))

    def send(*values: bytes) -> None:
        for value in values:
            producer.produce(topic, value, partition=group)
        assert producer.flush(LONG_SECONDS) == 0

    def row(offset: int, amount: int) -> bytes:
        return encode(UpdateRecord("s", 0, offset, 0, PUT, 1, ["a"], None, [amount]))

    async def found(client: AsyncClient) -> int | None:
        answer = await client.get(application, of.state, "a", timeout=LONG_SECONDS)
        return answer.value.n if answer.found else None

    async def serve(*, rows: list[bytes], total: int) -> int:
        """Through a server and a run of their own. Returns the generation."""
        config = StateServerConfig(bootstrap_servers=kafka, id="a", port=0)
        server = StateServer(
            config, MemoryEngine(), lambda name: KafkaChangelog(kafka, name), SystemClock(), NoObserver()
        )
        await server.start()
        job = JobConfig(application=application, servers=(server.address,), bootstrap_servers=kafka)
        run = FeedRun(job, of.query, changelog, SystemClock())
        try:
            await asyncio.to_thread(run.start, {of: 0})
            await asyncio.to_thread(send, *rows)
            async with proxy_of(server.address) as proxy, AsyncClient(proxy.address, timeout=LONG_SECONDS) as client:
                async with asyncio.timeout(LONG_SECONDS):
                    while await found(client) != total:  # noqa: ASYNC110 - as a reader would
                        await asyncio.sleep(0.02)
            async with asyncio.timeout(LONG_SECONDS):
                while not changelog_ends(changelog.reader(), of.state, group):  # noqa: ASYNC110 - it has no event
                    await asyncio.sleep(0.05)
            return run.generation
        finally:
            await asyncio.to_thread(run.close)
            await server.stop()

    assert await serve(rows=[row(0, 1), b"{}", row(1, 2), row(0, 1)], total=3) == 1
    send(row(1, 2), row(2, 4))
    assert await serve(rows=[], total=7) == 2
    topics = changelog.updates_topics()
    assert topics.lost({of.state: "another"}, 60) == [of.state]
    topics.close()
