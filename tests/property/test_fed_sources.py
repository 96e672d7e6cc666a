"""The rows of a topic count under one name each, whichever lanes are started on a state, in any order, and at once.

Real feed runs on a Kafka in memory. What one was admitted with it sends, at any time, also once another has the state:
Spark's query is no part of the run. A state may have been fed by an earlier release, which records no sources.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from keyhole.changelog.settings import updates_topic_name
from keyhole.coordinator.feed_run import FeedRun
from keyhole.errors import ChangelogRecreated, Fenced, KeyholeError, StateConflict
from keyhole.feed.earlier_sources import check_earlier
from keyhole.feed.fed_topics import Done
from keyhole.model.state import StateKind, ValueField, ValueSchema
from keyhole.protocol.fed_sources import StateOnRecord, source_of_branch, topic_id_of, unrecorded
from keyhole.protocol.start import Start
from keyhole.protocol.updates import PUT, BoundaryRecord, EndRecord, FeedRules, RulesRecord, UpdateRecord, decode
from keyhole.testing.changelog import MemoryChangelog
from keyhole.testing.updates import send
from tests.support.examples import examples
from tests.support.simulation import SimulatedFleet, World
from tests.support.states import KEY_GROUPS, descriptor, names_in

SUM = descriptor(
    kind=StateKind.REDUCING, reducers=("sum",), value=ValueSchema(1, (ValueField("n", "double"),)), topic_id=""
)
UPDATES = updates_topic_name("app", SUM.state)
NAMES = [names_in(group, 1)[0] for group in range(KEY_GROUPS)]
TOPICS = {"id1": "orders", "id2": "visits"}

Sources = Mapping[str, str]


def of_feed(topic_id: str) -> Sources:
    """What `keyhole feed` of a topic feeds a state by."""
    return {topic_id: TOPICS[topic_id]}


def of_query(topic_id: str, *branches: str) -> Sources:
    """What a real-time query does, of so many branches."""
    return {source_of_branch(topic_id, name): TOPICS[topic_id] for name in branches}


LANES: list[Sources] = [
    *[made for of in TOPICS for made in (of_feed(of), of_query(of, "a"), of_query(of, "b"), of_query(of, "a", "b"))],
    of_query("id1", "b", "c"),
    {**of_query("id1", "a"), **of_query("id2", "a")},
    {**of_query("id1", "a", "b"), **of_query("id2", "b")},
]


class Log:
    """UpdatesTopic of the world's state, to read."""

    topic_id, partitions, most_bytes = "", KEY_GROUPS, 0

    def __init__(self, world: World) -> None:
        self._kafka = world.kafka

    def look(self) -> str:
        return self.topic_id

    def bounds(self, partition: int) -> tuple[int, int]:
        end = self._kafka.end(UPDATES, partition)
        records = self._kafka.records(UPDATES, partition, 0, end)
        return records[0][0] if records else end, end

    def read(self, partition: int, start: int, end: int) -> Iterator[bytes | None]:
        for _, _, value in self._kafka.records(UPDATES, partition, start, end):
            yield value

    def send(self, partition: int, value: bytes, done: Done) -> None:
        raise AssertionError("whoever is refused has sent nothing")

    def poll(self, seconds: float) -> None:
        raise AssertionError("whoever is refused has sent nothing")


class Lanes:
    """Starts lanes on a world's state.

    Attributes:
        admitted: By which sources those feed the state that were let in, all of which may go on sending.
    """

    def __init__(self) -> None:
        self.world = World(SUM)
        self.admitted: list[Sources] = []
        self.runs: list[FeedRun] = []

    def start(
        self,
        sources: Sources,
        *,
        asked: Callable[[], object] = lambda: None,
        taken: Callable[[], object] = lambda: None,
    ) -> None:
        """Starts one.

        Args:
            asked: What happens once nothing speaks against it, and the run before has the state yet.
            taken: What happens once it has the state, and has recorded nothing of it.

        Raises:
            KeyholeError: It is refused, or another one was started meanwhile.
        """
        run = self._run()
        begin = run._begin

        def admit(known: Mapping[str, StateOnRecord]) -> None:
            of = known.get(SUM.state)
            new = unrecorded(() if of is None else of.sources, sources)
            if of is not None and new and not check_earlier(Log(self.world), SUM.state, new) and not of.sources:
                raise ChangelogRecreated("it is not known")
            asked()

        def begin_late(control: object, start: Start) -> None:
            taken()
            begin(control, start)  # type: ignore[arg-type]  # a QueryControl

        run._begin = begin_late  # type: ignore[method-assign]
        run.start({SUM: 0}, sources=sources, admit=admit)
        self.admitted.append(sources)

    def start_earlier(self, sources: Sources) -> None:
        """One of an earlier release, the only one that has fed the state."""
        self._run().start({SUM: 0})
        self.admitted.append(sources)

    def _run(self) -> FeedRun:
        world, fleet = self.world, SimulatedFleet(self.world)
        changelog = MemoryChangelog(world.kafka, "app")
        self.runs.append(FeedRun(world.config, SUM.query, changelog, world.clock, fleet=fleet, heartbeat_seconds=1e6))
        return self.runs[-1]

    def send(self, source: str, offset: int, group: int) -> None:
        row = UpdateRecord(source, 0, offset, 0, PUT, 1, [NAMES[group]], None, [1])
        send(self.world.kafka, "app", SUM.state, group, row)

    def boundary(self, source: str, topic: str) -> None:
        for group in range(KEY_GROUPS):
            send(self.world.kafka, "app", SUM.state, group, BoundaryRecord(source, 0, {0: 0}, topic))

    def sent(self) -> set[str]:
        """The sources of all rows."""
        values = [value for group in range(KEY_GROUPS) for value in Log(self.world).read(group, 0, 1 << 40)]
        return {record.source for record in map(decode, values) if isinstance(record, UpdateRecord)}

    def check(self) -> None:
        """What has fed the state of a topic stands side by side in one query: nobody has its rows twice unasked."""
        sent = self.sent() if self.admitted else set()
        for topic_id in TOPICS:
            of = {source for source in sent if topic_id_of(source) == topic_id}
            assert any(of <= lane.keys() for lane in self.admitted) or not of, of

    def close(self) -> None:
        for run in self.runs:
            run.close()
        self.world.close()


class FedSources(RuleBasedStateMachine):
    """See the module's text."""

    @initialize(earlier=st.none() | st.sampled_from(LANES), boundaries=st.booleans())
    def begin(self, earlier: Sources | None, boundaries: bool) -> None:
        self.lanes = Lanes()
        if earlier is None:
            return
        self.lanes.start_earlier(earlier)
        for source in earlier:
            if boundaries:  # else it is killed in its first batch
                self.lanes.boundary(source, "" if "." in source else earlier[source])
            self.lanes.send(source, 0, 0)

    @rule(lane=st.sampled_from(LANES))
    def one_starts(self, lane: Sources) -> None:
        with contextlib.suppress(KeyholeError):
            self.lanes.start(lane)

    @rule(lane=st.sampled_from(LANES), other=st.sampled_from(LANES), taken=st.booleans())
    def two_start_at_once(self, lane: Sources, other: Sources, taken: bool) -> None:
        def begin() -> None:
            self.one_starts(other)
            self.rows_are_sent(-1, 1, 0)

        with contextlib.suppress(KeyholeError):
            self.lanes.start(lane, taken=begin) if taken else self.lanes.start(lane, asked=begin)

    @rule(who=st.integers(-9, 9), offset=st.integers(0, 9), group=st.integers(0, KEY_GROUPS - 1))
    def rows_are_sent(self, who: int, offset: int, group: int) -> None:
        if self.lanes.admitted:
            for source in self.lanes.admitted[who % len(self.lanes.admitted)]:
                self.lanes.send(source, offset, group)

    @rule(who=st.integers(-9, 9))
    def boundaries_are_written(self, who: int) -> None:
        if self.lanes.admitted:
            for source, topic in self.lanes.admitted[who % len(self.lanes.admitted)].items():
                self.lanes.boundary(source, topic)

    @invariant()
    def no_row_of_a_topic_counts_under_two_names_unasked(self) -> None:
        if hasattr(self, "lanes"):
            self.lanes.check()

    def teardown(self) -> None:
        if hasattr(self, "lanes"):
            self.lanes.close()


FedSources.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=12, deadline=None)
TestFedSources = FedSources.TestCase


@pytest.fixture
def lanes() -> Iterator[Lanes]:
    made = Lanes()
    yield made
    made.close()


FEED, QUERY, RENAMED = of_feed("id1"), of_query("id1", "a"), of_query("id1", "b")


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        (FEED, QUERY, "orders feeds state 'counts' already, by keyhole feed: by a real-time query, as the rows 'a'"),
        (
            QUERY,
            FEED,
            "already, by a real-time query, as the rows 'a': by keyhole feed each of its records would count",
        ),
        (QUERY, RENAMED, "as the rows 'a': by a real-time query, as the rows 'b' each of its records .* Go on with"),
    ],
    ids=["feed_then_query", "query_then_feed", "renamed"],
)
@pytest.mark.parametrize("earlier", [None, "a batch", "no batch"])
def test_a_topic_that_comes_under_another_name_is_refused_and_the_run_that_is_well_goes_on(
    lanes: Lanes, first: Sources, second: Sources, says: str, earlier: str | None
) -> None:
    """`earlier`: a release that recorded no sources has fed it, and how far that came."""
    if earlier is None:
        lanes.start(first)
    else:
        lanes.start_earlier(first)
        for source in first:
            if earlier == "a batch":
                lanes.boundary(source, "" if "." in source else first[source])
            lanes.send(source, 0, 0)
    with pytest.raises(StateConflict, match=says):
        lanes.start(second)
    lanes.runs[0].beat(-1)
    # Whoever goes on as it was goes on; and once it has, that is on record.
    lanes.start(first)
    with pytest.raises(StateConflict, match=says):
        lanes.start(second, asked=lambda: pytest.fail("the record says so"))


@pytest.mark.parametrize("taken", [False, True], ids=["asked", "taken"])
def test_of_two_that_start_at_once_one_feeds(lanes: Lanes, taken: bool) -> None:
    before = of_query("id2", "a")
    lanes.start(before)

    def other() -> None:
        lanes.start(QUERY)

    with pytest.raises(Fenced if taken else StateConflict):
        lanes.start(FEED, taken=other) if taken else lanes.start(FEED, asked=other)
    assert lanes.admitted == [before, QUERY]


def test_branches_of_one_topic_may_come_and_go_but_not_in_place_of_each_other(lanes: Lanes) -> None:
    for branches in ("a", "ab", "b", "a", "abc", "c"):
        lanes.start(of_query("id1", *branches))
    with pytest.raises(StateConflict):
        lanes.start(of_query("id1", *"abd"))
    lanes.start(of_query("id2", "d"))


def test_a_branch_of_an_earlier_release_goes_once_it_is_on_record(lanes: Lanes) -> None:
    both = of_query("id1", "a", "b")
    lanes.start_earlier(both)
    for source in both:
        lanes.boundary(source, "")
    # The boundaries of one batch, and what came in the next one.
    for offset in range(6_000):
        lanes.send("id1.b", offset, 0)
    with pytest.raises(StateConflict, match="by a real-time query, as the rows 'a' too, by an earlier release"):
        lanes.start(RENAMED)
    lanes.start(both)
    lanes.start(RENAMED)
    with pytest.raises(StateConflict):
        lanes.start(of_query("id1", "b", "c"))


def test_a_state_that_was_dropped_is_fed_by_another_lane_from_the_start(lanes: Lanes) -> None:
    lanes.start(QUERY)
    kafka = lanes.world.kafka
    with contextlib.closing(MemoryChangelog(kafka, "app").control(SUM.query)) as log:
        log.open(1.0)
        log.append({f"state/{SUM.state}": None}, 1.0)
    kafka.delete_topic(UPDATES)
    kafka.delete_topic(SUM.topic)
    lanes.start(FEED)


def test_what_is_no_row_and_no_boundary_says_nothing_of_sources(lanes: Lanes) -> None:
    lanes.start_earlier(QUERY)
    for record in (EndRecord("id1.b"), RulesRecord(1, FeedRules.of(SUM))):
        send(lanes.world.kafka, "app", SUM.state, 0, record)
    for value in (b"{", b"\xff", b"[" * 100_000, None):
        lanes.world.kafka.append(UPDATES, 0, value)
    lanes.boundary("id1.a", "")
    assert check_earlier(Log(lanes.world), SUM.state, QUERY)


def test_whose_rows_a_log_had_that_has_lost_its_start_is_not_known(lanes: Lanes) -> None:
    lanes.start_earlier(QUERY)
    lanes.boundary("id2.a", "visits")
    assert check_earlier(Log(lanes.world), SUM.state, QUERY)
    lanes.world.kafka.compact(UPDATES)  # the last record is left
    assert not check_earlier(Log(lanes.world), SUM.state, QUERY)
    lanes.boundary("id1.a", "")
    assert check_earlier(Log(lanes.world), SUM.state, QUERY)
