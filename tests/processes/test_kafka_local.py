"""The embedded broker as such."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient

from keyhole.changelog.kafka.admin import Topics
from keyhole.changelog.kafka.clients import Deadline
from keyhole.errors import MachineError, PortTaken
from keyhole.local.java import Java
from keyhole.local.kafka import LocalKafka
from keyhole.local.ports import accepts, free_ports, is_free
from keyhole.testing.network import Network
from tests.support.waiting import LONG_SECONDS, until


def port_of(broker: LocalKafka) -> int:
    return int(broker.bootstrap_servers.rsplit(":", 1)[1])


def test_it_starts_fast_serves_on_one_port_for_life_and_leaves_nothing_running(
    tmp_path: Path, jars: list[Path], java: Java
) -> None:
    others = set(psutil.Process().children())  # the session's broker, and Spark
    broker = LocalKafka(tmp_path, jars, java)
    broker.start()
    port, pid = port_of(broker), broker.pid
    assert accepts(port)
    broker.kill()
    assert broker.pid is None
    broker.restart()
    assert port_of(broker) == port
    assert broker.pid != pid
    broker.stop()
    broker.stop()
    assert is_free(port)
    assert set(psutil.Process().children()) <= others


def test_a_folder_may_have_any_name_and_its_data_are_found_again(tmp_path: Path, jars: list[Path], java: Java) -> None:
    directory = tmp_path / "Bücher, neu"
    with LocalKafka(directory, jars, java) as broker:
        Topics(broker.bootstrap_servers).ensure("kept", 1, Deadline(LONG_SECONDS))
        broker.kill()
        broker.restart()
        metadata = AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=LONG_SECONDS)
        assert "kept" in metadata.topics
    assert (directory / "data" / "kept-0").is_dir()
    assert list(tmp_path.iterdir()) == [directory]


def test_a_port_that_is_taken_is_named(tmp_path: Path, jars: list[Path], java: Java) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortTaken, match=f"listens on 127.0.0.1:{port}"):
            LocalKafka(tmp_path, jars, java, port=port).start()


def test_who_comes_by_a_relayed_port_is_told_to_come_back_by_the_relay(
    tmp_path: Path, jars: list[Path], java: Java
) -> None:
    inside, relay = free_ports(2)
    network = Network()
    # A client that has heard where to come back may ask there at once: the relay has to be one.
    network.link("client>kafka", relay, inside)
    try:
        with LocalKafka(tmp_path, jars, java, relayed={inside: relay}) as broker:
            for port, advertised in ((inside, relay), (port_of(broker), port_of(broker))):
                metadata = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"}).list_topics(timeout=LONG_SECONDS)
                assert [known.port for known in metadata.brokers.values()] == [advertised]
    finally:
        network.close()


def test_a_broker_that_does_not_start_says_why(tmp_path: Path, jars: list[Path], java: Java) -> None:
    broker = LocalKafka(tmp_path, jars, java, settings={"num.io.threads": "none"})
    with pytest.raises(MachineError, match=r"kafka\.log"):
        broker.start()
    assert "num.io.threads" in broker.log.read_text()
    assert broker.pid is None


def test_it_dies_with_a_parent_that_is_killed(tmp_path: Path, jars: list[Path], java: Java) -> None:
    script = (
        "import pathlib, sys, time\n"
        "from keyhole.local.java import Java\n"
        "from keyhole.local.kafka import LocalKafka\n"
        f"java = Java(pathlib.Path({str(java.executable)!r}), {java.version})\n"
        f"broker = LocalKafka(pathlib.Path({str(tmp_path)!r}), [pathlib.Path(p) for p in sys.argv[1:]], java)\n"
        "broker.start()\n"
        "print(broker.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, *map(str, jars)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        os.kill(parent.pid, signal.SIGKILL)
    until(lambda: not lives(pid), LONG_SECONDS)


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
