"""What a savepoint says of itself: the file that is written last, and makes the others a savepoint. Pure.

    {"format": 1, "sha256": "...", "savepoint": {...}}      the checksum is of the bytes of the object after it

docs/savepoints-reference.md has the same for those who read one in another language.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container

import msgspec

from keyhole.encoding.envelope import PLAIN, WITH_VERSIONS, layout_of
from keyhole.errors import SavepointDamaged, SavepointMismatch
from keyhole.hints import ready
from keyhole.model.state import StateDescriptor
from keyhole.protocol.batch_decisions import BROADCASTS
from keyhole.protocol.control import CompleteRecord, QueryRecord
from keyhole.savepoint.folder import SavedFile, part_of

WITH_PINS = WITH_VERSIONS
"""The format where a checkpoint says what a batch has read of a broadcast state (protocol.batch_decisions).
Whoever reads it knows of classes with a version, too: both came in one release."""

STATES, CHECKPOINTS = "states", "checkpoints"
"""Folders of a savepoint: of rows by state, of Spark's checkpoints by query."""

MANIFEST = "manifest.json"
INCOMPLETE = "incomplete.json"
"""There from before the first file until after the manifest: what else is in the folder may be removed."""


def begun(files: Container[str]) -> bool:
    """Whether a savepoint has begun to be taken where these files are. Without a manifest it is not whole."""
    return INCOMPLETE in files or part_of(INCOMPLETE) in files


class SavedState(msgspec.Struct, frozen=True):
    """A state: its files hold its rows ascending by storage key, one file after the other."""

    descriptor: StateDescriptor
    rows: int
    files: tuple[SavedFile, ...]


class SavedCheckpoint(msgspec.Struct, frozen=True):
    """A copy of Spark's checkpoint as it was when `batch` was complete; `prefix`/name is where each file is."""

    batch: int
    prefix: str
    files: tuple[SavedFile, ...]


class SavedQuery(msgspec.Struct, frozen=True):
    """A query at its complete epoch: `complete` and `record` as they were in the control topic.

    Attributes:
        checkpoint: None: all that a checkpoint would say is in `complete.offsets`.
    """

    query: str
    complete: CompleteRecord
    record: QueryRecord
    checkpoint: SavedCheckpoint | None = None

    @property
    def batch(self) -> int:
        """Spark's number of the complete epoch."""
        return self.complete.epoch - self.record.base


@ready
class Savepoint(msgspec.Struct, frozen=True):
    """All states of an application, and what their queries need to go on from there.

    Attributes:
        id: Unique.
        skipped_queries: Queries that had not completed any epoch; they, and their states, begin anew.
        fed_queries: Queries whose states are fed by updates: no savepoint has these yet.
    """

    id: str
    application: str
    created_ms: int
    queries: tuple[SavedQuery, ...]
    states: tuple[SavedState, ...]
    skipped_queries: tuple[str, ...] = ()
    fed_queries: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[SavedFile, ...]:
        """The files of all states and checkpoints: every file but the manifest."""
        checkpoints = [query.checkpoint.files for query in self.queries if query.checkpoint is not None]
        return tuple(file for files in (*(state.files for state in self.states), *checkpoints) for file in files)


@ready
class _Manifest(msgspec.Struct):
    format: int
    sha256: str
    savepoint: msgspec.Raw


@ready
class _Format(msgspec.Struct):
    format: int


def encode_manifest(savepoint: Savepoint) -> bytes:
    """The bytes of the file."""
    body = msgspec.json.format(msgspec.json.encode(savepoint), indent=1)
    head = f'{{"format": {_format(savepoint)}, "sha256": "{hashlib.sha256(body).hexdigest()}", "savepoint": '
    return head.encode() + body + b"}"


def _format(savepoint: Savepoint) -> int:
    """So that whoever doesn't know how something in it is laid out refuses the savepoint."""
    checkpoints = [query.checkpoint for query in savepoint.queries if query.checkpoint is not None]
    if any(file.path.startswith(f"{of.prefix}/{BROADCASTS}/") for of in checkpoints for file in of.files):
        return WITH_PINS
    return max((layout_of(state.descriptor) for state in savepoint.states), default=PLAIN)


def decode_manifest(data: bytes, where: str) -> Savepoint:
    """The inverse.

    Raises:
        SavepointDamaged: These are other bytes than were written.
        SavepointMismatch: Another version of Keyhole wrote it.
    """
    try:
        written = msgspec.json.decode(data, type=_Format).format
        if not PLAIN <= written <= WITH_VERSIONS:
            raise SavepointMismatch(
                f"the savepoint at {where} has format {written}; this version of Keyhole reads formats {PLAIN} to "
                f"{WITH_VERSIONS}: use the version that made it, or a later one",
                path=where,
                format=written,
            )
        manifest = msgspec.json.decode(data, type=_Manifest)
        if hashlib.sha256(bytes(manifest.savepoint)).hexdigest() != manifest.sha256:
            raise _damaged(where)
        return msgspec.json.decode(manifest.savepoint, type=Savepoint)
    except msgspec.MsgspecError as error:
        raise _damaged(where) from error


def _damaged(where: str) -> SavepointDamaged:
    return SavepointDamaged(
        f"the savepoint at {where} is damaged: {MANIFEST} is not as it was written. Restore another one, or a copy of "
        "this one",
        path=where,
        file=MANIFEST,
    )
