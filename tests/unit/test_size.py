"""`keyhole size`: how quantities are read, what a load takes by known constants, and what docs/sizing.md and
docs/sizing-reference.md quote.
"""

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
from keyhole.cli.size.model import Prices, Workload, in_keyhole, in_redis, least_key_groups
from keyhole.cli.size.quantities import price, quantity, rate, rate_or_none, share, size
from keyhole.terminal.byte_counts import bytes_said

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE, CONSTANTS_PAGE = DOCS / "sizing.md", DOCS / "sizing-reference.md"
LOAD = ["size", "--keys", "1M", "--updates", "10k/s"]

# No two are alike, so that one in the place of another gives something else.
DISTINCT = Constants(
    writer_us_per_row=1,
    owner_us_per_row=2,
    owner_us_per_partition=1000,
    standby_us_per_row=3,
    standby_us_per_partition=3000,
    kafka_us_per_row=5,
    kafka_us_per_partition=7000,
    kafka_us_per_row_followed=11,
    server_us_per_read=13,
    proxy_us_per_read=17,
    server_mib=19,
    proxy_mib=23,
    frame_bytes_per_read=29,
    changelog_bytes_per_byte=0.5,
    lmdb_bytes_per_key=100,
    lmdb_bytes_per_byte=2.5,
    rocksdb_bytes_per_key=31,
    rocksdb_bytes_per_byte=1.5,
    redis_bytes_per_key=37,
    redis_bytes_per_byte=1.25,
    redis_us_per_row=41,
    redis_us_per_read=43,
    redis_writer_us_per_row=47,
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
    assert [quantity(text) for text in ("100M", "2.5k", "1_000", "1G")] == [1e8, 2500, 1000, 1e9]
    assert [rate(text) for text in ("1.2M/s", "72M/min", " 3600/h", "86400/d")] == [1.2e6, 1.2e6, 1, 1]
    assert [rate_or_none(text) for text in ("0", "0/s", "0.0M/h", "2/s")] == [0, 0, 0, 2]
    assert [size(text) for text in ("40", "4KiB", "1MB")] == [40, 4096, 1e6]
    assert [bytes_said(of) for of in (0, 900, 1536, 2**40 * 20)] == ["0 B", "900 B", "1.5 KiB", "20 TiB"]
    assert bytes_said(2**70) == "1,048,576 PiB"


@pytest.mark.parametrize(
    ("read", "text", "says"),
    [
        (quantity, "100X", "'100X' can't be read; write a number"),
        (quantity, "1B", "'1B' can't be read; write a number, with k, M, G (10^9) or T"),
        (quantity, "-1", "'-1' can't be read"),
        (quantity, "0M", "0M is nothing"),
        (quantity, "1.2.3", "can't be read"),
        (quantity, "100M/s", "'100M/s' can't be read"),
        (rate, "1.2M", "doesn't say per which time; write 1.2M/s, /min, /h or /d"),
        (rate, "1.2M/fortnight", "'fortnight' of '1.2M/fortnight' is no unit of time"),
        (rate, "0/s", "0/s is nothing; write a number and a time: 1.2M/s"),
        (rate_or_none, "0/x", "'x' of '0/x' is no unit of time"),
        (size, "0", "0 is nothing"),
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
    values = dataclasses.astuple(DISTINCT)
    assert len(set(values)) == len(values)
    ours, theirs = in_keyhole(PLAIN, DISTINCT), in_redis(PLAIN, DISTINCT)
    # A million rows of 100 bytes and 64 partitions a second, two standbys, three copies in Kafka; 100,000 reads.
    assert (ours.writer_cores, ours.owner_cores) == pytest.approx((1, 2 + 0.064 + 1.3))
    assert ours.copies_cores == pytest.approx(2 * (3 + 0.192))
    assert (ours.kafka_cores, ours.proxy_cores) == pytest.approx((3 * (5 + 0.448) + 2 * 11, 1.7))
    assert ours.cores == pytest.approx((1 + 3.364 + 6.384 + 38.344 + 1.7) / 0.5)
    assert (ours.servers, ours.proxies) == (20, 4)
    assert ours.disk_bytes == pytest.approx(3 * 1e6 * 350)
    assert ours.memory_bytes == pytest.approx(3 * 1e6 * 350 + (20 * 19 + 4 * 23) * 2**20)
    # 50 bytes a record, three times: as much again as the live keys, ten minutes, and full segments of 64 MiB.
    assert ours.kafka_disk_bytes == pytest.approx(3 * (50 * (2e6 + 600e6) + 64 * 2**26))
    assert ours.kafka_bytes_per_second == pytest.approx(150e6)
    assert ours.network_bytes_per_second == pytest.approx(1e6 * (100 + 50 * 5) + 2 * 1e5 * 129)
    assert (theirs.writer_cores, theirs.owner_cores, theirs.copies_cores) == pytest.approx((47, 45.3, 82))
    assert (theirs.servers, theirs.kafka_cores, theirs.proxies) == (273, 0, 0)
    assert theirs.memory_bytes == pytest.approx(3 * 1e6 * (37 + 125))
    assert theirs.network_bytes_per_second == pytest.approx(100 * (3 * 1e6 + 1e5))


def test_choices_change_what_they_say() -> None:
    base = in_keyhole(PLAIN, DISTINCT)
    rocks = in_keyhole(dataclasses.replace(PLAIN, store="rocksdb", in_memory=0.25), DISTINCT)
    assert rocks.disk_bytes == pytest.approx(3 * 1e6 * (31 + 150))
    assert rocks.memory_bytes == pytest.approx(rocks.disk_bytes / 4 + (20 * 19 + 4 * 23) * 2**20)
    alone = in_keyhole(dataclasses.replace(PLAIN, standbys=0, changelog_copies=1, reads=0), DISTINCT)
    assert (alone.copies_cores, alone.kafka_cores, alone.proxies) == pytest.approx((0, 5.448, 0))
    assert alone.memory_bytes == pytest.approx(alone.disk_bytes + alone.servers * 19 * 2**20)
    # So few rows that a segment is ended by its hour, not by its size.
    slow = dataclasses.replace(PLAIN, updates=10)
    hour = in_keyhole(slow, DISTINCT).kafka_disk_bytes
    assert hour == pytest.approx(3 * 50 * (2e6 + slow.rows * (600 + 3600)))
    assert base.month(Prices()) is None
    assert base.month(Prices(core=2)) == pytest.approx(base.cores * 2)
    disk = (base.disk_bytes + base.kafka_disk_bytes) / 2**30
    assert base.month(Prices(disk_gib=1, memory_gib=2)) == pytest.approx(disk + base.memory_bytes / 2**29)


@pytest.mark.parametrize(
    ("load", "least"),
    [
        (PLAIN, 7),  # owners take 3.3 cores, half used, and each group a five-hundredth
        (dataclasses.replace(PLAIN, reads=0, updates=1), 1),
        # A batch each millisecond: the next group would take two cores, but no batch has more than three keys.
        (dataclasses.replace(PLAIN, keys=3, written_keys=3, batch_seconds=0.001), 9),
    ],
)
def test_each_key_group_has_one_owner_of_one_core(load: Workload, least: int) -> None:
    def enough(key_groups: int) -> bool:
        owners = in_keyhole(dataclasses.replace(load, key_groups=key_groups), DISTINCT).owner_cores
        return owners / load.busy <= key_groups

    assert least_key_groups(load, DISTINCT) == least == next(filter(enough, range(1, 100)))


def test_too_few_key_groups_are_told_with_how_many_are_needed(capsys: pytest.CaptureFixture[str]) -> None:
    busy = ["size", "--keys", "1G", "--updates", "10M/s"]
    assert main(busy) == 0
    assert "key groups" not in capsys.readouterr().out
    assert main([*busy, "--key-groups", "2", "--json"]) == 0
    least = json.loads(capsys.readouterr().out)["keyhole"]["least_key_groups"]
    assert main([*busy, "--key-groups", "2"]) == 0
    assert f"Keyhole needs at least {least} key groups: give --key-groups {least}." in capsys.readouterr().out
    assert main([*busy, "--key-groups", str(least)]) == 0
    assert "key groups" not in capsys.readouterr().out
    assert main(["size", "--keys", "1G", "--updates", "100M/s", "--batch", "0.00000001"]) == 0
    assert "Keyhole can't do this with one state, which has at most 65,536 key groups" in capsys.readouterr().out


def test_the_table_leaves_out_what_is_nothing_on_both_sides(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LOAD, "--reads", "0/s", "--standbys", "0", "--redis-replicas", "0"]) == 0
    said = capsys.readouterr().out
    assert "proxies" not in said
    assert "standbys" not in said
    assert re.search(r"cores: Kafka +│ [\d.]+ +│ - +│", said)


def test_the_command_prints_json_and_takes_constants_of_ones_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.json"
    mine.write_text('{"redis_bytes_per_key": 1000, "redis_bytes_per_byte": 0}')
    assert main([*LOAD, "--json", "--constants", str(mine), "--price-memory", "2"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["redis"]["memory_bytes"] == 2 * 1e6 * 1000
    assert printed["redis"]["price_per_month"] == pytest.approx(2 * printed["redis"]["memory_bytes"] / 2**30)
    assert printed["workload"]["updates"] == 10_000
    assert printed["constants"]["owner_us_per_row"] == Constants().owner_us_per_row
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
    assert main([*LOAD, "--key-bytes", "17", "--value-bytes", "16MiB"]) == 2
    assert "are 16,777,233 together; a row has at most 16,777,216, so give less" in capsys.readouterr().err
    assert main([*LOAD, "--written-keys", "2M"]) == 2
    assert "--written-keys 2,000,000 are more than --keys 1,000,000" in capsys.readouterr().err


@pytest.mark.parametrize("block", re.findall(r"^    \$ keyhole (.+?)(?=\n\n\S)", PAGE.read_text(), re.S | re.M))
def test_the_page_quotes_what_the_command_prints(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    command, quoted = re.split(r"\n(?! {8})", block, maxsplit=1)
    assert main(shlex.split(command.replace("\\\n", " "))) == 0
    assert capsys.readouterr().out == "".join(f"{line[4:]}\n" for line in quoted.splitlines())


def test_the_page_lists_every_constant_with_its_value() -> None:
    listed = dict(re.findall(r"^\| `(\w+)` \| ([\d.,]+) \|", CONSTANTS_PAGE.read_text(), re.M))
    assert listed == {name: f"{value:,g}" for name, value in dataclasses.asdict(Constants()).items()}
