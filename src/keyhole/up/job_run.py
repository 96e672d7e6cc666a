"""One start of a job's file as a process of its own: where it logs, why it ended, and which of its states can be
read.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from keyhole.client.server_status import ServerStatus
from keyhole.demo.starting import StartSteps
from keyhole.errors import ChangelogRecreated, CheckpointMismatch, StateChanged
from keyhole.local.failures import error_of_ours, root_cause
from keyhole.local.processes import Child
from keyhole.model.read import Role
from keyhole.terminal.written_out import written_out

_STOP_SECONDS = 10.0
_MOST_OF_A_LINE = 160
_TAIL_BYTES = 8192
# Of an error that Python names by its module, the class alone says enough.
_MODULE = re.compile(r"^(?:\w+\.)+(?=[A-Z]\w*(?:Error|Exception)\b)")
_NO_SOURCE = re.compile(r"Failed to find data source: kafka\b")
# What Spark prints at each start, whatever the job is: it tells nobody what the job does.
_USUAL = re.compile(
    r"^WARNING: Using incubator modules|^Using Spark's default log4j profile|^Setting (?:default|Spark) log level"
    r"|^To adjust logging level use|WARN (?:Utils: (?:Your hostname|Set SPARK_LOCAL_IP)"
    r"|NativeCodeLoader: Unable to load|SparkConf: Note that spark\.local\.dir"
    r"|ResolveWriteToStream: spark\.sql\.adaptive\.enabled|MicroBatchExecution: Disabling AQE)"
)
# What a job contradicts that was stored before. Errors of a checkpoint that is missing, or that can't be
# written, are no such ones: to delete data does not mend them.
_CONTRADICTS = {CheckpointMismatch.__name__, StateChanged.__name__, ChangelogRecreated.__name__}
_CONTRADICTS_IN_SPARK = re.compile(
    r"\[(?:STATE_STORE_\w*(?:SCHEMA|VARIABLE_TYPE|ROW_FORMAT|AFTER_RESTART|NOT_EMPTY|MISMATCH)"
    r"|CANNOT_LOAD_STATE_STORE(?!\.\w*OUT_OF_MEMORY)"
    r"|STREAMING_CHECKPOINT_MISSING|STREAMING_STATEFUL_OPERATOR_|CHECKPOINT_FILE_CHECKSUM)"
    # Of these Spark has no class.
    r"|in the checkpoint offsets|support recovering from checkpoint"
)


@dataclass(frozen=True)
class SeenState:
    """A state as its owners have it: its last epoch, how many keys, and whether its job is heard of."""

    epoch: int
    entries: int
    confirmed: bool


def owned(servers: list[ServerStatus]) -> dict[str, SeenState]:
    """By APPLICATION/STATE, what all servers own of it together."""
    found: dict[str, SeenState] = {}
    for holding in (holding for server in servers for holding in server.holdings):
        if holding.source.role is not Role.OWNER:
            continue
        path = holding.descriptor.path
        other = found.get(path, SeenState(0, 0, True))
        found[path] = SeenState(
            max(other.epoch, holding.source.epoch),
            other.entries + holding.entries,
            other.confirmed and not holding.source.unconfirmed,
        )
    return found


class FirstAnswers:
    """Finds out which states a job that was started just now feeds: those of which there is a new epoch, or whose job
    is heard of again. Pure.

    Args:
        before: All that there were before its start.
    """

    def __init__(self, before: Mapping[str, SeenState]) -> None:
        self._before = dict(before)
        self.announced: set[str] = set()

    def look(self, now: Mapping[str, SeenState]) -> Iterator[tuple[str, SeenState]]:
        """Those that can be read by now, each once."""
        for path, seen in now.items():
            before = self._before.get(path, SeenState(0, 0, False))
            if path not in self.announced and seen.epoch > 0 and seen.confirmed:
                if seen.epoch > before.epoch or not before.confirmed:
                    self.announced.add(path)
                    yield path, seen
            elif not seen.confirmed:
                # What runs is no longer the job before.
                self._before[path] = seen


class JobRun:
    """The process. Not thread-safe.

    Args:
        command: Python and the job's file.
        directory: Where it runs.
        log: What it prints goes there; that of the run before is kept with `.1` at its end.
        scratch: A folder of its own for temporary files: made now, and gone at the end.
        environ: All of its environment but for that.
        before: The states before its start.
        uninterrupted: Entered while it is started and taken note of.
    """

    def __init__(
        self,
        command: list[str],
        directory: Path,
        log: Path,
        scratch: Path,
        environ: Mapping[str, str],
        before: Mapping[str, SeenState],
        uninterrupted: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self.began = time.monotonic()
        self.log = log
        self.answers = FirstAnswers(before)
        self._scratch = scratch
        self._file = command[-1]
        if log.exists():
            log.replace(log.with_suffix(".log.1"))
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True, exist_ok=True)
        with uninterrupted():
            self._child = Child("the job", command, log, {**environ, "TMPDIR": str(scratch)}, directory)
        self._steps = StartSteps()
        self._read_bytes = self._child.log_start_bytes

    @property
    def seconds(self) -> float:
        """How long ago it was started."""
        return time.monotonic() - self.began

    @property
    def exit_code(self) -> int | None:
        """Of its process; None while it runs."""
        return self._child.exit_code

    def stop(self) -> None:
        """Nothing of it runs any more. Idempotent."""
        self._child.terminate(_STOP_SECONDS)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def step(self) -> str:
        """How far its start is, and what it has said last, for a person."""
        # What its checkpoint says of its first batch is not looked for: who knows where it is.
        with self.log.open("rb") as log:
            log.seek(self._read_bytes)
            said = log.read()
        self._read_bytes += len(said)
        last = self.last_line()
        return self._steps.take(said.decode(errors="replace")) + (f"; its last line: {last}" if last else "")

    def last_line(self) -> str:
        """What it has said last."""
        with self.log.open("rb") as log:
            log.seek(max(self._child.log_start_bytes, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return last_line(log.read().decode(errors="replace"))

    def end(self) -> str:
        """How it has ended, in one sentence, and what may be done; for one that has."""
        code, name = self._child.exit_code, Path(self._file).name
        if code == 0:
            return (
                f"{name} has ended by itself, without an error: a job goes on where it waits for its queries, with "
                "query.awaitTermination()"
            )
        if code is not None and code < 0:
            return f"{name} was ended by signal {-code}, from outside"
        said = self._child.output()
        cause = written_out(sentence(said))
        where = line_in(said, self._file)
        return f"{name}{where} has failed: {cause or f'exit code {code}'}{advice(said)}"


def sentence(said: str) -> str:
    """The root cause of a failure, in one line, without the module of the error's class."""
    return _MODULE.sub("", root_cause(said)).rstrip("; ")


def line_in(said: str, file: str) -> str:
    """The last line of the file that a trace names, as `, line 12`; empty: none does."""
    found = re.findall(rf'^\s*File "(?:[^"\n]*/)?{re.escape(Path(file).name)}", line (\d+)', said, re.MULTILINE)
    return f", line {found[-1]}," if found else ""


def advice(said: str) -> str:
    """What to do about some causes of a failure, which others put into words; else nothing."""
    cause, ours = sentence(said), error_of_ours(said)
    if _NO_SOURCE.search(cause):
        return (
            '. Give Spark its Kafka connector: spark-submit --jars "$(keyhole jars)", as `keyhole dev` does by itself'
        )
    if ours in _CONTRADICTS or (not ours and _CONTRADICTS_IN_SPARK.search(cause)):
        return (
            ". Where what was computed before does not matter, begin anew with --fresh: it deletes the states, and the "
            "checkpoints in the same folder, which KEYHOLE_CHECKPOINTS names; one that is elsewhere delete yourself"
        )
    return ""


def last_line(said: str) -> str:
    """The last line that says something of this job, cut to what a terminal shows; empty: there is none."""
    lines = (line.strip() for line in reversed(said.splitlines()))
    last = written_out(next((line for line in lines if line and not _USUAL.search(line)), ""))
    return last if len(last) <= _MOST_OF_A_LINE else f"{last[: _MOST_OF_A_LINE - 1]}…"
