"""Finds savepoints, and checks whether they are sound."""

from __future__ import annotations

from dataclasses import dataclass

from keyhole.errors import KeyholeError, SavepointDamaged, SavepointMismatch
from keyhole.savepoint.folder import Folder, check_file, damaged, part_of
from keyhole.savepoint.manifest import INCOMPLETE, MANIFEST, STATES, Savepoint, begun, decode_manifest


@dataclass(frozen=True)
class Listed:
    """A folder that is, or was to become, a savepoint. `problem`: empty where it is sound as far as was looked."""

    path: str
    savepoint: Savepoint | None
    problem: str

    @property
    def bytes(self) -> int:
        """The bytes of all of its files but the manifest; 0: it has none."""
        return sum(file.bytes for file in self.savepoint.files) if self.savepoint is not None else 0


def load(folder: Folder) -> Savepoint:
    """What the savepoint says of itself.

    Raises:
        SavepointMismatch: There is none, or one of another format.
        SavepointDamaged: It can't be read.
    """
    try:
        return decode_manifest(folder.read(MANIFEST), folder.path)
    except FileNotFoundError:
        pass
    files = folder.files()
    if begun(files):
        raise SavepointMismatch(
            f"the savepoint at {folder.path} is incomplete: taking it was broken off, or is under way. If it was "
            "broken off, take it anew (`keyhole savepoint create` overwrites what is there), or remove the folder",
            path=folder.path,
        )
    if files:
        raise SavepointDamaged(
            f"{folder.path} is no savepoint, or a damaged one: it has no {MANIFEST}", path=folder.path, file=MANIFEST
        )
    raise SavepointMismatch(f"there is no savepoint at {folder.path}", path=folder.path)


def check(folder: Folder, savepoint: Savepoint, *, checksums: bool) -> None:
    """Looks at every file: its size, and with `checksums` its bytes.

    Raises:
        SavepointDamaged: One is missing, or not as it was written.
    """
    sizes = folder.files()
    for saved in savepoint.files:
        if saved.path not in sizes:
            raise damaged(folder, saved.path, "is missing")
        if sizes[saved.path] != saved.bytes:
            raise damaged(folder, saved.path, f"has {sizes[saved.path]} bytes, {saved.bytes} were written")
        if checksums:
            check_file(folder, saved)


def listing(folder: Folder, *, checksums: bool) -> list[Listed]:
    """The folder itself where it is a savepoint; else those directly in it, by name.

    Raises:
        InvalidConfiguration: The folder doesn't exist, or can't be read.
    """
    folder.check_there()
    if _is_one(folder):
        return [_listed(folder, checksums)]
    below = [folder.below(name) for name in folder.folders()]
    return [_listed(each, checksums) for each in below if _is_one(each)]


def _is_one(folder: Folder) -> bool:
    """Also one whose manifest was lost."""
    notes = (MANIFEST, INCOMPLETE, part_of(INCOMPLETE))
    return any(folder.exists(name) for name in notes) or STATES in folder.folders()


def _listed(folder: Folder, checksums: bool) -> Listed:
    savepoint = None
    try:
        savepoint = load(folder)
        check(folder, savepoint, checksums=checksums)
    except KeyholeError as error:
        return Listed(folder.path, savepoint, error.message)
    return Listed(folder.path, savepoint, "")
