"""A feeder that ran on while its updates topic was made anew: its boundaries change nothing in the new one."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole.encoding.codec import StateCodec
from keyhole.protocol.updates import PUT, BoundaryRecord, LoggedUpdate, Record, UpdateRecord, encode
from tests.property.test_updates_applied import CUTS, KINDS, Owner, _run
from tests.support.fed_hosts import NAMES, STATE, TOPIC, begun, closed

OURS, THEIRS = "t", "u"
SUM = KINDS["sum"].of


@st.composite
def logs(draw: st.DrawFn) -> list[LoggedUpdate]:
    """Rows of one source in any order, some again, boundaries that hold for this topic or are of another one."""
    records: list[Record] = []
    sent: set[int] = set()
    for _ in range(draw(st.integers(0, 14))):
        match draw(st.integers(0, 4)):
            case 0:
                below = next(number for number in range(99) if number not in sent)
                ends = draw(st.integers(0, below))
                records.append(BoundaryRecord("s", 0, {0: ends}, "orders", draw(st.sampled_from([OURS, ""]))))
            case 1:
                records.append(BoundaryRecord("s", 0, {0: draw(st.integers(0, 20))}, "orders", THEIRS))
            case _:
                offset = draw(st.integers(0, 9))
                sent.add(offset)
                records.append(UpdateRecord("s", 0, offset, 0, PUT, 1, ["a"], None, [10**offset]))
    return [LoggedUpdate(at, 1, encode(record)) for at, record in enumerate(records)]


def _sum_of(owner: Owner) -> int:
    codec = StateCodec(SUM)
    return sum(codec.decode_row(row)["n"] for _, row in owner.entries())


@settings(deadline=None)
@given(log=logs(), cuts=CUTS)
def test_each_row_counts_once_whatever_boundaries_of_another_topic_stand_before_it(
    log: list[LoggedUpdate], cuts: list[int | str]
) -> None:
    sent = {update.value.split(b",")[3] for update in log if update.value and update.value.startswith(b"[1")}
    assert _sum_of(_run(SUM, log, cuts)) == sum(10 ** int(offset) for offset in sent)


async def test_such_a_boundary_is_a_dead_letter_that_says_of_which_topic_it_is() -> None:
    fed = await begun()
    fed.add(NAMES[0], 1)
    fed.send(0, BoundaryRecord("s", 0, {0: 9}, "orders", "the-one-before"))
    fed.send(0, BoundaryRecord("s", 0, {0: 1}, "orders", fed.of.updates_topic_id))
    fed.add(NAMES[0], 2, offset=5)
    fed.add(NAMES[0], 4, offset=0)
    await fed.steps()
    assert fed.sums(NAMES[:1]) == [3], "of the other topic's boundary nothing counts as seen, of its own one it does"
    (refused,) = fed.host.feeding.fed[0].refused
    assert (refused.partition.state, refused.partition.key_group) == (STATE, 0)
    assert "the-one-before" in refused.reason
    await fed.host.feeding.commit()
    assert len(fed.kafka.records(f"{TOPIC}.dead-letter", 0, 0, 9)) == 1
    await closed(fed)
