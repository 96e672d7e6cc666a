"""SQL from the console, run in a process of its own: DuckDB must take neither the proxy's memory nor its thread."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.util import find_spec

import msgspec

from keyhole.errors import (
    DeadlineExceeded,
    InternalError,
    MalformedRequest,
    Overloaded,
    TooLarge,
    Unsupported,
    by_reason,
)

MOST_ROWS = 500
_SECONDS, _MEMORY, _DATA_BYTES = 30.0, "256MB", 1 << 30
_MOST_BYTES, _MOST_QUERY = 2_000_000, 20_000
# A first row of many long values may be beyond the former; all names and scans come to less.
_MOST_ANSWER = 16_000_000
# At the lowest priority from the first instruction on.
_RUN = "import os; os.nice(19); from keyhole.sql.one_query import main; main()"
# Its start takes a second, and more on a busy machine; DuckDB has no say in that.
_BEGIN_SECONDS = 60.0


class SqlQueries:
    """Runs one at a time, at the lowest priority. Event loop's thread only.

    Args:
        proxy: Where the process finds this proxy, as host:port.
        turn: See Siblings.
        open_to_all: Everybody may read everything, in plaintext. Else it would need the caller's rights.
    """

    def __init__(
        self, proxy: Callable[[], str], turn: Callable[[], AbstractContextManager[bool]], *, open_to_all: bool
    ) -> None:
        self._proxy = proxy
        self._turn = turn
        self._open = open_to_all
        self._running: asyncio.subprocess.Process | None = None
        self._busy = False

    @functools.cached_property
    def why_not(self) -> str:
        """Why there is none here, and what to do; empty: there is. Looked for once: open pages ask all the time."""
        if not self._open:
            return "This proxy asks who reads: run `keyhole sql` where you are, with your own token or certificate."
        missing = [name for name in ("duckdb", "pyarrow") if find_spec(name) is None]
        if missing:
            return (
                f"The proxy's Python has no {' and no '.join(missing)}: install keyhole-spark with the extra `sql` "
                "there and start the proxy again, or run `keyhole sql` where you are."
            )
        return ""

    async def run(self, body: bytes) -> bytes:
        """The answer to a request whose body is {"query": ...}: an SqlFound as JSON.

        Raises:
            Unsupported: There is no SQL here; MalformedRequest: it is no such body.
            Overloaded: Another one runs.
            KeyholeError: As Client.sql.
        """
        if why := self.why_not:
            raise Unsupported(why)
        query = _query_of(body)
        if self._busy:
            raise _another()
        with self._turn() as is_ours:
            if not is_ours:
                raise _another()
            self._busy = True
            try:
                return await self._run(query)
            finally:
                self._busy = False

    async def close(self) -> None:
        """Ends the one that runs."""
        if self._running is not None:
            with contextlib.suppress(ProcessLookupError):
                self._running.kill()

    async def _run(self, query: str) -> bytes:
        question = {
            "query": query,
            "proxy": self._proxy(),
            "seconds": _SECONDS,
            "memory": _MEMORY,
            "most_rows": MOST_ROWS,
            "most_bytes": _MOST_BYTES,
            "data_bytes": _DATA_BYTES,
        }
        process = self._running = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-c", _RUN),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if not name.startswith("KEYHOLE_")},
        )
        try:
            async with asyncio.timeout(_BEGIN_SECONDS + _SECONDS):
                output = await _answer_of(process, msgspec.json.encode(question))
        except TimeoutError:
            raise DeadlineExceeded(f"the query has not ended within {_BEGIN_SECONDS + _SECONDS:g} s") from None
        finally:
            self._running = None
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        kind, _, answer = output.partition(b"\n")
        if kind == b"found":
            return answer
        if kind != b"refused":
            raise InternalError(
                f"the query's process ended with {process.returncode}: it may have taken too much memory"
            )
        refused = msgspec.json.decode(answer, type=dict[str, str])
        raise by_reason()[refused["reason"]](refused["message"])


def _another() -> Overloaded:
    return Overloaded("another query of a console runs here, and one runs at a time: try again in a moment")


async def _answer_of(process: asyncio.subprocess.Process, question: bytes) -> bytes:
    """What it writes until it ends. Raises TooLarge: that is more than any answer should be."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(question)
    process.stdin.close()
    output = bytearray()
    while part := await process.stdout.read(1 << 16):
        output += part
        if len(output) > _MOST_ANSWER:
            raise TooLarge(f"the rows take more than {_MOST_ANSWER:,} bytes: ask for fewer columns")
    await process.wait()
    return bytes(output)


def _query_of(body: bytes) -> str:
    try:
        asked = msgspec.json.decode(body, type=dict[str, str])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise MalformedRequest('the body is not as {"query": "select ..."}, in UTF-8') from None
    query = asked.get("query", "").strip()
    if not query or len(query) > _MOST_QUERY:
        raise MalformedRequest(f"give one SELECT, of at most {_MOST_QUERY:,} characters")
    return query
