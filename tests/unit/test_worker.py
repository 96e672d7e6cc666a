"""What Spark's workers are spared, and what they are not; and that they needn't wait for their rows."""

from __future__ import annotations

import gc
import os
import socket
import sys
import types
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from keyhole.spark.worker import worker_setup as worker
from keyhole.spark.worker.worker_setup import hasten_rows, spare_imports

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: TCP_QUICKACK")


@pytest.fixture(autouse=True)
def thawed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker, "_imported", 0)
    yield
    gc.unfreeze()


class _Node:
    other: _Node


def test_what_is_imported_is_left_out_and_what_comes_later_is_collected() -> None:
    spare_imports()
    assert gc.get_freeze_count() > 10_000
    node = _Node()
    node.other = node
    gone = weakref.ref(node)
    del node
    gc.collect()
    assert gone() is None


def test_garbage_that_is_there_already_is_collected_first() -> None:
    node = _Node()
    node.other = node
    gone = weakref.ref(node)
    del node
    spare_imports()
    assert gone() is None


def test_it_looks_again_only_where_more_was_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    # Of its own: a thread of another test may import something at any moment.
    modules = dict(sys.modules)
    monkeypatch.setattr(worker, "sys", types.SimpleNamespace(modules=modules))
    spare_imports()
    before = gc.get_freeze_count()
    kept = [_Node() for _ in range(1_000)]
    spare_imports()
    assert gc.get_freeze_count() <= before
    assert looked_at(kept) == len(kept)
    modules["imported_later"] = types.ModuleType("imported_later")
    spare_imports()
    # Not by their number: what others had is freed meanwhile.
    assert looked_at(kept) == 0


def looked_at(nodes: list[_Node]) -> int:
    """How many of them the collector looks through."""
    all_of_them = set(map(id, gc.get_objects()))
    return sum(id(node) in all_of_them for node in nodes)


def is_quick(connection: socket.socket) -> bool:
    return bool(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK))


def open_descriptors() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


@needs_linux
def test_what_is_due_on_a_connection_is_acknowledged_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as spark:
        worker, _ = server.accept()
        with worker:
            # Who answers puts its acknowledgements off: they may go along with the next answer.
            for _ in range(20):
                spark.sendall(b"task")
                worker.recv(4)
                worker.sendall(b"done")
                spark.recv(4)
            assert not is_quick(worker)
            hasten_rows()
            assert is_quick(worker)
            spark.sendall(b"rows")
            assert worker.recv(4) == b"rows"


@needs_linux
def test_what_is_no_connection_is_left_alone_and_nothing_stays_open(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, (tmp_path / "file").open("wb") as file, socket.socket(type=socket.SOCK_DGRAM):
        before = open_descriptors()
        for _ in range(10):
            hasten_rows()
        assert open_descriptors() == before
        ours.sendall(b"still here")
        assert theirs.recv(10) == b"still here"
        file.write(b"and here")
    assert (tmp_path / "file").read_bytes() == b"and here"


@needs_linux
def test_connections_go_on_waiting_where_somebody_has_set_a_default_timeout() -> None:
    before = socket.getdefaulttimeout()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as spark:
        socket.setdefaulttimeout(10)
        try:
            hasten_rows()
        finally:
            socket.setdefaulttimeout(before)
        assert os.get_blocking(spark.fileno())
        assert os.get_blocking(server.fileno())


def test_a_system_that_does_not_tell_what_is_open_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_descriptors", tmp_path / "nothing")
    hasten_rows()
