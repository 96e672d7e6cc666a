"""States of running jobs, as a query reads them through a client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from keyhole.client import Client
from keyhole.encoding.key_ranges import ALL_KEYS
from keyhole.encoding.selected_entries import usable_indexes, usable_keys
from keyhole.model.predicates import Predicate
from keyhole.model.read import KeyedEntry
from keyhole.model.selection import Selection
from keyhole.model.state import StateDescriptor
from keyhole.model.state_path import state_path
from keyhole.rpc.scan_requests import scan_number
from keyhole.sql.entry_dataset import EntryDataset, QueryReading


class LiveStates:
    """All states of one Spark query are read as of one epoch, the last one that they all have."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def names(self, application: str) -> Iterable[str]:
        """The states of an application. Raises as Client.list_states."""
        return [of.state for of in self._client.list_states(application)]

    def datasets(self, paths: Mapping[str, str], reading: QueryReading) -> Mapping[str, EntryDataset]:
        """What DuckDB reads. Raises as Client.describe_state and Client.snapshot."""
        described = {name: self._client.describe_state(*state_path(path)) for name, path in paths.items()}
        epochs = self._epochs(described.values())
        return {
            name: LiveDataset(self._client, of, epochs.get((of.application, of.query), 0), reading)
            for name, of in described.items()
        }

    def _epochs(self, described: Iterable[StateDescriptor]) -> dict[tuple[str, str], int]:
        """As of which the states of each Spark query are read."""
        states: dict[tuple[str, str], list[StateDescriptor]] = {}
        for of in described:
            if not of.updates_topic_id:  # else each key group has epochs of its own
                states.setdefault((of.application, of.query), []).append(of)
        return {query: self._client.snapshot(*(of.path for of in group)).epoch for query, group in states.items()}


class LiveDataset(EntryDataset):
    """Of one state, which servers are asked for."""

    def __init__(self, client: Client, descriptor: StateDescriptor, epoch: int, reading: QueryReading) -> None:
        super().__init__(descriptor, epoch, reading)
        self._client = client

    def _indexes(self, where: Predicate | None) -> tuple[str, ...]:
        return tuple(of.field.name for of in usable_indexes(self._descriptor, where))

    def _by_key(self, where: Predicate | None) -> bool:
        return usable_keys(self._descriptor, where) != ALL_KEYS

    def _pages(self, select: Selection) -> Iterator[Sequence[KeyedEntry]]:
        of, number = self._descriptor, scan_number()
        for group in range(of.key_groups):
            # Each by itself: a filter that nothing passes must not hide that the time is over.
            scan = self._client.scan_all(
                of.application,
                of.state,
                key_groups=range(group, group + 1),
                part_of=number,
                as_of=self._epoch or None,
                timeout=self._reading.check_time(),
                where=select.where,
                fields=select.fields,
                keys_only=select.keys_only,
            )
            with scan:
                while entries := scan.page():
                    yield entries
