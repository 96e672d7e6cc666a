"""Processes that are forked beside or after a client: they read, or are told at once what to do."""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
import threading
from pathlib import Path

import pytest

from keyhole import AsyncClient, Client
from keyhole.rpc import forked
from tests.support.forking import printed_by
from tests.support.proxies import fake_servers
from tests.support.readings import APPLICATION, STATE, descriptor, rows
from tests.support.waiting import LONG_SECONDS

_REFUSED = "Unsupported: this process was forked from one that had a connection of gRPC open"


async def test_a_client_that_was_not_used_before_the_fork_works_in_child_and_parent() -> None:
    assert await printed_by("made_before") == ["child: 1.0", "parent: 1.0"]


async def test_a_client_that_was_used_before_the_fork_says_so_at_once_in_the_child() -> None:
    first, child, closing, last = await printed_by("used_before")
    assert (first, closing, last) == ("parent: 1.0", "child that closes: closed", "parent: 1.0")
    assert child.startswith(f"child: {_REFUSED}")
    assert "Close all clients" in child
    assert "spawn" in child


async def test_a_mirror_that_has_begun_before_the_fork_says_so_at_once_in_the_child() -> None:
    first, child, closing, last = await printed_by("mirrored_before")
    assert (first, closing, last) == ("parent: 1.0", "child that closes: closed", "parent: 1.0")
    assert child.startswith(f"child: {_REFUSED}")


async def test_a_scan_and_a_watch_that_have_begun_before_the_fork_say_so_at_once_in_the_child() -> None:
    first, scanned, watched, closing, last = await printed_by("streamed_before")
    assert first.startswith("parent: ")
    assert last.startswith("parent: ")
    assert closing == "child that closes: closed"
    for child in (scanned, watched):
        assert child.startswith(f"child: {_REFUSED}")


async def test_another_client_in_the_child_says_the_same_while_the_parents_is_open() -> None:
    parent, child = await printed_by("another_in_the_child")
    assert parent == "parent: 1.0"
    assert child.startswith(f"child: {_REFUSED}")


async def test_children_and_grandchildren_read_where_clients_are_closed_before_each_fork() -> None:
    assert await printed_by("closed_before") == 3 * ["parent: 1.0", "grandchild: 1.0", "child: 1.0"]


async def test_a_connection_of_another_library_is_as_one_of_ours() -> None:
    """While gRPC's support of forks is off, as it is by default beside Keyhole."""
    beside, after = await printed_by("beside_another_library")
    assert beside.startswith(f"child: {_REFUSED}")
    assert after == "child: 1.0"


async def test_a_fork_at_the_moment_at_which_a_connection_ends_leaves_no_child_that_waits_for_ever() -> None:
    """gRPC's last thread holds a lock that no child would get."""
    lines = await printed_by("closed_this_moment")
    assert len(lines) == 20
    # One whose connection takes longer to end is refused, and not waited for.
    assert all(line == "child: 1.0" or line.startswith(f"child: {_REFUSED}") for line in lines), lines


@pytest.mark.parametrize("name", ["event_engine", "lifeguard", "grpc_shutdown"])
def test_a_thread_of_grpcs_is_known_by_its_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked, "_TASKS", tmp_path)
    for number, of in enumerate(("python", "grpc_global_tim", name)):
        assert not forked.has_threads()
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "comm").write_text(f"{of}\n")
    assert forked.has_threads()


async def test_with_grpcs_support_of_forks_a_synchronous_connection_of_another_library_is_no_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GRPC_ENABLE_FORK_SUPPORT", "1")
    assert await printed_by("beside_another_library") == ["child: 1.0", "child: 1.0"]


async def test_a_client_of_a_module_works_in_the_processes_of_a_pool() -> None:
    assert await printed_by("in_a_pool") == ["1.0 1.0 1.0 1.0"]


async def test_a_child_that_is_forked_in_the_middle_of_calls_is_told_so() -> None:
    lines = await printed_by("among_readers")
    assert len(lines) == 5
    assert all(child.startswith(f"child: {_REFUSED}") for child in lines)


async def test_an_async_client_that_was_not_used_before_the_fork_works_in_the_child() -> None:
    assert await printed_by("async_made_before") == ["child: 1.0"]


@pytest.mark.parametrize("scenario", ["async_used_before", "async_loop_taken_along"])
async def test_an_async_client_that_was_used_before_the_fork_says_so_at_once_in_the_child(scenario: str) -> None:
    parent, child, *_ = await printed_by(scenario)
    assert parent == "parent: 1.0"
    assert child.startswith(f"child: {_REFUSED}")


async def test_a_client_that_asks_the_servers_itself_is_as_any_other_and_leaves_no_thread_and_no_socket() -> None:
    first, child, last, after, threads, sockets = await printed_by("direct_used_before", by_proxy=True)
    assert (first, last, after) == ("parent: 1.01.0", "parent: 1.01.0", "child: 1.01.0")
    assert child.startswith(f"child: {_REFUSED}")
    assert (threads, sockets) == ("threads: ['MainThread']", "sockets: []")


async def test_children_end_as_ever_beside_the_parents_client() -> None:
    """With gRPC's own support of forks one of four was killed."""
    assert await printed_by("end_as_ever") == ["parent: 1.0", "children ended with {3: 30}"]


async def test_gRPCs_support_of_forks_is_off_for_this_process_alone_unless_somebody_wants_it() -> None:  # noqa: N802
    look = (
        "import os, keyhole.client; from keyhole.rpc.forked import fork_support; "
        "print(fork_support(), os.environ.get('GRPC_ENABLE_FORK_SUPPORT'))"
    )
    printed = []
    for wanted in ({}, {"GRPC_ENABLE_FORK_SUPPORT": "1"}):
        environment = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"} | wanted
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", look, env=environment, stdout=asyncio.subprocess.PIPE
        )
        printed.append((await process.communicate())[0].decode().strip())
    assert printed == ["False None", "True 1"]


async def test_whether_grpc_has_a_connection_open_is_known() -> None:
    """By a thread of gRPC's whose name is not promised: this fails where another version has renamed it."""
    async with fake_servers("a") as (server,):
        server.host(descriptor(), rows(1))
        assert forked.polling()
        with Client(server.address, timeout=LONG_SECONDS) as client:
            await asyncio.to_thread(client.get, APPLICATION, STATE, "sensor-0")
            assert any(thread.name.startswith("keyhole-client") for thread in threading.enumerate())


def test_a_client_that_is_pickled_says_where_to_make_one() -> None:
    for client in (Client("localhost:7400"), AsyncClient("localhost:7400")):
        with pytest.raises(TypeError, match="in the process that uses it"):
            pickle.dumps(client)
