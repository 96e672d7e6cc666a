"""What `keyhole top` shows: rates between two looks, who has gone, and as much of it as a terminal has room for."""

from __future__ import annotations

import io
from typing import Any, cast

import pytest
from rich.console import Console
from rich.text import Text

from keyhole import Client
from keyhole.cli.status_watch import StatusRounds
from keyhole.cli.top.looks import SILENT, ClusterLook
from keyhole.cli.top.overview import Overview
from keyhole.cli.top.screen import lines_of, screen_of
from keyhole.client.server_status import ServerStatus, status_from_proto
from keyhole.errors import ServerLost
from keyhole.terminal.fitting import fitted, shortly
from keyhole.terminal.rounds import Rounds, show_rounds
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import state_pb2, stats_pb2

STATE = state_pb2.StateDescriptor(application="shop", state="totals", query="totals", key_groups=4)
NOW_MS = 1_000_000


def server(name: str, *groups: int, **fields: Any) -> pb.ServerStatus:
    source = state_pb2.Source(role="ROLE_OWNER", commit_time_ms=NOW_MS - 5_000, as_of_ms=NOW_MS - 1_000)
    held = pb.StateHolding(descriptor=STATE, key_groups=groups, source=source, ready=True, entries=10, bytes=2048)
    status = {"server": name, "address": f"{name}:1", "started_ms": NOW_MS - 60_000, **fields}
    return pb.ServerStatus(holdings=[held], **status)


def figures(rows: float, reads: float) -> stats_pb2.ReadStatsResponse:
    def family(what: str, value: float) -> stats_pb2.MetricFamily:
        sample = stats_pb2.MetricSample(labels=["a", "shop", "totals"], value=value)
        labels = ["server", "application", "state"]
        return stats_pb2.MetricFamily(name=f"keyhole_state_server_{what}", labels=labels, samples=[sample])

    families = [family("committed_rows_total", rows), family("lookup_keys_total", reads)]
    return stats_pb2.ReadStatsResponse(component="COMPONENT_STATE_SERVER", families=families)


def look(at: float, *servers: pb.ServerStatus, **stats: stats_pb2.ReadStatsResponse) -> ClusterLook:
    return ClusterLook(at, NOW_MS, servers, [STATE], {f"{name}:1": of for name, of in stats.items()})


def test_rates_are_of_the_time_between_two_looks_and_begin_anew_with_a_server() -> None:
    overview = Overview()
    overview.take(look(10, server("a", 0, 1), server("b", 2, 3), a=figures(100, 50), b=figures(0, 0)))
    assert {row["reads_per_second"] for row in overview.servers() + overview.states()} == {None}
    overview.take(look(12, server("a", 0, 1), server("b", 2, 3), a=figures(300, 60), b=figures(20, 0)))
    assert [row["rows_per_second"] for row in overview.servers()] == [100, 10]
    (state,) = overview.states()
    assert (state["rows_per_second"], state["reads_per_second"], state["is"]) == (110, 5, "ok")
    assert (state["staleness_seconds"], state["commit_age_seconds"]) == (1, 5)
    assert (state["entries"], state["bytes"], state["key_groups"]) == (20, 4096, 4)
    # b has started again, and a is out of reach from here.
    overview.take(look(14, server("a", 0, 1), server("b", 2, 3), b=figures(8, 0)))
    assert [row["rows_per_second"] for row in overview.servers()] == [None, 4]


def test_one_of_a_proxys_processes_that_has_started_again_does_not_make_the_others_seem_new() -> None:
    def looked_up(*keys: float) -> stats_pb2.ReadStatsResponse:
        family = stats_pb2.MetricFamily(
            name="keyhole_client_proxy_lookup_keys_total", labels=["proxy", "application", "state"]
        )
        for number, count in enumerate(keys):
            family.samples.add(labels=[f"here:7400/{number}", "shop", "totals"], value=count)
        return stats_pb2.ReadStatsResponse(component="COMPONENT_CLIENT_PROXY", families=[family])

    overview = Overview()
    for at, figures_of_proxy in (
        (1.0, looked_up(5_000, 7_000)),
        (2.0, looked_up(3, 7_010)),
        (3.0, looked_up(4, 7_020, 6)),
    ):
        overview.take(look(at, server("a", 0, 1), proxy=figures_of_proxy))
        ([row],) = [overview.states()]
        assert row["reads_per_second"] == {1.0: None, 2.0: 13, 3.0: 17}[at]


def test_servers_that_go_away_and_states_with_something_wrong_are_shown_as_such() -> None:
    overview = Overview()
    overview.take(look(10, server("a", 0, 1), server("b", 2, 3)))
    overview.take(look(12, server("a", 0, 1), server("b", unreachable="connection refused")))
    assert [row["is"] for row in overview.servers()] == ["ok", "unreachable: connection refused"]
    (state,) = overview.states()
    assert state["is"] == "2 key groups can't be read; 2 key groups without owner"
    overview.take(look(42, server("a", 0, 1, draining=True)))
    assert [row["is"] for row in overview.servers()] == ["draining", "gone for 30 s: the proxy knows it no more"]
    # What was known last stays where no proxy answers.
    overview.take(ClusterLook(50, NOW_MS, error=ServerLost("proxy:7400 can't be reached")))
    assert (overview.error, overview.silent_seconds, len(overview.servers())) == ("proxy:7400 can't be reached", 8, 2)
    lines = lines_of(overview, "proxy:7400")
    assert "proxy proxy:7400: proxy:7400 can't be reached" in lines[0]
    assert "state shop/totals: 2 key groups can't be read" in lines[-1]


def test_servers_that_are_there_come_first_and_alone_are_counted() -> None:
    overview = Overview()
    overview.take(look(10, server("a", 0, 1), server("b", 2, 3), server("c")))
    overview.take(look(12, server("c", 0, 1), server("b", 2, 3)))
    assert [row["server"] for row in overview.servers()] == ["b", "c", "a"]
    file = io.StringIO()
    Console(file=file, width=200, color_system=None).print(screen_of(overview, "proxy:7400", 200, 24))
    assert "servers: 2, states: 1" in file.getvalue()


def test_a_server_that_has_come_again_at_another_address_is_not_gone() -> None:
    overview = Overview()
    overview.take(look(10, server("a", 0, 1), server("b", 2, 3)))
    overview.take(look(12, server("a", 0, 1, address="elsewhere:1")))
    overview.take(look(14, server("a", 0, 1, address="elsewhere:1")))
    assert [(row["server"], row["address"]) for row in overview.servers()] == [("a", "elsewhere:1"), ("b", "b:1")]
    assert overview.servers()[1]["is"] == "gone for 4 s: the proxy knows it no more"


def test_status_shows_servers_that_are_there_first_and_none_that_has_come_again_elsewhere() -> None:
    class Proxy:
        answers = (("a", "a:1"), ("b", "b:1"), ("c", "c:1")), (("b", "new:1"), ("c", "c:1"))

        def __init__(self) -> None:
            self.rounds = iter(self.answers)

        def status(self) -> list[ServerStatus]:
            return [status_from_proto(pb.ServerStatus(server=of, address=address)) for of, address in next(self.rounds)]

    status = StatusRounds(cast("Client", Proxy()))
    status.look()
    status.look()
    assert [(row["address"], row["unreachable"]) for row in status.servers()] == [
        ("new:1", None),
        ("c:1", None),
        ("a:1", "gone: the proxy knows it no more"),
    ]


def test_who_tells_no_figures_is_named_and_late_ones_count_by_their_own_time() -> None:
    overview = Overview()
    overview.take(look(10, server("a", 0, 1), server("b", 2, 3), a=figures(100, 0)))
    # What b was asked for in the round before came a second before this one.
    late = look(12, server("a", 0, 1), server("b", 2, 3), a=figures(300, 0), b=figures(0, 0))
    overview.take(late._replace(figured_at={"b:1": 11.0}, silent={"proxy:7400": SILENT}))
    assert [row["is"] for row in overview.servers()] == ["ok", "ok"]
    assert lines_of(overview, "other:7400,proxy:7400")[0].endswith("proxy proxy:7400: does not answer here")
    now = look(14, server("a", 0, 1), server("b", 2, 3, draining=True), b=figures(30, 0))
    overview.take(now._replace(silent={"a:1": SILENT}))
    assert [row["rows_per_second"] for row in overview.servers()] == [None, 10]
    assert [row["is"] for row in overview.servers()] == ["ok; does not answer here", "draining"]
    assert overview.silent() == {"a:1": SILENT}
    # Between are four seconds.
    overview.take(look(16, server("a", 0, 1), server("b", 2, 3), a=figures(700, 0)))
    assert [row["rows_per_second"] for row in overview.servers()] == [100, None]


@pytest.mark.parametrize(("width", "height"), [(20, 5), (40, 12), (60, 24), (200, 60)])
def test_whatever_the_size_of_the_terminal_no_line_is_longer(width: int, height: int) -> None:
    overview = Overview()
    servers = [server(f"server-{n}", n % 4) for n in range(30)]
    overview.take(look(10, *servers))
    file = io.StringIO()
    console = Console(file=file, width=width, height=height, force_terminal=True, no_color=True, color_system=None)
    console.print(screen_of(overview, "127.0.0.1:7400", width, height))
    lines = [Text.from_ansi(line).plain.rstrip() for line in file.getvalue().splitlines()]
    assert max(map(len, lines)) <= width
    assert len(lines) <= max(height, 16)
    assert any("and" in line for line in lines) or height == 60
    if width >= 40:
        assert any(line.startswith("shop/totals") for line in lines)


def test_columns_that_matter_least_go_first_and_control_characters_are_written_out() -> None:
    rows = [{"server": "a\x1b[31m", "is": "ok", "reads_per_second": 3.25, "address": "somewhere:1"}]

    def shown(room: int) -> str:
        file = io.StringIO()
        Console(file=file, width=room, color_system=None).print(fitted(rows, room))
        return file.getvalue()

    assert "somewhere:1" in shown(80)
    assert r"a\x1b[31m" in shown(80)
    assert "somewhere:1" not in shown(34)
    assert "3.2" in shown(34)
    assert "3.2" not in shown(16)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("staleness_seconds", 0.26, "0.3 s"),
        ("staleness_seconds", 90, "2 min"),
        ("staleness_seconds", 7_300, "2 h"),
        ("staleness_seconds", 400_000, "5 d"),
        ("bytes", 100, "100 B"),
        ("memory_bytes", 3_500_000, "3.3 MiB"),
        ("disk_bytes", 20 * 2**40, "20 TiB"),
        ("reads_per_second", 0.04, "0.0"),
        ("reads_per_second", 12_345.6, "12,346"),
        ("entries", 1_000_000, "1,000,000"),
        ("epoch", None, "-"),
    ],
)
def test_figures_are_short(name: str, value: Any, shown: str) -> None:
    assert shortly(name, value) == shown


@pytest.mark.parametrize("is_terminal", [True, False])
def test_rounds_end_at_ctrl_c_and_leave_the_terminal_as_it_was(is_terminal: bool) -> None:
    file, said = io.StringIO(), []
    console = Console(file=file, force_terminal=is_terminal, width=40, height=10, _environ={"TERM": "xterm"})
    looks = 0

    def one_look() -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            raise KeyboardInterrupt

    show_rounds(console, Rounds(0.0, None), one_look, lambda: Text(f"round {looks}"), lambda: said.append(looks))
    assert looks == 3
    if is_terminal:
        alternate, normal, cursor = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"
        written = file.getvalue()
        assert written.index(alternate) < written.rindex(normal)
        assert cursor in written
        assert written[written.rindex(normal) :].strip().endswith("round 3")
    else:
        assert (said, file.getvalue()) == ([1, 2], "")
    show_rounds(console, Rounds(0.0, 2), lambda: None, lambda: "", lambda: None)
