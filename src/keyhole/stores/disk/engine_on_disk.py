"""What the engines share that keep each state in files of its own below one directory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from keyhole.errors import StoreLocked
from keyhole.stores.disk.identity import Identity
from keyhole.stores.disk.store_directory import StoreDirectory


class _Closable(Protocol):
    @property
    def closed(self) -> bool: ...

    def close(self) -> None: ...


_Store = TypeVar("_Store", bound=_Closable)


class EngineOnDisk(ABC, Generic[_Store]):
    """See base.StoreEngine. One thread opens, destroys and closes.

    Args:
        directory, engine, version: As StoreDirectory takes them, and with its errors.
    """

    def __init__(self, directory: Path, engine: str, version: int) -> None:
        self._directory = StoreDirectory(directory, engine, version)
        # The files of one state must not be opened twice in a process: with LMDB, say, closing one of two would drop
        # the locks of both.
        self._stores: dict[tuple[str, str], _Store] = {}

    @abstractmethod
    def _opened(self, path: Path, identity: Identity) -> _Store:
        """Opens, or makes, the store in these files."""

    def open(self, application: str, state: str, topic_id: str) -> _Store:
        self._refuse_open(application, state)
        path = self._directory.state_path(application, state)
        store = self._stores[application, state] = self._opened(path, Identity(application, state, topic_id))
        return store

    def destroy(self, application: str, state: str) -> None:
        self._refuse_open(application, state)
        self._stores.pop((application, state), None)
        self._directory.remove(application, state)

    def close(self) -> None:
        for store in self._stores.values():
            store.close()
        self._stores.clear()
        self._directory.close()

    def _refuse_open(self, application: str, state: str) -> None:
        store = self._stores.get((application, state))
        if store is not None and not store.closed:
            raise StoreLocked(f"the store of {application}/{state} is already open in this process; close it first")
