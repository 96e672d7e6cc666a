"""Ports of a stack on one machine."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from keyhole.errors import PortTaken
from keyhole.local import ports
from keyhole.local.ports import Claims, Reservations, free_ports
from tests.support.waiting import LONG_SECONDS

TAKES = """
import sys
from pathlib import Path
from keyhole.local.ports import Claims
claims = Claims(Path(sys.argv[1]))
print(claims.take(17_000), claims.take(17_001), flush=True)
sys.stdin.read()
"""

FORKS = """
import os, sys
from pathlib import Path
from keyhole.local.ports import Claims
ours = Claims(Path(sys.argv[1]))
assert ours.take(17_000)
child = os.fork()
if child == 0:
    taken = (ours.take(17_000), ours.take(17_001))
    os._exit(0 if taken == (False, True) else 1)
assert os.waitpid(child, 0)[1] == 0
assert (ours.take(17_000), ours.take(17_001)) == (False, True)
"""


def test_a_port_that_somebody_has_chosen_and_not_taken_yet_is_nobody_elses_until_they_end() -> None:
    with Reservations() as first:
        wanted = first.choose(free_ports(1)[0])
        with Reservations() as second:
            assert second.choose(wanted) != wanted
    with Reservations() as third:
        assert third.choose(wanted) == wanted


def test_a_process_is_told_no_port_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_its_own = Claims(tmp_path / "claims")  # or nobody else would be told any of them until this process ends
    monkeypatch.setattr(ports, "_claims", lambda: of_its_own)
    monkeypatch.setattr(ports, "_FIRST", 31_000)
    monkeypatch.setattr(ports, "_ATTEMPTS", 990)
    given: list[int] = []
    with contextlib.suppress(PortTaken):  # all others are somebody's by then
        while len(given) < 1000:
            given += free_ports(1)
    assert len(given) > 1
    assert len(set(given)) == len(given)


def test_what_another_process_has_claimed_is_its_own_until_it_is_killed(tmp_path: Path) -> None:
    ours = Claims(tmp_path / "ports")
    assert ours.take(17_001)
    other = subprocess.Popen(
        [sys.executable, "-c", TAKES, str(tmp_path / "ports")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True False\n"
        assert not ours.take(17_000)
        other.kill()
    assert ours.take(17_000)
    ours.give_back(17_000)
    ours.give_back(17_000)
    assert ours.take(17_000)


def test_a_fork_has_none_of_its_parents_ports_and_takes_none_away(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FORKS, str(tmp_path / "ports")], check=False, timeout=LONG_SECONDS)
    assert done.returncode == 0


def test_who_asks_for_thousands_gives_back_the_oldest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_CLAIMS_KEPT", 2)
    ours = Claims(tmp_path / "ports")
    assert [ours.take(port) for port in (1, 2, 3, 2, 1)] == [True, True, True, False, True]


def test_where_nothing_can_be_written_a_process_knows_its_own_ports_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ours = Claims(tmp_path / "file" / "ports")
    assert [ours.take(port) for port in (1, 2, 1)] == [True, True, False]
    ours.give_back(1)
    assert ours.take(1)
