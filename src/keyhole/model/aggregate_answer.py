"""What was computed of many entries, by the names that the caller gave."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from keyhole.model.read import Source


class AggregateAnswer(msgspec.Struct, frozen=True):
    """Figures by name: `answer["hottest"]`, `dict(answer)`.

    Attributes:
        values: A number, or what a reader gets of the field; of a top entries, as a list of KeyedEntry.
        sources: Who computed them, and as of when: of one epoch each, of different ones where servers are.
    """

    values: Mapping[str, Any]
    sources: tuple[Source, ...]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def keys(self) -> tuple[str, ...]:
        """The names, so that `dict(answer)` works."""
        return tuple(self.values)
