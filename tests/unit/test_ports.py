"""Ports of a stack on one machine."""

from __future__ import annotations

from pathlib import Path

from keyhole.local.ports import Reservations, free_ports


def test_a_port_that_somebody_has_chosen_and_not_taken_yet_is_nobody_elses_until_they_end(tmp_path: Path) -> None:
    (wanted,) = free_ports(1)
    with Reservations(tmp_path / "ports") as first:
        assert first.choose(wanted) == wanted
        with Reservations(tmp_path / "ports") as second:
            assert second.choose(wanted) != wanted
    with Reservations(tmp_path / "ports") as third:
        assert third.choose(wanted) == wanted


def test_where_nothing_can_be_written_a_port_is_chosen_all_the_same(tmp_path: Path) -> None:
    (wanted,) = free_ports(1)
    (tmp_path / "file").touch()
    with Reservations(tmp_path / "file" / "ports") as ports:
        assert ports.choose(wanted) == wanted
