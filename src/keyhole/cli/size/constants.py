"""What one row, read and key costs, as it was measured. `uv run python -m benchmarks.sizing` measures it anew."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from keyhole.errors import InvalidConfiguration

BENCHMARK = "uv run python -m benchmarks.sizing"


@dataclass(frozen=True)
class Constants:
    """Microseconds are of processor time. A row is one key's, committed in one epoch; a partition, one that an epoch
    touches. docs/sizing-reference.md says where each is from.
    """

    writer_us_per_row: float = 0.449
    owner_us_per_row: float = 3.43
    owner_us_per_partition: float = 821.0
    standby_us_per_row: float = 0.714
    standby_us_per_partition: float = 1540.0
    kafka_us_per_row: float = 1.88
    kafka_us_per_partition: float = 2270.0
    kafka_us_per_row_followed: float = 0.0
    server_us_per_read: float = 5.25
    proxy_us_per_read: float = 7.46
    server_mib: float = 74.0
    proxy_mib: float = 39.0
    frame_bytes_per_read: float = 7.14
    changelog_bytes_per_byte: float = 0.692
    lmdb_bytes_per_key: float = 130.0
    lmdb_bytes_per_byte: float = 2.2
    rocksdb_bytes_per_key: float = 0.0
    rocksdb_bytes_per_byte: float = 1.24
    redis_bytes_per_key: float = 84.9
    redis_bytes_per_byte: float = 1.09
    redis_us_per_row: float = 1.8
    redis_us_per_read: float = 1.0
    redis_writer_us_per_row: float = 5.4


def constants(file: Path | None) -> Constants:
    """Ours, with those of the file in their place.

    Raises:
        InvalidConfiguration: The file can't be read, or isn't what the benchmark prints.
    """
    if file is None:
        return Constants()
    try:
        found = msgspec.json.decode(file.read_bytes(), type=dict[str, float])
    except (OSError, msgspec.DecodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InvalidConfiguration(f"{file} is not what `{BENCHMARK}` prints: {why}", path=file) from error
    _check(found, file)
    return dataclasses.replace(Constants(), **found)


def _check(found: Mapping[str, float], file: Path) -> None:
    known = [field.name for field in dataclasses.fields(Constants)]
    if unknown := sorted(found.keys() - set(known)):
        raise InvalidConfiguration(f"{file} has {unknown[0]!r}, which is no constant; there are {', '.join(known)}")
    if below := sorted(name for name, value in found.items() if value < 0):
        raise InvalidConfiguration(f"{file} says {found[below[0]]} of {below[0]}; it must be 0 or more")
