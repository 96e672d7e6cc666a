"""The layout of changelog records, and how they come together to epochs."""

from __future__ import annotations

import dataclasses
import json

import pytest

from keyhole.changelog.base import Marker, Partition, RestoredEpochs
from keyhole.changelog.records import (
    MARKER_KEY,
    EpochAssembler,
    PieceLimits,
    Records,
    decode_marker,
    encode_marker,
    position_after,
)
from keyhole.errors import TopicMismatch
from keyhole.model.epoch import START, EpochStamp, Position
from keyhole.protocol.seen import FeedPosition, HighestSeen, SeenPartition, SeenSegment
from keyhole.protocol.updates import FeedRules, RulesRecord

PART = Partition("a", 258)
Written = list[tuple[bytes | None, bytes | None]]

KEY = b"\x01\x02key"


def marker(epoch: int) -> Marker:
    return Marker(
        EpochStamp(epoch, generation=3, commit_time_ms=1_700_000_000_123, watermark_ms=1_600_000_000_000),
        checksum=0xFEDCBA9876543210,
        offsets_hash=7,
    )


def assemble(assembler: EpochAssembler, written: Written, first_offset: int = 0) -> list[RestoredEpochs]:
    keys, values = [key for key, _ in written], [value for _, value in written]
    return assembler.add(Records(keys, values, lambda index: first_offset + index))


def test_a_marker_is_the_json_that_the_docs_show() -> None:
    assert json.loads(encode_marker(marker(12))) == {
        "layout": 1,
        "epoch": 12,
        "generation": 3,
        "commit_time_ms": 1_700_000_000_123,
        "watermark_ms": 1_600_000_000_000,
        "checksum": "fedcba9876543210",
        "offsets_hash": "0000000000000007",
    }


def test_a_marker_survives_the_round_trip() -> None:
    assert decode_marker(encode_marker(marker(12)), PART, 0) == marker(12)


@pytest.mark.parametrize("layout", [2, 3])
def test_a_partition_whose_values_are_laid_out_otherwise_has_another_layout(layout: int) -> None:
    """So that whoever doesn't know them refuses it: the check is in versions that read less."""
    other = dataclasses.replace(marker(12), layout=layout)
    assert json.loads(encode_marker(other))["layout"] == layout
    assert decode_marker(encode_marker(other), PART, 0) == other


def test_a_marker_of_the_real_time_lane_says_how_far_the_updates_are_applied() -> None:
    feed = FeedPosition(
        "t-1",
        1_700_000_000_000,
        48_213,
        47_100,
        (SeenSegment(47_100, 1_650_000_000_000), SeenSegment(48_200, 1_690_000_000_000)),
        {
            "a1b2": {
                0: SeenPartition(991_823, 0, 1_700_000_000_000, [HighestSeen(47_100, 991_900, 2)]),
                12: SeenPartition(2**62, 7, 1_690_000_000_000, []),
            }
        },
        {"over": 1_600_000_000_000},
        RulesRecord(7, FeedRules(60_000, 0, 0, 5, 6, 2, ("sum",))),
    )
    fed = dataclasses.replace(marker(12), feed=feed)
    assert json.loads(encode_marker(fed))["feed"] == {
        "topic": "t-1",
        "time_ms": 1_700_000_000_000,
        "next": 48_213,
        "refill": 47_100,
        "segments": [[47_100, 1_650_000_000_000], [48_200, 1_690_000_000_000]],
        "seen": {
            "a1b2": {
                "0": [991_823, 0, 1_700_000_000_000, [[47_100, 991_900, 2]]],
                "12": [2**62, 7, 1_690_000_000_000, []],
            }
        },
        "ended": {"over": 1_600_000_000_000},
        "rules": [
            3,
            7,
            {
                "ttl_ms": 60_000,
                "max_length": 0,
                "keep_deleted_ms": 0,
                "most_blocks": 5,
                "rows_for_ms": 6,
                "schema_version": 2,
                "reducers": ["sum"],
            },
        ],
    }
    assert decode_marker(encode_marker(fed), PART, 0) == fed


def test_fields_that_a_later_version_adds_to_a_marker_are_ignored() -> None:
    later = json.dumps({**json.loads(encode_marker(marker(12))), "colour": "blue"}).encode()
    assert decode_marker(later, PART, 0) == marker(12)


def test_a_marker_of_another_layout_is_refused_with_both_versions() -> None:
    with pytest.raises(TopicMismatch, match=r"partition 258, offset 9 has layout 4; .* reads layouts 1 to 3"):
        decode_marker(b'{"layout": 4, "something": "else"}', PART, 9)


@pytest.mark.parametrize("value", [None, b"", b"garbage", b"{}", b'{"layout": 1}', b"[1]", b"\xff"])
def test_a_marker_that_is_none_is_refused(value: bytes | None) -> None:
    with pytest.raises(TopicMismatch, match="was not written by Keyhole"):
        decode_marker(value, PART, 9)


@pytest.mark.parametrize("checksum", ["xyz", "", 5])
def test_a_marker_whose_checksum_is_no_number_is_refused(checksum: object) -> None:
    broken = {**json.loads(encode_marker(marker(12))), "checksum": checksum}
    with pytest.raises(TopicMismatch):
        decode_marker(json.dumps(broken).encode(), PART, 9)


def test_the_position_after_a_marker_is_the_next_offset_with_all_that_the_marker_says() -> None:
    assert position_after(marker(12), 41) == Position(
        42, 12, 3, 0xFEDCBA9876543210, 1_700_000_000_123, 1_600_000_000_000
    )


def test_epochs_are_handed_out_whole_when_a_piece_is_full() -> None:
    assembler = EpochAssembler(PART, START, PieceLimits(records=4))
    one: Written = [(KEY, b"1"), (MARKER_KEY, encode_marker(marker(1)))]
    two: Written = [(KEY, b"2"), (KEY + b"b", None), (MARKER_KEY, encode_marker(marker(2)))]
    three: Written = [(KEY, b"3"), (MARKER_KEY, encode_marker(marker(3)))]
    (first,) = assemble(assembler, one + two + three)
    assert first.changes == [(KEY, b"1"), (KEY, b"2"), (KEY + b"b", None)]
    assert first.marker == marker(2)
    assert first.position == position_after(marker(2), 4)
    assert first.records == 5

    (rest,) = assembler.end(8)
    assert rest.changes == [(KEY, b"3")]
    assert rest.position == position_after(marker(3), 6)
    assert assembler.end(8) == []


def test_large_rows_fill_a_piece_before_many_small_ones_would() -> None:
    assembler = EpochAssembler(PART, START, PieceLimits(records=100, bytes=1000))
    small: Written = [(KEY, bytes(500)), (MARKER_KEY, encode_marker(marker(1)))]
    large: Written = [(KEY, bytes(500)), (MARKER_KEY, encode_marker(marker(2)))]
    (piece,) = assemble(assembler, small + large)
    assert piece.marker == marker(2)
    assert assemble(assembler, small) == []


def test_a_partition_without_records_has_no_pieces() -> None:
    assert EpochAssembler(PART, START, PieceLimits()).end(5) == []


def test_records_after_the_last_marker_are_a_piece_of_their_own_without_one() -> None:
    assembler = EpochAssembler(PART, START, PieceLimits())
    assert assemble(assembler, [(KEY, b"1"), (MARKER_KEY, encode_marker(marker(1))), (KEY, b"lost")]) == []
    whole, torn = assembler.end(9)
    assert whole.marker == marker(1)
    assert whole.changes == [(KEY, b"1")]
    assert torn.marker is None
    assert torn.changes == [(KEY, b"lost")]
    assert torn.position == position_after(marker(1), 1)._replace(offset=9)


@pytest.mark.parametrize("key", [None, b"", b"\x01", b"\x01\x02", b"\x01\x03key", b"key"])
def test_a_key_of_another_key_group_or_of_none_is_refused_without_being_named(key: bytes | None) -> None:
    with pytest.raises(TopicMismatch, match="partition 258, offset 4") as caught:
        EpochAssembler(PART, START, PieceLimits()).add(
            Records([KEY, key, KEY], [b"value"] * 3, lambda index: 3 + index)
        )
    assert "key'" not in str(caught.value)


def test_a_follower_takes_what_the_last_marker_covers_full_or_not_and_the_rest_later() -> None:
    assembler = EpochAssembler(PART, START, PieceLimits())
    assert assembler.cut() == []
    assert assemble(assembler, [(KEY, b"1"), (MARKER_KEY, encode_marker(marker(1))), (KEY, b"2")]) == []
    (first,) = assembler.cut()
    assert (first.changes, first.marker, first.records) == ([(KEY, b"1")], marker(1), 2)
    assert assembler.cut() == []
    assert assemble(assembler, [(KEY + b"b", None), (MARKER_KEY, encode_marker(marker(2)))], 3) == []
    (second,) = assembler.cut()
    assert second.changes == [(KEY, b"2"), (KEY + b"b", None)]
    assert second.position == position_after(marker(2), 4)


@pytest.mark.parametrize(
    "limits", [PieceLimits(unmarked_records=10), PieceLimits(unmarked_bytes=60)], ids=["records", "bytes"]
)
def test_what_no_marker_covers_is_bounded_too_and_says_so(limits: PieceLimits) -> None:
    assembler = EpochAssembler(PART, START, limits)
    pieces = assemble(assembler, [(KEY, b"0"), (MARKER_KEY, encode_marker(marker(1)))])
    for at in range(2, 20):
        pieces += assemble(assembler, [(KEY, b"1")], at)
    pieces += assemble(assembler, [(KEY, b"2"), (MARKER_KEY, encode_marker(marker(2)))], 20)
    pieces += assembler.end(22)

    whole, torn, rest = pieces
    assert whole.marker == marker(1)
    assert torn.marker is None
    assert torn.records == len(torn.changes) == 10
    assert torn.position == position_after(marker(1), 1)._replace(offset=12)
    assert rest.marker == marker(2)
    assert rest.position == position_after(marker(2), 21)
    assert rest.records == 8 + 2


def test_a_batch_of_many_epochs_is_cut_at_each_full_piece() -> None:
    written: Written = []
    for epoch in range(1, 101):
        written += [(KEY, b"%d" % epoch), (MARKER_KEY, encode_marker(marker(epoch)))]
    pieces = assemble(EpochAssembler(PART, START, PieceLimits(records=10)), written)
    assert [piece.position.epoch for piece in pieces] == list(range(5, 101, 5))
    assert [change for piece in pieces for change in piece.changes] == [w for w in written if w[0] == KEY]
