"""`keyhole savepoint ...` in a process that ends, or stands still, at one of its steps.

A step is what changes something outside of the process: a topic that is made, a transactional.id that is taken, the two
sides of a transaction's commit, a file. The process tells each by name, on a line of a file, just before it takes it.

Environment, which only tests set: SAVEPOINT_STEPS, the file; SAVEPOINT_AT, the number of the step, from 0 on (absent:
none); SAVEPOINT_SIGNAL, what the process sends itself there.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from confluent_kafka import Producer
from fsspec.implementations.local import LocalFileSystem

from keyhole.changelog.kafka import transactions
from keyhole.changelog.kafka.admin import Topics
from keyhole.cli.main import main
from keyhole.local.processes import Child
from keyhole.savepoint.folder import Folder

_STEPS, _AT, _SIGNAL = "SAVEPOINT_STEPS", "SAVEPOINT_AT", "SAVEPOINT_SIGNAL"


def start(directory: Path, arguments: Sequence[str], at: int | None = None, how: str = "SIGKILL") -> Child:
    """The process, which tells its steps in `directory`.

    Args:
        arguments: What follows `keyhole savepoint`.
        at: The number of the step at which it sends itself the signal; None: it comes to its end.
    """
    directory.mkdir(parents=True, exist_ok=True)
    environ = {**os.environ, "TMPDIR": str(directory), _STEPS: str(directory / "steps"), _SIGNAL: how}
    if at is not None:
        environ[_AT] = str(at)
    command = [sys.executable, "-m", __spec__.name, *arguments]
    return Child("savepoint", command, directory / "log", environ)


def steps_in(directory: Path) -> list[str]:
    """Those that the process has taken, and the one at which it ended or stands."""
    file = directory / "steps"
    return file.read_text().splitlines() if file.exists() else []


def worth_a_kill(steps: Sequence[str]) -> list[int]:
    """Each step once; of those that are taken again and again one in the middle, and the last one."""
    numbers = defaultdict[str, list[int]](list)
    for number, step in enumerate(steps):
        numbers[step].append(number)
    return sorted(at for of in numbers.values() for at in {of[(len(of) - 1) // 2], of[-1]})


class _Steps:
    def __init__(self, environ: Mapping[str, str]) -> None:
        self._file = Path(environ[_STEPS])
        self._at = int(environ.get(_AT, "-1"))
        self._signal = signal.Signals[environ[_SIGNAL]]
        self._taken = 0

    def next(self, name: str) -> None:
        with self._file.open("a") as file:
            file.write(f"{name}\n")
        self._taken += 1
        if self._taken - 1 == self._at:
            os.kill(os.getpid(), self._signal)


def _tell(steps: _Steps) -> None:
    """From here on this process tells its steps."""

    class SteppedProducer(Producer):
        def __init__(self, settings: dict[str, Any]) -> None:
            super().__init__(settings)
            self._id = _whose(settings["transactional.id"])
            self._named = False

        def init_transactions(self, *arguments: Any) -> None:
            # Kafka may have it tried again: that is no step of its own.
            if not self._named:
                self._named = True
                steps.next(f"take the id of {self._id}")
            super().init_transactions(*arguments)

        def flush(self, *arguments: Any) -> int:
            left = super().flush(*arguments)
            steps.next(f"commit, as {self._id}, what was written")
            return left

        def commit_transaction(self, *arguments: Any) -> None:
            super().commit_transaction(*arguments)
            steps.next(f"go on after the commit as {self._id}")

    transactions.Producer = SteppedProducer
    create, writing, mv, rm_file = Topics._create, Folder.writing, LocalFileSystem.mv, LocalFileSystem.rm_file

    def stepped_create(topics: Topics, topic: str, *arguments: Any, validate_only: bool = False) -> None:
        if not validate_only:
            steps.next(f"make the {'control topic' if topic.endswith('.control') else 'topic of a state'}")
        create(topics, topic, *arguments, validate_only=validate_only)

    @contextmanager
    def stepped_writing(folder: Folder, name: str) -> Iterator[BinaryIO]:
        steps.next(f"begin {_which(name)}")
        with writing(folder, name) as file:
            yield file
            # Of what was written, some may still be in the process.
            steps.next(f"end {_which(name)}")

    def stepped_mv(files: LocalFileSystem, path: str, to: str, **options: Any) -> None:
        steps.next(f"name {_which(to)}")
        mv(files, path, to, **options)

    def stepped_rm(files: LocalFileSystem, path: str) -> None:
        steps.next(f"remove {_which(path)}")
        rm_file(files, path)

    Topics._create, Folder.writing = stepped_create, stepped_writing
    LocalFileSystem.mv, LocalFileSystem.rm_file = stepped_mv, stepped_rm


def _whose(transactional_id: str) -> str:
    _, _, of = transactional_id.split(".", 2)
    return {"*.coordinator": "whoever declares", "*restore.coordinator": "the restore", "restore": "its rows"}.get(
        of, "a query"
    )


def _which(name: str) -> str:
    for known in ("manifest", "incomplete", "states", "checkpoints"):
        if known in name:
            return known
    return "a file of a checkpoint"


if __name__ == "__main__":
    _tell(_Steps(os.environ))
    sys.exit(main(["savepoint", *sys.argv[1:]]))
