"""The readers of a state server by their parts: who may have some, what they are given, what they have counted."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import uvloop

from keyhole.clock import SystemClock
from keyhole.config import StateServerConfig, load
from keyhole.encoding.storage_key import prefix_of
from keyhole.errors import DeadlineExceeded, InvalidConfiguration, NotReady, Overloaded, PermissionDenied, StoreFull
from keyhole.metrics.counters import ReadCounts
from keyhole.rpc.port_calls import Peer
from keyhole.rpc.processes.children import how_ended
from keyhole.rpc.processes.word_framing import framed, read_word
from keyhole.rpc.read_admission import ReadAdmission, ReadCall, ReadLimits
from keyhole.rpc.status import from_proto
from keyhole.security.authentication import ANYBODY
from keyhole.stores.base import StoreFiles
from keyhole.testing.clock import ManualClock
from keyhole.v1 import query_pb2 as pb
from services.state_server import app
from services.state_server.read.standing import Standing
from services.state_server.readers import reader_link
from services.state_server.readers.counted import ReaderCounts, add_report
from services.state_server.readers.group import ReaderGroup
from services.state_server.readers.passed_on import PassedOnFrames
from services.state_server.readers.read_tables import LostWordError, ReadableStore, ReadTables
from services.state_server.readers.reader_child import _Coming
from services.state_server.readers.reader_frames import ReaderFrames
from services.state_server.readers.reader_link import ReaderLink
from services.state_server.readers.reader_process import AnswerPassedOn, ReaderProcess
from services.state_server.readers.reader_settings import environ_of, reader_count, share_of
from services.state_server.readers.reader_words import (
    Answered,
    BeginReader,
    CopiesBehind,
    CopyShown,
    Drain,
    PassedOn,
    ReaderReport,
    Shown,
    TableShown,
    ToReader,
    ToServer,
)
from services.state_server.readers.shared_count import SharedCount
from services.state_server.readers.shown_tables import ShownTables
from services.state_server.registry import Registry
from services.state_server.servicers.query import QueryServicer
from tests.support.lookup_ports import LookedAt
from tests.support.states import descriptor
from tests.support.waiting import LONG_SECONDS, PATIENCE_SECONDS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reader processes need Linux")

NEEDED = {"KEYHOLE_STATE_SERVER_BOOTSTRAP_SERVERS": "a:1", "KEYHOLE_STATE_SERVER_LOOKUPS": "127.0.0.1:0"}

READ = msgspec.msgpack.Decoder[ToServer](ToServer)
COUNTS = pb.StateRef(application="app", state="counts")


def config(**settings: str) -> StateServerConfig:
    return load(StateServerConfig, {**NEEDED, **{f"KEYHOLE_STATE_SERVER_{name}": of for name, of in settings.items()}})


def test_a_server_reads_alone_by_default_and_0_is_one_per_core() -> None:
    assert reader_count(config(LOOKUPS="", STORE="rocksdb")) == 1
    assert reader_count(config(READER_PROCESSES="3")) == 3
    assert 1 <= reader_count(config(READER_PROCESSES="0")) <= 1024
    for wrong in ("-1", "257", "two"):
        with pytest.raises(InvalidConfiguration, match="KEYHOLE_STATE_SERVER_READER_PROCESSES is"):
            config(READER_PROCESSES=wrong)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"STORE": "rocksdb"}, "can read the store 'lmdb' alone, not 'rocksdb'"),
        ({"STORE": "memory"}, "can read the store 'lmdb' alone, not 'memory'"),
        ({"STORES": "stores.toml"}, "can read the store 'lmdb' alone, not 'rocksdb'"),
        ({"LOOKUPS": ""}, "set KEYHOLE_STATE_SERVER_LOOKUPS"),
    ],
)
def test_readers_that_can_t_be_are_refused_by_name_before_anything_is_opened(
    settings: dict[str, str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("stores.toml").write_text('[[stores]]\nstates = ["*/clicks"]\nstore = "rocksdb"\ndirectory = "clicks"\n')
    with pytest.raises(InvalidConfiguration, match=why) as refused:
        app.build(config(READER_PROCESSES="2", **settings))
    assert "KEYHOLE_STATE_SERVER_READER_PROCESSES is 2" in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["stores.toml"]


def test_each_process_has_its_part_of_the_limits_and_a_reader_all_other_settings() -> None:
    whole = config(
        READER_PROCESSES="3", MAX_LOOKUP_CALLS="10", MAX_CALLER_LOOKUP_KEYS_PER_SECOND="7", APPLICATIONS="a,b", ID="one"
    )
    part = share_of(whole, 3)
    assert (part.max_lookup_calls, part.max_caller_lookup_keys_per_second) == (4, 3)
    assert (part.max_lookup_keys_per_second, part.max_scans) == (0, whole.max_scans)
    assert share_of(whole, 1) == whole
    given = environ_of(whole, {"KEYHOLE_STATE_SERVER_ID": "another", "KEYHOLE_STATE_SERVER_PORT": "9", "HOME": "/"})
    assert given["HOME"] == "/"
    assert load(StateServerConfig, given) == whole


def test_what_one_process_counts_another_one_sees_and_takes_no_message_for_it() -> None:
    count = SharedCount.make()
    other = SharedCount(os.dup(count.descriptor))
    assert (count.value, other.value) == (0, 0)
    for number in range(1, 4):
        count.count()
        assert (count.value, other.value) == (number, number)
    other.close()
    count.close()


_OPEN = ExitStack()


def frames(pass_on: object, rate: int = 3) -> tuple[ReaderFrames, ReaderCounts, ReadCall, ReadAdmission]:
    class NoTables:
        reads: dict[tuple[str, str], ReadCounts] = {}  # noqa: RUF012

        def answer(self, lookup: object, frame: int) -> None:
            return None

    counts = ReaderCounts(NoTables.reads)
    clock = LookedAt()
    admission = ReadAdmission(ReadLimits(rate=rate, settings="S_"), clock, "this server")
    call = _OPEN.enter_context(admission.call(Peer(None)))
    return ReaderFrames(NoTables(), counts, clock, pass_on), counts, call, admission  # type: ignore[arg-type]


def asked(keys: int = 1) -> pb.LookupRequest:
    return pb.LookupRequest(
        frame=1, state=COUNTS, storage_keys=[b"\0\0key"] * keys, topic_id="t", sent_ms=5, timeout_ms=1000
    )


async def test_what_a_reader_refuses_it_counts_and_what_it_passes_on_the_server_counts() -> None:
    passed: list[pb.LookupRequest] = []

    def pass_on(request: pb.LookupRequest, _: float | None) -> asyncio.Future[pb.LookupResponse]:
        passed.append(request)
        return asyncio.get_running_loop().create_future()

    answers, counts, call, admission = frames(pass_on)
    assert isinstance(answers.frame(asked(5), ANYBODY, call), asyncio.Future)
    refused = answers.frame(asked(5), ANYBODY, call)
    assert isinstance(refused, pb.LookupResponse)
    assert isinstance(from_proto(refused.failures[0].error), Overloaded)
    assert len(passed) == 1

    report = counts.taken(admission, 0)
    (elsewhere,) = report.states
    assert (elsewhere.frames, elsewhere.keys, elsewhere.failed) == (1, 5, {"OVERLOADED": 5})
    assert (report.passed_on, report.limited, report.calls) == (1, {"rate": 5}, 1)
    again = counts.taken(admission, 0)
    assert (again.states, again.passed_on, again.limited, sum(again.frame_keys.counts)) == ((), 0, {}, 0)
    assert again.calls == 1


async def test_a_caller_who_may_not_read_is_refused_by_the_reader_and_nothing_is_passed_on() -> None:
    class Nobody:
        def check(self, *_: object) -> None:
            raise PermissionDenied("you may not")

    answers, counts, call, admission = frames(None)
    refused = answers.frame(asked(), Nobody(), call)  # type: ignore[arg-type]
    assert isinstance(refused, pb.LookupResponse)
    assert isinstance(from_proto(refused.failures[0].error), PermissionDenied)
    assert counts.taken(admission, 0).states[0].failed == {"PERMISSION_DENIED": 1}


async def test_the_server_s_figures_are_the_sums_and_never_fall() -> None:
    registry = Registry("server", "incarnation", lambda: "", 0, 511)
    admission = ReadAdmission(ReadLimits(), LookedAt(), "this server")
    answers, counts, call, own = frames(None)
    counts.counts.looked_up(counts.of("nothing", "here"), 3, 0.001)
    counts.counts.refusals.note("denied")
    own.expired = 2
    own.refused["calls"] += 4
    report = counts.taken(own, 0)
    for number in (1, 2):
        add_report(report, registry, admission)
        assert registry.counts.elsewhere.keys == 3 * number
        assert sum(registry.counts.frame_keys.counts) == number
        assert registry.counts.frame_keys.sum == 3.0 * number
        assert registry.counts.refusals.by_refusal == {"denied": number}
        assert (admission.expired, admission.refused["calls"]) == (2 * number, 4 * number)
    del answers, call


async def test_the_server_answers_as_one_call_whatever_callers_say_of_their_clocks_and_too_much_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    begin = BeginReader(1, 2, "incarnation")
    writer.write(framed(begin))
    link = await ReaderLink.open(theirs.detach())
    assert link.begin == begin
    answers = [link.pass_on(asked(), until) for until in (12.5, None)]
    got = [await read_word(reader, READ) for _ in range(2)]
    words = [of for of in got if isinstance(of, PassedOn)]
    assert [pb.LookupRequest.FromString(of.request).sent_ms for of in words] == [0, 0]
    assert [of.until for of in words] == [12.5, None]
    listening = asyncio.ensure_future(anext(link.words()))  # type: ignore[arg-type]
    for number in (2, 1):
        writer.write(framed(Answered(number, pb.LookupResponse(frame=number).SerializeToString())))
        assert (await answers[number - 1]).frame == number
    monkeypatch.setattr(reader_link, "_MOST_WAITING_BYTES", -1)
    with pytest.raises(Overloaded, match="try again later") as refused:
        link.pass_on(asked(), None)
    assert refused.value.facts["retry_after_seconds"] == "0.05"
    listening.cancel()
    await link.close()
    writer.close()


def test_how_a_reader_has_ended_is_told_in_words() -> None:
    assert (how_ended(1), how_ended(-9)) == ("exit code 1", "signal SIGKILL")


def test_a_reader_that_has_missed_a_word_of_its_server_does_not_take_the_next_for_current() -> None:
    """It would answer, of what the missing word was about, what the server has given up."""
    count = SharedCount.make()
    tables = ReadTables("server", count, ManualClock(), lambda _: pytest.fail("there is no store"))
    tables.take(Shown(-1, 3, (), ()))
    tables.take(Shown(2, 5, (), ()))  # what it was told first was newer
    with pytest.raises(LostWordError, match="the server has said 6, and 5 was heard"):
        tables.take(Shown(6, 7, (), ()))
    count.close()


def shown_of(number: int) -> TableShown:
    none = CopyShown(None, b"", Standing(), {})
    return TableShown(number, descriptor(), "/nowhere", 1 << 20, 0.0, 0, 1.0, none, none)


def test_whatever_keeps_a_reader_from_a_store_is_told_once_with_its_cause_and_the_reader_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It ended, and so did the next one: each was told of the same table."""
    caplog.set_level("INFO")
    gone = [NotReady("gone"), NotReady("gone")]
    fails: list[Exception] = [RuntimeError("a bug"), RuntimeError("a bug"), StoreFull("no room"), *gone]

    def open_files(_: StoreFiles) -> ReadableStore:
        raise fails.pop(0)

    count = SharedCount.make()
    tables = ReadTables("server", count, ManualClock(), open_files)
    for _ in range(5):
        tables.take(Shown(-1, 1, (shown_of(1),), ()))
    assert fails == []
    logged = [(of.levelname, of.__dict__["why"], of.exc_info is not None) for of in caplog.records]
    assert logged == [("ERROR", "RuntimeError: a bug", True), ("ERROR", "no room", True), ("INFO", "gone", False)]
    assert caplog.records[0].__dict__["state"] == "counts"
    assert "a bug" in caplog.text
    assert tables.behind == ()
    count.close()


class _Commits:
    """A store that another process writes."""

    max_key_bytes, last = 511, 5

    def snapshot(self) -> Any:
        return SimpleNamespace(commit=self.last, close=lambda: None)

    def close(self) -> None:
        pass


def test_a_reader_says_of_each_copy_whether_it_is_behind_and_is_current_by_what_is_owned() -> None:
    """It said so of the table: what it had of the owned copy it had to give back for a later view of that."""
    count, store = SharedCount.make(), _Commits()
    tables = ReadTables("server", count, ManualClock(), lambda _: store)

    def copy(commit: int, group: int) -> CopyShown:
        return CopyShown(commit, prefix_of(group), Standing(), {})

    for number, (last, owned, standby, behind) in enumerate(
        [
            (5, 5, 5, ()),
            (7, 5, 6, (CopiesBehind(1, owned=False, standby=True),)),
            (8, 5, 8, ()),
            (9, 6, 8, (CopiesBehind(1, owned=True, standby=False),)),
            (9, 6, 7, (CopiesBehind(1, owned=True, standby=True),)),
        ]
    ):
        store.last = last
        shown = msgspec.structs.replace(shown_of(1), owned=copy(owned, 0), standby=copy(standby, 1))
        tables.take(Shown(number - 1, number, (shown,), ()))
        assert tables.behind == behind
        assert tables._known[1].current == (owned == 5)
    tables.close()
    count.close()


def behind_report(*behind: CopiesBehind) -> ReaderReport:
    admission = ReadAdmission(ReadLimits(), LookedAt(), "this server")
    return ReaderCounts({}).taken(admission, 0, behind)


class _Named:
    """Of a table, what is told."""

    name = "app/counts"


async def a_group(renew: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> ReaderGroup:
    """Of no process, which knows one table by the number 1."""

    async def keep(*_: object) -> None:
        pass

    monkeypatch.setattr(ReaderGroup, "_keep", keep)
    registry = Registry("server", "incarnation", lambda: "", 0, 511)
    monkeypatch.setattr(registry, "renew", renew)
    group = ReaderGroup(config(READER_PROCESSES="2"), 2, "incarnation", registry, SystemClock())
    table = _Named()
    monkeypatch.setattr(group.tables, "numbered", lambda numbers: dict.fromkeys(numbers, table))
    group.start(lambda request, _: request, ReadAdmission(ReadLimits(), LookedAt(), "this server"), lambda: 0)
    return group


async def test_a_group_that_stops_waits_for_no_later_view_and_asks_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """They stand behind a restore on the host's thread, which only the end of the stores stops."""
    asked: list[tuple[bool, bool]] = []

    async def renew(_: object, *, owned: bool, followed: bool) -> None:
        asked.append((owned, followed))
        await asyncio.Event().wait()

    group = await a_group(renew, monkeypatch)
    group._reported(behind_report(CopiesBehind(1, owned=False, standby=True)))
    await asyncio.sleep(0)
    (renewing,) = group._renewing.values()
    async with asyncio.timeout(LONG_SECONDS):
        await group.stop()
    assert renewing.cancelled()
    group._reported(behind_report(CopiesBehind(1, owned=True, standby=True)))
    await asyncio.sleep(0)
    assert asked == [(False, True)]
    assert not group._renewing


@pytest.mark.parametrize(("error", "level"), [(StoreFull("no room"), "INFO"), (RuntimeError("a bug"), "ERROR")])
async def test_why_a_state_can_t_be_shown_to_a_reader_is_told_with_a_traceback_where_it_is_a_bug(
    error: Exception, level: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def renew(*_: object, **__: object) -> None:
        raise error

    group = await a_group(renew, monkeypatch)
    group._reported(behind_report(CopiesBehind(1, owned=True, standby=False)))
    await asyncio.gather(*group._renewing.values())
    (record,) = [of for of in caplog.records if "can't be shown" in of.getMessage()]
    assert (record.levelname, record.exc_info is not None) == (level, level == "ERROR")
    await group.stop()


class _LateClock(LookedAt):
    def monotonic(self) -> float:
        return 1000.0 + self.late_seconds

    late_seconds = 0.0


async def test_a_frame_that_is_passed_on_has_what_is_left_of_its_time_and_is_dropped_unread_behind_that() -> None:
    """It had as long as it took: a server that was behind answered callers who had gone."""
    until: list[float | None] = []

    def pass_on(_: pb.LookupRequest, its: float | None) -> asyncio.Future[pb.LookupResponse]:
        until.append(its)
        return asyncio.get_running_loop().create_future()

    answers, _, call, _ = frames(pass_on, rate=0)
    clock: Any = answers._clock
    # The second one has come 0.4 s later than the first, by what its sender says; the third doesn't say when.
    for sent_ms, after in ((1000, 0.0), (1600, 1.0), (0, 0.0)):
        clock._now += after
        request = asked()
        request.sent_ms = sent_ms
        answers.frame(request, ANYBODY, call)
    unlimited = asked()
    unlimited.timeout_ms = 0
    answers.frame(unlimited, ANYBODY, call)
    assert until == [1001.0, pytest.approx(1001.6), 1002.0, None]

    registry = Registry("server", "incarnation", lambda: "", 0, 511)
    late = _LateClock()
    queries = QueryServicer(registry, late, lambda _: pytest.fail("nothing is watched"))
    answer = PassedOnFrames(queries, late).answer
    for late_seconds, dropped in ((0.5, 0), (1.25, 3)):
        late.late_seconds = late_seconds
        response = pb.LookupResponse.FromString(answer(asked(3).SerializeToString(), 1001.0))
        error = from_proto(response.failures[0].error)
        assert isinstance(error, DeadlineExceeded) == bool(dropped)
        assert queries.admission.expired == dropped
    # As if its caller had sent it so late: who knows better sends it again.
    assert error.facts["late_ms"] == "1250"
    assert registry.counts.elsewhere.failed["DEADLINE_EXCEEDED"] == 3


async def test_connections_that_a_reader_has_not_taken_yet_as_it_drains_are_taken_to_be_told() -> None:
    """They stood in its socket, where nobody would have closed them before the reader's end."""
    taken: list[socket.socket] = []
    port: Any = SimpleNamespace(take=taken.append, open_connections=0)
    sends, takes = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    coming = _Coming(takes.detach(), port)
    coming.begin()
    given, kept = socket.socketpair()
    for _ in range(2):
        socket.send_fds(sends, [b"\0"], [given.fileno()])
    coming.end()
    assert len(taken) == coming.ended == 2
    socket.send_fds(sends, [b"\0"], [given.fileno()])
    coming.end()
    assert len(taken) == 2
    for of in (*taken, given, kept, sends, coming._socket):
        of.close()


def test_what_is_said_of_changes_names_the_word_before() -> None:
    said: list[Shown] = []
    count = SharedCount.make()
    shown, tables = ShownTables(count, said.append), {}
    assert shown.all() == Shown(-1, 0, (), ())

    async def change(table: Any) -> None:
        shown._known[table] = tables.setdefault(table, len(tables))
        shown.changed(table)
        shown.changed(table)
        await asyncio.sleep(0)

    class Gone:
        changes, descriptor = SimpleNamespace(closed=True), SimpleNamespace(ttl_ms=0)

    for table in (Gone(), Gone()):
        asyncio.run(change(table))
    assert [(word.since, word.count) for word in said] == [(0, 2), (2, 4)]
    count.close()


class _Process:
    """One that ends when it is killed."""

    def __init__(self) -> None:
        self.killed = asyncio.Event()

    def send_signal(self, _: int) -> None:
        self.killed.set()

    async def wait(self) -> int:
        await self.killed.wait()
        return -9


async def reader_process(
    answer: AnswerPassedOn, reported: Callable[[ReaderReport], None] = lambda _: None
) -> tuple[ReaderProcess, socket.socket]:
    """A reader as its server sees it, and the reader's end of the pair."""
    ours, theirs = socket.socketpair()
    sends, takes = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    takes.close()
    process: Any = _Process()
    streams = await asyncio.open_unix_connection(sock=ours)
    theirs.setblocking(False)
    return ReaderProcess(1, process, streams, sends, answer, reported, SystemClock()), theirs


@pytest.mark.parametrize("runs", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_to_a_reader_that_has_ended_nothing_is_said_and_the_others_hear_what_they_are_to(runs: Any) -> None:
    async def main() -> None:
        reader, theirs = await reader_process(lambda request, _: request)
        theirs.close()
        reader._writer.transport.abort()
        await asyncio.sleep(0)
        reader.say(Drain())
        reader.tell(framed(Drain()))
        reader._sends.close()

    runs(main())


async def test_a_frame_that_fails_unexpectedly_is_told_to_be_and_the_next_one_is_answered() -> None:
    def answer(request: bytes, _: float | None) -> bytes:
        if request == b"bad":
            raise RecursionError("as of a bug")
        return request * 2

    reader, theirs = await reader_process(answer)
    ended = asyncio.create_task(reader.ended())
    read, write = await asyncio.open_unix_connection(sock=theirs)
    decoder = msgspec.msgpack.Decoder[ToReader](ToReader)
    for number, request in ((1, b"bad"), (2, b"good")):
        write.write(framed(PassedOn(number, request)))
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await read_word(read, decoder) == Answered(1, b"")
        assert await read_word(read, decoder) == Answered(2, b"goodgood")
    ended.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await ended
    write.close()


async def test_a_reader_that_the_server_cant_hear_any_more_is_ended_and_the_cause_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing that it passed on had an answer, until its silence was noticed."""

    def reported(_: ReaderReport) -> None:
        raise RuntimeError("as of a bug")

    reader, theirs = await reader_process(lambda request, _: request, reported)
    _, write = await asyncio.open_unix_connection(sock=theirs)
    counts, admission = ReaderCounts({}), ReadAdmission(ReadLimits(), LookedAt(), "this server")
    write.write(framed(counts.taken(admission, 0)))
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await reader.ended() == -9
    (record,) = [of for of in caplog.records if of.exc_info]
    assert "as of a bug" in caplog.text
    assert record.__dict__["number"] == 1
    write.close()
