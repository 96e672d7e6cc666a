"""`keyhole size`: how quantities are read, what a load takes by known constants, and what docs/sizing.md quotes."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from keyhole.cli.main import main
from keyhole.cli.size.constants import Constants
from keyhole.cli.size.model import Prices, Workload, in_keyhole, in_redis
from keyhole.cli.size.quantities import bytes_said, price, quantity, rate, share, size

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sizing.md"
LOAD = ["size", "--keys", "1M", "--updates", "10k/s"]

# A power of two each, so that nothing is hidden by rounding.
ROUND = Constants(
    writer_us_per_row=1,
    owner_us_per_row=2,
    owner_us_per_partition=0,
    standby_us_per_row=4,
    standby_us_per_partition=0,
    kafka_us_per_row=8,
    kafka_us_per_partition=0,
    kafka_us_per_row_followed=16,
    server_us_per_read=32,
    proxy_us_per_read=64,
    server_mib=1,
    proxy_mib=1,
    frame_bytes_per_read=4,
    changelog_bytes_per_byte=0.5,
    lmdb_bytes_per_key=100,
    lmdb_bytes_per_byte=2,
    rocksdb_bytes_per_key=0,
    rocksdb_bytes_per_byte=1,
    redis_bytes_per_key=50,
    redis_bytes_per_byte=1,
    redis_us_per_row=2,
    redis_us_per_read=1,
    redis_writer_us_per_row=4,
)
PLAIN = Workload(
    keys=1e6,
    updates=1e9,
    reads=1e5,
    written_keys=1e6,
    standbys=2,
    changelog_copies=3,
    redis_replicas=2,
    key_bytes=10,
    value_bytes=90,
    batch_seconds=1.0,
    busy=0.5,
)


def test_quantities_are_read_as_they_are_written() -> None:
    assert [quantity(text) for text in ("100M", "2.5k", "1_000", "1B")] == [1e8, 2500, 1000, 1e9]
    assert [rate(text) for text in ("1.2M/s", "72M/min", " 3600/h", "86400/d")] == [1.2e6, 1.2e6, 1, 1]
    assert [size(text) for text in ("40", "4KiB", "1MB")] == [40, 4096, 1e6]
    assert [bytes_said(of) for of in (0, 900, 1536, 2**40 * 20)] == ["0 B", "900 B", "1.5 KiB", "20 TiB"]
    assert bytes_said(2**70) == "1,048,576 PiB"


@pytest.mark.parametrize(
    ("read", "text", "says"),
    [
        (quantity, "100X", "'100X' can't be read; write a number"),
        (quantity, "-1", "'-1' can't be read"),
        (quantity, "0M", "0M is nothing"),
        (quantity, "1.2.3", "can't be read"),
        (quantity, "100M/s", "'100M/s' can't be read"),
        (rate, "1.2M", "doesn't say per which time; write 1.2M/s, /min, /h or /d"),
        (rate, "1.2M/fortnight", "'fortnight' of '1.2M/fortnight' is no unit of time"),
        (rate, "M/s", "'M/s' can't be read; write a number and a time: 1.2M/s"),
        (size, "4GB/s", "write bytes"),
        (share, "nan", "nan is no share"),
        (share, "half", "'half' is no number"),
        (price, "$20", "'$20' is no price; write a number without a currency"),
    ],
)
def test_what_is_no_quantity_is_refused_by_name(read: Callable[[str], float], text: str, says: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=re.escape(says)):
        read(text)


def test_updates_of_one_key_in_one_batch_are_one_row() -> None:
    assert PLAIN.rows == pytest.approx(1e6)  # every key is written in each batch
    few = dataclasses.replace(PLAIN, updates=10, batch_seconds=10)
    assert few.rows == pytest.approx(10, rel=1e-4)  # hardly any two are of one key
    even = dataclasses.replace(PLAIN, updates=1e6)
    assert even.rows == pytest.approx(1e6 * (1 - math.exp(-1)))


def test_all_copies_are_counted_on_both_sides() -> None:
    ours, theirs = in_keyhole(PLAIN, ROUND), in_redis(PLAIN, ROUND)
    # Rows: 1M/s. Owner 2 us a row and 32 a read; two standbys of 4; Kafka 8 us three times, and 16 for each follower.
    assert (ours.writer_cores, ours.owner_cores, ours.copies_cores) == pytest.approx((1, 2 + 3.2, 8))
    assert (ours.kafka_cores, ours.proxy_cores) == pytest.approx((3 * 8 + 2 * 16, 6.4))
    assert ours.cores == pytest.approx((1 + 5.2 + 8 + 56 + 6.4) / 0.5)
    assert (ours.servers, ours.proxies) == (27, 13)
    assert ours.disk_bytes == pytest.approx(3 * 1e6 * 300)
    assert ours.memory_bytes == pytest.approx(3 * 1e6 * 300 + (27 + 13) * 2**20)
    # As much again as the live keys, and ten minutes that are not compacted; 50 bytes a record, three times.
    assert ours.kafka_disk_bytes == pytest.approx(3 * 50 * (2e6 + 600e6))
    assert ours.kafka_bytes_per_second == pytest.approx(150e6)
    assert ours.network_bytes_per_second == pytest.approx(1e6 * (100 + 50 * 5) + 2 * 1e5 * 104)
    assert (theirs.writer_cores, theirs.owner_cores, theirs.copies_cores) == pytest.approx((4, 2.1, 4))
    assert (theirs.servers, theirs.kafka_cores, theirs.proxies) == (15, 0, 0)
    assert theirs.memory_bytes == pytest.approx(3 * 1e6 * 150)


def test_choices_change_what_they_say() -> None:
    base = in_keyhole(PLAIN, ROUND)
    rocks = in_keyhole(dataclasses.replace(PLAIN, store="rocksdb", in_memory=0.25), ROUND)
    assert rocks.disk_bytes == pytest.approx(base.disk_bytes / 3)
    assert rocks.memory_bytes == pytest.approx(rocks.disk_bytes / 4 + 40 * 2**20)
    alone = in_keyhole(dataclasses.replace(PLAIN, standbys=0, changelog_copies=1, reads=0), ROUND)
    assert (alone.copies_cores, alone.kafka_cores, alone.proxies) == pytest.approx((0, 8, 1))
    assert base.month(Prices()) is None
    assert base.month(Prices(core=2)) == pytest.approx(base.cores * 2)
    disk = (base.disk_bytes + base.kafka_disk_bytes) / 2**30
    assert base.month(Prices(disk_gib=1, memory_gib=2)) == pytest.approx(disk + base.memory_bytes / 2**29)


def test_the_command_prints_json_and_takes_constants_of_ones_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.json"
    mine.write_text('{"redis_bytes_per_key": 1000, "redis_bytes_per_byte": 0}')
    assert main([*LOAD, "--json", "--constants", str(mine), "--price-memory", "2"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["redis"]["memory_bytes"] == 2 * 1e6 * 1000
    assert told["redis"]["price_per_month"] == pytest.approx(2 * told["redis"]["memory_bytes"] / 2**30)
    assert told["workload"]["updates"] == 10_000
    assert told["constants"]["owner_us_per_row"] == Constants().owner_us_per_row
    for content, says in (
        ('{"nope": 1}', "has 'nope', which is no constant; there are writer_us_per_row"),
        ('{"redis_us_per_row": -1}', "says -1.0 of redis_us_per_row; it must be 0 or more"),
        ("[]", "is not what `uv run python -m benchmarks.sizing` prints"),
    ):
        mine.write_text(content)
        assert main([*LOAD, "--constants", str(mine)]) == 2
        assert says in capsys.readouterr().err
    assert main([*LOAD, "--constants", str(tmp_path / "none")]) == 2
    assert "No such file" in capsys.readouterr().err
    assert main([*LOAD, "--written-keys", "2M"]) == 2
    assert "--written-keys 2,000,000 are more than --keys 1,000,000" in capsys.readouterr().err


@pytest.mark.parametrize("block", re.findall(r"^    \$ keyhole (.+?)(?=\n\n\S)", PAGE.read_text(), re.S | re.M))
def test_the_page_quotes_what_the_command_prints(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    command, quoted = re.split(r"\n(?! {8})", block, maxsplit=1)
    assert main(shlex.split(command.replace("\\\n", " "))) == 0
    assert capsys.readouterr().out == "".join(f"{line[4:]}\n" for line in quoted.splitlines())


def test_the_page_lists_every_constant_with_its_value() -> None:
    told = dict(re.findall(r"^\| `(\w+)` \| ([\d.,]+) \|", PAGE.read_text(), re.M))
    assert told == {name: f"{value:,g}" for name, value in dataclasses.asdict(Constants()).items()}
