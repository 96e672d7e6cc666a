"""What the coordinator decides, case by case."""

from __future__ import annotations

import msgspec
import pytest

from keyhole.errors import CheckpointMismatch, InternalError, NullKey, StateChanged, StateConflict
from keyhole.model.evolution import written_otherwise
from keyhole.model.state import KeyColumn, KeyType, StateKind, TtlClock, ValueField, ValueSchema
from keyhole.protocol.control import QueryRecord
from keyhole.protocol.decisions import Proceed, Restage, decide
from keyhole.protocol.epoch_of_batch import OnNewCheckpoint, check_batch, check_start
from keyhole.protocol.epochs import offsets_hash
from keyhole.protocol.grant_names import transactional_id
from keyhole.protocol.receipts import GroupReceipt, PartitionReceipt, ServerReceipt
from keyhole.protocol.registration import settled
from tests.support.states import complete, descriptor, target


class TestStart:
    """check_start."""

    def test_the_first_run_begins_at_epoch_1(self) -> None:
        assert check_start("q", None, None, "spark-1", 0, 0, "refuse") == QueryRecord("spark-1", base=1)

    @pytest.mark.parametrize("batch", [6, 7])
    def test_the_last_epoch_again_and_the_one_after_it_go_on(self, batch: int) -> None:
        known = QueryRecord("spark-1", base=1)
        assert check_start("q", known, complete(7), "spark-1", batch, 0, "refuse") is known

    @pytest.mark.parametrize("batch", [0, 5, 8])
    def test_a_checkpoint_set_back_or_ahead_is_refused_with_the_ways_out(self, batch: int) -> None:
        with pytest.raises(CheckpointMismatch, match=f"not batch {batch}") as caught:
            check_start("q", QueryRecord("spark-1", base=1), complete(7), "spark-1", batch, 0, "refuse")
        assert all(word in caught.value.message for word in ("savepoint", "continue", "reset"))

    def test_another_checkpoint_is_refused_with_the_ways_out(self) -> None:
        with pytest.raises(CheckpointMismatch, match=r"spark-1.*spark-2.*checkpoint was deleted") as caught:
            check_start("q", QueryRecord("spark-1", base=1), complete(7), "spark-2", 0, 0, "refuse")
        assert all(word in caught.value.message for word in ("savepoint", "continue", "reset"))

    def test_another_checkpoint_is_taken_while_nothing_was_complete(self) -> None:
        known = QueryRecord("spark-1", base=1)
        record = check_start("q", known, None, "spark-2", 0, 0, "refuse")
        assert record.spark_query_id == "spark-2"
        # What it has committed of its epoch is replaced.
        assert record.base == record.first_epoch == record.reset_epoch > 1

    @pytest.mark.parametrize(("policy", "reset"), [("continue", 0), ("reset", 9)])
    def test_a_chosen_new_checkpoint_begins_at_an_epoch_that_no_other_can_have_begun(
        self, policy: OnNewCheckpoint, reset: int
    ) -> None:
        record = check_start("q", QueryRecord("spark-1", base=1), complete(7), "spark-2", 3, 0, policy)
        assert record == QueryRecord("spark-2", base=6, reset_epoch=reset, first_epoch=9)
        assert record.base + 3 == 9  # 8 may be committed on some servers

    def test_the_last_epoch_from_other_offsets_is_another_batch(self) -> None:
        with pytest.raises(CheckpointMismatch, match="offsets"):
            check_start("q", QueryRecord("spark-1", base=1), complete(7), "spark-1", 6, 1, "refuse")

    def test_a_run_that_died_in_its_reset_epoch_resets_again(self) -> None:
        known = QueryRecord("spark-2", base=6, reset_epoch=9, first_epoch=9)
        assert check_start("q", known, complete(7), "spark-2", 3, 0, "refuse") is known

    def test_a_later_batch_must_follow(self) -> None:
        record = QueryRecord("spark-1", base=1)
        assert check_batch("q", record, complete(7), 7) == 8
        assert check_batch("q", record, complete(7), 6) == 7
        with pytest.raises(CheckpointMismatch, match="epoch 9"):
            check_batch("q", record, complete(7), 8)


class TestDescriptor:
    """settled."""

    def test_the_same_declaration_is_what_is_stored(self) -> None:
        assert settled(None, descriptor()) == descriptor()
        assert settled(descriptor(topic_id="t"), descriptor()) == descriptor(topic_id="t")

    def test_a_state_of_another_query_is_refused_by_that_querys_name(self) -> None:
        with pytest.raises(StateConflict, match="fed by query 'main'"):
            settled(descriptor(), descriptor(query="other"))

    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"key_groups": 8}, "key_groups was 4, is 8"),
            ({"key": (KeyColumn("k", KeyType.BIGINT),)}, "key was k string, is k bigint"),
            ({"map_key": (KeyColumn("at", KeyType.DATE),)}, "map_key was none, is at date"),
            ({"value": ValueSchema(1, (ValueField("n", "bigint"),))}, "field 'n' was double and is bigint"),
            ({"order_by": "n"}, "order_by was none, is n"),
            ({"kind": StateKind.REDUCING}, "kind was value, is reducing"),
            ({"ttl_ms": 1000}, "ttl was none, is set, by processing time"),
        ],
    )
    def test_each_difference_is_named(self, changes: dict[str, object], says: str) -> None:
        with pytest.raises(StateChanged, match=says):
            settled(descriptor(), descriptor(**changes))

    def test_another_number_of_key_groups_is_had_by_a_savepoint_and_nothing_else_is(self) -> None:
        with pytest.raises(StateChanged, match=r"keyhole savepoint restore .* --key-groups counts=8"):
            settled(descriptor(state="counts"), descriptor(state="counts", key_groups=8))
        fed = descriptor(updates_topic_id="t")
        for stored, wanted in ((descriptor(), {"order_by": "n"}), (fed, {"updates_topic_id": "t", "key_groups": 8})):
            with pytest.raises(StateChanged) as caught:
                settled(stored, descriptor(**wanted))
            assert "savepoint" not in caught.value.message

    def test_how_long_entries_live_may_change_but_not_whether_or_by_which_clock(self) -> None:
        stored = descriptor(ttl_ms=1000, ttl_clock=TtlClock.EVENT_TIME, topic_id="t")
        longer = descriptor(ttl_ms=2000, ttl_clock=TtlClock.EVENT_TIME)
        assert settled(stored, longer) == msgspec.structs.replace(longer, topic_id="t")
        for changes, says in (
            ({"ttl_ms": 0}, "set, by event time, is none"),
            ({"ttl_ms": 1000}, "set, by event time, is set, by processing time"),
        ):
            with pytest.raises(StateChanged, match=says):
                settled(stored, descriptor(**changes))

    def test_what_deletions_count_may_change_and_rows_are_then_staged_otherwise(self) -> None:
        always = descriptor(order_by="n")
        by_order, longer = (msgspec.structs.replace(always, keep_deleted_ms=ms) for ms in (1000, 2000))
        assert settled(always, by_order) == settled(longer, by_order) == by_order
        assert settled(by_order, always) == always
        assert written_otherwise({"counts": always}, [by_order])
        assert written_otherwise({"counts": by_order}, [always])
        assert not written_otherwise({"counts": by_order}, [longer])

    def test_how_long_a_list_may_get_may_change(self) -> None:
        shorter = descriptor(kind=StateKind.LIST, max_length=3)
        assert settled(descriptor(kind=StateKind.LIST, max_length=5), shorter) == shorter


def receipt(partition: int, *servers: ServerReceipt, attempt: int = 0, state: str = "counts") -> PartitionReceipt:
    return PartitionReceipt(state, partition, attempt or 100 + partition, servers)


def took(server: str, *groups: int) -> ServerReceipt:
    return ServerReceipt(server, "1", tuple(GroupReceipt(group, 1, 10, group) for group in groups))


class TestDecide:
    """decide."""

    TARGETS = (target("a"), target("b"))

    def test_each_server_commits_what_it_has_said_it_holds(self) -> None:
        receipts = [receipt(0, took("a", 0), took("b", 2)), receipt(1, took("a", 1))]
        proceed = decide(receipts, {"counts": 2}, self.TARGETS)
        assert isinstance(proceed, Proceed)
        of_a, of_b = proceed.commits["a"]["counts"], proceed.commits["b"]["counts"]
        assert of_a.winners == ((0, 100), (1, 101))
        assert [group.key_group for group in of_a.groups] == [0, 1]
        assert (of_b.winners, [group.key_group for group in of_b.groups]) == (((0, 100),), [2])

    def test_a_server_without_rows_commits_the_epoch_all_the_same(self) -> None:
        proceed = decide([receipt(0)], {"counts": 1}, self.TARGETS)
        assert isinstance(proceed, Proceed)
        assert proceed.commits["b"]["counts"].groups == ()

    def test_a_server_that_took_nothing_means_another_round(self) -> None:
        lost = ServerReceipt("b", "1", error=("SERVER_LOST", "connection refused"))
        assert decide([receipt(0, took("a", 0), lost)], {"counts": 1}, self.TARGETS) == Restage(
            {"b": "connection refused"}
        )

    def test_what_a_task_has_found_wrong_in_the_rows_ends_the_epoch_whatever_the_other_receipts_say(self) -> None:
        wrong = PartitionReceipt("counts", 1, 101, failure=("NULL_KEY", "column key is null", {"column": "key"}))
        lost = ServerReceipt("b", "1", error=("SERVER_LOST", "connection refused"))
        with pytest.raises(NullKey, match="column key is null") as caught:
            decide([receipt(0, lost), wrong], {"counts": 3}, self.TARGETS)
        assert caught.value.facts == {"column": "key"}

    def test_partitions_of_states_that_one_job_computes_are_numbered_one_after_the_other(self) -> None:
        receipts = [
            receipt(0, took("a", 0)),
            receipt(2, took("a", 1), state="sums"),
            receipt(1, took("a", 0), state="sums"),
        ]
        proceed = decide(receipts, {"counts": 1, "sums": 2}, self.TARGETS[:1])
        assert isinstance(proceed, Proceed)
        assert proceed.commits["a"]["sums"].winners == ((1, 101), (2, 102))

    @pytest.mark.parametrize("states", [["counts"], ["counts", "sums", "others"], ["counts", "others"]])
    def test_states_that_are_missing_or_not_the_batchs_are_an_error(self, states: list[str]) -> None:
        with pytest.raises(InternalError, match="once each"):
            decide([receipt(0, state=state) for state in states], {"counts": 1, "sums": 1}, self.TARGETS)

    @pytest.mark.parametrize("partitions", [[], [0], [0, 0, 1], [0, 2], [0, 0], [5, 7], [5, 6, 7]])
    def test_partitions_that_are_missing_or_come_twice_are_an_error(self, partitions: list[int]) -> None:
        with pytest.raises(InternalError, match="once each"):
            decide([receipt(partition) for partition in partitions], {"counts": 2}, self.TARGETS)

    def test_a_key_group_from_two_partitions_is_an_error(self) -> None:
        with pytest.raises(InternalError, match="key group 0"):
            decide([receipt(0, took("a", 0)), receipt(1, took("a", 0))], {"counts": 2}, self.TARGETS)


def test_a_grant_is_never_named_twice() -> None:
    names = {
        transactional_id("app", "q", target(server, incarnation), generation, serial)
        for server in "ab"
        for incarnation in "12"
        for generation in (1, 2)
        for serial in (1, 2)
    }
    assert len(names) == 16


def test_offsets_hash_tells_batches_apart_and_is_the_same_everywhere() -> None:
    assert offsets_hash('[{"t":{"0":1}}]') == offsets_hash('[{"t":{"0":1}}]') != offsets_hash('[{"t":{"0":2}}]')
    assert 0 <= offsets_hash("") < 1 << 64
