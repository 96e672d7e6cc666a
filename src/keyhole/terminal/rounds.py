"""Shows something again and again, until Ctrl-C: in a terminal in place of what was there, in a pipe line by line."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from rich.console import Console, RenderableType
from rich.live import Live


def time_of_day() -> str:
    """The time by the clock on the wall here, to the second."""
    return datetime.now(UTC).astimezone().strftime("%H:%M:%S")


class Rounds(NamedTuple):
    """How often to look. `most`: so many times; None: until it is ended."""

    seconds: float
    most: int | None


def show_rounds(
    console: Console,
    rounds: Rounds,
    look: Callable[[], object],
    shown: Callable[[], RenderableType],
    say: Callable[[], None],
) -> None:
    """Returns after so many rounds, or at a KeyboardInterrupt; the terminal is as it was then, below the last round.

    Args:
        look: Is called once a round, and may take a while.
        shown: What it has found, for a terminal as large as it is now.
        say: Writes the same where there is no terminal, lines that stay.
    """
    done = 0
    live = Live(console=console, auto_refresh=False, screen=True) if console.is_terminal else None
    try:
        if live is not None:
            live.start()
        while rounds.most is None or done < rounds.most:
            next_round = time.monotonic() + rounds.seconds
            look()
            done += 1
            if live is not None:
                live.update(shown(), refresh=True)
            else:
                say()
            if done != rounds.most:
                time.sleep(max(0.0, next_round - time.monotonic()))
    except KeyboardInterrupt:
        pass
    finally:
        if live is not None:
            live.stop()
    if live is not None and done:
        console.print(shown())
