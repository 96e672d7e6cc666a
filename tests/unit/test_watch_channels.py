"""How many channels the watches of one server take."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from services.client_proxy.watch_channels import MOST_STREAMS, WatchChannels


class _Channel:
    def __init__(self) -> None:
        self.closed = False

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: object()

    async def close(self) -> None:
        self.closed = True


async def test_watches_share_channels_up_to_a_number_and_those_that_nobody_uses_are_closed_but_one() -> None:
    made: list[_Channel] = []

    def opened() -> Any:
        made.append(_Channel())
        return made[-1]

    channels = WatchChannels(opened)
    async with AsyncExitStack() as first:
        for _ in range(MOST_STREAMS):
            await first.enter_async_context(channels.stub())
        assert len(made) == 1
        async with channels.stub(), channels.stub():
            assert len(made) == 2
        assert [channel.closed for channel in made] == [False, True]
    assert [channel.closed for channel in made] == [False, True]
    async with channels.stub():
        assert len(made) == 2
        await channels.close()
    assert all(channel.closed for channel in made)
