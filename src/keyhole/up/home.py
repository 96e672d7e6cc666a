"""The folder of `keyhole up`: where its data and logs are, who holds it, and the file that says what runs where."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import msgspec

from keyhole.errors import MachineError
from keyhole.hints import ready
from keyhole.local.stack_ports import HOST, StackPorts
from keyhole.up.known_process import KnownProcess

DEFAULT_DIRECTORY = Path(".keyhole")
CHECKPOINTS = "checkpoints"
"""The folder of the checkpoints, in that of all else."""
_VERSION = 1
_BLOCK_BYTES = 512


@ready
class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """What the file says. It stays where nothing runs: for the ports, so that addresses stay what they are.

    Attributes:
        ports: Of the last start.
        data: The folder of the data; a temporary one where `ephemeral` is set.
        supervisor: The process that all others are children of; None: it has ended in an orderly way.
        children: Those that it has started, by name.
        serves: All has started.
        failure: Why the last one has ended by itself; empty: it has not.
    """

    version: int = _VERSION
    ports: StackPorts
    data: str
    ephemeral: bool = False
    supervisor: KnownProcess | None = None
    children: dict[str, KnownProcess] = {}
    serves: bool = False
    failure: str = ""

    @property
    def checkpoints(self) -> Path:
        """The folder for the checkpoints of jobs: it goes where the states go."""
        data = Path(self.data)
        return (data if self.ephemeral else data.parent) / CHECKPOINTS

    @property
    def servers(self) -> str:
        """host:port of all state servers, with commas between."""
        return ",".join(f"{HOST}:{port}" for port in self.ports.servers)

    @property
    def kafka(self) -> str:
        """Where clients find Kafka, as host:port."""
        return f"{HOST}:{self.ports.kafka}"

    @property
    def proxy(self) -> str:
        """host:port of the client proxy."""
        return f"{HOST}:{self.ports.proxy}"

    @property
    def http(self) -> str:
        """The beginning of the URLs of reads over HTTP."""
        return f"http://{HOST}:{self.ports.http}"

    @property
    def metrics(self) -> str:
        """The URL of the metrics."""
        return f"http://{HOST}:{self.ports.exporter}/metrics"


class Home:
    """The folder, which may not exist yet. Any process; each call looks at the disk.

    Args:
        path: As a person has given it; messages name it so.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        whole = path.resolve()
        self.data = whole / "data"
        self.logs = whole / "logs"
        self.log = self.logs / "supervisor.log"
        self.file = whole / "stack.json"
        self._running = whole / "running.lock"
        self._starting = whole / "starting.lock"
        self._developing = whole / "developing.lock"

    @property
    def option(self) -> str:
        """What a shell's command line says for this one, behind a space; nothing where it is the usual folder."""
        return "" if self.path == DEFAULT_DIRECTORY else f" --dir {shlex.quote(str(self.path))}"

    @property
    def there(self) -> bool:
        """Whether the folder is one of `keyhole up`."""
        return self._starting.exists() or self.file.exists()

    def make(self) -> None:
        """Makes the folder, if it isn't there; version control passes it over.

        Raises:
            MachineError: It can't be written, or has other things in it.
        """
        folder = self.file.parent
        try:
            # A job that ran without `keyhole up` may have left its checkpoints there.
            if not self.there and folder.is_dir() and any(entry.name != CHECKPOINTS for entry in folder.iterdir()):
                raise MachineError(f"{self.path} has other things in it: choose a new folder by --dir", path=self.path)
            folder.mkdir(parents=True, exist_ok=True)
            self._starting.touch()
            self.logs.mkdir(exist_ok=True)
            (folder / ".gitignore").write_text("*\n")
        except OSError as error:
            raise self._not_writable(error) from error

    def read(self) -> Recorded | None:
        """What is recorded; None: nothing was ever started here.

        Raises:
            MachineError: The file can't be read, or is no such file.
        """
        try:
            recorded = msgspec.json.decode(self.file.read_bytes(), type=Recorded)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise MachineError(f"{self._spelled(self.file)} can't be read: {error.strerror}", path=self.file) from error
        except msgspec.MsgspecError as error:
            raise self._broken(str(error)) from error
        if recorded.version != _VERSION:
            raise self._broken(f"its version is {recorded.version}, and this Keyhole knows {_VERSION}")
        return recorded

    def write(self, recorded: Recorded) -> None:
        """Replaces what is recorded, whole or not at all. Raises MachineError."""
        unnamed = self.file.with_suffix(".new")
        try:
            unnamed.write_bytes(msgspec.json.format(msgspec.json.encode(recorded)) + b"\n")
            unnamed.replace(self.file)
        except OSError as error:
            raise self._not_writable(error) from error

    def runs(self) -> bool:
        """Whether a supervisor holds the folder now."""
        try:
            with self._running.open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # there is no such file, or folder
            return False
        return False

    @contextlib.contextmanager
    def held(self) -> Iterator[Callable[[], bool]]:
        """For the supervisor: while it is inside, or until its process ends, it `runs`.

        It is given a function that says whether folder and file are still there. Where they are not, nobody would find
        what runs.

        Raises:
            MachineError: Another one holds the folder.
        """
        with self._lock(self._running, "a `keyhole up` runs already in") as lock:
            mine = os.fstat(lock.fileno())

            def still_there() -> bool:
                try:
                    return self.file.exists() and os.path.samestat(self._running.stat(), mine)
                except OSError:
                    return False

            yield still_there

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """For a command that starts or ends what is here: no other one is inside.

        Raises:
            MachineError: Another one is.
        """
        with self._lock(self._starting, "another `keyhole up` or `keyhole down` is under way in"):
            yield

    @contextlib.contextmanager
    def developed(self, job: Path) -> Iterator[None]:
        """For `keyhole dev`: while it is inside, the job's log and temporary files are nobody else's.

        Args:
            job: Its file, for the message to others.

        Raises:
            MachineError: Another one is inside; the message names it.
        """
        try:
            lock = self._developing.open("a+")
        except OSError as error:
            raise self._not_writable(error) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not os.path.samestat(self._developing.stat(), os.fstat(lock.fileno())):
                    raise BlockingIOError
            except (BlockingIOError, FileNotFoundError):
                lock.seek(0)
                pid, _, other = lock.read().partition(" ")
                who = f"`keyhole dev {other}` (process {pid})" if other else "another `keyhole dev`"
                raise MachineError(
                    f"{who} runs in {self.path}: end it first, or give this one a folder of its own by --dir",
                    path=self.path,
                ) from None
            except OSError as error:
                raise self._not_writable(error) from error
            lock.truncate(0)
            lock.write(f"{os.getpid()} {job}")
            lock.flush()
            yield

    def bytes(self) -> int:
        """What the data and logs in the folder take."""
        files = (path for path in self.file.parent.rglob("*") if not path.is_symlink())
        total = 0
        for path in files:
            with contextlib.suppress(OSError):  # gone by now
                # A store's file has room that it doesn't take from the disk.
                total += path.stat().st_blocks * _BLOCK_BYTES
        return total

    @property
    def has_checkpoints(self) -> bool:
        """Whether jobs have left any in the folder: with the states here, or of states that are somewhere else."""
        checkpoints = self.file.parent / CHECKPOINTS
        return checkpoints.is_dir() and any(checkpoints.iterdir())

    def remove(self, *, but_checkpoints: bool = False) -> None:
        """Deletes the folder, with all in it, or all but the checkpoints. Raises MachineError: something can't go."""
        folder = self.file.parent
        try:
            if not but_checkpoints:
                shutil.rmtree(folder)
                return
            for entry in folder.iterdir():
                if entry.is_dir() and not entry.is_symlink():
                    if entry.name != CHECKPOINTS:
                        shutil.rmtree(entry)
                else:
                    entry.unlink()
        except FileNotFoundError:
            pass
        except OSError as error:
            raise MachineError(f"{error.filename} can't be deleted: {error.strerror}", path=error.filename) from error

    @contextlib.contextmanager
    def _lock(self, path: Path, held: str) -> Iterator[TextIO]:
        try:
            lock = path.open("w")
        except OSError as error:
            raise self._not_writable(error) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise MachineError(
                    f"{held} {self.path}: wait until it is done, and try again", path=self.path
                ) from None
            except OSError as error:
                raise self._not_writable(error) from error
            yield lock

    def _broken(self, why: str) -> MachineError:
        return MachineError(
            f"{self._spelled(self.file)} is not what `keyhole up` has written ({why}): delete that file, which also "
            "ends what runs here, and start it again",
            path=self.file,
        )

    def _not_writable(self, error: OSError) -> MachineError:
        why = (error.strerror or type(error).__name__).lower()
        return MachineError(
            f"{self._spelled(Path(error.filename or self.path))} can't be written ({why}): choose another folder by "
            "--dir",
            path=self.path,
        )

    def _spelled(self, path: Path) -> str:
        with contextlib.suppress(ValueError):
            return str(self.path / path.relative_to(self.file.parent))
        return os.fspath(path)
