"""An aggregator in three versions, whose accumulators differ in shape and then in meaning; their results are alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from keyhole.model.state import StateDescriptor, StateKind, ValueField, ValueSchema
from tests.support.states import descriptor

RESULT = ValueSchema(1, (ValueField("total", "bigint"), ValueField("rows", "bigint")))


class First:
    """Stores [total, rows]."""

    commutative = True

    def create(self) -> Any:
        return [0, 0]

    def add(self, accumulator: Any, row: Any) -> Any:
        return [accumulator[0] + row.v, accumulator[1] + 1]

    def merge(self, one: Any, other: Any) -> Any:
        return [one[0] + other[0], one[1] + other[1]]

    def result(self, accumulator: Any) -> Mapping[str, int]:
        return {"total": accumulator[0], "rows": accumulator[1]}


class Second(First):
    """Stores the same by name."""

    version = 2

    def create(self) -> Any:
        return {"total": 0, "rows": 0}

    def add(self, accumulator: Any, row: Any) -> Any:
        return {"total": accumulator["total"] + row.v, "rows": accumulator["rows"] + 1}

    def merge(self, one: Any, other: Any) -> Any:
        return {name: one[name] + other[name] for name in one}

    def result(self, accumulator: Any) -> Mapping[str, int]:
        return dict(accumulator)

    def upgrade(self, accumulator: Any, version: int) -> Any:
        assert version == 1
        return dict(zip(("total", "rows"), accumulator, strict=True))


class Third(First):
    """Stores [a thousand times the total, rows], so that one of the first version can be taken for it."""

    version = 3

    def add(self, accumulator: Any, row: Any) -> Any:
        return [accumulator[0] + 1000 * row.v, accumulator[1] + 1]

    def result(self, accumulator: Any) -> Mapping[str, int]:
        thousand, rows = accumulator
        return {"total": thousand // 1000, "rows": rows}

    def upgrade(self, accumulator: Any, version: int) -> Any:
        if version == 2:
            accumulator = [accumulator["total"], accumulator["rows"]]
        return [1000 * accumulator[0], accumulator[1]]


VERSIONS: Mapping[int, type[First]] = {1: First, 2: Second, 3: Third}


def aggregating(version: int, **changes: object) -> StateDescriptor:
    """The state, as a job with this version of the class declares it."""
    return descriptor(kind=StateKind.AGGREGATING, value=RESULT, class_version=version, **changes)


class Bytes(First):
    """The first version with an encoding of its own."""

    def encode(self, accumulator: Any) -> bytes:
        return b"".join(number.to_bytes(4, "big") for number in accumulator)

    def decode(self, data: bytes) -> Any:
        assert len(data) == 8
        return [int.from_bytes(data[:4], "big"), int.from_bytes(data[4:], "big")]


class WiderBytes(Bytes):
    """With eight bytes for each number: what the first version has written would be read as other numbers."""

    version = 2
    given: ClassVar[list[tuple[Any, int]]] = []

    def encode(self, accumulator: Any) -> bytes:
        return b"".join(number.to_bytes(8, "big") for number in accumulator)

    def decode(self, data: bytes) -> Any:
        return [int.from_bytes(data[:8], "big"), int.from_bytes(data[8:], "big")]

    def upgrade(self, stored: Any, version: int) -> Any:
        self.given.append((stored, version))
        return Bytes().decode(stored)
