"""Links carry what they are given, hold it back while they are cut, and break when they are told to."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress

import pytest

from keyhole.local.ports import free_ports
from keyhole.testing.network import Network
from tests.support.waiting import LONG_SECONDS

# The harness itself, without processes.
pytestmark = pytest.mark.core


@contextmanager
def echo() -> Iterator[int]:
    """A server that sends back what it gets; its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

        def answer(connection: socket.socket) -> None:
            with connection:
                while data := connection.recv(1024):
                    connection.sendall(data)

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def linked() -> Iterator[tuple[Network, socket.socket]]:
    """A network, and a connection through its only link."""
    network = Network()
    with echo() as target:
        (port,) = free_ports(1)
        network.link("a>b", port, target)
        with socket.create_connection(("127.0.0.1", port), timeout=LONG_SECONDS) as connection:
            assert exchanged(connection, b"hello")
            yield network, connection
        network.close()


def exchanged(connection: socket.socket, data: bytes) -> bool:
    connection.sendall(data)
    return connection.recv(1024) == data


@pytest.mark.parametrize(("there", "back"), [(True, True), (True, False), (False, True)])
def test_what_a_cut_link_held_back_arrives_when_it_is_healed(
    linked: tuple[Network, socket.socket], there: bool, back: bool
) -> None:
    network, connection = linked
    network.cut("a>b", there=there, back=back)
    connection.sendall(b"late")
    connection.settimeout(0.3)
    with pytest.raises(TimeoutError):
        connection.recv(1024)
    network.heal("a>b")
    connection.settimeout(LONG_SECONDS)
    assert connection.recv(1024) == b"late"


def test_a_slow_link_takes_its_time_both_ways(linked: tuple[Network, socket.socket]) -> None:
    network, connection = linked
    network.slow("a>b", 0.1)
    began = time.monotonic()
    assert exchanged(connection, b"slow")
    assert time.monotonic() - began >= 0.2


def test_a_reset_breaks_connections_and_new_ones_may_be_made(linked: tuple[Network, socket.socket]) -> None:
    network, connection = linked
    network.reset("a>b")
    with suppress(ConnectionResetError):
        assert connection.recv(1024) == b""
    with socket.create_connection(connection.getpeername(), timeout=LONG_SECONDS) as another:
        assert exchanged(another, b"again")


def test_where_answers_are_lost_what_is_asked_gets_through_and_the_connection_breaks() -> None:
    network = Network()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        (port,) = free_ports(1)
        network.link("a>b", port, listening.getsockname()[1])
        for lost in (True, False):
            with socket.create_connection(("127.0.0.1", port), timeout=LONG_SECONDS) as near:
                far, _ = listening.accept()
                with far:
                    if lost:
                        network.lose_answers("a>b")
                    near.sendall(b"asked")
                    assert far.recv(1024) == b"asked"
                    far.sendall(b"answered")
                    with suppress(ConnectionResetError) if lost else nullcontext():
                        assert near.recv(1024) == (b"" if lost else b"answered")
            network.heal("a>b")
    network.close()


def test_what_happens_to_a_link_happens_to_all_of_its_ports(linked: tuple[Network, socket.socket]) -> None:
    """Also to one that leads to another address of this machine's."""
    network, first = linked
    with socket.create_server(("127.0.0.2", 0)) as listening:
        (port,) = free_ports(1)
        network.link("a>b", port, listening.getsockname()[1], "127.0.0.2")
        with socket.create_connection(("127.0.0.1", port), timeout=LONG_SECONDS) as second:
            far, _ = listening.accept()
            with far:
                second.sendall(b"hello")
                assert far.recv(1024) == b"hello"
                network.cut("a>b")
                for connection in (first, second):
                    connection.sendall(b"late")
                for connection in (first, far):
                    connection.settimeout(0.3)
                    with pytest.raises(TimeoutError):
                        connection.recv(1024)
                network.heal("a>b")
                for connection in (first, far):
                    connection.settimeout(LONG_SECONDS)
                    assert connection.recv(1024) == b"late"


def test_where_nobody_listens_a_link_breaks_the_connection() -> None:
    network = Network()
    port, nobody = free_ports(2)
    network.link("a>b", port, nobody)
    with (
        socket.create_connection(("127.0.0.1", port), timeout=LONG_SECONDS) as connection,
        suppress(ConnectionResetError),
    ):
        assert connection.recv(1024) == b""
    network.close()
