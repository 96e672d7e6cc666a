"""What is looked at once per run of a query, before its first batch: its checkpoint lasts, its workers have Keyhole."""

from __future__ import annotations

import functools
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext

from keyhole.errors import InvalidConfiguration
from keyhole.protocol.epoch_of_batch import OnNewCheckpoint

# What Spark calls the checkpoint of a query that was given none, in the JVM's temporary directory.
_RANDOM = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TEMPORARY = re.compile(f"temporary-{_RANDOM.pattern}")
# What Spark says of a Python that can't be a worker: of another version, or without a module.
_UNFIT = re.compile(r"^.*(?:PYTHON_VERSION_MISMATCH|No module named|Cannot run program).*$", re.MULTILINE)
_REMEDY = (
    "Set PYSPARK_PYTHON, or spark.pyspark.python, to a Python that has Keyhole and the driver's version, before the "
    f"Spark session is made: {sys.executable} on this machine, and on a cluster one that every executor has"
)


class Worker(NamedTuple):
    """What a Python worker says of itself. `problem`: why Keyhole can't be loaded there; empty: it can."""

    python: str
    host: str
    problem: str


def check_checkpoint(
    query: str, location: str, on_new_checkpoint: OnNewCheckpoint, *, name: str | None, common: str | None
) -> None:
    """Refuses a checkpoint that the query's next start will not have, but where the job says what that is to mean.

    Args:
        location: As Spark has it, with its scheme.
        name: Spark's of the query; None: it has none.
        common: `spark.sql.streaming.checkpointLocation`, below which a query has a folder of its name; None: not set.

    Raises:
        InvalidConfiguration: It is a temporary one of Spark's, or one that Spark has named at random.
    """
    if on_new_checkpoint != "refuse":
        return
    folder = location.rstrip("/").rpartition("/")[2]
    if name is None and common is not None and _RANDOM.fullmatch(folder):
        raise InvalidConfiguration(
            f"query {query!r} has no name, so below spark.sql.streaming.checkpointLocation Spark has given it a folder "
            f"of a random one ({location}), and the query's next start would have another, with which its states can't "
            'go on. Name it with .queryName(...), or give it .option("checkpointLocation", ...)',
            query=query,
        )
    if _TEMPORARY.fullmatch(folder):
        raise InvalidConfiguration(
            f"query {query!r} has no checkpoint location: Spark has made a temporary one ({location}), and the query's "
            'next start would have another, with which its states can\'t go on. Give it .option("checkpointLocation", '
            '...); or, to try things out, give the sink on_new_checkpoint="reset" (each start begins with empty '
            'states) or "continue" (each start adds to them)',
            query=query,
        )


def check_workers(context: SparkContext) -> None:
    """Has one Python worker load Keyhole: without it each task would fail, at length, and be tried again.

    Costs a task of one row: nothing where Spark is on this machine alone and its workers run this very interpreter, as
    those of `start_session` do.

    Raises:
        InvalidConfiguration: It can't; it says what to set.
    """
    if re.fullmatch(r"local(\[.*\])?", str(context.master)) and _is_this_interpreter(context.pythonExec):
        return
    check_told(context.pythonExec, lambda: context.parallelize([0], 1).mapPartitions(probe()).collect())


def check_workers_once(context: SparkContext) -> None:
    """As `check_workers`, for what a job may ask for in each batch: workers that were found fit are not asked again."""
    _found_fit(context, context.pythonExec)


@functools.lru_cache(maxsize=16)
def _found_fit(context: SparkContext, python: str) -> None:
    check_workers(context)


def check_told(python: str, ask: Callable[[], Iterable[tuple[str, str, str]]]) -> None:
    """As `check_workers`, of what `ask` returns or raises.

    Args:
        python: What Spark starts as a worker.
        ask: Runs `probe()` in a worker.
    """
    try:
        workers = [Worker(*answer) for answer in ask()]
    except Py4JJavaError as error:
        found = _UNFIT.search(str(error))
        if found is None:
            raise
        raise InvalidConfiguration(
            f"{python}, which Spark starts as its Python workers, can't be one: {found[0].strip()}. {_REMEDY}"
        ) from error
    for worker in workers:
        if worker.problem:
            raise InvalidConfiguration(
                f"Spark's Python workers can't load Keyhole: {worker.python} on {worker.host} says {worker.problem}. "
                f"{_REMEDY}"
            )


def probe() -> Callable[[Iterable[object]], Iterator[tuple[str, str, str]]]:
    """A function that finds out what a Worker is. It uses nothing of this module, which the worker may not have."""

    def loads(_: Iterable[object]) -> Iterator[tuple[str, str, str]]:
        import importlib
        import socket
        import sys

        try:
            importlib.import_module("keyhole.spark.worker.stage")
        except ImportError as error:
            problem = f"{type(error).__name__}: {error}"
        else:
            problem = ""
        yield sys.executable, socket.gethostname(), problem

    return loads


def _is_this_interpreter(python: str) -> bool:
    """By its folder too: the interpreters of all virtual environments may be links to one."""
    found = shutil.which(python)
    if found is None:
        return False
    here, there = Path(sys.executable).absolute(), Path(found).absolute()
    return here.parent == there.parent and here.resolve() == there.resolve()
