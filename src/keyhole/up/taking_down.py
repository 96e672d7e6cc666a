"""`keyhole down`: ends what `keyhole up` has started, and nothing else."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import msgspec
from rich.console import Console

from keyhole.demo.progress_line import ProgressLine
from keyhole.errors import MachineError
from keyhole.temporary import remove_abandoned
from keyhole.up.home import CHECKPOINTS, Home, Recorded
from keyhole.up.supervisor import STOP_SECONDS, end_leftovers

_LOOK_SECONDS = 0.2
# For its children one after the other, and some more.
_END_SECONDS = STOP_SECONDS.kafka + 30.0
_KILLED_SECONDS = 30.0


def down(home: Home, console: Console, *, delete: bool) -> int:
    """Ends all that runs here; nothing of it runs when this returns. Idempotent. Returns the exit code.

    Args:
        delete: Also deletes the folder, and says what goes first.

    Raises:
        MachineError: Another command is under way here, or what runs can't be found.
    """
    if not home.there:
        console.print(
            f"nothing of `keyhole up` is in {home.path}: change to the folder in which it was started, or name its "
            "data by --dir",
            markup=False,
            soft_wrap=True,
        )
        return 0
    with home.alone():
        ran = home.runs()
        if ran:
            _end(home, home.read(), console)
        recorded = home.read()
        if recorded is not None:
            end_leftovers(recorded)
            if recorded.ephemeral and recorded.data:
                remove_abandoned(Path(recorded.data).parent)
            if recorded.supervisor is not None:
                home.write(msgspec.structs.replace(recorded, supervisor=None, children={}, serves=False))
        what = "ended" if ran else "nothing runs here"
        megabytes = home.bytes() / 1e6
        if delete:
            goes = "the stores, the checkpoints and the logs" if home.has_checkpoints else "the stores and the logs"
            console.print(
                f"{what}; deleting {home.path}: Kafka's data, {goes}, {megabytes:.1f} MB",
                markup=False,
                soft_wrap=True,
            )
            home.remove()
        elif home.data.exists():
            console.print(
                f"{what}; the data stay in {home.path}, {megabytes:.1f} MB: --delete deletes them",
                markup=False,
                soft_wrap=True,
            )
        elif home.has_checkpoints:
            # Of jobs that ran without `keyhole up`, and go on with states that are somewhere else.
            console.print(
                f"{what}, and no data are left; the checkpoints of jobs stay in {home.path / CHECKPOINTS}",
                markup=False,
                soft_wrap=True,
            )
            home.remove(but_checkpoints=True)
        else:
            console.print(f"{what}, and no data are left", soft_wrap=True)
            home.remove()
    return 0


def _end(home: Home, recorded: Recorded | None, console: Console) -> None:
    supervisor = recorded.supervisor if recorded is not None else None
    if supervisor is None or not supervisor.alive:
        if not home.runs():
            return
        raise MachineError(
            f"a process holds {home.path} that can't be seen from here: it only starts, or is in a container; "
            "end it there, or try again",
            path=home.path,
        )
    supervisor.send(signal.SIGTERM)
    began = time.monotonic()
    with ProgressLine(console) as progress:
        while not supervisor.wait(_LOOK_SECONDS):
            seconds = time.monotonic() - began
            progress.show("ending", seconds)
            if seconds > _END_SECONDS:
                break
    if supervisor.alive:
        console.print("it does not end by itself: killing it", soft_wrap=True)
        supervisor.send(signal.SIGKILL)
        supervisor.wait(_KILLED_SECONDS)
