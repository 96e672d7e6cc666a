"""The client for threads: the same as AsyncClient, with methods that block."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from datetime import datetime
from typing import Any, TypeVar, Unpack, overload

from keyhole.client.bounds import Duration
from keyhole.client.explanation import Explanation
from keyhole.client.mirrors import Mirror
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
)
from keyhole.client.read_sessions import Session
from keyhole.client.scanned_entries import ScannedEntries
from keyhole.client.server_status import ServerStatus
from keyhole.client.session_epochs import Epochs
from keyhole.client.snapshots import StateSnapshot
from keyhole.client.sql_result import SqlResult
from keyhole.client.state_handles import State
from keyhole.client.state_scans import StateScan
from keyhole.client.state_watches import Watch
from keyhole.client.thread_client import ThreadClient
from keyhole.client.wire.lookups import keys_of
from keyhole.encoding.codec import StateCodec
from keyhole.installing import require
from keyhole.model.aggregate_answer import AggregateAnswer
from keyhole.model.aggregates import AskedAggregate
from keyhole.model.given import names_apart
from keyhole.model.read import Answer
from keyhole.model.state import StateDescriptor

_T = TypeVar("_T")
_V = TypeVar("_V")


@names_apart
class Client(ThreadClient):
    """Reads states, from any thread; many may share one. An event loop in a thread of its own does the work.

    What the threads ask for at the same time shares frames, but each `get` here waits for its answer: for many keys,
    use `get_many`, and to go on meanwhile `get_async`. It connects when it is first used; one that was used before a
    fork can't be used in the child (docs/reads.md).

    Args:
        target: host:port of a client proxy, without the port 7400 (or of one state server, which answers only for its
            own key groups); or several, as AsyncClient.
        timeout: Seconds (or a timedelta) that a call may take where it names no timeout of its own.
        credentials: TLS, a certificate, a token; default: plaintext, and none.
        routing: "direct": keys are asked of their state servers, where this process reaches them, and of the target
            where it doesn't (docs/reads-reference.md). "proxy": all of the target.

    Raises:
        InvalidConfiguration: The target is none; the credentials contradict each other, or a file of theirs can't be
            used.
    """

    def get(self, application: str, state: str, key: Key, **options: Unpack[GetOptions]) -> Answer:
        """The value of one key, as of the last committed epoch; an absent key is an answer with `found` False.

        Blocks until the answer is there, or the timeout has passed.

        Args:
            key: One value, or a tuple of one per key column, then one per map key column.
            options: stale, max_staleness, min_epoch, as_of, consistency, timeout: see GetOptions.

        Raises:
            KeyholeError: Those of AsyncClient.get.
            MalformedRequest: A policy or a bound that there is not.
            TypeError: An option that there is not.
            ClientClosed: The client was closed, before the call or during it.
            Unsupported: This process was forked after the client was used.
        """
        return self._run(lambda: self._client.get(application, state, key, **options))

    def get_many(
        self, application: str, state: str, keys: Iterable[Key], **options: Unpack[ManyOptions]
    ) -> list[Answer]:
        """The values of many keys, in their order. They may be of different epochs where servers are: see each source.

        Blocks until all answers are there, or the timeout has passed: one for all of the keys, however many they are.

        Args:
            keys: Of any number; they are read in the calling thread, before anything is sent.
            options: As for AsyncClient.get_many.

        Raises:
            KeyholeError: As `get`. One key that can't be answered fails the call.
            MalformedRequest: `keys` is one text.
        """
        wanted = keys_of(keys, (application, state))
        return self._run(lambda: self._client.get_many(application, state, wanted, **options))

    def get_async(self, application: str, state: str, key: Key, **options: Unpack[GetOptions]) -> Future[Answer]:
        """The same as `get`, without waiting: the lookup is under way once this returns.

            first, second = client.get_async("shop", "totals", "c1"), client.get_async("shop", "totals", "c2")
            print(first.result().value, second.result().value)

        Each future is done by the timeout at the latest, whatever happens. Those that are cancelled before are read no
        more. Callbacks run in the client's own thread: they should be short, and may begin further reads, but none
        that block.

        Args:
            key, options: As for `get`.

        Raises (through the future):
            KeyholeError, MalformedRequest, TypeError: Those of `get`.
            ClientClosed: The client was closed meanwhile.

        Raises (at once):
            ClientClosed: It was closed before.
            Unsupported: This process was forked after the client was used.
        """
        return self._begun(lambda: self._client.get(application, state, key, **options))

    def get_many_async(
        self, application: str, state: str, keys: Iterable[Key], **options: Unpack[ManyOptions]
    ) -> Future[list[Answer]]:
        """The same as `get_many`, without waiting; as `get_async`.

        Args:
            keys: Are read in the calling thread, before this returns.
            options: As for `get_many`.

        Raises (through the future):
            KeyholeError: As `get_many`.

        Raises (at once):
            MalformedRequest: `keys` is one text.
            KeyholeError: As `get_async`.
        """
        wanted = keys_of(keys, (application, state))
        return self._begun(lambda: self._client.get_many(application, state, wanted, **options))

    def scan(self, application: str, state: str, key: Key, **options: Unpack[ScanOptions]) -> ScannedEntries:
        """The entries of one key of a map state, ordered by map key; of a list state, its elements. All of one epoch.

        Blocks until all of them are there, or the timeout has passed.

        Args:
            key: Without the map key; of a broadcast state, which is scanned whole, the empty tuple.
            options: start, stop, descending, limit, where, fields, keys_only, and those of `get`: see ScanOptions.

        Raises:
            Unsupported: The state has no map keys.
            MalformedRequest: A limit below 1, or what is no predicate.
            ValueMismatch: The state has no such field, or of another type: `where` or `fields` names it.
            KeyholeError: As `get`.
        """
        return self._run(lambda: self._client.scan(application, state, key, **options))

    def scan_all(self, application: str, state: str, **options: Unpack[ScanAllOptions]) -> StateScan:
        """All keys of a state, as an iterator that blocks while it waits. Takes and raises what AsyncClient.scan_all
        does.

            for entry in client.scan_all("shop", "orders", limit=1000):
                print(entry.key, entry.value)
        """
        return StateScan(self._run, self._client.scan_all(application, state, **options))

    def watch(self, application: str, state: str, *keys: Key, **options: Unpack[WatchingOptions]) -> Watch:
        """The rows of keys, or of the whole state, and then each committed change of them, as an iterator that blocks
        while it waits. Takes and raises what AsyncClient.watch does.

            for change in client.watch("shop", "orders", "o1"):
                print(change.kind, change.key, change.value)
        """
        return Watch(self._run, self._client.watch(application, state, *keys, **options))

    def mirror(self, path: str, *keys: Key, **options: Unpack[MirrorOptions]) -> Mirror[Answer]:
        """A copy of keys, or of the whole state, in this process, which a watch keeps current; any thread may read it.
        Takes and raises what AsyncClient.mirror does.

            with client.mirror("shop/orders") as mirror:
                print(mirror.get("o1").value)  # asks nobody
        """
        return Mirror(self._run, self._client.mirror(path, *keys, **options))

    def snapshot(
        self, *paths: str, as_of: datetime | int | None = None, timeout: Duration | None = None
    ) -> StateSnapshot:
        """States of one query as of one and the same epoch. Blocks. Takes and raises what AsyncClient.snapshot does.

        snapshot = client.snapshot("shop/orders", "shop/customers")
        orders = snapshot.state("shop/orders").get_many(ids)
        """
        of = self._run(lambda: self._client.snapshot(*paths, as_of=as_of, timeout=timeout))
        return StateSnapshot(self, of.described, of.source)

    def aggregate(
        self,
        application: str,
        state: str,
        aggregates: Mapping[str, AskedAggregate],
        **options: Unpack[AggregateOptions],
    ) -> AggregateAnswer:
        """Figures over all entries of a state, computed by its servers. Blocks. Takes and raises what
        AsyncClient.aggregate does.
        """
        return self._run(lambda: self._client.aggregate(application, state, aggregates, **options))

    def count(self, application: str, state: str, **options: Unpack[AggregateOptions]) -> int:
        """How many entries a state has, or how many of which `where` is true. Blocks. As AsyncClient.count."""
        return self._run(lambda: self._client.count(application, state, **options))

    def sql(
        self,
        query: str,
        *,
        application: str = "",
        timeout: Duration | None = None,
        memory: str = "1GB",
        explain: bool = False,
    ) -> SqlResult:
        """The rows of one SELECT over live states, as DuckDB in this process has them. Blocks. Needs the extra `sql`.

            for sensor, most in client.sql("select sensor, max from 'temperature-monitor/sensors' where max > 30"):
                print(sensor, most)

        Args:
            application: Of states that are named without one.
            timeout: Seconds (or a timedelta); default: 60.
            memory: The most that DuckDB may take, and the most that the rows of the result may take.
            explain: The result has DuckDB's plan.

        Raises:
            InvalidConfiguration: The extra `sql` is not installed.
            KeyholeError: As keyhole.sql.queries.run, which says more.
        """
        require("client.sql", "sql", ("duckdb", "pyarrow"))
        # By its name: what it is made of reads by this client.
        run = importlib.import_module("keyhole.sql.queries").run
        more = {} if timeout is None else {"timeout": timeout}
        result: SqlResult = run(self, query, application=application, memory=memory, explain=explain, **more)
        return result

    def known(self, application: str, state: str) -> StateCodec | None:
        """As the reads of this client encode the state's keys; None: none has been answered yet. Never blocks."""
        return self._client.known(application, state)

    @overload
    def state(self, path: str) -> State[Any]: ...

    @overload
    def state(self, path: str, *, value: type[_V]) -> State[_V]: ...

    def state(self, path: str, *, value: type[_V] | None = None) -> State[Any]:
        """One state, to be read again and again. Its reads block. Sends nothing yet.

            sensors = client.state("temperature-monitor/sensors", value=Reading)
            answer = sensors.get(sensor="sensor-42")

        Args:
            path: application/state.
            value: A dataclass, a TypedDict, a msgspec.Struct or a pydantic model, whose fields are named as those of
                the state's value. It need not have all of them. None: values are rows.

        Raises:
            InvalidConfiguration: The path is not application/state.
            TypeError: Rows can't be turned into values of this type.
        """
        return State(self, self, path, value)

    def session(self, epochs: Epochs | None = None) -> Session:
        """Reads that never go backwards, for one thread at a time.

        Args:
            epochs: `epochs` of an earlier session, to go on from; default: from any epoch.
        """
        return Session(self, epochs or {})

    def list_states(self, application: str = "", *, timeout: Duration | None = None) -> list[StateDescriptor]:
        """All states of an application, of all applications if it is empty. Blocks.

        Args:
            timeout: Seconds (or a timedelta); default: the client's.

        Raises:
            KeyholeError: As `get`.
        """
        return self._run(lambda: self._client.list_states(application, timeout=timeout))

    def describe_state(self, application: str, state: str, *, timeout: Duration | None = None) -> StateDescriptor:
        """What a state is: its key, its schema, its number of key groups. Blocks.

        Args:
            timeout: Seconds (or a timedelta); default: the client's.

        Raises:
            UnknownApplication, UnknownState: The message names those that exist.
            KeyholeError: As `get`.
        """
        return self._run(lambda: self._client.describe_state(application, state, timeout=timeout))

    def status(self, *, timeout: Duration | None = None) -> list[ServerStatus]:
        """All servers that the target knows, with what they hold; those it can't reach with the reason. Blocks.

        Args:
            timeout: Seconds (or a timedelta); default: the client's.

        Raises:
            KeyholeError: As `get`.
        """
        return self._run(lambda: self._client.status(timeout=timeout))

    def explain(self, application: str, state: str, key: Key, **options: Unpack[ReadOptions]) -> Explanation:
        """How one key is read: its key group, who was asked, how long each took, and who holds it. Blocks.

        That the key has no answer is no error: the explanation has it.

        Args:
            key, options: As for `get`, but for the consistency.

        Raises:
            KeyholeError: As AsyncClient.explain.
        """
        return self._run(lambda: self._client.explain(application, state, key, **options))
