"""The states of a savepoint as a SQL query reads them: from its files, without Kafka, servers or Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from keyhole.client.wire.selected_rows import SelectedRows
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.envelope import Moment, visible
from keyhole.encoding.key_reading import entry_reader
from keyhole.encoding.selected_entries import SelectedEntries
from keyhole.encoding.value_types import time_of_micros
from keyhole.errors import UnknownApplication, UnknownState
from keyhole.model.read import KeyedEntry, Role, Source
from keyhole.model.selection import Selection
from keyhole.model.state_path import state_path
from keyhole.savepoint.folder import Folder
from keyhole.savepoint.listing import load
from keyhole.savepoint.manifest import SavedQuery, SavedState, Savepoint
from keyhole.savepoint.row_files import read_rows
from keyhole.sql.entry_dataset import EntryDataset, QueryReading


def opened(path: str) -> SavedStates:
    """The states of the savepoint at `path`: a folder, or whatever fsspec knows.

    Raises:
        SavepointMismatch: There is no savepoint, or one of another format.
        SavepointDamaged: A file is missing, or not as it was written.
        InvalidConfiguration: The folder can't be read.
    """
    folder = Folder(path)
    return SavedStates(folder, load(folder))


class SavedStates:
    """Those of one savepoint, as a query reads them.

    Attributes:
        application: Whose states they are.
    """

    def __init__(self, folder: Folder, savepoint: Savepoint) -> None:
        self._folder = folder
        self._savepoint = savepoint
        self.application = savepoint.application
        self._states = {of.descriptor.state: of for of in savepoint.states}
        self._queries = {of.query: of for of in savepoint.queries}

    def names(self, application: str) -> Iterable[str]:
        """Its states; of another application it has none."""
        return self._states if application == self._savepoint.application else ()

    def datasets(self, paths: Mapping[str, str], reading: QueryReading) -> Mapping[str, EntryDataset]:
        """What DuckDB reads. Raises UnknownApplication or UnknownState."""
        found = {name: self._state(*state_path(path)) for name, path in paths.items()}
        return {
            name: SavedDataset(self._folder, of, self._queries[of.descriptor.query], self._savepoint, reading)
            for name, of in found.items()
        }

    def _state(self, application: str, name: str) -> SavedState:
        mine = self._savepoint.application
        if application != mine:
            raise UnknownApplication(
                f"the savepoint at {self._folder.path} is of application {mine}, and not of {application}",
                application=application,
            )
        if name not in self._states:
            raise UnknownState(
                f"the savepoint at {self._folder.path} has no state {mine}/{name}; it has "
                f"{', '.join(sorted(self._states)) or 'none'}",
                states=", ".join(sorted(self._states)),
            )
        return self._states[name]


class SavedDataset(EntryDataset):
    """Of one state, whose files are read anew for each scan."""

    def __init__(
        self, folder: Folder, saved: SavedState, query: SavedQuery, savepoint: Savepoint, reading: QueryReading
    ) -> None:
        complete = query.complete
        super().__init__(saved.descriptor, complete.epoch, reading)
        self._path = folder.path
        self._files = saved.files
        self._as_of = Moment(max(savepoint.created_ms, complete.commit_time_ms), complete.watermark_ms)
        committed = time_of_micros(1000 * complete.commit_time_ms)
        self._source = Source(
            folder.path, Role.STANDBY, complete.epoch, committed, None, complete.generation, 0, unconfirmed=False
        )

    def _pages(self, select: Selection) -> Iterator[Sequence[KeyedEntry]]:
        of = self._descriptor
        codec, shown, selected = StateCodec(of), visible(of), SelectedEntries(of, select)
        read, rows = entry_reader(codec), SelectedRows(codec, select)
        # A folder is for one thread at a time, and DuckDB reads several states at once.
        for piece in read_rows(Folder(self._path), self._files, checksums=True):
            self._reading.check_time()
            entries = piece
            if shown is not None:
                there = shown(self._as_of).rows([stored for _, stored in piece])
                entries = [(key, row) for (key, _), row in zip(piece, there, strict=True) if row is not None]
            kept = selected.kept(entries)
            values = rows.values(selected.values([row for _, row in kept]))
            yield [KeyedEntry(*read(key), value, self._source) for (key, _), value in zip(kept, values, strict=True)]
