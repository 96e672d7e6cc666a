"""What readers get of a state that is fed by updates, through a proxy and real sockets: what was sent, and at once."""

from __future__ import annotations

from keyhole import AsyncClient
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.storage_key import group_of
from keyhole.errors import EpochNotReached
from keyhole.model.read import Role
from keyhole.protocol.updates import DELETE, PUT, FeedRules, RulesRecord, UpdateRecord
from keyhole.testing.changelog import MemoryChangelog, MemoryKafka
from keyhole.testing.updates import send
from tests.support.entries import APPLICATION, STATE, hourly
from tests.support.proxies import proxy_of
from tests.support.refusals import raised_at_deadline
from tests.support.state_servers import state_server
from tests.support.waiting import LONG_SECONDS, PATIENCE_SECONDS


class Source:
    """Sends rows of a map state: each call returns the epoch that has it."""

    def __init__(self, kafka: MemoryKafka) -> None:
        changelog = MemoryChangelog(kafka, APPLICATION)
        topic_id = changelog.updates_topics().ensure(STATE, hourly().key_groups, "", 1.0)
        self._kafka = kafka
        self._offset = 0
        of = hourly(topic_id="", updates_topic_id=topic_id)
        self.of = hourly(topic_id=changelog.admin().ensure(of, 1.0), updates_topic_id=topic_id)
        self._codec = StateCodec(self.of)
        for group in range(self.of.key_groups):
            send(kafka, APPLICATION, STATE, group, RulesRecord(1, FeedRules.of(self.of)))

    def send(self, sensor: str, hour: int, celsius: float | None) -> int:
        value = None if celsius is None else [celsius, 1]
        operation = DELETE if value is None else PUT
        record = UpdateRecord("s", 0, self._offset, 0, operation, 1, [sensor], [hour], value)
        self._offset += 1
        group = group_of(self._codec.storage_key((sensor, hour)))
        return send(self._kafka, APPLICATION, STATE, group, record) + 1


async def test_a_write_is_read_by_its_epoch_scanned_and_answered_by_a_standby_once_it_is_committed() -> None:
    kafka = MemoryKafka()
    source = Source(kafka)
    async with state_server("b", kafka) as standby:
        async with state_server("a", kafka) as owner, proxy_of(owner.address, standby.address) as proxy:
            await owner.evolve(source.of)
            await standby.follow(source.of)
            async with AsyncClient(proxy.address, timeout=LONG_SECONDS) as client:
                for hour in range(9):
                    source.send("sensor-7", hour, hour)
                source.send("sensor-7", 4, None)
                epoch = source.send("sensor-7", 9, 9.0)
                got = await client.get(
                    APPLICATION, STATE, ("sensor-7", 9), min_epoch=epoch, max_staleness=60, timeout=PATIENCE_SECONDS
                )
                assert (got.value.celsius, got.value.count) == (9.0, 1)
                assert (got.source.role, got.source.server, got.source.epoch) == (Role.OWNER, "a", epoch)
                many = await client.get_many(
                    APPLICATION, STATE, [("sensor-7", 4), ("sensor-7", 3), ("sensor-8", 1)], timeout=PATIENCE_SECONDS
                )
                assert [of.found for of in many] == [False, True, False]
                entries = await client.scan(
                    APPLICATION, STATE, "sensor-7", min_epoch=epoch, descending=True, timeout=PATIENCE_SECONDS
                )
                assert [entry.map_key for entry in entries] == [9, 8, 7, 6, 5, 3, 2, 1, 0]
                await raised_at_deadline(
                    lambda seconds: client.get(
                        APPLICATION, STATE, ("sensor-7", 9), min_epoch=epoch + 1, timeout=seconds
                    ),
                    1.0,
                    EpochNotReached,
                    "",
                )
            await _read_from_the_standby(standby.address, epoch)
        await _read_from_the_standby(standby.address, epoch)


async def _read_from_the_standby(address: str, epoch: int) -> None:
    """It has what its owner has committed, each 250 ms, and goes on when there is no owner any more."""
    async with proxy_of(address) as proxy, AsyncClient(proxy.address, timeout=LONG_SECONDS) as client:
        got = await client.get(
            APPLICATION,
            STATE,
            ("sensor-7", 9),
            stale="always",
            min_epoch=epoch,
            max_staleness=60,
            timeout=PATIENCE_SECONDS,
        )
        assert (got.source.role, got.source.epoch) == (Role.STANDBY, epoch)
        entries = await client.scan(APPLICATION, STATE, "sensor-7", stale="always", timeout=PATIENCE_SECONDS)
        assert [entry.map_key for entry in entries] == [0, 1, 2, 3, 5, 6, 7, 8, 9]
