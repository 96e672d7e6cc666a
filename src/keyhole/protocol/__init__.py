"""The epoch protocol, pure: each micro-batch of a query becomes one epoch of all of its states, exactly once.

It is a two-phase commit. Tasks *prepare* (they stage their rows with the key groups' owners, for receipts), and the
driver commits once the receipts cover the batch. What makes it hold when processes die, stand still or come back:

    fencing token     the generation: each run of a query takes the next one, and a grant, by which a server may write,
                      belongs to one generation. Kafka fences by it: a grant is a transactional.id.
    lease             an owner says that its answers are confirmed only while it hears heartbeats. Leases flag reads;
                      that nobody else writes is by fencing alone, and needs no clock.
    barrier record    who begins a run appends one to the control topic, and reads up to it: all that was recorded
                      before is read then (a read barrier, as Raft's no-op entry).
    marker            the last record of an epoch in each partition that it touches: what stands before it is whole.
                      The complete record says that all partitions have theirs.
    reconcile loop    compares who should own and follow each key group with what is seen, one planned change at a time.

Here are the decisions and the records, as functions on frozen values: no sockets, clocks, threads or Kafka, and no
library but msgspec (a contract in pyproject.toml). keyhole.coordinator carries them out in the driver,
services/state_server on the other side, keyhole.changelog has the topics. docs/protocol.md has the reasons.

Messages (protos/keyhole/v1/state_server.proto), and who has their content:

    OpenRun, Assign, Release       driver to server    assignment.py, membership.py and plan.py: what they give and take
    Stage, ReadBase                task to server      receipts.py: StageOrder (of a round), PartitionReceipt
    Commit                         driver to server    decisions.py: ServerCommit; its answer has the markers
    Confirm                        driver to server    membership.py: Held, which copies are warm; renews the lease
    Describe                       driver to server    membership.py: Sighting
    WatchOwnership                 server to reader    server_view.py: Holding, ServerView; ranking.py: whom

Records of the control topic (control.py), each under one key:

    state/<state>                  StateDescriptor     registration.py: whose it is, and what may become of it
    opened/, generation/<query>    OpenedRecord, GenerationRecord   takeover.py: who has taken the query over
    query/<query>                  QueryRecord         epoch_of_batch.py: epoch = base + batch
    complete/<query>               CompleteRecord      the last epoch that all servers have committed
    assignment/<query>             AssignmentRecord    plan.py, assignment.py: who owns and follows what
    grant/<query>/<id>             GrantRecord         grant_names.py: transactional_id, never used twice
    savepoint/<query>              SavepointRecord     takeover.py: a restore, until its first run

Beside these: start.py decides what a run's first batch may do, caretaking.py whether a run may begin without one, and
replacement.py which owners can't wait for a batch's end. epochs.py has a batch and its result, batch_decisions.py what
batches settle in files. failpoints.py names the steps at which tests kill a process.

An epoch, on the way without failures (coordinator/ is in src/keyhole/, state_server/ in services/):

    driver                     task                   state server                    Kafka
      |                          |                        |                             |
      |-- OpenRun, Release, Assign until all key groups have a ready owner              |
      |   coordinator/reconcile.py, server_calls.py ----->| fence.py, host.py           |
      |-- grants before OpenRun, the assignment before Assign ------ control topic ---->|
      |   coordinator/query_log.py                        |                             |
      |                          |                        |                             |
      |-- StageOrder ----------->|                        |                             |
      |   epoch_rounds.py        |                        |                             |
      |                          |-- Stage: prepare ----->| write/attempts.py           |
      |                          |   task_stream.py       | write/staged.py             |
      |                          |<- receipts by group ---|                             |
      |<- PartitionReceipt ------|                        |                             |
      |   decisions.decide       |                        |                             |
      |   coordinator/commit_time.py: once for all rounds |                             |
      |                          |                        |                             |
      |-- Commit, with the winners' receipts ------------>| write/commit.py             |
      |   commit_phase.py        |                        |-- changelog, one transaction:
      |                          |                        |   rows, then the markers -->|
      |                          |                        |   changelog/kafka/writer.py |
      |                          |                        | one store write: rows and positions
      |                          |                        | epoch_writer.py: publish
      |<- committed, or already committed, by group ------|                             |
      |                          |                        |                             |
      |-- complete record ------------------------------------------ control topic ---->|
      |   coordinator/query_log.py                        |                             |

Whatever fails leads back to the top, to another round of the same epoch; a key group that has it answers "already".
Between epochs coordinator/heartbeat.py repeats the complete record, then sends Confirm, and reconciles.

Invariants, and the tests that hold them:

    1. Of each key group one server at most may write.
       tests/property/test_recovery.py:
       test_every_key_group_ends_with_one_live_owner_and_no_grant_survives_that_is_no_members
    2. A driver or server that was superseded changes nothing, whenever it wakes.
       tests/unit/test_schedules.py:
       test_a_driver_and_its_servers_that_are_suspended_and_woken_after_a_new_run_can_change_nothing
    3. A grant's name is never used twice, so that nobody un-fences himself.
       tests/unit/test_decisions.py: test_a_grant_is_never_named_twice
       tests/unit/test_late_messages.py: test_a_late_open_run_takes_no_grant_that_was_fenced_since
    4. An epoch is committed only if every partition of every state is staged once, and each key group by one of them.
       tests/unit/test_decisions.py: TestDecide
    5. Each key group takes an epoch once, whatever is sent again, lost or killed: services/state_server/write/commit.py
       In the real-time lane it takes each row once (seen.py): tests/property/test_seen_rows.py, test_updates_applied.py
       tests/property/test_protocol.py: Protocol, run as TestProtocol, and ReducingProtocol
       tests/unit/test_schedules.py: test_a_transaction_whose_end_is_not_seen_counts_once_whether_it_was_applied_or_not
       tests/unit/test_schedules.py:
       test_a_replayed_epoch_that_is_wholly_committed_is_run_whole_and_written_nowhere
       tests/processes/test_kill_driver.py: test_batches_that_a_killed_driver_runs_again_are_added_once
    6. A key group's next owner is on record, and gets it, only after the last one was fenced or has answered Release.
       tests/unit/test_handover.py:
       test_a_key_group_is_on_record_for_and_told_to_its_next_owner_only_after_the_last_one_has_answered_release
    7. An idle driver that can't write to the control topic confirms nobody: once it may be replaced, its leases pass.
       tests/unit/test_late_messages.py:
       TestWhoIsConfirmed.test_not_by_a_driver_that_can_not_tell_whether_it_was_replaced
    8. A state is the query's that declared it first; of two that start at once, one has it.
       tests/property/test_declaring.py: test_one_of_two_queries_has_the_state_and_the_other_is_refused
    9. A start that is refused before it takes its query fences nobody. All that can refuse it is looked at before; what
       others change between that look and the take is found behind it.
       tests/unit/test_refused_starts.py: test_a_start_that_is_refused_changes_nothing_and_the_query_goes_on
       tests/property/test_starts_beside_a_query.py: test_what_is_refused_never_fences_a_query_that_runs_well
   10. A batch of one checkpoint is the same epoch in each run, or is refused.
       tests/unit/test_decisions.py; tests/property/test_protocol.py: TestProtocol
   11. A run that has no batch takes a query only where no run is heard of, and goes on with what is on record.
       tests/unit/test_caretaker.py: test_a_run_that_is_busy_is_left_alone_though_it_records_nothing
       tests/unit/test_caretaker.py:
       test_a_run_that_has_lost_all_its_servers_is_left_alone_while_it_repeats_its_record
       tests/unit/test_caretaker.py:
       test_another_driver_that_takes_the_query_before_the_last_question_keeps_it
       tests/unit/test_caretaker.py: test_a_caretaker_that_was_suspended_after_the_last_question_asks_again
       tests/unit/test_caretaker.py: test_what_the_first_batch_has_to_decide_is_left_to_it
"""
