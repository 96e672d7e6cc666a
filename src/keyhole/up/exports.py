"""`keyhole env`: where what runs is, as a shell takes it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from keyhole.config import DEFAULT_PROXY_PORT, PROXY_VARIABLE
from keyhole.errors import MachineError
from keyhole.local.stack_ports import HOST
from keyhole.up.home import DEFAULT_DIRECTORY, Home, Recorded

SHELLS = ("sh", "fish")
_HERE = ("127.", "localhost")


def variables(recorded: Recorded, python: str) -> Mapping[str, str]:
    """What a job, a reader and Spark are set by.

    Args:
        python: Which one Spark's Python workers are to run: one that has keyhole.
    """
    return {
        "KEYHOLE_JOB_SERVERS": recorded.servers,
        "KEYHOLE_JOB_BOOTSTRAP_SERVERS": recorded.kafka,
        "KEYHOLE_JOB_PROXY": recorded.proxy,
        PROXY_VARIABLE: recorded.proxy,
        "KEYHOLE_HTTP": recorded.http,
        "KEYHOLE_CHECKPOINTS": str(recorded.checkpoints),
        "PYSPARK_PYTHON": python,
    }


def proxy_here(environ: Mapping[str, str]) -> str:
    """host:port of the client proxy to ask from here. KEYHOLE_PROXY names it; else it is that of what `keyhole up` or
    `keyhole dev` has started in this folder. Where nothing runs, it is the usual one on this machine.
    """
    if named := environ.get(PROXY_VARIABLE):
        return named
    usual = f"{HOST}:{DEFAULT_PROXY_PORT}"
    if not DEFAULT_DIRECTORY.is_dir():
        return usual
    try:
        return running(Home(DEFAULT_DIRECTORY)).proxy
    except MachineError:
        return usual


def exports(given: Mapping[str, str], shell: str) -> str:
    """A line for each variable; `shell` is one of SHELLS."""
    form = "set -gx {} {};\n" if shell == "fish" else "export {}={}\n"
    return "".join(form.format(name, shlex.quote(value)) for name, value in given.items())


def running(home: Home) -> Recorded:
    """What is recorded of what runs. Raises MachineError: nothing does, or not all of it yet."""
    recorded = home.read()
    if recorded is None or not home.runs():
        raise MachineError(
            f"nothing of `keyhole up` runs in {home.path}: start it by `keyhole up`; or, where it was started in "
            "another folder, change to that one, or name its data by --dir",
            path=home.path,
        )
    if not recorded.serves:
        raise MachineError(f"what `keyhole up` starts in {home.path} is not ready yet: look again in a moment")
    return recorded


def hint(home: Home, proxy: str) -> str:
    """What a person may do whom no proxy answers, as the rest of a message; never an error.

    Args:
        proxy: Who was asked, as it was given.
    """
    try:
        recorded = home.read()
        runs = home.runs()
    except MachineError as error:
        return f". {error.message}"
    if recorded is None:
        return ". `keyhole up` starts one on this machine" if proxy.startswith(_HERE) else ""
    if not runs:
        return f". What `keyhole up` has made in {home.path} does not run now: `keyhole up` starts it again"
    if recorded.proxy == proxy:
        return f". It is that of `keyhole up`, which starts it again; its log is {home.path / 'logs' / 'proxy.log'}"
    return (
        f". That of `keyhole up` in {home.path} is at {recorded.proxy}: give --proxy {recorded.proxy}, or type "
        'eval "$(keyhole env)" first'
    )
