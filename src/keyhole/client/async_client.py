"""The client for asyncio. Start here: `async with AsyncClient("host:7400") as client: await client.get(...)`."""

# ruff: noqa: ASYNC109 - a timeout is part of the request: it travels to the server, which then stops working on it

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar, Unpack, overload

from keyhole.client.bounds import Duration, seconds_of
from keyhole.client.event_loop_catalogue import EventLoopCatalogue
from keyhole.client.event_loop_client import running_loop
from keyhole.client.explanation import Explanation
from keyhole.client.mirror_keeping import BeginWatch
from keyhole.client.mirrors import AsyncMirror, Mirrored
from keyhole.client.one_epoch import of_one_epoch, one_query
from keyhole.client.options import (
    AggregateOptions,
    GetOptions,
    Key,
    ManyOptions,
    MirrorOptions,
    ReadOptions,
    ScanAllOptions,
    ScanOptions,
    WatchingOptions,
    asked_of,
    at_one_epoch,
    defaults,
    flags_of,
    keys_asked,
    range_of,
    selection_of,
    watched_of,
)
from keyhole.client.read_sessions import AsyncSession
from keyhole.client.scanned_entries import ScannedEntries
from keyhole.client.session_epochs import Epochs
from keyhole.client.snapshots import AsyncStateSnapshot, taken
from keyhole.client.state_handles import AsyncState
from keyhole.client.state_scans import AsyncStateScan
from keyhole.client.state_watches import AsyncWatch
from keyhole.client.wire.explaining import explain
from keyhole.client.wire.lookups import keys_of
from keyhole.client.wire.scanner import Scan, checked_limit
from keyhole.client.wire.watch_stream import WatchOptions
from keyhole.model.aggregate_answer import AggregateAnswer
from keyhole.model.aggregates import AskedAggregate, checked_aggregates, count
from keyhole.model.given import LEFT_OUT, check_names, names_apart, refuse_left_out, token_of
from keyhole.model.read import Answer
from keyhole.model.state_path import state_path
from keyhole.rpc import forked

_V = TypeVar("_V")

# A timeout that has passed, where one must be above 0.
_OVER = 0.001
# As long as a server lets a scan take.
_SCANNING_ALL = defaults(60.0)
# For which a watch does without anybody who answers.
_WATCHING_SECONDS = 60.0


@names_apart
class AsyncClient(EventLoopCatalogue):
    """Reads states through a client proxy (or from one state server, which answers only for its own key groups).

    All lookups that are under way share one stream, so many `get`s at once are cheap: start them together
    (`asyncio.gather`) rather than one after the other. It is a proxy's job to follow the owners until the deadline.
    Within the timeout the client itself sends a read again, to any of its targets, in two cases. It was cut off, by a
    lost connection or a proxy that ends; or the descriptor that it was encoded by has changed.

    It connects when it is first used, and belongs from then on to the event loop that used it, and to that loop's
    thread; keyhole.Client is for threads. One that is used before a fork can't be used in the child (docs/reads.md).

    Args:
        target: host:port of a client proxy; without the port 7400. Or dns:///proxies:7400: reads are spread over all
            addresses of the name. Or several proxies, separated by commas or as a list, likewise.
        timeout: Seconds (or a timedelta) that a call may take where it names no timeout of its own.
        credentials: TLS, a certificate, a token; default: plaintext, and none.
        routing: "direct": keys are asked of their state servers, where this process reaches them, and of the target
            where it doesn't (docs/reads-reference.md). "proxy": all of the target.

    Raises:
        InvalidConfiguration: The target is none; the credentials contradict each other, or can't be used.
    """

    def get(self, application: str, state: str, key: Key, **options: Unpack[GetOptions]) -> asyncio.Future[Answer]:
        """The value of one key, as of the last committed epoch; an absent key is an answer with `found` False.

        Not a coroutine: the lookup is under way once this returns, and the future is yours to await or gather.

        Args:
            key: One value, or a tuple of one per key column, then one per map key column.
            options: stale, max_staleness, min_epoch, as_of, consistency, timeout: see GetOptions.

        Raises (through the future):
            UnknownApplication, UnknownState: The message names those that exist.
            KeyMismatch, NullKey, KeyTooLong: The key does not fit the state.
            EpochNotReached, TooStale: No copy met `min_epoch` or `max_staleness` within the timeout.
            Unconfirmed: Nothing stale is wanted, and the owner has not heard of its coordinator for a while.
            Unauthenticated, PermissionDenied: The credentials are not valid, or not enough.
            NoServer, NotOwner, NotReady, Overloaded: Not now; see `retryable`.
            ServerLost, Draining: No target has answered within the timeout. `facts["attempts"]`: how often it was sent.
            DeadlineExceeded: The message names what it waited for, and what had cut the read off before, if anything.
            ClientClosed: The client was closed.

        Raises (at once):
            MalformedRequest: A policy or a bound that there is not.
            TypeError: An option that there is not.
            ClientClosed: It was closed before.
            Unsupported: No event loop runs, or another one than the client's; or this process was forked after the
                client was used.
        """
        # The hot path of every client: as `_here`, and the batch that there mostly is.
        connection = self._connection
        if connection is None or connection.loop is not running_loop() or forked.process.cut_off:
            connection = self._connected()
        asked = asked_of(options, self._defaults, GetOptions) if options else self._defaults
        if key is LEFT_OUT:
            refuse_left_out("get", "key", application, state)
        alike = (application, state, asked)
        try:
            batch = connection.turn.get(alike) or connection.batch(alike)
        except TypeError:  # what can't be hashed is no name
            check_names(application, state)
            raise
        future: asyncio.Future[Answer] = connection.loop.create_future()
        batch.keys.append(key)
        batch.waiters.append(future)
        return future

    async def get_many(
        self, application: str, state: str, keys: Iterable[Key], **options: Unpack[ManyOptions]
    ) -> list[Answer]:
        """The values of many keys, in their order. They may be of different epochs where servers are: see each source.

        Of any number: more than some thousands are asked for in turns, all within the one timeout.

        Args:
            options: Those of `get`; with `consistency="snapshot"` all answers are of one epoch. See ManyOptions.

        Raises:
            KeyholeError: As `get`. One key that can't be answered fails the call.
            MalformedRequest: `keys` is one text.
            Unsupported: A snapshot, of a state that is fed by updates.
        """
        asked = asked_of(options, self._defaults, ManyOptions)
        wanted = keys_of(keys, (application, state))
        if not wanted:
            return []
        if not at_one_epoch(options):
            return await self._here().many(application, state, wanted, asked)
        began, seconds = self._here().loop.time(), seconds_of("timeout", asked.timeout)

        async def read(which: Sequence[int], as_of: int, min_epoch: int) -> list[Answer]:
            left = asked.again(as_of, min_epoch, max(seconds + began - self._here().loop.time(), _OVER))
            found = await self._here().many(application, state, [wanted[index] for index in which], left)
            if (known := self.known(application, state)) is not None:
                one_query([known.descriptor])
            return found

        return await of_one_epoch(read, lambda answer: answer.epoch, len(wanted))

    async def scan(self, application: str, state: str, key: Key, **options: Unpack[ScanOptions]) -> ScannedEntries:
        """The entries of one key of a map state, ordered by map key; of a list state, its elements. All of one epoch.

        Args:
            key: Without the map key; of a broadcast state, which is scanned whole, the empty tuple.
            options: start, stop, descending, limit, where, fields, keys_only, and those of `get`: see ScanOptions.

        Raises:
            Unsupported: The state has no map keys.
            MalformedRequest: A limit below 1, or what is no predicate.
            ValueMismatch: The state has no such field, or of another type: `where` or `fields` names it.
            KeyholeError: As `get`.
        """
        bounds, seconds = asked_of(options, self._defaults, ScanOptions).read()
        scan = Scan(
            application,
            state,
            key,
            options.get("start"),
            options.get("stop"),
            bounds,
            descending=options.get("descending", False),
            limit=options.get("limit"),
            select=selection_of(options),
        )
        return await self._here().scan(scan, seconds)

    def scan_all(self, application: str, state: str, **options: Unpack[ScanAllOptions]) -> AsyncStateScan:
        """All keys of a state of any kind, with their values or entries, as an async iterator. Sends nothing yet.

            async for entry in client.scan_all("shop", "orders", limit=1000):
                print(entry.key, entry.value)

        They come key group by key group: in no order that means something, and each as of one epoch of its own. A scan
        that breaks off has a `token`, behind which a later one goes on. With `ordered` they come in the order of keys;
        what is fetched at once of a key group is of one epoch then.

        Args:
            options: limit, after, start, stop, prefix, map_start, map_stop, ordered, descending, key_groups, part_of,
                where, fields, keys_only, and those of `get`: see ScanAllOptions.

        Raises (once it is read):
            KeyMismatch, NullKey: A bound does not fit the key.
            Unsupported: A bound of map keys, of a state that has none under its keys.
            ValueMismatch: The state has no such field, or of another type: `where` or `fields` names it.
            ServerLost: It broke off within a key group, and no copy has the rest as of the same epoch.
            StaleDescriptor: The state was made anew since the scan, or the one of its token, has begun.
            DeadlineExceeded: A key group took too long; a server closes a scan that is not read for a minute.
            Overloaded: Too many scans are under way.
            KeyholeError: As `get`.

        Raises (at once):
            MalformedRequest: A limit below 1, a policy, a bound or a token that there is not, what is no predicate.
            TypeError: An option that there is not.
        """
        bounds, seconds = asked_of(options, _SCANNING_ALL, ScanAllOptions).read()
        limit, asked = checked_limit(options.get("limit")), keys_asked(options)
        return AsyncStateScan(
            lambda place, left: self._here().scan_all((application, state), bounds, seconds, left, place, asked),
            limit,
            token_of("after", options.get("after")),
            select=asked.select,
        )

    async def aggregate(
        self,
        application: str,
        state: str,
        aggregates: Mapping[str, AskedAggregate],
        **options: Unpack[AggregateOptions],
    ) -> AggregateAnswer:
        """Figures over all entries of a state, over those of `where`, or of a range of keys, computed by the servers
        that hold them.

            found = await client.aggregate("shop", "totals", {"n": agg.count(), "most": agg.max("spent")})
            print(found["n"], found["most"])

        Key groups are each of one epoch; others may be of another one.

        Args:
            aggregates: By names of the caller's; keyhole.aggregates makes them.
            options: where, start, stop, prefix, map_start, map_stop, fields, keys_only, and those of `get`: see
                AggregateOptions.

        Raises:
            ValueMismatch: The state has no such field, or this is not computed of its type.
            KeyMismatch, NullKey: A bound does not fit the key.
            MalformedRequest: What is no aggregate, no predicate or no range.
            TooLarge: The entries of a top take more than 16 MiB in a key group.
            Unsupported: A server is of an earlier version; or a bound of map keys, of a state that has none.
            KeyholeError: As `scan_all`.
        """
        bounds, seconds = asked_of(options, _SCANNING_ALL, AggregateOptions).read()
        select, asked = selection_of(options), checked_aggregates(aggregates)
        within = range_of(options)
        return await self._here().aggregate((application, state), bounds, seconds, asked, select, within)

    async def count(self, application: str, state: str, **options: Unpack[AggregateOptions]) -> int:
        """How many entries a state, or a range of its keys, has, or of how many `where` is true.

        Takes and raises what `aggregate` does.
        """
        found: int = (await self.aggregate(application, state, {"count": count()}, **options))["count"]
        return found

    def watch(self, application: str, state: str, *keys: Key, **options: Unpack[WatchingOptions]) -> AsyncWatch:
        """The rows of keys, or of the whole state, and then each committed change of them. Sends nothing yet.

            async for change in client.watch("shop", "orders", "o1", "o2"):
                print(change.kind, change.key, change.value, change.epoch)

        Changes of one key group come in the order of their epochs, each epoch whole; see docs/watch-reference.md.

        Args:
            keys: As for `get`; of a map state also without the map key: all entries of the key. None: all of the state.
            options: where, fields, start, stop, prefix, after, snapshot, before, latest_only, timeout: see
                WatchingOptions.

        Raises (once it is read):
            ResumeGone: What has changed since the token `after` may not be known any more.
            TooSlow: Changes came faster than they were taken. Another watch goes on behind the token.
            UnknownApplication, UnknownState: There is no such state, or it was dropped.
            StaleDescriptor: The state was made anew since the watch, or the one of its token, has begun.
            KeyMismatch, NullKey: A key, or a bound, does not fit the state's.
            ValueMismatch: The state has no such field, or of another type: `where` or `fields` names it.
            Unsupported: A server or a proxy is of an earlier version, and has no `where`, `fields` and ranges of keys.
            Overloaded: Too many watches are under way.
            KeyholeError: Nobody has answered for as long as `timeout`, as `get`.

        Raises (at once):
            MalformedRequest: Keys together with a range of them, what is no predicate, or what is no token.
            TypeError: An option that there is not.
        """
        select, within = watched_of(keys, options)
        timeout = options.get("timeout")
        seconds = seconds_of("timeout", _WATCHING_SECONDS if timeout is None else timeout)
        asked = WatchOptions(keys, *flags_of(options), select, within)
        name, after = (application, state), token_of("after", options.get("after"))
        return AsyncWatch(lambda place: self._here().watch(name, asked, seconds, place), after)

    def mirror(self, path: str, *keys: Key, **options: Unpack[MirrorOptions]) -> AsyncMirror[Answer]:
        """A copy of a state, or of some of it, in this process, which a watch keeps current. Sends nothing yet.

            async with client.mirror("shop/orders") as mirror:
                print(mirror.get("o1").value)  # asks nobody

        Readers see whole epochs of a key group; see docs/mirror-reference.md.

        Args:
            path: application/state.
            keys: As for `watch`. None: all of the state.
            options: where, start, stop, prefix, max_entries, max_bytes, timeout: see MirrorOptions.

        Raises (at once):
            InvalidConfiguration: The path is not application/state.
            MalformedRequest: A bound below 1; keys together with a range of them, or what is no predicate.
            TypeError: An option that there is not.
        """
        name = state_path(path)

        def watch(asked: WatchOptions, seconds: float) -> BeginWatch:
            return lambda place: self._here().stored(name, asked, seconds, place)

        return AsyncMirror(
            Mirrored(path, keys, watch, lambda of, asked: self.get_many(*name, of, **asked)),
            options,
        )

    async def snapshot(
        self, *paths: str, as_of: datetime | int | None = None, timeout: Duration | None = None
    ) -> AsyncStateSnapshot:
        """States of one query as of one and the same epoch: the last one that all copies have now.

            snapshot = await client.snapshot("shop/orders", "shop/customers")
            before = await client.snapshot("shop/orders", as_of=datetime.now(UTC) - timedelta(minutes=5))

        Args:
            paths: application/state, at least one.
            as_of: An epoch, or a time, for the last epoch that was committed by then; both while servers keep it.

        Raises:
            InvalidConfiguration, MalformedRequest: A path is none, or there is none; `as_of` is none.
            Unsupported: The states are of two queries, or fed by updates.
            EpochNotReached, EpochGone: There is no such epoch yet, or it is kept no more.
            KeyholeError: As `get`, for any key group of the states.
        """
        return await taken(self, self._here(), paths, self._seconds(timeout), as_of)

    @overload
    def state(self, path: str) -> AsyncState[Any]: ...

    @overload
    def state(self, path: str, *, value: type[_V]) -> AsyncState[_V]: ...

    def state(self, path: str, *, value: type[_V] | None = None) -> AsyncState[Any]:
        """One state, to be read again and again. Sends nothing yet.

            sensors = client.state("temperature-monitor/sensors", value=Reading)
            answer = await sensors.get(sensor="sensor-42")

        Args:
            path: application/state.
            value: A dataclass, a TypedDict, a msgspec.Struct or a pydantic model, whose fields are named as those of
                the state's value. It need not have all of them. None: values are rows.

        Raises:
            InvalidConfiguration: The path is not application/state.
            TypeError: Rows can't be turned into values of this type.
        """
        return AsyncState(self, self, path, value)

    def session(self, epochs: Epochs | None = None) -> AsyncSession:
        """Reads that never go backwards, on this client's event loop.

        Args:
            epochs: `epochs` of an earlier session, to go on from; default: from any epoch.
        """
        return AsyncSession(self, epochs or {})

    async def explain(self, application: str, state: str, key: Key, **options: Unpack[ReadOptions]) -> Explanation:
        """How one key is read: its key group, who was asked, how long each took, and who holds it. For people.

        That the key has no answer is no error: the explanation has it. It costs more than a lookup.

        Args:
            key, options: As for `get`, but for the consistency.

        Raises:
            UnknownApplication, UnknownState, KeyMismatch, NullKey: There is no such key.
            Unsupported: The target is of an older version.
            KeyholeError: The target can't be asked, as `get`.
        """
        bounds, seconds = asked_of(options, self._defaults).read()
        return await explain(self._here(), (application, state), key, bounds, seconds)
