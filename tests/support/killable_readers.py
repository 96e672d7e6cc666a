"""`python -m tests.support.killable_readers DIRECTORY`: a state server with a reader, which may be killed.

On a changelog in its own memory. Says on stdout its lookup port and its reader's pid; goes on committing to app/counts
until it is killed. The key "a" has the number of the epoch.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.support.server_readers import pid_of, port_of, read_by, readers_of
from tests.support.states import descriptor, row


async def main(directory: Path) -> None:
    """Never returns."""
    async with read_by(directory) as server:
        await server.own(descriptor())
        await server.commit({"a": row(1.0)})
        print(port_of(server), *(pid_of(of) for of in readers_of(server)), flush=True)
        for epoch in range(2, sys.maxsize):
            await server.commit({"a": row(float(epoch))})


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
