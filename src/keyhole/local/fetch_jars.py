"""`python -m keyhole.local.fetch_jars SET DIRECTORY`: the pinned jars of a set, all in one folder. For images."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from keyhole.errors import KeyholeError
from keyhole.local.jars import JarSet, fetch


def main(arguments: list[str]) -> int:
    """Returns the process's exit code."""
    if len(arguments) != 2 or arguments[0] not in tuple(JarSet):
        print(f"usage: python -m keyhole.local.fetch_jars {'|'.join(JarSet)} DIRECTORY", file=sys.stderr)  # noqa: T201
        return 2
    kind, directory = JarSet(arguments[0]), Path(arguments[1])
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory() as cache:
            for jar in fetch(kind, Path(cache)):
                jar.replace(directory / jar.name)
    except KeyholeError as error:
        print(error.message, file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
