"""Scans under way on one server: how many there may be and for how long, and their answers page by page."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from keyhole.encoding.entry_filter import StoredEntry
from keyhole.encoding.selected_entries import SelectedEntries
from keyhole.errors import DeadlineExceeded
from keyhole.rpc.scan_caps import too_many_scans
from services.state_server.read.copies import Scanned


@dataclass(frozen=True)
class ScanLimits:
    """What one scan, and all of them together, may take of a server.

    Attributes:
        most: Scans at a time. Each may keep an older snapshot, and so old pages of the store, alive.
        seconds: How long one may keep it. Old pages that are kept make the store grow, and a full one takes no more
            epochs: a reader that does not read must not bring the job to a stop.
        page_entries, page_bytes: A page is sent when it has reached either; it has less than twice as much.
        turn_entries: Looked at in one turn of the event loop, hidden ones included: some milliseconds.
    """

    most: int = 64
    seconds: float = 60.0
    page_entries: int = 500
    page_bytes: int = 256 << 10
    turn_entries: int = 2_000


@dataclass
class Page:
    """Part of an answer: storage keys and rows. Without any: only a turn of the event loop has passed."""

    keys: list[bytes] = field(default_factory=list)
    rows: list[bytes] = field(default_factory=list)


class Scans:
    """Used from the event loop's thread only."""

    def __init__(self, limits: ScanLimits) -> None:
        self._limits = limits
        self._open = 0

    @property
    def under_way(self) -> int:
        """Counts the scans that are open."""
        return self._open

    @contextmanager
    def open(self, start: Callable[[], Scanned]) -> Iterator[Scanned]:
        """A scan, closed at the end of the block, or when it has taken too long.

        Raises:
            Overloaded: There are too many.
            KeyholeError: As `start`.
        """
        if self._open >= self._limits.most:
            raise too_many_scans(self._open, "this server", self._limits.most, "KEYHOLE_STATE_SERVER_MAX_SCANS")
        scanned = start()
        self._open += 1
        late = asyncio.get_running_loop().call_later(self._limits.seconds, self._close, scanned)
        try:
            yield scanned
        finally:
            late.cancel()
            self._close(scanned)

    def _close(self, scanned: Scanned) -> None:
        if not scanned.closed:
            self._open -= 1
            scanned.close()

    def pages(self, scanned: Scanned, limit: int, select: SelectedEntries | None = None) -> Generator[Page]:
        """Let other calls have their turn after each.

        Args:
            limit: The most entries; 0: all.
            select: Which of them count; None: all.

        Raises:
            DeadlineExceeded: It has taken too long, and was closed.
        """
        limits, left = self._limits, limit
        page, size, looked = Page(), 0, 0
        turn = max(1, limits.turn_entries // (1 if select is None else select.cost))
        while True:
            most = min(limits.page_entries, turn - looked)
            piece = self._piece(scanned, min(most, left) if limit and not (select and select.tests) else most)
            if not piece:
                break
            looked += len(piece)
            entries: Sequence[StoredEntry] = [entry for entry in piece if entry[1] is not None]  # type: ignore[misc]
            if select is not None:
                entries = select.kept(entries)
            if limit:
                entries = entries[:left]
                left -= len(entries)
            for key, row in entries:
                page.keys.append(key)
                page.rows.append(row)
                size += len(key) + len(row)
            if limit and not left:
                break
            if len(page.keys) >= limits.page_entries or size >= limits.page_bytes or looked >= turn:
                yield page
                self._check_open(scanned)
                page, size, looked = Page(), 0, 0
        yield page

    def _piece(self, scanned: Scanned, most: int) -> list[tuple[bytes, bytes | None]]:
        """The next entries: so many, or as many as take the bytes of a page. None: there are no more."""
        piece, room = [], self._limits.page_bytes
        for entry in itertools.islice(scanned.entries, most):
            piece.append(entry)
            room -= len(entry[0]) + len(entry[1] or b"")
            if room <= 0:
                break
        return piece

    def _check_open(self, scanned: Scanned) -> None:
        if scanned.closed:
            raise DeadlineExceeded(
                f"a scan may take {self._limits.seconds:g} s, and this one was not read to its end within that; read "
                "faster, or ask for fewer entries at once"
            )
