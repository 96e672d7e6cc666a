"""Where what the pages show of reads runs: states in memory behind a real proxy, with HTTP."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import shlex
import subprocess
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from keyhole import AsyncClient, Client
from keyhole.testing.served_states import ServedStates
from services.client_proxy.app import ClientProxy
from tests.support.proxies import proxy_of
from tests.support.snippets import blocks
from tests.support.waiting import LONG_SECONDS, PATIENCE_SECONDS


class Enough(Exception):
    """Ends what would go on for ever, as a watch does."""


@dataclass
class Reader:
    """Somebody who has typed what a page shows.

    Attributes:
        printed: What each call of `print` was given.
        enough: The call of `print` that ends the code; 0: none does.
    """

    served: ServedStates
    proxy: ClientProxy
    printed: list[tuple[Any, ...]] = field(default_factory=list)
    enough: int = 0

    def print(self, *values: Any) -> None:
        """In place of Python's."""
        self.printed.append(values)
        if len(self.printed) == self.enough:
            raise Enough

    async def types(self, code: str, page: str, **names: Any) -> dict[str, Any]:
        """Runs Python, word for word but for the proxy's address, and deadlines that a slow machine misses.

        Args:
            names: What the page takes for granted.

        Returns:
            What it has defined.
        """
        address = self.proxy.address
        for of, by in {"proxy:7400": address, "proxy-0:7400,proxy-1:7400": f"{address},{address}"}.items():
            code = code.replace(f'Client("{of}"', f'Client("{by}", timeout={LONG_SECONDS}')
        names = {"print": self.print, **names}
        compiled = compile(code, page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        try:
            if compiled.co_flags & inspect.CO_COROUTINE:
                await eval(compiled, names)
            else:  # beside the loop of the proxy, which it would block
                await asyncio.to_thread(exec, compiled, names)
        except Enough:
            assert self.enough
        return names

    async def types_in_loop(self, code: str, page: str, **names: Any) -> dict[str, Any]:
        """The same of code that takes an AsyncClient for granted."""
        connects = 'import keyhole\nasync with keyhole.AsyncClient("proxy:7400") as client:\n'
        return await self.types(connects + textwrap.indent(code, " " * 4), page, **names)

    async def curls(self, command: str, until: str = "") -> str:
        """What a command of curl prints, which must be answered by 200.

        Args:
            until: What ends it, where it would go on for ever.
        """
        words = shlex.split(re.sub(r"http://(?:proxy|localhost):7402", f"http://{self.proxy.http_address}", command))
        assert words.pop(0) == "curl"
        asking = ["curl", "-sS", "--fail-with-body", "--max-time", str(PATIENCE_SECONDS), *words]

        def run() -> str:
            printed = ""
            with subprocess.Popen(asking, stdout=subprocess.PIPE, text=True) as curl:
                assert curl.stdout is not None
                for line in curl.stdout:
                    printed += line
                    if until and until in line:
                        curl.terminate()
                        return printed
            assert (curl.returncode, until) == (0, ""), printed
            return printed

        return await asyncio.to_thread(run)

    def client(self) -> Client:
        """A client of the proxy; the caller closes it."""
        return Client(self.proxy.address, timeout=LONG_SECONDS)

    def async_client(self) -> AsyncClient:
        """The same for an event loop."""
        return AsyncClient(self.proxy.address, timeout=LONG_SECONDS)


@asynccontextmanager
async def reader() -> AsyncIterator[Reader]:
    """One with no state yet."""
    with ServedStates() as served:
        async with proxy_of(served.address, http="127.0.0.1:0") as proxy:
            yield Reader(served, proxy)


Scene = Callable[[Reader, str], Awaitable[None]]


class Scenes:
    """What is there when somebody types a block of Python, and what the block does then: for each of some pages.

    Attributes:
        shown: The page and the code of each block.
    """

    def __init__(self, *pages: str) -> None:
        self.shown = [(page, code) for page in pages for code in blocks(page)]
        self._known: dict[tuple[str, str], Scene] = {}

    def play(self, page: str, holding: str) -> Callable[[Scene], Scene]:
        """Marks the scene of the block of a page that has this in it, as no other one has."""

        def taken(scene: Scene) -> Scene:
            self._known[page, holding] = scene
            return scene

        return taken

    def of(self, page: str, code: str) -> Scene:
        """The one of a block."""
        (scene,) = (scene for (of, holding), scene in self._known.items() if of == page and holding in code)
        return scene

    @staticmethod
    def name(of: str) -> str:
        """Of a test: the page, and the first line of the code."""
        return of.partition("\n")[0]
