"""A line that says what is waited for, and how long by now."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

# Where there is no terminal, in which a line could take the place of the one before.
_SAY_AGAIN_SECONDS = 15.0


def say_starting(console: Console, what: str) -> None:
    """Says in a line of its own that this is started; it may hold a failed process's own words, shown as they are."""
    console.print(f"starting {what}", markup=False, soft_wrap=True)


class ProgressLine:
    """While it is entered, `show` may be called as often as one likes.

    In a terminal there is one line, which goes away at the end; elsewhere a line now and then.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._said_seconds = 0.0

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, what: str, seconds: float) -> None:
        """Says so.

        Args:
            what: Is waited for.
            seconds: For how long by now. Less than in the call before: another wait has begun.
        """
        if seconds < self._said_seconds:
            self._said_seconds = 0.0
        line = f"{what}: {seconds:.0f} s"
        if self._live is not None:
            self._live.update(Text(line), refresh=True)
        elif seconds - self._said_seconds >= _SAY_AGAIN_SECONDS:
            self._said_seconds = seconds
            self._console.print(line, markup=False, soft_wrap=True)
