"""A state server through two hundred queries that come and go: what it has of them afterwards, and what readers see."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil
import pytest
from confluent_kafka import Producer

from keyhole import AsyncClient
from keyhole.changelog.kafka.admin import Topics
from keyhole.changelog.kafka.changelog import KafkaChangelog
from keyhole.changelog.kafka.clients import Deadline
from keyhole.changelog.settings import topic_name, updates_topic_name
from keyhole.cli.main import main
from keyhole.clock import SystemClock
from keyhole.config import JobConfig, StateServerConfig
from keyhole.coordinator.feed_run import FeedRun
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.storage_key import group_of
from keyhole.errors import DeadlineExceeded, KeyholeError, NoServer, StillRunning, UnknownApplication
from keyhole.local.ports import free_ports
from keyhole.local.processes import Child
from keyhole.local.services import start_client_proxy, start_state_server
from keyhole.model.state import StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.protocol.control import CompleteRecord, GenerationRecord, record
from keyhole.protocol.failpoints import NoObserver
from keyhole.protocol.updates import PUT, UpdateRecord, encode
from keyhole.rpc.retiring import retire
from keyhole.stores.memory import MemoryEngine
from keyhole.testing.changelog import MemoryChangelog, MemoryKafka
from services.state_server.app import StateServer
from tests.support.proxies import proxy_of
from tests.support.readings import APPLICATION, STATE, descriptor, rows
from tests.support.refusals import longer_and_longer
from tests.support.state_servers import LEASE_SECONDS, AheadClock, Speaker, state_server
from tests.support.states import descriptor as counts
from tests.support.waiting import LONG_SECONDS, eventually, until

QUERIES, AT_A_TIME = 200, 8
KEY_GROUPS = 4
# Threads and connections that gRPC and asyncio's pool have at one moment and not at another. A query that stays has 14
# threads, 24 file descriptors and 3 Kafka clients.
COME_AND_GO = 20


class Counted(NamedTuple):
    """What the server's process has. `clients`: of Kafka, consumers and producers."""

    threads: int
    descriptors: int
    clients: int

    @classmethod
    def of(cls, process: int) -> Counted:
        names = []
        for path in Path(f"/proc/{process}/task").glob("*/comm"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended since
                names.append(path.read_text())
        return cls(len(names), psutil.Process(process).num_fds(), names.count("rdk:main\n"))

    def within(self, other: Counted) -> bool:
        """No more than the other, but for what comes and goes by itself."""
        return (
            self.threads <= other.threads + COME_AND_GO
            and self.descriptors <= other.descriptors + COME_AND_GO
            and self.clients <= other.clients
        )


class Served(NamedTuple):
    """A server of its own, and a proxy before it."""

    application: str
    bootstrap_servers: str
    server: Child
    address: str
    proxy: str

    def counted(self) -> Counted:
        return Counted.of(self.server.pid)


@pytest.fixture
def served(kafka: str, tmp_path: Path) -> Iterator[Served]:
    port, proxy_port = free_ports(2)
    environ = dict(os.environ)
    server = start_state_server("server-a", port, bootstrap_servers=kafka, directory=tmp_path, environ=environ)
    address = f"127.0.0.1:{port}"
    try:
        proxy = start_client_proxy("proxy", proxy_port, servers=[address], directory=tmp_path, environ=environ)
        try:
            yield Served(f"app-{uuid.uuid4().hex[:8]}", kafka, server, address, f"127.0.0.1:{proxy_port}")
        finally:
            proxy.terminate()
    finally:
        server.terminate()


async def declared(served: Served, state: str) -> StateDescriptor:
    """A state of the application, whose changelog there is."""
    of = msgspec.structs.replace(
        descriptor(state, application=served.application, topic_id=""), query=state, key_groups=KEY_GROUPS
    )
    admin = KafkaChangelog(served.bootstrap_servers, served.application).admin()
    topic_id = await asyncio.to_thread(admin.ensure, of, LONG_SECONDS)
    return msgspec.structs.replace(of, topic_id=topic_id)


async def runs(speaker: Speaker, of: StateDescriptor) -> None:
    """The query of the state is given all key groups, and has one more epoch."""
    await speaker.take(of, owned=range(KEY_GROUPS))
    await speaker.commit(rows(10))


async def test_two_hundred_queries_that_came_and_went_leave_no_thread_descriptor_or_kafka_client(
    served: Served,
) -> None:
    staying = await declared(served, "staying")
    await runs(Speaker(f"{served.application}-staying", lambda: served.address), staying)
    before = served.counted()

    async def come_and_go(number: int, queries: int) -> None:
        """One query after the other, each of which is the only one that feeds the state. Of the last one the server is
        told no end: it has been given nothing, and its lease passes.
        """
        of = await declared(served, f"state-{number}")
        speaker = Speaker(f"{served.application}-{number}-{queries}", lambda: served.address)
        for query in range(queries):
            running = msgspec.structs.replace(of, query=f"query-{number}-{queries}-{query}")
            await runs(speaker, running)
            if query < queries - 1:
                assert await speaker.retire() == [of.state]
        await speaker.take(running)

    async def many(queries: int) -> Counted:
        await asyncio.gather(*(come_and_go(number, queries // AT_A_TIME) for number in range(AT_A_TIME)))
        await eventually(lambda: served.counted().clients == before.clients, LONG_SECONDS)
        return served.counted()

    first = await many(2 * AT_A_TIME)
    last = await many(QUERIES - 2 * AT_A_TIME)
    print(f"before {before}, after {2 * AT_A_TIME} queries {first}, after {QUERIES} {last}")
    await eventually(lambda: served.counted().within(first), LONG_SECONDS)
    async with AsyncClient(served.proxy, timeout=LONG_SECONDS) as client:
        # Those of the last queries, whose end nobody has told, are on record.
        known = {of.state for of in await client.list_states() if of.application == served.application}
        assert known == {"staying", *(f"state-{number}" for number in range(AT_A_TIME))}
        assert (await client.get(served.application, "staying", "sensor-7")).value.celsius == 7.0


async def becomes(served: Served, state: str, expected: float | str) -> None:
    """Returns once a reader is told this value, or an error of this reason: the proxy follows its servers."""
    async with AsyncClient(served.proxy, timeout=LONG_SECONDS) as client, asyncio.timeout(LONG_SECONDS):
        found: float | str = ""
        while found != expected:
            try:
                found = (await client.get(served.application, state, "sensor-7")).value.celsius
            except KeyholeError as error:
                found = error.reason
            await asyncio.sleep(0.01)


async def test_what_was_retired_is_unknown_to_readers_and_all_of_it_is_back_when_its_query_starts_again(
    served: Served,
) -> None:
    gone, staying = await declared(served, "gone"), await declared(served, "staying")
    going = Speaker(f"{served.application}-going", lambda: served.address)
    await runs(going, gone)
    await runs(Speaker(f"{served.application}-staying", lambda: served.address), staying)
    await becomes(served, "gone", 7.0)
    await becomes(served, "staying", 7.0)
    # Nobody says any more that the run is alive: it is waited for until its lease has passed.
    forgotten = await asyncio.to_thread(
        retire, served.address, served.application, "gone", timeout_seconds=LONG_SECONDS
    )
    assert forgotten == {"gone": ["gone"]}
    await becomes(served, "gone", "UNKNOWN_STATE")
    await becomes(served, "staying", 7.0)
    assert await asyncio.to_thread(retire, served.address, served.application, "gone") == {}
    await going.take(gone, owned=range(KEY_GROUPS))
    await becomes(served, "gone", 7.0)


async def refusal(client: AsyncClient, seconds: float = LONG_SECONDS) -> type[KeyholeError] | None:
    """What a reader of the state is told; None: its value."""
    try:
        await client.get(APPLICATION, STATE, "sensor-7", timeout=seconds)
    except KeyholeError as error:
        return type(error)
    return None


async def test_proxies_forget_a_state_once_its_last_holder_has_let_go_of_it_and_not_when_one_was_restarted() -> None:
    kafka = MemoryKafka()
    (port,) = free_ports(1)  # nobody else's while the first one is restarted
    async with (
        state_server("a", kafka, port=port) as a,
        state_server("b", kafka) as b,
        proxy_of(a.address, b.address) as proxy,
    ):
        directory, name = proxy._directory, (APPLICATION, STATE)

        def held_by(*servers: str) -> bool:
            held = {link.view.server for link in directory.links if link.view and name in link.view.held}
            return held == set(servers)

        async with AsyncClient(proxy.address, timeout=LONG_SECONDS) as client:
            await a.own(descriptor())
            await a.commit(rows(10))
            await b.follow(descriptor())
            await eventually(lambda: held_by("a", "b"))
            await a.retire()
            await eventually(lambda: held_by("b"))
            assert await refusal(client) is None, "the other one still answers"
            await b.retire()
            await eventually(lambda: held_by())
            assert await refusal(client) is UnknownApplication
            assert name not in directory.tables
            await a.evolve(descriptor())
            await eventually(lambda: held_by("a"))
            assert await refusal(client) is None
            # It is restarted: nobody has said that the query is over.
            await a.server.stop()
            async with state_server("a", kafka, port=port):
                await eventually(lambda: any(link.view and not link.view.lost for link in directory.links[:1]))
                await eventually(lambda: held_by())
                assert name in directory.tables
                assert await refusal(client, 0.5) in (NoServer, DeadlineExceeded)


async def test_a_replica_forgets_a_query_until_a_later_run_of_it_begins() -> None:
    kafka = MemoryKafka()
    changelog = MemoryChangelog(kafka, APPLICATION)
    of = msgspec.structs.replace(descriptor(topic_id=""), topic_id=changelog.admin().ensure(descriptor(topic_id=""), 5))
    control = changelog.control(of.query)
    control.open(5)

    def recorded(generation: int, epoch: int) -> None:
        """As a driver writes to the control topic."""
        whole = CompleteRecord(epoch, generation, 1000, 0, 0, {STATE: [-1] * of.key_groups}, told_ms=epoch)
        run = GenerationRecord(generation, f"run-{generation}")
        control.append(
            record("state", STATE, of) | record("generation", of.query, run) | record("complete", of.query, whole), 5
        )

    recorded(1, 1)
    config = StateServerConfig(
        bootstrap_servers="memory",
        port=0,
        role="replica",
        applications=(APPLICATION,),
        lease_seconds=LEASE_SECONDS,
    )
    clock = AheadClock()
    server = StateServer(config, MemoryEngine(), lambda name: MemoryChangelog(kafka, name), clock, NoObserver())
    await server.start()
    try:
        registry = server._registry
        assert registry is not None
        await eventually(lambda: (APPLICATION, STATE) in registry.tables)
        host = registry.hosts[APPLICATION, of.query]
        await eventually(lambda: host.running)
        with pytest.raises(StillRunning):
            await registry.retire(APPLICATION)
        clock.ahead_seconds += 2 * LEASE_SECONDS
        assert await registry.retire(APPLICATION) == {of.query: [STATE]}
        member = server._members[APPLICATION]
        recorded(1, 2)
        # It reads what follows, and of another query's run.
        control.append(record("generation", "another", GenerationRecord(1, "run-1")), 5)
        await eventually(lambda: "another" in member._generations)
        assert member.has_left(of.query)
        assert not registry.tables
        recorded(2, 2)
        await eventually(lambda: (APPLICATION, STATE) in registry.tables)
    finally:
        await server.stop()


async def test_a_query_that_was_dropped_leaves_no_topic_and_begins_anew_under_its_name(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    value = ValueSchema(1, (ValueField("n", "bigint"),))
    of = counts(application=served.application, key_groups=2, kind=StateKind.REDUCING, reducers=("sum",), value=value)
    changelog = KafkaChangelog(served.bootstrap_servers, served.application)
    job = JobConfig(
        application=served.application, servers=(served.address,), bootstrap_servers=served.bootstrap_servers
    )
    kafka = ["--bootstrap-servers", served.bootstrap_servers]
    command = ["drop", served.application, of.query, "--json", "--timeout", str(LONG_SECONDS), "--proxy", served.proxy]

    def topics() -> set[str]:
        with closing(Topics(served.bootstrap_servers)) as known:
            names = [topic_name(served.application, of.state), updates_topic_name(served.application, of.state)]
            return {name for name in names if known.describe(name, Deadline(LONG_SECONDS))}

    def fed(*amounts: int) -> FeedRun:
        run = FeedRun(job, of.query, changelog, SystemClock())
        run.start({of: 0})
        producer = Producer({"bootstrap.servers": served.bootstrap_servers, "linger.ms": 0})
        group = group_of(StateCodec(of).storage_key("a"))
        for at, amount in enumerate(amounts):
            row = encode(UpdateRecord("s", 0, at, 0, PUT, 1, ["a"], None, [amount]))
            producer.produce(updates_topic_name(served.application, of.state), row, partition=group)
        assert producer.flush(LONG_SECONDS) == 0
        return run

    async def reads(expected: object) -> None:
        async with AsyncClient(served.proxy, timeout=LONG_SECONDS) as client, asyncio.timeout(LONG_SECONDS):
            found: object = None
            while found != expected:
                try:
                    answer = await client.get(served.application, of.state, "a")
                    found = answer.value.n if answer.found else 0
                except KeyholeError as error:
                    found = error.reason
                await asyncio.sleep(0.05)

    run = await asyncio.to_thread(fed, 1, 2)
    try:
        await reads(3)
        assert len(topics()) == 2
        assert await asyncio.to_thread(main, [*command, *kafka]) == 1
        assert json.loads(capsys.readouterr().out)["dropped"] is False
        # It waits for so long whether the run ends. On a busy machine that is too short to hear of the run.
        for seconds in longer_and_longer(1):
            assert await asyncio.to_thread(main, [*command, *kafka, "--yes", "--timeout", str(seconds)]) == 1
            refused = capsys.readouterr().err
            if "is running" in refused:
                break
        assert "is running" in refused
        await reads(3)
    finally:
        await asyncio.to_thread(run.close)
    assert await asyncio.to_thread(main, [*command, *kafka, "--yes"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["dropped"], set(printed["states"]), len(printed["topics"])) == (True, {of.state}, 2)
    # Until the broker has heard of it, it still knows them.
    await asyncio.to_thread(until, lambda: topics() == set(), LONG_SECONDS, 0.1, topics)
    await reads("UNKNOWN_APPLICATION")
    run = await asyncio.to_thread(fed, 40)
    try:
        await reads(40)
        assert run.generation == 2
    finally:
        await asyncio.to_thread(run.close)
