"""A watch over HTTP: server-sent events, as browsers' EventSource and many libraries read them.

    id: kJGoOX...                     the token; sent back as Last-Event-ID, it goes on behind this event
    event: changes                    or rows, progress, error
    data: {"epoch": 42, "changes": [{"key": "o1", "value": {...}}], ...}

Each event has an id: whoever comes back with the last one gets the rest, and nothing twice.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from typing import Any

from aiohttp import web

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.key_text import parse_bound, parse_key
from keyhole.encoding.predicate_text import parsed_where
from keyhole.encoding.watch_token import marks_of, token_within
from keyhole.errors import Draining, KeyholeError, MalformedRequest
from keyhole.model.selection import named_fields, selection
from keyhole.model.state import KeyColumn
from keyhole.rpc.authorization import discreet
from keyhole.rpc.convert import key_to_proto
from keyhole.rpc.convert_predicates import selection_to_proto
from keyhole.rpc.http.problems import problem
from keyhole.rpc.watch_marks import marks_behind
from keyhole.security.authentication import current
from keyhole.v1 import query_pb2 as pb
from services.client_proxy.http.answers import changes_json, encoded, moment_json

_BOUNDS = ("from", "to", "prefix")
_SEVERAL = ("key", "where")
_KNOWN = (*_SEVERAL, *_BOUNDS, "fields", "after", "snapshot", "before", "latest_only", "integers")
_AGAIN_MS = 1_000
PROGRESS_MS = 5_000
"""An event comes at least so often: by it a reader, and whatever stands between, knows that it is still connected."""

_MayStillWatch = Callable[[], None]
"""Passes while the caller may watch. Raises Unauthenticated or PermissionDenied."""


def watch_request(codec: StateCodec, pairs: Iterable[tuple[str, str]], last: str) -> tuple[pb.WatchRequest, bool]:
    """What a request asks for, and whether whole numbers come as text.

    Args:
        pairs: The query parameters.
        last: The header Last-Event-ID, which browsers send when they come back; empty: none.

    Raises:
        MalformedRequest: A parameter that there is not, is given twice, or can't be read.
        KeyMismatch: A key, or a bound, doesn't fit the state's columns.
        ValueMismatch: The state has no field of this name, or of another type.
    """
    given: dict[str, str] = {}
    several: dict[str, list[str]] = {name: [] for name in _SEVERAL}
    for name, value in pairs:
        if name not in _KNOWN:
            raise MalformedRequest(f"a query parameter is not known; there are {', '.join(_KNOWN)}")
        if name in several:
            several[name].append(value)
        elif name in given:
            raise MalformedRequest(f"the query parameter {name} is given twice")
        else:
            given[name] = value
    if given.get("integers", "number") not in ("number", "text"):
        raise MalformedRequest("the query parameter integers is neither number nor text")
    columns = codec.descriptor.scan_key or codec.descriptor.key
    start, stop = codec.key_range(*(_bound(columns, given.get(name)) for name in _BOUNDS))
    fields, where = given.get("fields"), parsed_where(codec.descriptor, several["where"])
    select = selection(where, None if fields is None else named_fields(fields), keys_only=False)
    request = pb.WatchRequest(
        keys=[key_to_proto(columns, parse_key(columns, key)) for key in several["key"]],
        start=start,
        stop=stop,
        # One that is empty makes servers say whether they know of ranges.
        selection=selection_to_proto(select) or (pb.Selection() if start or stop else None),
        token=last or given.get("after", ""),
        no_snapshot=not _flag(given, "snapshot", "true"),
        before=_flag(given, "before", "false"),
        latest_only=_flag(given, "latest_only", "false"),
        format=pb.VALUE_FORMAT_JSON,
        progress_ms=PROGRESS_MS,
        topic_id=codec.descriptor.topic_id,
    )
    return request, given.get("integers") == "text"


def _bound(columns: Sequence[KeyColumn], text: str | None) -> tuple[Any, ...]:
    if text is None:
        return ()
    bound = parse_bound(columns, text)
    return bound if isinstance(bound, tuple) else (bound,)


def _flag(given: dict[str, str], name: str, default: str) -> bool:
    if given.get(name, default) not in ("true", "false"):
        raise MalformedRequest(f"the query parameter {name} is neither true nor false")
    return given.get(name, default) == "true"


async def stream(
    request: web.Request,
    responses: AsyncGenerator[pb.WatchResponse],
    codec: Callable[[], Awaitable[StateCodec]],
    check: _MayStillWatch,
    *,
    integers_as_text: bool,
    most_seconds: float,
) -> web.StreamResponse:
    """Sends a watch as events, for as long as it is read. What is wrong before its first event is raised.

    Args:
        responses: Of the watch. Closed at the end.
        codec: By the newest descriptor that is known.
        check: Is called before each event: rights and tokens end while a stream is open.
        most_seconds: Whoever takes an event for so long loses the connection. It comes back behind the last one.

    Raises:
        KeyholeError: The watch has not begun.
    """
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
    # For proxies that gather what they pass on.
    answer.headers["X-Accel-Buffering"] = "no"
    begun, before = False, pb.WatchResponse()

    async def send(event: bytes) -> None:
        try:
            async with asyncio.timeout(most_seconds):
                await answer.write(event)
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("it is not read") from None

    # A reader that has gone away is noticed as it is written to, at the next event at the latest.
    with suppress(ConnectionResetError):
        async with aclosing(responses):
            try:
                async for response in responses:
                    check()
                    if not begun:
                        begun = True
                        await answer.prepare(request)
                        await send(f"retry: {_AGAIN_MS}\n\n".encode())
                    for event in await _events(response, before, codec, integers_as_text=integers_as_text):
                        await send(event)
                    before = pb.WatchResponse(
                        token=response.token or before.token, as_of_ms=response.as_of_ms, epoch=response.epoch
                    )
            except KeyholeError as error:
                if not begun:
                    raise
                await send(_event("error", problem(discreet(current(), error))))
            if not begun:
                raise Draining("the watch ended before it began; ask again")
        await answer.write_eof()
    return answer


async def _events(
    response: pb.WatchResponse,
    before: pb.WatchResponse,
    codec: Callable[[], Awaitable[StateCodec]],
    *,
    integers_as_text: bool,
) -> list[bytes]:
    """One for what has come together of one epoch, whatever the key group.

    Args:
        before: What was said behind all that came before.
    """
    if not response.changes:
        said = {**_said(response), "snapshot_done": response.snapshot_done}
        return [_event("progress", said, response.token)]
    events: list[tuple[str, dict[str, Any], int]] = []
    given = 0
    for (snapshot, epoch, commit_time_ms), parts in itertools.groupby(response.changes, _of_one_event):
        found: list[dict[str, Any]] = []
        for changes in parts:
            given += len(changes.keys)
            found += changes_json(await codec(), changes, integers_as_text=integers_as_text)
        body: dict[str, Any] = {"epoch": epoch, "commit_time": moment_json(commit_time_ms), "changes": found}
        events.append(("rows" if snapshot else "changes", body, given))
    *earlier, (name, body, _) = events
    last = _event(name, {**body, **_said(response), "snapshot_done": response.snapshot_done}, response.token)
    as_before = _said(before)
    return [
        *(_event(name, {**body, **as_before}, _token(response, before, given)) for name, body, given in earlier),
        last,
    ]


def _of_one_event(changes: pb.WatchedChanges) -> tuple[bool, int, int]:
    return changes.snapshot, changes.epoch, changes.commit_time_ms


def _said(response: pb.WatchResponse) -> dict[str, Any]:
    return {"as_of": moment_json(response.as_of_ms), "complete_epoch": response.epoch}


def _token(response: pb.WatchResponse, before: pb.WatchResponse, given: int) -> str:
    """Behind so many of the changes; empty where the server, which is an older one, has said none."""
    if not response.token or not before.token:
        return ""
    marks = marks_behind(response.changes, given, marks_of(before.token), marks_of(response.token))
    return token_within(before.token, marks)


def _event(name: str, body: dict[str, Any], token: str = "") -> bytes:
    # JSON has no line breaks of its own, so that it is one line of data.
    lines = ([b"id: " + token.encode()] if token else []) + [b"event: " + name.encode(), b"data: " + encoded(body)]
    return b"\n".join(lines) + b"\n\n"
