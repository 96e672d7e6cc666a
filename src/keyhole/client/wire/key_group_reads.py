"""All keys of a state, read key group by key group: each is one call, whose rows are of one epoch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import NamedTuple

from keyhole.client.wire.cut_off import is_cut_off
from keyhole.client.wire.key_group_calls import KeyGroupCalls
from keyhole.client.wire.links import CallAttempts, Links
from keyhole.encoding.scan_token import OrderedPlace, ScanPlace, place_of
from keyhole.errors import (
    DeadlineExceeded,
    EpochGone,
    KeyholeError,
    MalformedRequest,
    ServerLost,
    StaleDescriptor,
    UnavailableError,
)
from keyhole.model.read import KeyedEntry
from keyhole.model.state import StateDescriptor


class EntriesRead(NamedTuple):
    """A page of a scan of all keys.

    Attributes:
        entries: Of one key group; none once that is read to its end.
        keys: The storage key of each.
        before: What was read before them.
        behind: What is read then; None: all.
        descriptor: Of the state.
    """

    entries: Sequence[KeyedEntry]
    keys: Sequence[bytes]
    before: ScanPlace | OrderedPlace
    behind: ScanPlace | OrderedPlace | None
    descriptor: StateDescriptor

    def token(self, given: int) -> str | None:
        """Where a scan goes on once so many of these entries were given; None: all of the state was read."""
        if given < len(self.keys):
            if not given:
                return self.before.token(self.descriptor)
            return self.before.at(self.keys[given - 1]).token(self.descriptor)
        return None if self.behind is None else self.behind.token(self.descriptor)


class KeyGroupReads:
    """One scan of all keys of a state. Used from the event loop's thread only.

    Args:
        name: Application and state.
        seconds: How long one key group may take.
        limit: The most entries; None: all.
        after: The token to go on behind; None: from the start.
        key_groups: Which key groups alone; None: all.
    """

    def __init__(
        self,
        links: Links,
        name: tuple[str, str],
        calls: KeyGroupCalls,
        seconds: float,
        limit: int | None,
        after: str | None,
        key_groups: range | None,
    ) -> None:
        self._links = links
        self._name = name
        self._calls = calls
        self._seconds = seconds
        self._left = limit
        self._after = after
        self._key_groups = key_groups
        self._loop = asyncio.get_running_loop()

    async def pages(self) -> AsyncGenerator[EntriesRead]:
        """All pages, in the order of the key groups. Close the iterator.

        Raises:
            KeyholeError: See AsyncClient.scan_all.
        """
        codec = await self._calls.begun_with(self._loop.time() + self._seconds, self._calls.encoded)
        descriptor = codec.descriptor
        only = self._only(descriptor)
        place = place_of(self._after, descriptor) if self._after else ScanPlace(only.start)
        if place.key_group not in only:
            raise MalformedRequest(
                f"the token is of key group {place.key_group}, which is not in key_groups, {only}: give the token of a "
                "scan of the same key groups"
            )
        key_groups = only.stop
        while place.key_group < key_groups and self._left != 0:
            async with aclosing(self._key_group(place)) as pages:
                async for keys, entries in pages:
                    before, place = place, ScanPlace(place.key_group, keys[-1])
                    if self._left is not None:
                        self._left -= len(entries)
                    yield EntriesRead(entries, keys, before, place, descriptor)
            if self._left == 0:
                return
            before, place = place, ScanPlace(place.key_group + 1)
            yield EntriesRead((), (), before, place if place.key_group < key_groups else None, descriptor)

    def _only(self, descriptor: StateDescriptor) -> range:
        """The key groups to read. Raises MalformedRequest: the state has not all of them."""
        only, count = self._key_groups, descriptor.key_groups
        if only is None:
            return range(count)
        if not isinstance(only, range) or only.step != 1 or not 0 <= only.start < only.stop <= count:
            raise MalformedRequest(
                f"key_groups is {only}; state {'/'.join(self._name)} has {count} key groups: give a part of "
                f"range({count}), without a step"
            )
        return only

    async def _key_group(self, place: ScanPlace) -> AsyncGenerator[tuple[list[bytes], list[KeyedEntry]]]:
        """Storage keys, and their entries, all of one epoch. Raises ServerLost, DeadlineExceeded: it broke off behind
        the first of them, and can't go on by itself.
        """
        given = False
        try:
            async with aclosing(self._attempted(place)) as pages:
                async for page in pages:
                    given = True
                    yield page
        except UnavailableError as error:
            if given:
                raise self._broken_off(error) from error.__cause__
            raise

    async def _attempted(self, place: ScanPlace) -> AsyncGenerator[tuple[list[bytes], list[KeyedEntry]]]:
        """The same. What is cut off is asked for again: behind what was given, as of the epoch that this is of."""
        deadline = self._loop.time() + self._seconds
        attempts = CallAttempts(self._links, deadline)
        after, as_of = place.after, 0
        cut: UnavailableError | None = None
        while self._left != 0:
            codec = await self._calls.codec(deadline)
            link = await attempts.link()
            begun = False
            try:
                asked = self._calls.key_group(codec, place.key_group, after)
                answer = self._calls.pages(link, codec, asked, deadline, as_of, limit=self._left or 0)
                async with aclosing(answer) as pages:
                    async for page in pages:
                        begun = True
                        if page.values:
                            keys, entries = await self._calls.page_entries(page, place.key_group, deadline)
                            after, as_of = keys[-1], page.source.epoch
                            yield keys, entries
            except StaleDescriptor as error:
                if begun:
                    raise
                await self._calls.describe_again(codec, error, deadline)
            except EpochGone as error:
                if cut is None or not as_of or self._calls.of_one_epoch:
                    raise
                raise ServerLost(f"{cut.message}; the rest is not kept any more: {error.message}") from error
            except UnavailableError as error:
                goes_on = after == place.after or self._calls.may_go_on(codec, as_of)
                if not (goes_on and is_cut_off(error)):
                    raise attempts.error_for_caller(error) from error.__cause__
                cut = error
                await attempts.again(error, link)
            else:
                return

    def _broken_off(self, error: KeyholeError) -> KeyholeError:
        name = "/".join(self._name)
        what = f"a scan of all keys of state {name} broke off; go on behind its token ({error.message})"
        kind = DeadlineExceeded if isinstance(error, DeadlineExceeded) else ServerLost
        failure = kind(what)
        failure.facts = error.facts
        return failure
