"""The demo's live table: the last answer for each of a few keys, and how it ages; and the last alert of one of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from keyhole import Answer, Entries
from keyhole.demo.reading_ages import RECENT_SECONDS
from keyhole.errors import KeyholeError
from keyhole.terminal.tables import age


class AnswersTable:
    """Keeps the last answers, so that they stay in sight, with their age, while their server is away."""

    def __init__(self, title: str, keys: Sequence[str]) -> None:
        self._title = title
        self._keys = keys
        self._answers: Sequence[Answer] = ()
        self._alert = ""
        self._freshness = ""
        self._trouble = ""

    def update(self, answers: Sequence[Answer]) -> None:
        """Takes the answers, one per key in their order."""
        self._answers, self._trouble = answers, ""

    def note_alerts(self, sensor: str, alerts: Entries) -> None:
        """Takes the alerts of a sensor, the last one first; there may be none."""
        for alert in alerts.values[:1]:
            moment = datetime.fromtimestamp(alert.time_ms / 1000, UTC)
            self._alert = f"alert at {moment:%H:%M:%S}: {sensor} from {alert.last:.2f} to {alert.new:.2f} °C"

    def note_freshness(self, percentiles_ms: tuple[float, float] | None) -> None:
        """Takes how old readings were when they were first shown, of late: the median, and 99 in 100 at most; None:
        there were none.
        """
        of_late = f"the last {RECENT_SECONDS:.0f} s"
        if percentiles_ms is None:
            self._freshness = f"no new reading of the probe in {of_late}"
            return
        median, most = map(_seconds, percentiles_ms)
        self._freshness = f"first shown {median} after it was sent: median of {of_late}; p99 {most}"

    def fail(self, error: KeyholeError) -> None:
        """Takes note that there were no answers."""
        self._trouble = f"no answers now: {error.reason}"

    def render(self) -> Table:
        """The table as of now."""
        # A terminal of 80 columns has room for it, without lines between its own.
        table = Table(title=self._title, title_justify="left", caption_justify="left", box=SIMPLE_HEAD)
        table.collapse_padding, table.pad_edge = True, False
        table.caption = "\n".join(filter(None, (self._freshness, self._alert, self._trouble))) or None
        table.add_column("sensor")
        for name in ("last °C", "min", "max", "mean", "readings", "epoch", "age"):
            table.add_column(name, justify="right")
        table.add_column("server")
        now = datetime.now(UTC)
        for key, answer in zip(self._keys, self._answers, strict=False):  # none before the first answers
            table.add_row(key, *_cells(answer, now))
        return table


def _cells(answer: Answer, now: datetime) -> tuple[str, ...]:
    of = answer.value
    degrees = (of.last, of.min, of.max, _mean(of)) if answer.found else ()
    shown = [f"{temperature:.2f}" for temperature in degrees] or ["-"] * 4
    readings = f"{of.readings:,}" if answer.found else "-"
    return *shown, readings, str(answer.epoch), age(answer.source, now), answer.server


def _mean(of: Any) -> float:
    """Where the state has none it has what it is made of: a total can be merged, and a mean can't."""
    return float(of.total / of.readings if hasattr(of, "total") else of.mean)


def _seconds(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.1f} s" if milliseconds >= 1000 else f"{milliseconds:.0f} ms"
