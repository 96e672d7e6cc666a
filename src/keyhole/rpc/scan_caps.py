"""What one caller may take of a proxy or a server by scans: how many at once, and of each so many rows, bytes, seconds.

The calls of one scan of all keys, of which there is one for each key group, count as one.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from keyhole.clock import Clock
from keyhole.config import ClientProxyConfig, StateServerConfig
from keyhole.errors import Overloaded, TooLarge
from keyhole.rpc.scan_requests import CALLS_AT_A_TIME
from keyhole.security.authentication import current
from keyhole.security.policy import Verb
from keyhole.v1 import query_pb2 as pb

T = TypeVar("T")

_REMEMBERED_SECONDS = 60.0
"""A scan whose reader has made no call for so long is another one when it goes on."""
_MOST_REMEMBERED = 10_000
_ROOM_SECONDS = 0.25
"""For so long a call waits for another one of its caller to end: who has cancelled one begins the next at once, and may
be here before the end of the first is."""


@dataclass(frozen=True)
class ScanCaps:
    """Of one caller; 0: no cap.

    Attributes:
        at_once: Scans under way.
        rows, bytes: Of one scan: what it has given, keys and values.
        seconds: Of one scan, from its first call on.
        settings: What the names of their settings begin with.
    """

    at_once: int = 0
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    settings: str = ""

    @classmethod
    def of(cls, config: ClientProxyConfig | StateServerConfig) -> ScanCaps:
        """As the settings of a process have them."""
        return cls(
            at_once=config.max_caller_scans,
            rows=config.max_scan_rows,
            bytes=config.max_scan_bytes,
            seconds=config.max_scan_seconds,
            settings=config.PREFIX,
        )

    @property
    def are_some(self) -> bool:
        """Whether there is a cap at all."""
        return bool(self.at_once or self.rows or self.bytes or self.seconds)


NO_CAPS = ScanCaps()


def too_many_scans(
    under_way: int, where: str, most: int, setting: str, who: str = "all callers together"
) -> Overloaded:
    """The refusal of one more scan than a setting allows: the fact `cap` is its name, `limit` its value."""
    return Overloaded(
        f"{who}: {under_way:,} scans are under way in {where}, and {most:,} may be ({setting}): "
        "read them to their end, or try again",
        cap=setting,
        limit=most,
    )


class CallerScan:
    """One scan of a caller, as far as it has come."""

    def __init__(self, caps: ScanCaps, clock: Clock, where: str) -> None:
        self._caps = caps
        self._clock = clock
        self._where = where
        self._began = clock.monotonic()
        self._rows = self._bytes = 0
        self.calls = 0
        self.last = self._began

    def took(self, page: pb.ScanResponse) -> None:
        """Before a page is given. Raises TooLarge: it would be beyond a cap, which the message names."""
        caps = self._caps
        self.check_time()
        if not caps.rows and not caps.bytes:
            return
        self._rows += len(page.values)
        self._bytes += sum(map(len, page.values)) + sum(map(len, page.map_keys))
        if caps.rows and self._rows > caps.rows:
            raise self._beyond("rows", caps.rows, f"give {caps.rows:,} rows at most")
        if caps.bytes and self._bytes > caps.bytes:
            raise self._beyond("bytes", caps.bytes, f"give {caps.bytes:,} bytes at most")

    def check_time(self) -> None:
        """Raises TooLarge: it has taken longer than it may."""
        if (left := self.left()) is not None and left <= 0:
            raise self.took_too_long()

    def left(self) -> float | None:
        """How many seconds are left of what it may take; None: any."""
        seconds = self._caps.seconds
        return self._began + seconds - self._clock.monotonic() if seconds else None

    def took_too_long(self) -> TooLarge:
        """The error of one that has taken longer than it may."""
        return self._beyond("seconds", self._caps.seconds, f"take {self._caps.seconds:g} s at most")

    def timed(self, pages: Iterator[T]) -> Generator[T]:
        """The same, as long as its time lasts. Raises TooLarge, as `check_time`."""
        for page in pages:
            self.check_time()
            yield page

    def _beyond(self, cap: str, limit: float, may: str) -> TooLarge:
        setting = f"{self._caps.settings}MAX_SCAN_{cap.upper()}"
        return TooLarge(
            f"a scan may {may} in {self._where} ({setting}): ask for less, by where, fields, a range of keys or limit, "
            "or have the servers compute it (aggregate)",
            cap=setting,
            limit=limit,
        )


class CallerScans:
    """The scans of all callers of one process. Event loop.

    Args:
        where: What the process is, for messages: "this proxy".
    """

    def __init__(self, caps: ScanCaps, clock: Clock, where: str) -> None:
        self._caps = caps
        self._clock = clock
        self._where = where
        self._uncapped = CallerScan(NO_CAPS, clock, where)
        self._known: OrderedDict[tuple[tuple[str, ...], int], CallerScan] = OrderedDict()
        self._scans: Counter[tuple[str, ...]] = Counter()
        self._calls: Counter[tuple[str, ...]] = Counter()
        # Set, and another one then, once a call has ended.
        self._ended = asyncio.Event()

    @asynccontextmanager
    async def open(self, request: pb.ScanRequest) -> AsyncIterator[CallerScan]:
        """A call of the scan, by whoever calls now. Proxies (the verb platform) have no caps: they have their own.

        Raises:
            Overloaded: The caller has as many scans under way as it may have.
            TooLarge: The scan has taken longer than it may.
        """
        caller = current()
        if not self._caps.are_some or (not caller.is_anybody and caller.may_everywhere(Verb.PLATFORM)):
            yield self._uncapped
            return
        key = (caller.names, request.scan)
        await self._room(key)
        scan = self._scan(key)
        scan.check_time()
        self._scans[caller.names] += not scan.calls
        self._calls[caller.names] += 1
        scan.calls += 1
        if request.scan:
            self._known[key] = scan
            # In the order in which they were used last: see `_forget`.
            self._known.move_to_end(key)
        try:
            yield scan
        finally:
            scan.calls -= 1
            for counted, less in ((self._calls, 1), (self._scans, int(not scan.calls))):
                counted[caller.names] -= less
                if not counted[caller.names]:
                    del counted[caller.names]
            scan.last = self._clock.monotonic()
            self._forget()
            self._ended.set()
            self._ended = asyncio.Event()

    def _scan(self, key: tuple[tuple[str, ...], int]) -> CallerScan:
        """The one that a call is of, as far as it has come."""
        scan = self._known.get(key) if key[1] else None
        if scan is None or (not scan.calls and self._forgotten(scan)):
            return CallerScan(self._caps, self._clock, self._where)
        return scan

    async def _room(self, key: tuple[tuple[str, ...], int]) -> None:
        """Once the caller may have one more call. Raises Overloaded: it may not, for now."""
        most, (caller, _) = self._caps.at_once, key

        def is_there() -> bool:
            if not most:
                return True
            # Calls, too: a number that is made up would make any of them one scan.
            another = self._scan(key).calls or self._scans[caller] < most
            return bool(another and self._calls[caller] < most * CALLS_AT_A_TIME)

        if is_there():
            return
        try:
            async with asyncio.timeout(_ROOM_SECONDS):
                while not is_there():
                    await self._ended.wait()
        except TimeoutError:
            raise self._too_many(caller) from None

    def _too_many(self, caller: tuple[str, ...]) -> Overloaded:
        setting = f"{self._caps.settings}MAX_CALLER_SCANS"
        return too_many_scans(self._scans[caller], self._where, self._caps.at_once, setting, *caller[:1])

    def _forget(self) -> None:
        """Those whose readers are gone, or have come to the end."""
        while self._known:
            key, first = next(iter(self._known.items()))
            if first.calls:
                self._known.move_to_end(key)
                return
            if not self._forgotten(first) and len(self._known) <= _MOST_REMEMBERED:
                return
            del self._known[key]

    def _forgotten(self, scan: CallerScan) -> bool:
        return self._clock.monotonic() - scan.last > _REMEMBERED_SECONDS
