"""Sessions, and tokens, over the key groups of a state that is fed by updates, through a proxy and real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from keyhole import AsyncClient, Client
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.storage_key import group_of
from keyhole.errors import DeadlineExceeded, EpochNotReached, MalformedRequest
from keyhole.feed.writes import WriteToken
from keyhole.model.read import ReadBounds
from keyhole.rpc import convert
from keyhole.testing.changelog import MemoryKafka
from keyhole.v1 import query_pb2
from tests.rpc.test_updates_reads import Source
from tests.support.entries import APPLICATION, STATE
from tests.support.proxies import proxy_of
from tests.support.refusals import longer_and_longer, raised_at_deadline
from tests.support.state_servers import state_server
from tests.support.waiting import PATIENCE_SECONDS

NAME = (APPLICATION, STATE)


def sensors(source: Source) -> tuple[tuple[str, int], tuple[str, int]]:
    """Two of different key groups, with their key groups."""
    codec = StateCodec(source.of)
    of = {f"s{number}": group_of(codec.prefix(f"s{number}")) for number in range(50)}
    much = "s0"
    little = next(name for name, group in of.items() if group != of[much])
    return (much, of[much]), (little, of[little])


async def test_a_session_holds_each_key_group_to_its_own_epochs_and_goes_on_from_them_elsewhere() -> None:
    kafka = MemoryKafka()
    source = Source(kafka)
    (much, its_group), (little, other_group) = sensors(source)
    async with state_server("a", kafka) as owner, proxy_of(owner.address) as proxy:
        await owner.evolve(source.of)
        for hour in range(9):
            epoch = source.send(much, hour, hour)
        other = source.send(little, 0, 1.0)
        assert other < epoch
        async with AsyncClient(proxy.address, timeout=PATIENCE_SECONDS) as client:
            session = client.session()
            first = await session.get(APPLICATION, STATE, (much, 8), min_epoch=epoch)
            assert first.found
            # What was seen of one key group asks nothing of the other.
            assert (await session.get(APPLICATION, STATE, (little, 0), min_epoch=other)).epoch == other
            assert (await session.scan(APPLICATION, STATE, little)).epoch == other
            both = await session.get_many(APPLICATION, STATE, [(much, 1), (little, 0), (much, 2)])
            assert [of.epoch for of in both] == [epoch, other, epoch]
            assert session.epochs == {NAME: {its_group: epoch, other_group: other}}
        ahead = {NAME: {its_group: epoch + 1, other_group: other}}
        async with AsyncClient(proxy.address, timeout=PATIENCE_SECONDS) as client:
            resumed = client.session(ahead)
            assert (await resumed.get(APPLICATION, STATE, (little, 0))).epoch == other
            reads: tuple[Callable[[float], Awaitable[object]], ...] = (
                lambda seconds: resumed.get(APPLICATION, STATE, (much, 1), timeout=seconds),
                lambda seconds: resumed.get_many(APPLICATION, STATE, [(little, 0), (much, 1)], timeout=seconds),
                lambda seconds: resumed.scan(APPLICATION, STATE, much, timeout=seconds),
            )
            for read in reads:
                await raised_at_deadline(read, 1.0, EpochNotReached, f"at epoch {epoch} ")
            source.send(much, 1, 7.0)
            got = await resumed.get(APPLICATION, STATE, (much, 1), timeout=PATIENCE_SECONDS)
            assert (got.value.celsius, got.epoch) == (7.0, epoch + 1)
            assert resumed.epochs == {NAME: {its_group: epoch + 1, other_group: other}}

        def in_a_thread() -> object:
            with Client(proxy.address, timeout=PATIENCE_SECONDS) as client:
                session = client.session({NAME: {its_group: epoch, other_group: other}})
                session.get(APPLICATION, STATE, (much, 1))
                session.get_many(APPLICATION, STATE, [(little, 0), (much, 1)])
                session.scan(APPLICATION, STATE, little)
                ahead = client.session(session.epochs)
                for seconds in longer_and_longer(1.0):
                    with pytest.raises((EpochNotReached, DeadlineExceeded)) as caught:
                        ahead.get(APPLICATION, STATE, (much, 1), min_epoch=epoch + 9, timeout=seconds)
                    if caught.type is EpochNotReached:
                        break
                assert caught.type is EpochNotReached
                return session.epochs

        assert await asyncio.to_thread(in_a_thread) == {NAME: {its_group: epoch + 1, other_group: other}}


async def test_a_token_is_what_reads_of_any_keys_ask_for_and_a_copy_that_lacks_one_of_them_is_passed_over() -> None:
    kafka = MemoryKafka()
    source = Source(kafka)
    (much, its_group), (little, other_group) = sensors(source)
    async with (
        state_server("b", kafka) as standby,
        state_server("a", kafka) as owner,
        proxy_of(owner.address, standby.address) as proxy,
    ):
        await owner.evolve(source.of)
        await standby.follow(source.of)
        async with AsyncClient(proxy.address, timeout=PATIENCE_SECONDS) as client:
            for turn in range(20):
                token = WriteToken({its_group: source.send(much, 1, turn), other_group: source.send(little, 1, -turn)})
                keys = [(much, 1), (little, 1), (much, 2)]
                got = await client.get_many(APPLICATION, STATE, keys, stale="always", min_epoch=token.epochs)
                assert [of.value and of.value.celsius for of in got] == [turn, -turn, None]
                one = await client.get(APPLICATION, STATE, (little, 1), stale="always", min_epoch=token.epochs)
                assert one.value.celsius == -turn
                entries = await client.scan(APPLICATION, STATE, much, stale="always", min_epoch=token.epochs)
                assert [value.celsius for _, value in entries] == [turn]
            late = {**token.epochs, other_group: token.epochs[other_group] + 1}
            assert (await client.get(APPLICATION, STATE, (much, 1), min_epoch=late)).value.celsius == turn
            await raised_at_deadline(
                lambda seconds: client.get_many(
                    APPLICATION, STATE, [(much, 1), (little, 1)], min_epoch=late, timeout=seconds
                ),
                1.0,
                EpochNotReached,
                "",
            )
            with pytest.raises(MalformedRequest, match="key group"):
                client.get(APPLICATION, STATE, (much, 1), min_epoch={-1: 4})


async def test_an_older_proxy_that_does_not_know_epochs_by_key_group_makes_no_read_go_backwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def older(message: query_pb2.ReadOptions) -> ReadBounds:
        return convert.bounds_from_proto(message)._replace(min_epochs=())

    monkeypatch.setattr("keyhole.rpc.read_requests.bounds_from_proto", older)
    kafka = MemoryKafka()
    source = Source(kafka)
    (much, its_group), (little, other_group) = sensors(source)
    async with state_server("a", kafka) as owner, proxy_of(owner.address) as proxy:
        await owner.evolve(source.of)
        for hour in range(3):
            epoch = source.send(much, hour, hour)
        other = source.send(little, 0, 1.0)
        keys = [(little, 0), (much, 1), (much, 2)]
        async with AsyncClient(proxy.address, timeout=PATIENCE_SECONDS) as client:
            await client.get(APPLICATION, STATE, (much, 2), min_epoch=epoch)
            await client.get(APPLICATION, STATE, (little, 0), min_epoch=other)
            reached = {NAME: {its_group: epoch, other_group: other}}
            assert len(await client.session(reached).get_many(APPLICATION, STATE, keys)) == 3
            ahead = {NAME: {its_group: epoch + 1, other_group: other}}
            with pytest.raises(
                EpochNotReached, match=f"at epoch {epoch}, and min_epoch asks for {epoch + 1}"
            ) as raised:
                await client.session(ahead).get_many(APPLICATION, STATE, keys)
            assert raised.value.facts["epoch"] == str(epoch)
