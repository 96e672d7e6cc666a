"""Regenerates vectors/spark_murmur3.json with Spark: `uv run python vectors/generate.py`.

Spark computes the hashes and the key groups; the encoded keys are Keyhole's own, and are there for other languages.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from keyhole.encoding.key_codec import KeyCodec
from keyhole.model.state import KeyColumn, KeyType
from keyhole.spark.session import local_settings, start_session

FILE = Path(__file__).resolve().parent / "spark_murmur3.json"
KEY_GROUPS = (1, 8, 64, 100, 65_536)

_SPARK: dict[KeyType, t.DataType] = {
    KeyType.STRING: t.StringType(),
    KeyType.BINARY: t.BinaryType(),
    KeyType.BOOLEAN: t.BooleanType(),
    KeyType.SMALLINT: t.ShortType(),
    KeyType.INT: t.IntegerType(),
    KeyType.BIGINT: t.LongType(),
    KeyType.DATE: t.DateType(),
    KeyType.TIMESTAMP: t.TimestampType(),
}
_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"


def utc(*parts: int) -> dt.datetime:
    return dt.datetime(*parts, tzinfo=dt.UTC)  # type: ignore[misc,arg-type]  # year, month, day, ...


def _integers(bits: int) -> list[int]:
    limit = 1 << bits - 1
    return [-limit, -limit + 1, -257, -256, -2, -1, 0, 1, 2, 42, 127, 128, 255, 256, 1000, limit - 2, limit - 1]


def cases() -> list[tuple[list[KeyType], list[tuple[Any, ...]]]]:
    """Column types, and the keys to hash."""
    strings = [(_ALPHABET * 2)[:length] for length in range(65)]
    strings += [
        "Spark",
        "sensor-42",
        "é",
        "ß-Straße",
        "€",
        "日本語",
        "😀",
        "a😀b",
        "\0",
        "a\0b",
        "\0\xff",
        " ",
        "ÿ" * 7,
    ]
    binaries = [bytes((37 * i + 11) % 256 for i in range(length)) for length in range(20)]
    binaries += [b"\x00", b"\x00\x00", b"\xff" * 3, b"\x80\x7f\x81", b"\x00\xff\x00", bytes(range(256))]
    dates = [dt.date(1, 1, 1), dt.date(1582, 10, 15), dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(1970, 1, 2)]
    dates += [dt.date(2000, 2, 29), dt.date(2026, 11, 21), dt.date(9999, 12, 31)]
    times = [utc(1900, 1, 1), utc(1969, 12, 31, 23, 59, 59, 999_999), utc(1970, 1, 1), utc(1970, 1, 1, 0, 0, 0, 1)]
    times += [
        utc(2026, 11, 21, 12, 34, 56, 789_012),
        utc(2038, 1, 19, 3, 14, 8),
        utc(9999, 12, 31, 23, 59, 59, 999_999),
    ]
    single: list[tuple[KeyType, Sequence[Any]]] = [
        (KeyType.STRING, strings),
        (KeyType.BINARY, binaries),
        (KeyType.BOOLEAN, [False, True]),
        (KeyType.SMALLINT, _integers(16)),
        (KeyType.INT, _integers(32)),
        (KeyType.BIGINT, _integers(64)),
        (KeyType.DATE, dates),
        (KeyType.TIMESTAMP, times),
    ]
    composites: list[tuple[list[KeyType], list[tuple[Any, ...]]]] = [
        ([KeyType.STRING, KeyType.INT], [("", 0), ("a", -1), ("a\0", 7), ("日本", 2**31 - 1)]),
        ([KeyType.INT, KeyType.STRING], [(0, ""), (-1, "a"), (7, "a\0"), (2**31 - 1, "日本")]),
        ([KeyType.STRING, KeyType.STRING], [("", ""), ("a", "b"), ("ab", ""), ("", "ab"), ("a\0", "b")]),
        ([KeyType.BIGINT, KeyType.DATE], [(-(2**63), dt.date(1969, 12, 31)), (5, dt.date(2026, 11, 21))]),
        (
            list(KeyType),
            [("é", b"\0\x80", True, -5, 6, -7, dt.date(2024, 2, 29), utc(2024, 2, 29, 1, 2, 3, 4))],
        ),
    ]
    return [([kind], [(value,) for value in values]) for kind, values in single] + composites


def written(value: Any) -> Any:
    """As JSON: binary in hex, dates as days and timestamps as microseconds since 1970."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dt.datetime):
        return (value - utc(1970, 1, 1)) // dt.timedelta(microseconds=1)
    if isinstance(value, dt.date):
        return (value - dt.date(1970, 1, 1)).days
    return value


def generate(spark: SparkSession) -> str:
    """The file's text, the same every time."""
    vectors = []
    for kinds, keys in cases():
        names = [f"c{number}" for number in range(len(kinds))]
        codec = KeyCodec(KeyColumn(name, kind) for name, kind in zip(names, kinds, strict=True))
        schema = t.StructType([t.StructField(name, _SPARK[kind]) for name, kind in zip(names, kinds, strict=True)])
        hashed = f.hash(*names)
        groups = [f.pmod(hashed, f.lit(number)) for number in KEY_GROUPS]
        answers = spark.createDataFrame(keys, schema).select(hashed, *groups).collect()
        for key, (spark_hash, *key_groups) in zip(keys, answers, strict=True):
            vectors.append(
                {
                    "types": [str(kind) for kind in kinds],
                    "key": [written(value) for value in key],
                    "hash": spark_hash,
                    "key_groups": dict(zip(map(str, KEY_GROUPS), key_groups, strict=True)),
                    "encoded_key": codec.encode(key).hex(),
                }
            )
    lines = ",\n".join(json.dumps(vector, sort_keys=True) for vector in vectors)
    return f'{{"seed": 42, "spark": "{spark.version}", "vectors": [\n{lines}\n]}}\n'


def main() -> None:
    """Writes the file, or, with an argument, another one."""
    with tempfile.TemporaryDirectory() as directory:
        spark = start_session("vectors", local_settings([], Path(directory), cores=1))
        target = Path(sys.argv[1]) if len(sys.argv) > 1 else FILE
        target.write_text(generate(spark))
        spark.stop()


if __name__ == "__main__":
    main()
