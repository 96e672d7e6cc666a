"""The coordinator, savepoints and the services have no time but that of the clock that they are given (keyhole.clock).

What is found is a way round it: the name of the file and the line, and what to use instead. What the event loop, a
thread or a pool measures is let be by file, with the reason (keyhole.clock has them in words).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TREES = ("src/keyhole/coordinator", "src/keyhole/savepoint", "services")

_READ = "take a keyhole.clock.Clock, and ask it: clock.monotonic(), clock.now_ms()"
_PAUSE = "take a keyhole.clock.Clock: await clock.pause(seconds). Only asyncio.sleep(0), a turn of the loop, is no time"
_WAIT = "take a keyhole.clock.Clock: clock.wait(event, seconds)"
_TIMER = "take a keyhole.clock.Clock, and wait by it: clock.wait(event, seconds)"

# By what measures it, and why that is no matter of the clock: the files (keyhole.clock has it in words).
_A_REQUEST = "a request under way has its deadline on the event loop's clock"
_MEASURED_ELSEWHERE = {
    ("loop.time", _A_REQUEST): (
        "services/client_proxy/forwarding/client_reads.py",
        "services/client_proxy/forwarding/explained_reads.py",
        "services/client_proxy/forwarding/scan.py",
        "services/client_proxy/forwarding/storage_reads.py",
        "services/client_proxy/forwarding/watch.py",
        "services/client_proxy/grpc/query_servicer.py",
        "services/client_proxy/http/http_call.py",
    ),
    ("loop.call_later", _A_REQUEST): (
        "services/client_proxy/forwarding/watch.py",
        "services/state_server/read/scans.py",
        "services/state_server/read/watch_snapshots.py",
        "services/state_server/servicers/changelog_history.py",
    ),
    ("asyncio.timeout", _A_REQUEST): (
        "services/client_proxy/console/sql_queries.py",
        "services/client_proxy/directory.py",
        "services/client_proxy/forwarding/watch.py",
        "services/client_proxy/http/event_stream.py",
        "services/client_proxy/http/request_body.py",
        "services/state_server/read/watcher.py",
    ),
    ("asyncio.wait", _A_REQUEST): (
        "services/client_proxy/console/shared_rounds.py",
        "services/client_proxy/forwarding/scan.py",
        "services/state_server/read/watch_progress.py",
        "services/state_server/read/watch_snapshots.py",
        "services/state_server/replica/take_over.py",
    ),
    ("loop.call_later", "what a reader may come back for is kept for a while: no answer depends on when it goes"): (
        "services/state_server/read/watched_changes.py",
    ),
    ("asyncio.wait", "a step lets its pool read for a second, and has its turn without it"): (
        "services/state_server/write/feed_beginnings.py",
    ),
    ("a thread's or a queue's", "the end of a thread is waited for; a task looks whether its call has ended"): (
        "src/keyhole/coordinator/stats.py",
        "src/keyhole/coordinator/task_stream.py",
        "services/state_server/replica/follower.py",
        "services/state_server/replica/ends_asking.py",
    ),
}

_MODULES = {"time": _READ, "sched": _TIMER}
# By what a call of theirs is written as.
_CALLS = {
    **{f"{kind}.{name}": _READ for kind in ("datetime", "date") for name in ("now", "utcnow", "today")},
    "threading.Timer": _TIMER,
    "Timer": _TIMER,
}
# Where a time may be given to these it is one of a thread's, unless asyncio's or the clock's own are meant.
_WAITS = ("wait", "wait_for", "acquire")
_FUTURES = ("wait", "as_completed")


def ways_round(source: str) -> Iterator[tuple[int, str]]:
    """The line, and what to use instead, of all that is about time and not the clock's."""
    for node in ast.walk(ast.parse(source)):
        instead = _instead(node)
        if instead:
            assert isinstance(node, ast.stmt | ast.expr)
            yield node.lineno, instead


def _instead(node: ast.AST) -> str:
    match node:
        case ast.Import(names=names):
            return next((_MODULES[name.name] for name in names if name.name in _MODULES), "")
        case ast.ImportFrom(module="time" | "sched" as module):
            return _MODULES[module]
        case ast.ImportFrom(module="asyncio", names=names) if any(name.name == "sleep" for name in names):
            return _PAUSE
        case ast.Call(func=ast.Attribute(value=of, attr=name) as called):
            if ast.unparse(called) == "asyncio.sleep":
                return "" if [ast.unparse(argument) for argument in node.args] == ["0"] else _PAUSE
            if name in _WAITS and _takes_a_time(node) and not _waits_properly(ast.unparse(of)):
                return _WAIT
            return _CALLS.get(".".join(ast.unparse(called).split(".")[-2:]), "")
        case ast.ImportFrom(module="concurrent.futures", names=names) if any(name.name in _FUTURES for name in names):
            return _WAIT
        case ast.Call(func=ast.Name(id=name)):
            return _CALLS.get(name, "")
    return ""


def measured_elsewhere(source: str) -> set[str]:
    """What of the event loop's, a thread's or a queue's time is used: as in `_MEASURED_ELSEWHERE`."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return {what for call in calls if isinstance(call.func, ast.Attribute) and (what := _measures(call, call.func))}


def _measures(call: ast.Call, called: ast.Attribute) -> str:
    of, name, named = ast.unparse(called.value), called.attr, {keyword.arg for keyword in call.keywords}
    if name in ("call_later", "call_at"):
        return "loop.call_later"
    if name == "time" and "loop" in of:
        return "loop.time"
    if of == "asyncio" and name in ("timeout", "timeout_at"):
        return "asyncio.timeout"
    if of == "asyncio" and (name == "wait_for" or (name == "wait" and "timeout" in named)):
        return "asyncio.wait"
    if name in ("result", "exception", "put", "get") and "timeout" in named:
        return "a thread's or a queue's"
    if name == "join" and "thread" in of and _takes_a_time(call):
        return "a thread's or a queue's"
    return ""


def _takes_a_time(call: ast.Call) -> bool:
    """`blocking=` of a lock is none."""
    return bool(call.args) or any(keyword.arg != "blocking" for keyword in call.keywords)


def _waits_properly(of: str) -> bool:
    return of == "asyncio" or of.split(".")[-1].lstrip("_") == "clock"


@pytest.mark.parametrize("tree", TREES)
def test_all_time_is_the_clocks(tree: str) -> None:
    files = sorted((ROOT / tree).rglob("*.py"))
    assert files
    found = [
        f"{path.relative_to(ROOT)}:{line}: {instead}"
        for path in files
        for line, instead in ways_round(path.read_text())
    ]
    assert not found, "time that is not the clock's:\n" + "\n".join(found)


def test_time_that_others_measure_is_used_where_that_was_thought_of() -> None:
    named = {(path, what) for (what, _), paths in _MEASURED_ELSEWHERE.items() for path in paths}
    found = {
        (str(path.relative_to(ROOT)), what)
        for tree in TREES
        for path in (ROOT / tree).rglob("*.py")
        for what in measured_elsewhere(path.read_text())
    }
    assert not found - named, "take a keyhole.clock.Clock, or say in keyhole.clock and here why not"
    assert not named - found, "it is not used there any more"


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("asyncio.get_running_loop().call_later(1.0, act)", "loop.call_later"),
        ("self._loop.call_at(now, act)", "loop.call_later"),
        ("loop.time()", "loop.time"),
        ("async def f():\n    async with asyncio.timeout(1.0): ...", "asyncio.timeout"),
        ("async def f():\n    async with asyncio.timeout_at(1.0): ...", "asyncio.timeout"),
        ("await asyncio.wait(tasks, timeout=1.0)", "asyncio.wait"),
        ("await asyncio.wait_for(task, 1.0)", "asyncio.wait"),
        ("future.result(timeout=1.0)", "a thread's or a queue's"),
        ("queue.get(timeout=1.0)", "a thread's or a queue's"),
        ("self._thread.join(1.0)", "a thread's or a queue's"),
        ("await asyncio.wait(tasks)", ""),
        ("future.result()", ""),
        ("self._thread.join()", ""),
        ("', '.join(names)", ""),
    ],
)
def test_who_measures_it_is_told(source: str, what: str) -> None:
    assert measured_elsewhere(source) == ({what} if what else set())


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "import os, time as t",
        "from time import monotonic",
        "from asyncio import sleep",
        "from concurrent.futures import ThreadPoolExecutor, wait",
        "await asyncio.sleep(0.1)",
        "await asyncio.sleep(delay=pause)",
        "self._closed.wait(1.0)",
        "ready.wait(timeout=1.0)",
        "self._changed.wait_for(done, 1.0)",
        "self._lock.acquire(timeout=1.0)",
        "datetime.now(UTC)",
        "datetime.datetime.now()",
        "threading.Timer(1.0, act)",
    ],
)
def test_a_way_round_the_clock_is_found(source: str) -> None:
    ((line, instead),) = ways_round(source)
    assert line == 1
    assert instead


@pytest.mark.parametrize(
    "source",
    [
        "await asyncio.sleep(0)",
        "await self._changed.wait()",
        "await asyncio.wait(tasks, timeout=1.0)",
        "self._clock.wait(self._closed, 1.0)",
        "settings.clock.wait(closed, 1.0)",
        "self._lock.acquire(blocking=False)",
        "from datetime import datetime",
        "datetime.fromtimestamp(clock.now_ms() / 1000, UTC)",
    ],
)
def test_what_is_no_way_round_it_is_let_be(source: str) -> None:
    assert not list(ways_round(source))
