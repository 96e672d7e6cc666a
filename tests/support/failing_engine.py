"""Stores that can't be opened, or fail just after that."""

from __future__ import annotations

from typing import Any

from keyhole.stores.base import Store, StoreEngine


class FailingEngine:
    """Around another engine; see stores.base.StoreEngine.

    Attributes:
        opening, looking: What the next `open`, or the next snapshot of a store that is opened then, raises; None: it
            does what the other engine does.
        opened: States whose stores were opened, in order.
    """

    def __init__(self, inner: StoreEngine) -> None:
        self._inner = inner
        self.opening: Exception | None = None
        self.looking: Exception | None = None
        self.opened: list[str] = []

    def open(self, application: str, state: str, topic_id: str) -> Store:
        failure, self.opening = self.opening, None
        if failure is not None:
            raise failure
        store = self._inner.open(application, state, topic_id)
        self.opened.append(state)
        failure, self.looking = self.looking, None
        return store if failure is None else _BlindStore(store, failure)

    def destroy(self, application: str, state: str) -> None:
        self._inner.destroy(application, state)

    def close(self) -> None:
        self._inner.close()


class _BlindStore:
    """A store whose content can't be looked at."""

    def __init__(self, inner: Store, failure: Exception) -> None:
        self._inner = inner
        self._failure = failure

    def snapshot(self) -> Any:
        raise self._failure

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
