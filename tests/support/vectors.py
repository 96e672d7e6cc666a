"""The golden vectors as Python values."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keyhole.model.state import KeyColumn, KeyType

FILE = Path(__file__).resolve().parents[2] / "vectors" / "spark_murmur3.json"


@dataclass(frozen=True)
class Vector:
    """One key: its columns, its values, and what Spark says of it."""

    columns: tuple[KeyColumn, ...]
    values: tuple[Any, ...]
    hash: int
    key_groups: dict[int, int]
    encoded: bytes

    @property
    def types(self) -> list[KeyType]:
        return [column.type for column in self.columns]


def golden_vectors() -> list[Vector]:
    return [_vector(item) for item in json.loads(FILE.read_text())["vectors"]]


def _vector(item: dict[str, Any]) -> Vector:
    types = [KeyType(name) for name in item["types"]]
    return Vector(
        columns=tuple(KeyColumn(f"c{number}", kind) for number, kind in enumerate(types)),
        values=tuple(_value(kind, value) for kind, value in zip(types, item["key"], strict=True)),
        hash=item["hash"],
        key_groups={int(number): group for number, group in item["key_groups"].items()},
        encoded=bytes.fromhex(item["encoded_key"]),
    )


def _value(kind: KeyType, value: Any) -> Any:
    if kind is KeyType.BINARY:
        return bytes.fromhex(value)
    if kind is KeyType.DATE:
        return dt.date(1970, 1, 1) + dt.timedelta(days=value)
    if kind is KeyType.TIMESTAMP:
        return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=value)
    return value
